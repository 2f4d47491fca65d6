"""``schemaless shards``: a file for what each of its commands does."""
