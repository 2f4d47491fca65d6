"""Statements about the catalog, replicas and tables on the move."""
