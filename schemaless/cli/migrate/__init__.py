"""Commands of ``schemaless migrate``, one file each."""
