"""``schemaless capacity``: a file for each of its commands."""
