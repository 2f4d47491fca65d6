"""Converts documents to stored bytes and back, without sockets or configuration. ``FORMAT.md`` describes the bytes."""
