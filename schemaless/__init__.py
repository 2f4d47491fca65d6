"""An append-only cell store on sharded MySQL."""
