"""The tables of secondary indexes that a shard has: copied beside their writers, and gone over again once it has moved.

Entries are made of rows of any shard, so whoever writes into a shard's index is a follower of another one, its home,
and nothing tells which entries changed while they were copied. So before the first is copied, the locations of the
indexes' followers in all shards are noted, on the target. Whatever is written behind a location comes again when the
follower goes on from there: once the shard has moved, those that went further are set back, under a higher epoch, so
that no page that was in hand meanwhile is noted as dealt with. Each write asks for the versions that an entry is made
of, which is why all of it may come twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from schemaless.errors import AccessDenied, ServerError
from schemaless.followers.sql import select_tops
from schemaless.indexes import sql as entries_sql
from schemaless.indexes.query import values_of
from schemaless.indexes.registry import BACKFILLING, DECLARED, READY, IndexEntry
from schemaless.indexes.sql import EntryRow, Layout
from schemaless.indexes.tables import check_tables
from schemaless.internals import Internals
from schemaless.jobs.runner import ShardRun
from schemaless.move import sql
from schemaless.move.fence import Fence, Side, index_tables, session, side_of
from schemaless.topology.sql import moving
from schemaless.wire.connection import in_packets
from schemaless.wire.errors import DatabaseMissing, Elsewhere
from schemaless.wire.node import Node

T = TypeVar("T")

_ENTRIES_AT_ONCE: Final = 2_000
_SHARDS_AT_ONCE: Final = 64


def refusal_of_indexes(entries: Sequence[IndexEntry], source: Side, at: str) -> str | None:
    """Return why the indexes that a shard has keep it from being moved; None where they do not.

    Args:
        entries: the indexes, as the catalog has them now.
        source: what the shard's server has of it.
        at: that server.
    """
    by_table = {entries_sql.index_table(entry.number): entry for entry in entries}
    for entry in entries:
        if entry.state not in (BACKFILLING, READY):
            # By its number: another one of the name may be in use.
            step = f"create {entry.name}" if entry.state == DECLARED else f"drop {entry.name} --number {entry.number}"
            return (
                f"index {entry.name} ({entry.number}) is {entry.state}, so its tables are being made or dropped; "
                f"complete 'schemaless index {step}' first, after 'schemaless shards abort' where the move has begun"
            )
    there = index_tables(source.plain)
    for table in there:
        if table not in by_table:
            return f"{at} has a table {table}, and the catalog has no such index; drop the table, if nobody needs it"
    for table, entry in by_table.items():
        if table not in there:
            return (
                f"{at} has no table {table} of index {entry.name}; drop that index (--number {entry.number}), and "
                "create it again after the move"
            )
    return None


class MovedIndexes:
    """The indexes of a shard on its way, in the hands of a mover.

    Args:
        internals: of the datastore.
        run: the shard's.
        gate: returns when work may go on.
    """

    def __init__(self, internals: Internals, run: ShardRun, gate: Callable[[], None]) -> None:
        self._internals = internals
        self._run = run
        self._gate = gate

    def copy(self, fence: Fence, token: str) -> set[str]:
        """Copy all entries, behind a note of where the indexes' followers are; return the tables' names.

        What an earlier mover copied is dropped: its note is older, and more would come again.

        Raises:
            SchemaMismatch: a table is not the index's that the catalog has.
        """
        source, target = fence.sides()
        fence.drop_indexes(target)
        there = index_tables(source.plain)
        entries = [e for e in self._internals.registry.read() if entries_sql.index_table(e.number) in there]
        if not entries:
            return set()
        note = sql.noted(token)
        fence.target.execute(sql.create_noted(fence.database, note))
        # Before the first entry is read.
        rows = self._locations([entry.follower for entry in entries])
        self._insert(fence, rows, lambda part: sql.insert_noted(fence.database, note, part))
        for entry in entries:
            check_tables(self._internals, entry, [self._run.state.shard])
            layout = entry.layout
            incoming = replace(layout, named=moving.incoming(layout.table, token))
            fence.target.execute(entries_sql.create_index_table(fence.database, incoming))
            self._copy_one(fence, entry, incoming)
        return {entry.layout.table for entry in entries}

    def _copy_one(self, fence: Fence, entry: IndexEntry, incoming: Layout) -> None:
        definition, after = entry.definition, b""
        fields = definition.all_fields
        while True:
            self._gate()
            began_s = time.monotonic()
            select = entries_sql.select_entries_after(fence.database, entry.layout, after, _ENTRIES_AT_ONCE)
            page = fence.reader.rows(select)
            rows = []
            for row in page:
                values = zip(fields, values_of(definition, row[1:]), strict=True)
                literals = tuple(field.literal(value) for field, value in values)
                rows.append(EntryRow(bytes(row[0]), literals, tuple(int(ref) for ref in row[1 + len(fields) :])))
            self._insert(fence, rows, lambda part: entries_sql.upsert_entries(fence.database, incoming, part))
            if len(page) < _ENTRIES_AT_ONCE:
                return
            after = rows[-1].row_key
            self._run.rest(time.monotonic() - began_s)

    def _insert(self, fence: Fence, rows: Sequence[T], statement: Callable[[Sequence[T]], bytes]) -> None:
        if rows:
            for packet, _ in in_packets(rows, statement, fence.target.max_statement_bytes, _never):
                self._run.spend(len(packet))
                fence.target.execute(packet)

    def go_over_again(self, node: Node) -> None:
        """Have the indexes' followers go on from where they were when entries began to be copied; then forget that.

        Safe to repeat: interrupted, the next one does so again. Until it is done, entries lack which nobody takes for
        late, so neither a paused job nor a replica that lags is waited for, and a shard that cannot be reached keeps no
        other from being set back.

        Args:
            node: the server that the shard is on by now.

        Raises:
            ServerError: some shards were not to be reached.
        """
        shards, database = self._internals.shards, self._internals.shards.database(self._run.state.shard)
        with session(shards, node, self._run.state.shard) as connection:
            for note in side_of(connection, database).notes:
                noted = connection.rows(sql.select_noted(database, note))
                # A shard without a cell behind what was noted has had nothing to be written.
                tops = {int(shard): int(top or 0) for shard, top in self._ask_all(select_tops, whole=False)}
                failed: ServerError | None = None
                for name, shard, location in noted:
                    if tops.get(int(shard), int(location) + 1) > int(location):
                        home = shards.database(int(shard))
                        try:
                            shards.execute(int(shard), sql.rewind_follower(home, str(name), int(location)))
                        except ServerError as error:
                            failed = failed or error
                if failed is not None:
                    raise failed
                connection.execute(sql.drop_table(database, note))

    def _locations(self, names: Sequence[str]) -> list[tuple[str, int, int]]:
        """Return name, shard and location of followers in all shards; 0 where one has no row yet."""
        locations = dict.fromkeys(((name, shard) for name in names for shard in self._all), 0)
        for shard, name, location in self._ask_all(lambda some: sql.select_locations(some, names)):
            locations[str(name), int(shard)] = int(location)
        return [(name, shard, location) for (name, shard), location in locations.items()]

    @property
    def _all(self) -> range:
        return range(self._internals.topology.shard_count)

    def _ask_all(
        self, select: Callable[[Iterable[tuple[str, int]]], bytes], *, whole: bool = True
    ) -> list[Sequence[Any]]:
        """Ask all shards, 64 in a statement; one by one where one of them is on its way meanwhile.

        Args:
            select: returns the statement about some shards.
            whole: whether a server that fails is an error; else what it was asked for is absent.
        """
        shards, rows = self._internals.shards, list[Sequence[Any]]()
        known = shards.routing
        for node, databases in self._internals.databases_by_node(self._all).items():
            items = list(databases.items())
            for start in range(0, len(items), _SHARDS_AT_ONCE):
                part = items[start : start + _SHARDS_AT_ONCE]
                statement = select(part)
                try:
                    rows += shards.pool_for(node).run(
                        lambda connection, statement=statement: connection.rows(statement),  # type: ignore[misc]
                        shard=part[0][1],
                        route=known,
                    )
                except (AccessDenied, DatabaseMissing, Elsewhere):
                    for item in part:
                        with suppress(*(() if whole else (ServerError,))):
                            rows += shards.rows(item[1], select([item]))
                except ServerError:
                    if whole:
                        raise
        return rows


def _never(row: object, size: int) -> None:
    raise AssertionError(f"an entry's statement has {size:,} bytes, and its fields fit into a key")
