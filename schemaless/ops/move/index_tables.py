"""Moves a shard's index tables: they are copied while followers write to them, and the followers are rewound later.

A shard's index entries are derived from rows in any shard and written by followers of those shards, so nothing records
which entries changed during the copy. Before the first entry is copied, the locations of the indexes' followers in all
shards are saved in a table on the target. After the move, the followers of each shard that has been written to since
the locations were saved are rewound to their saved locations under a higher epoch, so that a page in flight at that
moment is not recorded as processed, and everything written since is processed again. Entry writes are conditional on
the versions that an entry is derived from, so repeating them is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from schemaless.base.type_variables import T
from schemaless.errors import ServerError
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.move import sql
from schemaless.ops.move.copying import fitting
from schemaless.ops.move.fence import Fence, Side, index_tables, session, side_of
from schemaless.schema.engines import INNODB, StorageEngine
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.indexes import sql as entries_sql
from schemaless.store.indexes.registry import BACKFILLING, DECLARED, READY, IndexEntry
from schemaless.store.indexes.sql import EntryRow, Layout
from schemaless.store.indexes.tables import check_tables
from schemaless.store.internals import Internals
from schemaless.topology.sql import moving
from schemaless.wire.connection import Rows
from schemaless.wire.node import Node

_ENTRIES_AT_ONCE: Final = 2_000


def refusal_of_indexes(entries: Sequence[IndexEntry], source: Side, node: str) -> str | None:
    """Return why a shard's indexes prevent a move, or None.

    Args:
        entries: the indexes that the catalog has now.
        source: the shard's tables on its server.
        node: address of that server.
    """
    by_table = {entries_sql.index_table(entry.number): entry for entry in entries}
    for entry in entries:
        if entry.state not in (BACKFILLING, READY):
            # The drop command needs the number, because another index of that name may be in use.
            step = f"create {entry.name}" if entry.state == DECLARED else f"drop {entry.name} --number {entry.number}"
            return (
                f"index {entry.name} ({entry.number}) is {entry.state}, so its tables are being created or dropped; "
                f"run 'schemaless shards abort' if the move has started, then complete 'schemaless index {step}'"
            )
    present = index_tables(source.plain)
    for table in present:
        if table not in by_table:
            return f"{node} has a table {table}, but the catalog has no such index; drop the table if it is not needed"
    for table, entry in by_table.items():
        if table not in present:
            return (
                f"{node} has no table {table} of index {entry.name}; drop that index (--number {entry.number}), and "
                "create it again after the move"
            )
    return None


class IndexMover:
    """Copies the index tables of a shard that is being moved, and rewinds their followers.

    Args:
        internals: internals of the datastore.
        run: the job's run on the shard.
        gate: blocks while the job has to wait.
        engine: storage engine of the target cluster.
    """

    def __init__(
        self, internals: Internals, run: ShardRun, gate: Callable[[], None], engine: StorageEngine = INNODB
    ) -> None:
        self._engine = engine
        self._internals = internals
        self._run = run
        self._gate = gate

    def copy(self, fence: Fence, token: str) -> set[str]:
        """Save the followers' locations, then copy all index entries; return the names of the index tables.

        Copies made by an earlier mover are dropped: its saved locations are older, so followers would repeat more work.

        Raises:
            SchemaMismatch: a table does not match the catalog's definition of its index.
        """
        source, target = fence.sides()
        fence.drop_indexes(target)
        present = index_tables(source.plain)
        entries = [e for e in self._internals.registry.read() if entries_sql.index_table(e.number) in present]
        if not entries:
            return set()
        saved = sql.saved_locations(token)
        fence.target.execute(sql.create_saved_locations(fence.database, saved))
        # The locations have to be read before the first entry.
        pairs = [(entry.follower, shard) for entry in entries for shard in range(self._internals.topology.shard_count)]
        found = FollowerRows(self._internals.shards).look(pairs)
        for error in found.failed.values():
            raise error
        at = {pair: (row.location, row.erased_event) for pair, row in found.rows.items()}
        rows = [(*pair, *at.get(pair, (0, 0))) for pair in pairs]
        self._insert(fence, rows, lambda part: sql.insert_saved_locations(fence.database, saved, part))
        for entry in entries:
            check_tables(self._internals.shards, self._internals.registry, entry, [self._run.state.shard])
            layout = entry.layout
            incoming = replace(layout, named=moving.incoming(layout.table, token))
            fence.target.execute(entries_sql.create_index_table(fence.database, incoming, self._engine))
            self._copy_one(fence, entry, incoming)
        return {entry.layout.table for entry in entries}

    def _copy_one(self, fence: Fence, entry: IndexEntry, incoming: Layout) -> None:
        fields = entry.definition.all_fields
        for page in self._run.paced(self._pages(fence, entry), gate=self._gate):
            rows = []
            for row in page:
                values = zip(fields, entry.definition.from_table(row[1:]), strict=True)
                literals = tuple(field.literal(value) for field, value in values)
                rows.append(EntryRow(bytes(row[0]), literals, tuple(int(ref) for ref in row[1 + len(fields) :])))
            self._insert(fence, rows, lambda part: entries_sql.upsert_entries(fence.database, incoming, part))

    def _pages(self, fence: Fence, entry: IndexEntry) -> Iterator[Rows]:
        after = b""
        while True:
            select = entries_sql.select_entries_after(fence.database, entry.layout, after, _ENTRIES_AT_ONCE)
            page = fence.reader.rows(select)
            yield page
            if len(page) < _ENTRIES_AT_ONCE:
                return
            after = bytes(page[-1][0])

    def _insert(self, fence: Fence, rows: Sequence[T], statement: Callable[[Sequence[T]], bytes]) -> None:
        for packet in fitting(fence.target, rows, statement, lambda row: "an index entry"):
            self._run.spend(len(packet))
            fence.target.execute(packet)

    def rewind_followers(self, node: Node) -> None:
        """Rewind the indexes' followers to their saved locations, then drop the saved locations.

        Safe to repeat after an interruption. Until it completes, entries may be missing without being reported as
        lagging. Therefore it runs even if the job is paused or replicas lag, and rewinds every reachable shard even if
        others fail.

        Args:
            node: the server that has the shard now.

        Raises:
            ServerError: some shards could not be reached.
        """
        shards, database = self._internals.shards, self._internals.shards.database(self._run.state.shard)
        with session(shards, node, self._run.state.shard) as connection:
            for table in side_of(connection, database).saved_locations:
                rows = connection.rows(sql.select_saved_locations(database, table))
                saved = {(str(name), int(shard)): (int(location), int(event)) for name, shard, location, event in rows}
                now = FollowerRows(shards).look(saved).rows
                failed: ServerError | None = None
                for (name, shard), (location, event) in saved.items():
                    row = now.get((name, shard))
                    # A shard that has nothing after the saved location and event had nothing to index since.
                    if row is None or row.top > location or row.last_event > event:
                        try:
                            shards.execute(shard, sql.rewind_follower(shards.database(shard), name, location, event))
                        except ServerError as error:
                            failed = failed or error
                if failed is not None:
                    raise failed
                connection.execute(sql.drop_table(database, table))

    def drop_left(self, node: Node, token: str) -> None:
        """Drop the old follower and index tables, which are not needed and may contain parts of erased documents.

        Call it after ``rewind_followers``: until the followers have been rewound, an erasure can count as
        acknowledged although its entries are still in these tables. Safe to repeat.

        Args:
            node: the server that the shard has left.
            token: token in the names of the move's tables.
        """
        shards, database = self._internals.shards, self._internals.shards.database(self._run.state.shard)
        with session(shards, node, self._run.state.shard) as connection:
            for table in (*index_tables(side_of(connection, database).moved), *sql.CARRIED):
                connection.execute(sql.drop_table(database, moving.moved(table, token)))
