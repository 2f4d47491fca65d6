"""Retention: erases cells that their column's policy does not keep, except those of rows under a legal hold."""
