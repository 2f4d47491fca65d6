"""Alembic: one environment, two branches of revisions."""
