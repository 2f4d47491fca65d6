"""Access to the catalog's job tables, and the conversion of values in their rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from schemaless.errors import ServerError
from schemaless.store.internals import Internals
from schemaless.wire.connection import Connection

T = TypeVar("T")


class JobCatalog:
    """Runs statements on the job tables.

    Attributes:
        reads: approximate number of SELECTs sent.
    """

    def __init__(self, internals: Internals) -> None:
        self.reads: int = 0
        self._internals = internals

    def rows(self, statement: bytes) -> tuple[tuple[Any, ...], ...]:
        """Return the rows of a query."""
        self.reads += 1
        return self.run(lambda connection: connection.rows(statement), writes=False)

    def execute(self, statement: bytes) -> int:
        """Run a statement that is safe to repeat, and return the number of affected rows."""
        return self.run(lambda connection: connection.execute(statement).affected)

    def run(self, operation: Callable[[Connection], T], *, writes: bool = True) -> T:
        """Run an operation on the catalog's server; see ``NodePool.run``."""
        try:
            return self._internals.catalog.run(operation, writes=writes)
        except ServerError:
            # Refresh the routing, so that a retry reaches the catalog's current server after a failover.
            self._internals.shards.router.again(self._internals.shards.routing)
            raise


def from_json(value: str | None) -> dict[str, Any]:
    """Parse a JSON object; return an empty dict for NULL."""
    return {} if value is None else dict(json.loads(value))


def parse_time(value: str) -> datetime:
    """Parse a DATETIME from the catalog as UTC."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
