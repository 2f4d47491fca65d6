"""Terminal output: messages, tables, progress, and files that are written atomically."""
