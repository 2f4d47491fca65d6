"""The change feed: a shard's cells in ``added_id`` order, none skipped."""
