"""Status, metrics and tracing."""
