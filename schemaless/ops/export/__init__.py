"""Incremental export to Parquet: an exporter follows the change feed, and a manifest lists the files."""
