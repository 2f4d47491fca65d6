"""Which codec, on your documents."""
