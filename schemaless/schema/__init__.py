"""Tables: described once, created, and upgraded by Alembic revisions."""
