"""Online moves of shards between clusters."""
