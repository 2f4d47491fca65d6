"""Consumers of the change feed: membership, leases, checkpoints and the worker loop."""
