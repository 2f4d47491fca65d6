"""A shard's log of erased cells, from which followers learn what was erased, and the followers' acknowledgements.

Events are numbered 1, 2, 3 and so on. A follower handles them in order, after the pages of the feed that it has read,
and then records the last one, which acknowledges all events up to it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from schemaless.cell import CellKey, ErasedCell
from schemaless.store.followers import sql
from schemaless.topology.shards import Shards

EVENTS_PER_READ = 500


@dataclass(frozen=True, slots=True)
class ErasureEvent:
    """An event of the log.

    Attributes:
        erased: the erased cell.
        entry_shards: shards in which indexes may have an entry made from the cell, as JSON text, keyed by index number;
            None if unknown.
    """

    erased: ErasedCell
    entry_shards: str | None


class ErasureLog:
    """A datastore's logs of erased cells.

    Args:
        shards: the datastore's shards.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def events(self, shard: int, after: int, limit: int = EVENTS_PER_READ) -> list[ErasureEvent]:
        """Return the next events of a shard, in order."""
        rows = self._shards.rows(shard, sql.select_events(self._shards.database(shard), after, limit))
        return [
            ErasureEvent(ErasedCell(event_id, erasure, key, added_id, datetime.fromisoformat(at)), entry_shards)
            for event_id, erasure, added_id, row_key, *version, entry_shards, at in rows
            for key in [CellKey(uuid.UUID(bytes=row_key), *version)]
        ]

    def acknowledged(self, shard: int) -> Mapping[str, int]:
        """Return the number of the last event that each follower of a shard has handled, by follower name."""
        rows = self._shards.rows(shard, sql.select_acknowledged(self._shards.database(shard)))
        return dict(rows)
