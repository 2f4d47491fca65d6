"""``schemaless codec``: a file for each of its commands."""
