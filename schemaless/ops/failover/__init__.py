"""Changes to a datastore's servers: clusters, replicas, failovers, and cells lost in a failover."""
