"""``schemaless schema``, with one module per command."""
