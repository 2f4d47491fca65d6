"""Statements about the catalog, replicas and shards being moved."""
