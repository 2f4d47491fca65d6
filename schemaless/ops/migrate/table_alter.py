"""Rebuilds a shard's table on MariaDB with one ALTER, and what this and the copy on MySQL have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from schemaless.base.type_variables import T
from schemaless.errors import ServerError, ServerRefused, ServerTimeout
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.migrate.sql import rebuild_table, select_table_created
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DuplicateKey
from schemaless.wire.sql.sessions import set_session
from schemaless.wire.transactions import naming_users

_LONGEST_PAUSE_S: Final = 30.0
_CREATED_POLL_S: Final = 0.1
_LOG_TOO_SMALL: Final = 1799


class NotRebuilt(Exception):
    """The shard has to be skipped; its table is unchanged."""


class TableRebuild:
    """A rebuild of one shard's table.

    Args:
        shards: access to the shards of the datastore.
        run: the claimed shard.
        connection: session with the primary, which never reconnects.
        most_attempts: maximum number of attempts to get a lock.
        lock_wait_s: time that a lock waits for transactions that use the table, in seconds.
    """

    def __init__(
        self, shards: Shards, run: ShardRun, connection: Connection, most_attempts: int, lock_wait_s: int
    ) -> None:
        self._shards = shards
        self._run = run
        self._connection = connection
        self._most_attempts = most_attempts
        self._lock_wait_s = lock_wait_s
        self._database = shards.database(run.state.shard)

    def _until_done(
        self, operation: Callable[[], T], *, counted: bool = False, retried: type[ServerError] = ServerTimeout
    ) -> T:
        """Call an operation, with growing pauses, until it gets its locks; with ``counted``, count the attempts.

        Raises:
            NotRebuilt: no attempt succeeded.
        """
        counters = self._run.state.counters
        for attempt in range(self._most_attempts):
            if attempt:
                self._run.pause(min(_LONGEST_PAUSE_S, 2.0 ** min(attempt - 1, 8)))
            self._run.gate()
            if counted:
                counters["attempts"] = counters.get("attempts", 0) + 1
                self._run.checkpoint()
            try:
                with naming_users(self._connection, self._database):
                    return operation()
            except (ServerTimeout, retried) as error:
                last: ServerError = error
        raise NotRebuilt(
            f"no attempt succeeded (attempts: {self._most_attempts}); the last error: {last.message}. The table is "
            "unchanged"
        )


class TableAlter(TableRebuild):
    """The rebuild of one shard's table by the server."""

    def take_over(self) -> bool:
        """Return whether the server has completed the ALTER of a runner that died."""
        made = self._run.state.counters.get("made")
        return made is not None and made != self._created()

    def rebuild(self) -> tuple[float, float]:
        """Rebuild the table; return the duration of the ALTER, by which replicas lag too, in seconds."""
        self._connection.execute(set_session({"lock_wait_timeout": self._lock_wait_s}))
        # MariaDB before 10.8 aborts the ALTER when a concurrent INSERT meets a duplicate key.
        took_s = self._until_done(self._alter, counted=True, retried=DuplicateKey)
        return took_s, took_s

    def _alter(self) -> float:
        self._run.state.counters["made"] = self._created()
        self._run.checkpoint()
        began_s = time.monotonic()
        try:
            self._connection.execute(rebuild_table(self._database))
        except ServerRefused as error:
            if error.code != _LOG_TOO_SMALL:
                raise
            raise NotRebuilt(
                "the writes during the rebuild exceeded innodb_online_alter_log_max_size "
                f"({error.message}); raise that variable on the server, or run the rebuild again when there are "
                "fewer writes. The table is unchanged"
            ) from error
        return time.monotonic() - began_s

    def _created(self) -> str:
        """Return the table's creation time, to the second; wait first if that second is not over yet."""
        while True:
            created, this_second = self._connection.rows(select_table_created(self._database))[0]
            if not this_second:
                return str(created)
            time.sleep(_CREATED_POLL_S)
