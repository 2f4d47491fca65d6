"""``schemaless topology``: a file for each of its commands."""
