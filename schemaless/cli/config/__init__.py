"""Names for datastores, on the command line."""
