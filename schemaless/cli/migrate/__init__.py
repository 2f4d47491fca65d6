"""``schemaless migrate``: a file for each of its commands."""
