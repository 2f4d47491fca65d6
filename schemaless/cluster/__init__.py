"""Decisions about where a cell lives; pure."""
