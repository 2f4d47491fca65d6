"""Changes to a datastore's servers: replicas, clusters, failovers, and what a failover lost."""
