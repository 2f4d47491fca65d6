"""Documents to stored bytes and back: no sockets, no configuration. ``FORMAT.md`` describes the bytes."""
