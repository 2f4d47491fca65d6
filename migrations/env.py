"""Refuses Alembic's own command line: it knows neither the shards nor how an interrupted upgrade goes on."""

from __future__ import annotations

from alembic.util import CommandError

raise CommandError("these revisions run through the command 'schemaless schema upgrade', not through alembic's own")
