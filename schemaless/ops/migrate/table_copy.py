"""Rebuilds a shard's table on MySQL: copies it within its server, and swaps the copy in with one RENAME.

MySQL's own rebuild, ``ALTER TABLE ... FORCE``, fails if an INSERT meets a duplicate key while it runs: the server
replays the INSERT into the new table, although it was rolled back. Equal puts may be repeated at any time, and each
repetition is such an INSERT.

A runner decides by the tables on the server. ``cell`` has all cells at all times, and writers wait only for the swap.

    server has                     then
    cell                           copy it to cell_incoming_TOKEN, swap, compare, drop cell_moved_TOKEN
    cell, cell_incoming_...        its runner died: drop the copy, and begin again
    cell, cell_moved_...           its runner died after the swap: compare, and drop the old table

The tables have the names of a move's tables, so erasures reach them, and a move refuses the shard while they exist.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

from schemaless.errors import ServerError, ServerTimeout
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.throttle import discount_read
from schemaless.ops.migrate import sql
from schemaless.ops.migrate.table_alter import NotRebuilt, TableRebuild
from schemaless.ops.move.fence import new_token, rename_time_s, side_of, take_locks
from schemaless.ops.move.sql import drop_table, raise_counter, rename, select_last_event
from schemaless.schema.databases import next_id
from schemaless.store.feed.sql import UNLOCK_TABLES, lock_cells
from schemaless.topology.shards import Shards
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.node import Node
from schemaless.wire.sql.sessions import set_session
from schemaless.wire.transactions import OpenTransaction

_IDLE_TIMEOUT_S: Final = 600
"""Idle timeout of the session while cells are copied, in seconds; a job that is paused for longer copies again."""

_SWAP_IDLE_TIMEOUT_S: Final = 5
"""Idle timeout of the session during the swap, in seconds. It is shorter than a lease: a runner that was suspended and
has lost its shard has lost its session too."""

_MAX_TAIL_S: Final = 0.05
"""Maximum duration of the last copy before the swap, in seconds: the tail that is copied during the swap is shorter."""

_MAX_FAST_RENAME_S: Final = 0.2
_MAX_ROUNDS: Final = 100
_REPLICA_POLL_S: Final = 0.5
_PAGE_BYTES: Final = 4 << 20
_SMALL_PAGE_BYTES: Final = 128 << 10
"""Size of a page while applications use the server, in bytes."""

_FIRST_ROWS: Final = 100
_MAX_ROWS: Final = 2_000


class TableCopy(TableRebuild):
    """The rebuild of one shard's table by a copy."""

    def __init__(
        self, shards: Shards, run: ShardRun, connection: Connection, most_attempts: int, lock_wait_s: int
    ) -> None:
        """Take the shard's locks; the session of an earlier runner is killed, and with it its other locks are free."""
        super().__init__(shards, run, connection, most_attempts, lock_wait_s)
        self._nodes = shards.topology.cluster_of(run.state.shard).nodes
        self._copy_s = 0.0
        self._copied = 0
        self._last_event = 0
        self._settings: dict[str, str | int | None] = {
            "transaction_isolation": "READ-COMMITTED",  # INSERT ... SELECT must not lock the cells that it reads.
            "lock_wait_timeout": lock_wait_s,
            "wait_timeout": _IDLE_TIMEOUT_S,
        }
        take_locks(self._connection, self._database, run.state.shard)
        self._connection.execute(set_session(self._settings))

    def take_over(self) -> bool:
        """Drop the tables of an earlier runner; return whether it had swapped them.

        Raises:
            NotRebuilt: an old table has cells that the shard lacks.
            ServerError: a server failed.
        """
        side = side_of(self._connection, self._database)
        token = self._run.state.counters.get("token", "")
        swapped = moving.moved("cell", token) in side.moved.get("cell", ())
        for name in side.moved.get("cell", ()) if side.has_cell else ():
            self._drop_old(name)
        for name in side.incoming.get("cell", ()) if side.has_cell else ():
            self._connection.execute(drop_table(self._database, name))
        return swapped

    def rebuild(self) -> tuple[float, float]:
        """Copy the table, swap the copy in, and drop the old table.

        If it fails before the swap, the copy is dropped.

        Returns:
            Duration of the statements in seconds, and of the one that built the index, by which replicas lag.

        Raises:
            NotRebuilt: the shard has to be skipped.
            ServerError: a server failed.
        """
        self._until_done(self._refuse_long_transactions)
        token = new_token()
        self._incoming, old = moving.incoming("cell", token), moving.moved("cell", token)
        self._run.state.counters["token"] = token
        self._run.checkpoint()
        try:
            for statement in sql.create_copy(self._database, self._incoming):
                self._connection.execute(statement)
            self._copy(self._until_done(self._settled_id))
            index_s = self.build_index()
            snapshots = self._snapshots()
            self._until_done(lambda: self._swap(old, snapshots), counted=True)
        except Exception:
            with suppress(ServerError):
                self._connection.execute(drop_table(self._database, self._incoming))
            raise
        self._drop_old(old)
        return self._copy_s + index_s, index_s

    # Copying

    def _settled_id(self) -> int:
        """Return an added_id up to which no further cells can appear: block writers until the open ones have ended."""
        self._connection.execute(lock_cells(self._database))
        try:
            return next_id(self._connection, self._database, "cell") - 1
        finally:
            self._connection.execute(UNLOCK_TABLES)

    def _copy(self, up_to: int) -> float:
        """Copy the cells up to a settled id; return the duration of the statements, in seconds."""
        took_s, state = 0.0, self._run.state
        state.top_id = up_to
        for after, end in self._pages("cell", self._copied, up_to):
            began_s = time.monotonic()
            self._connection.execute(sql.copy_cells(self._database, self._incoming, after, end))
            took_s += time.monotonic() - began_s
            self._copied = state.checkpoint = end
            if self._run.due():
                self._run.checkpoint()
        self._copied = max(self._copied, up_to)
        self._copy_s += took_s
        return took_s

    def _pages(self, table: str, after: int, up_to: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of added_ids whose cells can be processed in one statement, at the job's pace."""
        rows = _FIRST_ROWS
        while True:
            self._run.gate()
            max_bytes = _SMALL_PAGE_BYTES if self._run.yields else _PAGE_BYTES
            extent = sql.select_extent(self._database, table, after, up_to, rows, max_bytes)
            end, count, size = self._connection.rows(extent)[0]
            discount_read(self._connection)
            if end is None:
                return
            self._run.spend(int(size))
            began_s = time.monotonic()
            yield after, int(end)
            self._run.rest(time.monotonic() - began_s)
            after = int(end)
            rows = max(1, min(_MAX_ROWS, max_bytes * int(count) // (int(size) + 1)))

    def build_index(self) -> float:
        """Build the unique index in one go: its pages are full then, and are written once. Return the duration."""
        began_s = time.monotonic()
        self._connection.execute(sql.add_unique_key(self._database, self._incoming))
        return time.monotonic() - began_s

    def _copy_erasures(self) -> None:
        """Copy the tombstones of cells that were erased after they were copied."""
        last = self._connection.rows(select_last_event(self._database, "erased_cell"))[0][0]
        if last is not None and int(last) > self._last_event:
            self._connection.execute(sql.copy_dependents(self._database, self._incoming, self._last_event))
            self._connection.execute(sql.copy_erasures(self._database, self._incoming, self._last_event))
            self._last_event = int(last)

    # The swap

    def _snapshots(self) -> dict[Node, AbstractSet[tuple[int, int]]]:
        """Return, by server, the transactions whose snapshot may be older than the copied cells.

        To such a transaction, a dump for example, the copied cells do not exist. After the swap, it would find the
        table empty, without any error.
        """
        found: dict[Node, AbstractSet[tuple[int, int]]] = {}
        for node in self._nodes:
            while node.role == "replica" and not self._has_index(node):
                self._run.pause(_REPLICA_POLL_S)
            found[node] = self._transactions(node).keys()
        return found

    def _has_index(self, node: Node) -> bool:
        return bool(self._shards.pool_for(node).rows(sql.select_has_key(self._database, self._incoming))[0][0])

    def _transactions(self, node: Node) -> dict[tuple[int, int], OpenTransaction]:
        """Return the transactions with a snapshot that are open on a server."""

        def read(connection: Connection) -> Rows:
            with connection.transaction():
                return connection.rows(sql.SELECT_TRANSACTIONS)

        rows = self._shards.pool_for(node).run(read)
        if not any(own for own, *_ in rows):
            raise NotRebuilt(
                f"{node} does not show its transactions, among which may be a backup: start it with performance_schema "
                "on, and enable the consumer events_transactions_current and the instrument transaction"
            )
        return {
            (int(thread), int(event)): OpenTransaction(int(thread), str(account), float(age_s))
            for own, thread, event, account, age_s in rows
            if not own
        }

    def _refuse_long_transactions(self) -> None:
        """Do not begin a copy whose swap would have to wait."""
        for node in self._nodes:
            open_now = self._transactions(node)
            _refuse(node, {key: each for key, each in open_now.items() if each.age_s > self._lock_wait_s})

    def _swap(self, old: str, snapshots: Mapping[Node, AbstractSet[tuple[int, int]]]) -> None:
        """Copy the cells written since the last copy, and swap the tables while clients are locked out.

        Raises:
            ServerTimeout: a transaction has not ended, or a lock was not granted; nothing has changed.
        """
        for node, earlier in snapshots.items():
            open_now = self._transactions(node)
            _refuse(node, {key: open_now[key] for key in earlier & open_now.keys()})
        for _ in range(_MAX_ROUNDS):
            took_s = self._copy(self._settled_id())
            if took_s < _MAX_TAIL_S:
                break
        else:
            raise ServerTimeout("cells are written faster than they can be copied", node=self._connection.node)
        self._copy_erasures()
        if rename_time_s(self._connection, self._database, self._incoming) > _MAX_FAST_RENAME_S:
            raise ServerTimeout("the server is flushing the copied cells to its disk", node=self._connection.node)
        self._connection.execute(set_session({"wait_timeout": _SWAP_IDLE_TIMEOUT_S}))
        self._run.checkpoint()
        try:
            self._connection.execute(sql.lock_for_swap(self._database, self._incoming))
            self._connection.execute(sql.copy_cells(self._database, self._incoming, self._copied))
            self._copy_erasures()
            wanted = next_id(self._connection, self._database, "cell")
            if next_id(self._connection, self._database, self._incoming) < wanted:
                # Ids of rolled back rows must not be assigned again.
                self._connection.execute(raise_counter(self._database, self._incoming, wanted))
            for statement in rename(self._database, [("cell", old), (self._incoming, "cell")]):
                self._connection.execute(statement)
        finally:
            self._connection.execute(UNLOCK_TABLES)
            self._connection.execute(set_session(self._settings))

    def _drop_old(self, name: str) -> None:
        """Drop the table that was swapped out, once all its cells have been found in the new one.

        Raises:
            NotRebuilt: some were not.
        """
        for after, end in self._pages(name, 0, (1 << 64) - 1):
            lacking = self._connection.rows(sql.count_lacking(self._database, name, after, end))[0][0]
            if lacking:
                raise NotRebuilt(
                    f"{lacking} cells of its earlier table {name} with added_ids from {after + 1} to {end} are missing "
                    f"from its table, or differ there; did another program change cells? {name} was kept: compare "
                    "the two, repair the shard, drop it, and run the same command again"
                )
        self._connection.execute(drop_table(self._database, name))


def _refuse(node: Node, transactions: Mapping[tuple[int, int], OpenTransaction]) -> None:
    for each in transactions.values():
        raise ServerTimeout(
            f"a transaction is open in {each}; it may be a backup, which would miss the cells of the rebuilt table",
            node=str(node),
        )
