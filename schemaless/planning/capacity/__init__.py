"""Capacity: measure a datastore, forecast its growth, and report how long the disks last."""
