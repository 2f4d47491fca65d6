"""``schemaless local``: a file for each of its commands."""
