"""Erases cells of one shard: replaces bodies with tombstones and logs each cell, in small transactions.

Every transaction first locks the shard's log of erased cells. Events therefore become visible in order and without
gaps, and a cell is logged once. Everything is safe to repeat: a cell that was erased is not erased again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from schemaless.base.interrupts import advising
from schemaless.base.parts import grouped
from schemaless.cell import Erased, StoredCell
from schemaless.codec.deltas import payload_bytes
from schemaless.codec.envelope import tombstone
from schemaless.errors import AccessDenied, CorruptBody, InvalidInput
from schemaless.store.cells.bases import with_bases
from schemaless.store.cells.reading import ADDED_ID, ROW_KEY, Reader, only_requested
from schemaless.store.cells.sql import select_by_id
from schemaless.store.erasures import sql
from schemaless.store.erasures.dependents import Cleared, Pair, dependents, whole_bodies
from schemaless.store.erasures.ledger import Erasure, Ledger, Target, completed_by
from schemaless.store.followers.erasures import ErasureLog
from schemaless.store.followers.sql import select_last_event
from schemaless.store.followers.states import DIED
from schemaless.store.indexes.registry import IndexEntry, Registry
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection
from schemaless.wire.errors import reworded
from schemaless.wire.pool import NodePool
from schemaless.wire.transactions import naming_users

MAX_CELLS: Final = 500
"""Maximum number of cells per transaction."""

_MAX_TARGETS: Final = 100
"""Maximum number of targets per statement."""

_MISSING_SHOWN: Final = 10
_MAX_BYTES: Final = 4 << 20
"""Maximum size of the bodies per transaction, unless a single one is larger, in bytes."""

Seen = Callable[[StoredCell], None]
"""Receives each cell before it is erased, with its body; may be called again for the same cell."""


class Batch(NamedTuple):
    """Result of erasing some cells.

    Attributes:
        ids: added_ids of the erased cells, without those that had already been erased.
        body_bytes: size of their bodies before the erasure.
    """

    ids: tuple[int, ...] = ()
    body_bytes: int = 0

    @property
    def cells(self) -> int:
        """Number of erased cells."""
        return len(self.ids)


class ShardEraser:
    """Erases cells of one shard on behalf of one erasure, which must be in the ledger.

    Args:
        shards: the datastore's shards.
        reader: decodes bodies for the indexes.
        registry: the catalog's list of indexes.
        shard: number of the shard.
        erasure: number of the erasure.
        seen: receives each cell before it is erased; if given, all bodies are read.

    Attributes:
        max_cells: maximum number of cells per transaction; may be changed at any time.
    """

    def __init__(
        self,
        shards: Shards,
        reader: Reader,
        registry: Registry,
        shard: int,
        erasure: int,
        seen: Seen | None = None,
    ) -> None:
        self.shard = shard
        self.erasure = erasure
        self.max_cells = MAX_CELLS
        self._shards = shards
        self._reader = reader
        self._registry = registry
        self._database = shards.database(shard)
        self._tombstone = tombstone(erasure)
        self._seen = seen
        self._cleared = Cleared(self._database)

    def erase_ids(self, added_ids: Sequence[int]) -> Iterator[Batch]:
        """Erase cells by their added_ids; yield after each transaction."""
        start = 0
        while start < len(added_ids):
            part = added_ids[start : start + self.max_cells]
            start += len(part)
            statement = sql.select_sizes_by_id(self._database, part)
            yield from self._erase(lambda _: statement, {(each,) for each in part}, ADDED_ID, skip=False)  # noqa: B023
            self._cleared.forget_earlier()

    def erase_targets(self, targets: Iterable[Target], before: datetime | None = None) -> Iterator[Batch]:
        """Erase all committed cells of targets; yield after each transaction.

        A reader never sees an older version as the latest one, because the key of the latest version is kept.

        Args:
            targets: what to erase.
            before: erase only cells that were created before this time.
        """
        remaining = iter(targets)
        while part := list(itertools.islice(remaining, min(self.max_cells, _MAX_TARGETS))):
            yield from self._erase(
                lambda cleared: sql.select_sizes_by_key(self._database, part, self.max_cells, before, cleared),
                {(target.row_key,) for target in part},
                ROW_KEY,
                skip=True,
            )
            self._cleared.forget_earlier()

    def executed(self) -> tuple[int, int, int]:
        """Return the number of cells erased in the shard, the size of their bodies, and the last event."""
        cells, size, event = self._shards.rows(self.shard, sql.select_executed(self._database, self.erasure))[0]
        return cells, int(size), event

    def erased_ids(self, at_once: int = 1_000, *, after_event: int = 0) -> Iterator[list[int]]:
        """Yield the added_ids of the cells that the erasure has erased in the shard after an event, page by page."""
        while True:
            statement = sql.select_erased_ids(self._database, self.erasure, after_event, at_once)
            rows = self._shards.rows(self.shard, statement)
            if not rows:
                return
            after_event = int(rows[-1][0])
            yield [int(added_id) for _, added_id in rows]

    def _erase(
        self,
        select_sizes: Callable[[Mapping[Pair, int]], bytes],
        wanted: set[tuple[Any, ...]],
        key: slice,
        *,
        skip: bool,
    ) -> Iterator[Batch]:
        """Erase the cells that a query finds, until it finds none; with ``skip``, it may skip those erased before."""
        skipped: Mapping[Pair, int] = self._cleared.tops() if skip else {}
        while True:
            indexes, statement = self._registry.read(), select_sizes(skipped)
            primary = self._shards.pool_for(self._shards.topology.cluster_of(self.shard).primary)
            try:
                # A process that was stopped in a transaction keeps the lock of the log until its connection ends.
                with naming_users(primary, self._database):
                    batch = self._shards.run(
                        self.shard,
                        lambda connection, statement=statement, indexes=indexes: self._transaction(  # type: ignore[misc]
                            connection, statement, wanted, key, indexes
                        ),
                        writes=True,
                    )
            except AccessDenied as denied:
                raise reworded(
                    denied,
                    f"{denied.message.partition('; ')[0]}; the role erase needs privileges on the server that has the "
                    "shard now, and a move with --unchecked-accounts does not grant them: 'schemaless grants --role "
                    "erase' prints what to run there",
                ) from denied
            if batch.ids:
                yield batch
                skipped = self._cleared.tops() if skip else {}
            elif not skipped:
                return
            else:
                skipped = {}  # Versions may have been put below.

    def _transaction(
        self,
        connection: Connection,
        select_sizes: bytes,
        wanted: set[tuple[Any, ...]],
        key: slice,
        indexes: Sequence[IndexEntry],
    ) -> Batch:
        database = self._database
        if connection.rows(select_last_event(database))[0][0] is None:
            connection.execute(sql.insert_lock_row(database))
        with connection.transaction():
            connection.rows(sql.lock_log(database))
            # The snapshot of the following reads is taken now, after all earlier erasures were committed.
            rows = connection.rows(select_sizes, only_requested(wanted, key))
            sizes, columns = _first_of(rows)
            if not sizes:
                return Batch()
            cleared = self._cleared.verified(connection)
            dependents = self._dependents(connection, rows, sizes, cleared)
            ids = list(sizes)
            cells = self._cells(connection, ids, columns, indexes)
            last = int(connection.rows(select_last_event(database))[0][0] or 0)
            for added_id, body in dependents.items():
                connection.execute(sql.replace_body(database, "cell", added_id, body))
            affected = connection.execute(sql.replace_bodies(database, "cell", ids, self._tombstone)).affected
            assert affected == len(ids), f"{affected} of {len(ids)} cells were erased while the log was locked"
            connection.execute(sql.delete_parked_cells(database, ids))
            connection.execute(sql.blank_messages(database, ids, DIED))
            events = [
                (last + position, added_id, self.erasure, size, self._entry_shards(cells.get(added_id), indexes))
                for position, (added_id, size) in enumerate(sizes.items(), 1)
            ]
            connection.execute(sql.insert_events(database, events))
            known = self._cleared.after(connection, [row for row in rows if int(row[0]) in sizes])
        self._cleared.keep(known)
        return Batch(tuple(ids), sum(sizes.values()))

    def _dependents(
        self,
        connection: Connection,
        rows: Sequence[Sequence[Any]],
        sizes: dict[int, int],
        cleared: Mapping[Pair, int],
    ) -> dict[int, bytes]:
        """Return the whole bodies of the cells that are deltas against cells about to be erased, by added_id.

        Takes cells out of ``sizes``, from the end, until these bodies fit into a transaction.
        """
        while True:
            erased = [row for row in rows if int(row[0]) in sizes]
            found = dependents(connection, self._database, "cell", erased, cleared)
            if len(sizes) == 1 or sum(payload_bytes(row[4]) for row in found) <= _MAX_BYTES:
                break
            for added_id in list(sizes)[(len(sizes) + 1) // 2 :]:
                del sizes[added_id]
        return whole_bodies(connection, self._database, found, self._reader.dictionaries)

    def _cells(
        self, connection: Connection, ids: Sequence[int], columns: set[str], indexes: Sequence[IndexEntry]
    ) -> dict[int, StoredCell]:
        """Read the cells if ``seen`` or an index needs their documents; otherwise return no cells."""
        if self._seen is None and not any(entry.definition.shard_field.column in columns for entry in indexes):
            return {}
        rows: Any = connection.rows(
            select_by_id(self._database, ids), only_requested({(added_id,) for added_id in ids}, ADDED_ID)
        )
        cells = [self._reader.stored(row, self.shard) for row in with_bases(connection, self._database, rows)]
        if self._seen is not None:
            for cell in cells:
                self._seen(cell)
        return {cell.added_id: cell for cell in cells}

    def _entry_shards(self, cell: StoredCell | None, indexes: Sequence[IndexEntry]) -> str | None:
        """Return the shards in which indexes may have an entry made from a cell, by index number, as JSON."""
        concerned = [] if cell is None else [e for e in indexes if e.definition.shard_field.column == cell.column_name]
        if cell is None or not concerned:
            return None
        try:
            document = cell.decode().body
        except CorruptBody:
            # No entry can be made from it, unless another process can decode it: all shards are searched then.
            return None
        if isinstance(document, Erased):
            return None
        count = self._shards.topology.shard_count
        shards = {}
        for entry in concerned:
            shard = entry.definition.shard_of(entry.definition.part(cell.column_name, document)[0], count)
            shards[str(entry.number)] = [] if shard is None else [shard]
        return json.dumps(shards)


def _first_of(rows: Sequence[Sequence[Any]]) -> tuple[dict[int, int], set[str]]:
    """Return the sizes by added_id of the first rows that fit into a transaction, and their columns."""
    sizes: dict[int, int] = {}
    columns: set[str] = set()
    total = 0
    for added_id, _, column, _, size in rows:
        total += int(size)
        if sizes and total > _MAX_BYTES:
            break
        sizes[int(added_id)] = int(size)
        columns.add(str(column))
    return sizes, columns


class Erasures:
    """Erases cells, and keeps the ledger.

    Attributes:
        ledger: the erasures in the catalog.
        log: the shards' logs of erased cells.

    Args:
        shards: the datastore's shards.
        reader: decodes bodies for the indexes.
        registry: the catalog's list of indexes.
        catalog: returns the connections to the catalog's server.
    """

    def __init__(self, shards: Shards, reader: Reader, registry: Registry, catalog: Callable[[], NodePool]) -> None:
        self.ledger: Ledger = Ledger(catalog, shards.topology.name, shards.topology.shard_count)
        self.log: ErasureLog = ErasureLog(shards)
        self._shards = shards
        self._reader = reader
        self._registry = registry

    def eraser(self, shard: int, erasure: int, seen: Seen | None = None) -> ShardEraser:
        """Return an object that erases cells of a shard for an erasure.

        ``seen`` receives each cell before it is erased.
        """
        return ShardEraser(self._shards, self._reader, self._registry, shard, erasure, seen)

    def erase(
        self, targets: Iterable[Target], reason: str, requested_by: str | None = None, must_exist: bool = False
    ) -> Erasure:
        """Record an erasure and execute it on the shards' primaries; see ``Datastore.erase``."""
        wanted = list(targets)
        missing = [str(each) for each in wanted if not self._has_cells(each)] if must_exist else []
        if missing:
            more = f", and {len(missing) - _MISSING_SHOWN:,} more" if len(missing) > _MISSING_SHOWN else ""
            raise InvalidInput(
                f"nothing was erased, because there are no cells of {', '.join(missing[:_MISSING_SHOWN])}{more}"
            )
        scope = {"keys": len(wanted)}
        number = self.ledger.intend(reason, wanted, scope=scope, requested_by=requested_by)
        by_shard = grouped((shard_for(each.row_key, self._shards.topology.shard_count), each) for each in wanted)
        with advising(lambda: completed_by(number)):
            for shard, of_shard in sorted(by_shard.items()):
                eraser = self.eraser(shard, number)
                for _ in eraser.erase_targets(of_shard):
                    pass
                self.ledger.record_shard(number, shard, *eraser.executed())
            return self.ledger.entry(number)

    def _has_cells(self, wanted: Target) -> bool:
        shard = shard_for(wanted.row_key, self._shards.topology.shard_count)
        statement = sql.select_any_of_target(self._shards.database(shard), *wanted)
        return bool(self._shards.rows(shard, statement))
