"""Long, pausable work over a datastore."""
