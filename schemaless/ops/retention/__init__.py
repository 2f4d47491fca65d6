"""Retention: erases cells that their column's policy does not keep, except in rows under a legal hold."""
