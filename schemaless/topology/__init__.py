"""Which server holds which shard: placement, catalog, routing and replication."""
