"""The job engine: long-running datastore work that can be paused, shared between machines and resumed after a crash."""
