"""Commands of ``schemaless bench``, one per module."""
