"""The migration: re-encoding bodies in place, its plan, its archive, its proof."""
