"""Followers of the change feed: who reads a shard's cells as they come, how far, and what is done with them."""
