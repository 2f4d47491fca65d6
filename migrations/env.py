"""Runs the revisions of one branch on the connection that ``schemaless.mysql.schema`` hands in."""

from __future__ import annotations

from alembic import context
from alembic.util import CommandError

connection = context.config.attributes.get("connection")
if connection is None:
    raise CommandError("these revisions run through the command 'schemaless schema upgrade', not through alembic's own")

context.configure(connection=connection, target_metadata=context.config.attributes["metadata"])
with context.begin_transaction():
    context.run_migrations()
