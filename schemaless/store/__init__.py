"""The product: a datastore of cells."""
