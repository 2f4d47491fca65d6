"""``schemaless topology``, with one module per command."""
