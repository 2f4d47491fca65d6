"""Table definitions, and the creation of tables and their upgrade by Alembic revisions."""
