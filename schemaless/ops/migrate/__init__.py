"""Migrations: re-encode bodies in place, archive and restore the originals, verify the result, rebuild the tables."""
