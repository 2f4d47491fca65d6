"""Revisions of a shard database."""
