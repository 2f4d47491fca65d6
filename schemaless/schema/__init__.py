"""Table definitions, their creation, and their upgrade by Alembic revisions."""
