"""Shards moved from one cluster to another, online."""
