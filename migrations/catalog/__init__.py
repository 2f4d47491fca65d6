"""Revisions of the catalog database."""
