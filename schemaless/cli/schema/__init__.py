"""``schemaless schema``: a file for each of its commands."""
