"""The job engine: long work over a datastore that can be paused, shared between machines and resumed after a crash."""
