"""Secondary indexes: definition, queries, entries, and the follower that keeps them current."""
