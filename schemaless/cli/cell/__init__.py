"""``schemaless cell``: a file for each of its commands."""
