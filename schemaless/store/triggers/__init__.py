"""Triggers: user functions that are called for each new cell."""
