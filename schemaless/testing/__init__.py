"""Support for applications' tests: a pytest plugin, private servers and reusable datastores."""
