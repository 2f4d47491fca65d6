"""Which server holds which shard: placement, catalog, routing, replication."""
