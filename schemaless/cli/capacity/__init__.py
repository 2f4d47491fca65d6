"""Commands of ``schemaless capacity``, one per module."""
