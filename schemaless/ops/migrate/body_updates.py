"""UPDATEs that replace bodies of one shard, each only if the stored body is still the one that was read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from schemaless.cell import StoredCell
from schemaless.errors import ServerUnavailable
from schemaless.ops.migrate.archive import ArchivedCell
from schemaless.ops.migrate.binlog_cost import log_settings
from schemaless.ops.migrate.sql import LONGEST_IN_UNION, select_live, update_bodies
from schemaless.store.cells.reading import Place, only_requested
from schemaless.store.erasures.sql import insert_lock_row, lock_log, record_deltas, select_log_end
from schemaless.store.followers.sql import select_last_event
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection, split_statements

C = TypeVar("C", StoredCell, ArchivedCell)


class Change(NamedTuple, Generic[C]):
    """A body to replace.

    Attributes:
        cell: the cell.
        digest: SHA-256 of the stored body.
        body: the new body.
        keep_reason: as in ``Recoded``.
        base: key of the version that the new body is a delta against, or None.
    """

    cell: C
    digest: bytes
    body: bytes
    keep_reason: str | None = None
    base: Place | None = None


class BodyUpdates:
    """Builds and sends the UPDATEs; their sessions have the settings of ``log_settings``.

    Create it before reading the versions that new bodies are deltas against, with ``has_bases``.
    """

    def __init__(self, shards: Shards, shard: int, *, full_row_images: bool, has_bases: bool = False) -> None:
        self.shards = shards
        self.shard = shard
        self._settings = shards.run(shard, lambda connection: log_settings(connection, full_images=full_row_images))
        self._log_end = shards.run(shard, self._end_of_log, writes=True) if has_bases else None

    def statements(
        self, changes: Sequence[Change[C]], leave: Callable[[C, str, str], None]
    ) -> list[tuple[bytes, Sequence[Change[C]]]]:
        """Return UPDATEs within the server's packet limit, with their changes.

        Args:
            changes: bodies to replace.
            leave: called with a cell whose new body fits in no UPDATE, a reason and a message.
        """

        def update(part: Sequence[Change[C]]) -> bytes:
            database = self.shards.database(self.shard)
            return update_bodies(database, [(change.cell.added_id, change.digest, change.body) for change in part])

        def too_long(change: Change[C], sql_bytes: int) -> None:
            leave(
                change.cell,
                "BodyTooLarge",
                f"its new body has {len(change.body):,} bytes, which makes an UPDATE of {sql_bytes:,} bytes; raise the "
                "server's max_allowed_packet",
            )

        most_bytes = self.shards.run(self.shard, lambda connection: connection.max_statement_bytes)
        together = [change for change in changes if len(change.body) <= LONGEST_IN_UNION]
        statements = list(split_statements(together, update, most_bytes, too_long))
        for change in changes:
            if len(change.body) > LONGEST_IN_UNION:
                statements += split_statements([change], update, most_bytes, too_long)
        return statements

    def send(self, sql: bytes, bases: Collection[Place] = ()) -> tuple[int, bool]:
        """Send an UPDATE; return the number of rows matched, and whether it was repeated after a lost reply.

        Args:
            sql: the statement.
            bases: keys of the versions that new bodies are deltas against. If one was erased or is cold, nothing is
                updated.

        Raises:
            ServerUnavailable: there are bases, and another server has become the primary. It may have lost some of
                them, and have got others with the same keys since; read them again. Nothing was updated.
            ServerError: the server cannot be reached, or rejects the statement.
        """
        attempts = 0
        database = self.shards.database(self.shard)

        def guarded(connection: Connection) -> int | None:
            # An eraser that waits for the lock finds the deltas afterwards, and makes them whole.
            self._insert_lock_row(connection)
            with connection.transaction():
                ((_, has_deltas),) = connection.rows(lock_log(database))
                *log_end, has_cold_files = connection.rows(select_log_end(database))[0]
                if self._log_end is None or log_end[0] != self._log_end[0]:
                    return None
                if not has_deltas:
                    connection.execute(record_deltas(database))
                # A job that was cancelled, or has stalled, may still make bases cold.
                if has_cold_files or log_end != self._log_end:
                    live = connection.rows(select_live(database, bases), only_requested(set(bases), slice(0, 3)))
                    if len(live) < len(bases):
                        return 0
                return connection.execute(sql).affected

        def operation(connection: Connection) -> int | None:
            nonlocal attempts
            attempts += 1
            if self._settings is not None:
                connection.ensure(self._settings)
            return guarded(connection) if bases else connection.execute(sql).affected

        affected = self.shards.run(self.shard, operation, writes=True)
        if affected is None:
            raise ServerUnavailable(
                "this server has become the shard's primary; what was read from the former one has to be read again",
                node=str(self.shards.node_of(self.shard)),
                shard=self.shard,
            )
        return affected, attempts > 1

    def _end_of_log(self, connection: Connection) -> list[Any]:
        self._insert_lock_row(connection)
        *log_end, _ = connection.rows(select_log_end(self.shards.database(self.shard)))[0]
        return log_end

    def _insert_lock_row(self, connection: Connection) -> None:
        database = self.shards.database(self.shard)
        if connection.rows(select_last_event(database))[0][0] is None:
            connection.execute(insert_lock_row(database))
