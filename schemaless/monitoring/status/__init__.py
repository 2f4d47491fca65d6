"""Live status of a datastore: one collector that serves the terminal, JSON and the status page."""
