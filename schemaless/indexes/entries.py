"""Entries of an index in their shards: the rows that they are made of, read; and what a page means for them, written.

Each write asks for the refs, so all of this may be done again, late, and by many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, TypeVar, cast

from schemaless.cell import StoredCell
from schemaless.cells.paging import Row
from schemaless.cells.reading import PLACE, Place, only
from schemaless.cells.sql import select_cells
from schemaless.errors import CorruptBody, DictionaryDamaged, ServerError, UnknownDictionary, UnknownFormat
from schemaless.indexes import sql
from schemaless.indexes.definition import Definition
from schemaless.indexes.entry_changes import Change, Entry, PageWrites, Part, RowState, page_writes
from schemaless.indexes.registry import IndexEntry
from schemaless.indexes.sql import EntryRow
from schemaless.indexes.tables import check_tables
from schemaless.internals import Internals
from schemaless.topology.placement import shard_for
from schemaless.topology.routing import Routing
from schemaless.topology.scatter_gather import ask_shards, prove
from schemaless.wire.connection import Check, Connection, in_packets
from schemaless.wire.node import Node

T = TypeVar("T")

_BODIES_AT_ONCE: Final = 100
_SERVERS_AT_ONCE: Final = 8
_NOT_DAMAGE: Final = (UnknownDictionary, DictionaryDamaged, UnknownFormat)
"""These say that this process cannot read a body, not that nobody can: nothing is made of it until one can."""


class Entries:
    """The entries of one index.

    Args:
        internals: of the datastore.
        entry: the index.
    """

    def __init__(self, internals: Internals, entry: IndexEntry) -> None:
        self.definition: Definition = entry.definition
        self._entry = entry
        self._layout = entry.layout
        self._internals = internals
        self._shards = internals.shards
        self._shard_count = internals.topology.shard_count

    # Rows

    def part(self, cell: StoredCell) -> Part:
        """Return what is in a cell; all None where its body is damaged.

        Raises:
            UnknownDictionary, DictionaryDamaged, UnknownFormat: somebody else may be able to read it, or later.
        """
        try:
            return self.definition.part(cell.column_name, cell.decode().body)
        except _NOT_DAMAGE:
            raise
        except CorruptBody:
            return self.definition.part(cell.column_name, None)

    def writes(self, pages: Mapping[int, Sequence[StoredCell]]) -> PageWrites:
        """Return what some cells of shards, all of source columns, mean for the index."""
        by_id = {(shard, cell.added_id): cell for shard, cells in pages.items() for cell in cells}

        def select(shard: int) -> bytes:
            ids = [cell.added_id for cell in pages[shard]]
            return sql.select_refs(self._shards.database(shard), self.definition.sources, ids)

        refs: dict[bytes, tuple[int, ...]] = {}
        before: dict[tuple[int, int], int | None] = {}
        selected: list[tuple[Any, ...]] = []
        ask_shards(self._shards, pages, select, selected.extend)
        for added_id, row_key, version, *latest in selected:
            before[self._shard_of(row_key), int(added_id)] = version
            refs[bytes(row_key)] = _refs(latest)
        parts = {(cell.row_key.bytes, cell.column_name, cell.ref_key): self.part(cell) for cell in by_id.values()}
        wanted = self._places(refs)
        for place, version in before.items():
            cell = by_id[place]
            if version is not None:
                wanted.append((cell.row_key.bytes, cell.column_name, int(version)))
        self._fill(parts, wanted)
        changes = []
        for place, version in before.items():
            cell = by_id[place]
            row, column = cell.row_key.bytes, cell.column_name
            now = parts[row, column, cell.ref_key]
            changes.append(Change(row, column, now, self._known(parts, row, column, version)))
        return page_writes(self.definition, self._shard_count, changes, self._states(refs, parts))

    def rows(self, shard: int, row_keys: Sequence[bytes]) -> dict[bytes, tuple[RowState, int]]:
        """Read rows of a shard as they are now; with each the highest added_id of what its entry is made of."""
        if not row_keys:
            return {}
        statement = sql.select_refs_of_rows(self._shards.database(shard), self.definition.sources, row_keys)
        refs = {bytes(row_key): _refs(latest) for row_key, *latest in self._shards.rows(shard, statement)}
        parts: dict[Place, Part] = {}
        tops = self._fill(parts, self._places(refs))
        return {row: (state, tops.get(row, 0)) for row, state in self._states(refs, parts).items()}

    def _places(self, refs: Mapping[bytes, tuple[int, ...]]) -> list[Place]:
        """Return the latest cell of each source column of each row."""
        return [
            (row, column, ref)
            for row, of_row in refs.items()
            for column, ref in zip(self.definition.sources, of_row, strict=True)
            if ref >= 0
        ]

    def _fill(self, parts: dict[Place, Part], wanted: Iterable[Place]) -> dict[bytes, int]:
        """Read the cells that are not there yet; return the highest added_id that was read of each row."""
        missing = [place for place in dict.fromkeys(wanted) if place not in parts]
        tops: dict[bytes, int] = {}
        for start in range(0, len(missing), _BODIES_AT_ONCE):
            some = missing[start : start + _BODIES_AT_ONCE]
            by_shard: dict[int, list[Place]] = {}
            for place in some:
                by_shard.setdefault(self._shard_of(place[0]), []).append(place)
            for row in self._cells(by_shard, only(set(some), PLACE)):
                cell = self._internals.reader.stored(row, self._shard_of(row[1]))
                place = cell.row_key.bytes, cell.column_name, cell.ref_key
                parts[place] = self.part(cell)
                tops[place[0]] = max(tops.get(place[0], 0), cell.added_id)
        return tops

    def _cells(self, places: Mapping[int, Sequence[Place]], check: Check) -> Sequence[Row]:
        def select(shard: int) -> bytes:
            return select_cells(self._shards.database(shard), places[shard])

        # Typed for what every query gives, and these give cells.
        rows: Any = []
        ask_shards(self._shards, places, select, rows.extend, check)
        return cast("Sequence[Row]", rows)

    def _shard_of(self, row_key: bytes) -> int:
        return shard_for(row_key, self._shard_count)

    def _states(self, refs: Mapping[bytes, tuple[int, ...]], parts: Mapping[Place, Part]) -> dict[bytes, RowState]:
        return {
            row: RowState(
                of_row,
                {
                    column: self._known(parts, row, column, ref)
                    for column, ref in zip(self.definition.sources, of_row, strict=True)
                },
            )
            for row, of_row in refs.items()
        }

    def _known(self, parts: Mapping[Place, Part], row: bytes, column: str, ref: int | None) -> Part:
        if ref is None or ref < 0:
            return self.definition.part(column, None)
        return parts[row, column, ref]

    # Writing

    def apply(self, writes: PageWrites) -> None:
        """Do what a page means: first everything that is written, and when that is committed, what is deleted.

        On one server that is one transaction, and on several they are at once.
        """
        check_tables(self._internals, self._entry, {*writes.upserts, *writes.deletes})
        known = self._shards.routing
        upserts, deletes = self._by_node(writes.upserts), self._by_node(writes.deletes)
        if len({*upserts, *deletes}) == 1:
            (node,) = {*upserts, *deletes}
            self._write(known, node, upserts.get(node, {}), deletes.get(node, {}))
            return
        _at_once([partial(self._write, known, node, entries, {}) for node, entries in upserts.items()])
        _at_once([partial(self._write, known, node, {}, rows) for node, rows in deletes.items()])

    def delete_exactly(self, shard: int, rows: Sequence[tuple[bytes, tuple[int, ...]]]) -> None:
        """Delete entries of a shard that were made of these very versions."""
        if rows:
            statement = sql.delete_entries(self._shards.database(shard), self._layout, rows, exactly=True)
            self._shards.execute(shard, statement)

    def _by_node(self, by_shard: Mapping[int, T]) -> dict[Node, dict[int, T]]:
        by_node: dict[Node, dict[int, T]] = {}
        for shard in sorted(by_shard):
            prove(self._shards, shard)
            by_node.setdefault(self._shards.node_of(shard), {})[shard] = by_shard[shard]
        return by_node

    def _write(
        self,
        known: Routing,
        node: Node,
        upserts: Mapping[int, Sequence[Entry]],
        deletes: Mapping[int, Sequence[tuple[bytes, tuple[int, ...]]]],
    ) -> None:
        def operation(connection: Connection) -> None:
            most = connection.max_statement_bytes
            statements: list[bytes] = []
            for shard, entries in upserts.items():
                rows = [self._row(entry) for entry in entries]
                statements += [statement for statement, _ in in_packets(rows, self._upserting(shard), most, _never)]
            for shard, left in deletes.items():
                statements += [statement for statement, _ in in_packets(left, self._deleting(shard), most, _never)]
            # One alone is a transaction by itself, in a third of the round trips.
            with connection.transaction() if len(statements) > 1 else nullcontext():
                for statement in statements:
                    connection.execute(statement)

        shard = next(iter({**upserts, **deletes}))
        try:
            # Safe to repeat: every write asks for the refs.
            self._shards.pool_for(node).run(operation, shard=shard, writes=True, route=known)
        except ServerError:
            # Its shards may be elsewhere by now: the page comes again, and goes there.
            self._shards.again(known)
            raise

    def _upserting(self, shard: int) -> Callable[[Sequence[EntryRow]], bytes]:
        database = self._shards.database(shard)
        return lambda rows: sql.upsert_entries(database, self._layout, rows)

    def _deleting(self, shard: int) -> Callable[[Sequence[tuple[bytes, tuple[int, ...]]]], bytes]:
        database = self._shards.database(shard)
        return lambda rows: sql.delete_entries(database, self._layout, rows)

    def _row(self, entry: Entry) -> EntryRow:
        fields = self.definition.all_fields
        literals = tuple(field.literal(value) for field, value in zip(fields, entry.values, strict=True))
        return EntryRow(entry.row_key, literals, entry.refs)


def _at_once(writes: Sequence[Callable[[], None]]) -> None:
    """Write to several servers at once; all of it has ended then, and of what failed one error is raised."""
    if len(writes) < 2:
        for write in writes:
            write()
        return
    here, *others = writes
    with ThreadPoolExecutor(min(len(others), _SERVERS_AT_ONCE)) as threads:
        begun = [threads.submit(write) for write in others]
        here()
    for ended in begun:
        ended.result()


def _refs(latest: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(-1 if ref is None else int(ref) for ref in latest)


def _never(row: object, size: int) -> None:
    raise AssertionError(f"an entry's statement has {size:,} bytes, and its fields fit into a key")
