"""Reads the rows that an index's entries are built from, and writes the changes that a page of the feed requires.

Every write is guarded by refs, so it can be repeated, arrive late or run in several workers at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from schemaless.base.parts import grouped
from schemaless.base.type_variables import T
from schemaless.cell import StoredCell
from schemaless.errors import CorruptBody, DictionaryDamaged, ServerError, UnknownDictionary, UnknownFormat
from schemaless.store.cells.reading import PLACE, Place, Reader, only_requested
from schemaless.store.cells.sql import select_cells
from schemaless.store.followers.erasures import ErasureEvent
from schemaless.store.indexes import sql
from schemaless.store.indexes.definition import Definition
from schemaless.store.indexes.entry_changes import Change, Entry, PageWrites, Part, RowState, entry_of, page_writes
from schemaless.store.indexes.registry import IndexEntry, Registry
from schemaless.store.indexes.sql import EntryRow
from schemaless.store.indexes.tables import check_tables
from schemaless.topology.placement import shard_for
from schemaless.topology.routing import Routing
from schemaless.topology.scatter_gather import query_shards, verify_once
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection, split_statements
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers

_BODIES_PER_QUERY: Final = 100
_ROWS_SEARCHED: Final = 20
"""Maximum number of rows per statement when all shards are searched for the rows' entries."""

_UNREADABLE_HERE: Final = (UnknownDictionary, DictionaryDamaged, UnknownFormat)
"""Errors of bodies that another process or a later version may be able to read; a page with such a body is retried."""


class Entries:
    """The entries of one index.

    Args:
        shards: the datastore's shards.
        reader: reads cells by their keys.
        registry: remembers which of the index's tables have been checked.
        entry: the index's entry in the catalog.
    """

    def __init__(self, shards: Shards, reader: Reader, registry: Registry, entry: IndexEntry) -> None:
        self.definition: Definition = entry.definition
        self._entry = entry
        self._layout = entry.layout
        self._reader = reader
        self._registry = registry
        self._shards = shards
        self._shard_count = shards.topology.shard_count

    # Rows

    def part(self, cell: StoredCell) -> Part:
        """Return the field values in a cell; all None if its body is damaged.

        Raises:
            UnknownDictionary, DictionaryDamaged, UnknownFormat: this process cannot read the body, but another process
            or a later version may.
        """
        try:
            return self.definition.part(cell.column_name, cell.decode().body)
        except _UNREADABLE_HERE:
            raise
        except CorruptBody:
            return self.definition.part(cell.column_name, None)

    def writes(self, pages: Mapping[int, Sequence[StoredCell]]) -> PageWrites:
        """Return the writes that bring the index up to date with pages of shards' feeds.

        Args:
            pages: cells of source columns, by shard.
        """
        by_id = {(shard, cell.added_id): cell for shard, cells in pages.items() for cell in cells}

        def select(shard: int) -> bytes:
            ids = [cell.added_id for cell in pages[shard]]
            return sql.select_refs(self._shards.database(shard), self.definition.sources, ids)

        refs: dict[bytes, tuple[int, ...]] = {}
        before: dict[tuple[int, int], int | None] = {}
        selected: list[tuple[Any, ...]] = []
        query_shards(self._shards, pages, select, selected.extend)
        for added_id, row_key, version, *latest in selected:
            before[self._shard_of(row_key), int(added_id)] = None if version is None else int(version)
            refs[bytes(row_key)] = _refs(latest)
        if far := {place: by_id[place] for place, version in before.items() if version == sql.NOT_NEAR}:
            # In a later snapshot: a version that came between is in a later page of the feed.
            before |= self._previous(far)
        parts = {(cell.row_key.bytes, cell.column_name, cell.ref_key): self.part(cell) for cell in by_id.values()}
        wanted = self._places(refs)
        for place, version in before.items():
            cell = by_id[place]
            if version is not None:
                wanted.append((cell.row_key.bytes, cell.column_name, version))
        self._fill(parts, wanted)
        changes = []
        for place, version in before.items():
            cell = by_id[place]
            row, column = cell.row_key.bytes, cell.column_name
            now = parts[row, column, cell.ref_key]
            changes.append(Change(row, column, now, self._known(parts, row, column, version)))
        return page_writes(self.definition, self._shard_count, changes, self._states(refs, parts))

    def _previous(self, cells: Mapping[tuple[int, int], StoredCell]) -> dict[tuple[int, int], int | None]:
        """Return the ref_key of the version before each cell, or None, by shard and added_id."""
        before: dict[tuple[int, int], int | None] = dict.fromkeys(cells)
        by_shard = grouped((shard, cell) for (shard, _), cell in cells.items())

        def select(shard: int) -> bytes:
            return sql.select_previous(self._shards.database(shard), by_shard[shard])

        selected: list[tuple[Any, ...]] = []
        query_shards(self._shards, by_shard, select, selected.extend)
        for added_id, row_key, version in selected:
            before[self._shard_of(row_key), int(added_id)] = int(version)
        return before

    def rows(self, shard: int, row_keys: Sequence[bytes]) -> dict[bytes, tuple[RowState, int]]:
        """Read the current state of rows of a shard.

        Returns:
            For each row, its state and the highest added_id among its latest cells in source columns; 0 if it has none.
        """
        if not row_keys:
            return {}
        statement = sql.select_refs_of_rows(self._shards.database(shard), self.definition.sources, row_keys)
        refs = {bytes(row_key): _refs(latest) for row_key, *latest in self._shards.rows(shard, statement)}
        parts: dict[Place, Part] = {}
        tops = self._fill(parts, self._places(refs))
        return {row: (state, tops.get(row, 0)) for row, state in self._states(refs, parts).items()}

    def _places(self, refs: Mapping[bytes, tuple[int, ...]]) -> list[Place]:
        """Return the key of the latest cell of each source column of each row."""
        return [
            (row, column, ref)
            for row, of_row in refs.items()
            for column, ref in zip(self.definition.sources, of_row, strict=True)
            if ref >= 0
        ]

    def _fill(self, parts: dict[Place, Part], wanted: Iterable[Place]) -> dict[bytes, int]:
        """Add to ``parts`` the wanted cells that it lacks; return the highest added_id read from each row."""
        missing = [place for place in dict.fromkeys(wanted) if place not in parts]
        tops: dict[bytes, int] = {}
        for start in range(0, len(missing), _BODIES_PER_QUERY):
            batch = missing[start : start + _BODIES_PER_QUERY]
            by_shard = grouped((self._shard_of(place[0]), place) for place in batch)
            rows: list[Any] = []
            check = only_requested(set(batch), PLACE)
            query_shards(self._shards, by_shard, partial(self._select_cells, by_shard), rows.extend, check)
            for row in self._reader.completed(rows):
                cell = self._reader.stored(row, self._shard_of(row[1]))
                place = cell.row_key.bytes, cell.column_name, cell.ref_key
                parts[place] = self.part(cell)
                tops[place[0]] = max(tops.get(place[0], 0), cell.added_id)
        return tops

    def _select_cells(self, places: Mapping[int, Sequence[Place]], shard: int) -> bytes:
        return select_cells(self._shards.database(shard), places[shard])

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
        """Execute the writes of a page: all upserts are committed before the first delete.

        If all entries are on one server, this is one transaction. Several servers are written to at the same time.
        """
        check_tables(self._shards, self._registry, self._entry, {*writes.upserts, *writes.deletes})
        routing = self._shards.routing
        upserts, deletes = self._by_node(writes.upserts), self._by_node(writes.deletes)
        if len({*upserts, *deletes}) == 1:
            (node,) = {*upserts, *deletes}
            self._write(routing, node, upserts.get(node, {}), deletes.get(node, {}))
            return
        for changes in (
            [(node, partial(self._write, routing, node, entries, {})) for node, entries in upserts.items()],
            [(node, partial(self._write, routing, node, {}, rows)) for node, rows in deletes.items()],
        ):
            list(on_servers(changes, lambda write: write(), 1))

    def erase(self, shard: int, number: int, events: Sequence[ErasureEvent]) -> None:
        """Bring the entries of rows up to date after some of their cells were erased.

        Args:
            shard: the rows' shard.
            number: number of the index.
            events: the erased cells, all in source columns.
        """
        found: dict[bytes, set[int]] = {}
        unknown: set[bytes] = set()
        for event in events:
            row = event.erased.key.row_key.bytes
            found.setdefault(row, set())
            if event.erased.key.column_name != self.definition.shard_field.column:
                continue
            shards = json.loads(event.entry_shards or "{}").get(str(number))
            if shards is None:
                unknown.add(row)
            else:
                found[row].update(shards)
        for row, place in self.places_of(sorted(unknown)):
            found[row].add(place)
        writes = PageWrites()
        for row, (state, _) in self.rows(shard, sorted(found)).items():
            home, entry = entry_of(self.definition, self._shard_count, row, state)
            if home is not None:
                writes.upserts.setdefault(home, []).append(entry)
            for old in found[row] - {home}:
                writes.deletes.setdefault(old, []).append((row, state.refs))
        if writes.upserts or writes.deletes:
            self.apply(writes)

    def homes(self, shard: int, rows: Sequence[bytes]) -> dict[bytes, int | None]:
        """Return the shard in which each row of a shard should have its entry; None for rows without one."""
        homes: dict[bytes, int | None] = {}
        for start in range(0, len(rows), _BODIES_PER_QUERY):
            for row, (state, _) in self.rows(shard, rows[start : start + _BODIES_PER_QUERY]).items():
                homes[row], _ = entry_of(self.definition, self._shard_count, row, state)
        return homes

    def places_of(self, rows: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Search all shards for the entries of rows; return the row and the shard of each entry found."""
        places: list[tuple[bytes, int]] = []
        for start in range(0, len(rows), _ROWS_SEARCHED):
            part = rows[start : start + _ROWS_SEARCHED]
            query_shards(
                self._shards,
                dict.fromkeys(range(self._shard_count), part),
                lambda shard: sql.select_entries(self._shards.database(shard), self._layout, shard, part),  # noqa: B023
                lambda found: places.extend((bytes(row[1]), int(row[0])) for row in found),
            )
        return places

    def delete_exactly(self, shard: int, rows: Sequence[tuple[bytes, tuple[int, ...]]]) -> None:
        """Delete the entries of these rows whose refs equal the given ones; newer entries of the same rows are kept."""
        if rows:
            statement = sql.delete_entries(self._shards.database(shard), self._layout, rows, exactly=True)
            self._shards.execute(shard, statement)

    def _by_node(self, by_shard: Mapping[int, T]) -> dict[Node, dict[int, T]]:
        by_node: dict[Node, dict[int, T]] = {}
        for shard in sorted(by_shard):
            verify_once(self._shards, shard)
            by_node.setdefault(self._shards.node_of(shard), {})[shard] = by_shard[shard]
        return by_node

    def _write(
        self,
        routing: Routing,
        node: Node,
        upserts: Mapping[int, Sequence[Entry]],
        deletes: Mapping[int, Sequence[tuple[bytes, tuple[int, ...]]]],
    ) -> None:
        def operation(connection: Connection) -> None:
            statements = [
                statement
                for build, by_shard in ((self._upsert, upserts), (self._delete, deletes))
                for shard, changes in by_shard.items()
                for statement, _ in split_statements(
                    changes, partial(build, shard), connection.max_statement_bytes, _too_long
                )
            ]
            # A single statement is a transaction by itself, in a third of the round trips.
            with connection.transaction() if len(statements) > 1 else nullcontext():
                for statement in statements:
                    connection.execute(statement)

        shard = next(iter({**upserts, **deletes}))
        try:
            # Safe to repeat, because every write is guarded by refs.
            self._shards.pool_for(node).run(operation, shard=shard, writes=True, route=routing)
        except ServerError:
            # The shards may have moved: the retry of the page then goes to their new servers.
            self._shards.router.again(routing)
            raise

    def _upsert(self, shard: int, entries: Sequence[Entry]) -> bytes:
        fields = self.definition.all_fields
        rows = [
            EntryRow(
                entry.row_key,
                tuple(field.literal(value) for field, value in zip(fields, entry.values, strict=True)),
                entry.refs,
            )
            for entry in entries
        ]
        return sql.upsert_entries(self._shards.database(shard), self._layout, rows)

    def _delete(self, shard: int, rows: Sequence[tuple[bytes, tuple[int, ...]]]) -> bytes:
        return sql.delete_entries(self._shards.database(shard), self._layout, rows)


def _refs(latest: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(-1 if ref is None else int(ref) for ref in latest)


def _too_long(row: object, size: int) -> None:
    raise AssertionError(f"the statement for one entry has {size:,} bytes, although its fields fit into a key")
