"""Metrics of a datastore for Prometheus."""
