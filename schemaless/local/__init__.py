"""Private MySQL servers for a laptop, a demo or a test run, without root or Docker."""
