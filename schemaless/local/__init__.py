"""Private MySQL servers for a laptop, a demo, a test run: no root, no Docker."""
