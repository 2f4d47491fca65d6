"""``schemaless bench``: a file for each of its commands."""
