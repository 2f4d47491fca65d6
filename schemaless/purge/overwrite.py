"""Makes servers overwrite or delete what is left of replaced rows in their files.

An UPDATE leaves the old row in the free space of its page, in the undo log, the redo log, the doublewrite buffer and
the binary log. Servers reuse that space eventually; this module forces them to: tables are rebuilt, undo tablespaces
truncated, redo logs replaced by smaller ones and filled, doublewrite buffers filled, and binary logs deleted. MyRocks
keeps old rows in its write-ahead log and in files that have not been compacted yet: it is flushed and compacted, which
deletes both.
"""

from __future__ import annotations

import math
import random
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from schemaless.errors import ServerTimeout
from schemaless.events import Listener, Step, ignore_events
from schemaless.purge import sql
from schemaless.schema.engines import INNODB, ROCKSDB, engine_of_cells
from schemaless.schema.sql import COMPACT
from schemaless.survey.page_model import PAGE_BYTES
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import SHOW_BINARY_LOGS, set_session

WAIT_S: Final = 120.0
"""Timeout of each step, in seconds."""

SMALL_REDO_BYTES: Final = 8 << 20
"""Size of the redo log while it is filled. It is MySQL's minimum; MariaDB's minimum is the size of its log buffer."""

_FILLED: Final = 3
"""Number of times the redo log is filled."""

_SINGLE_PAGES: Final = 600
"""Number of pages written one by one, enough to overwrite MySQL's 512 doublewrite slots for such pages."""

_MAX_ROUNDS: Final = 20
"""Maximum number of times that filler rows are changed to overwrite a doublewrite buffer."""

_DEEP_SCAN: Final = 1 << 20
_FEW_PAGES: Final = 100
_FLUSHED_PER_S: Final = 20_000
_POLL_S: Final = 0.05
_ROWS: Final = 300
_SPARE_UNDO: Final = "schemaless_undo"

_SETTINGS: Final[dict[bool, tuple[str, ...]]] = {
    False: (
        *("super_read_only", "innodb_redo_log_capacity", "innodb_purge_rseg_truncate_frequency"),
        *("innodb_lru_scan_depth", "innodb_idle_flush_pct", "innodb_adaptive_flushing"),
        *("innodb_max_dirty_pages_pct", "innodb_max_dirty_pages_pct_lwm"),
    ),
    True: (
        *("innodb_log_file_size", "innodb_purge_rseg_truncate_frequency"),
        *("innodb_max_dirty_pages_pct", "innodb_max_dirty_pages_pct_lwm"),
        *("innodb_io_capacity_max", "innodb_io_capacity"),
    ),
}
"""Global variables that a purge changes on MySQL (False) and MariaDB (True), each after the ones that limit it."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that held replaced rows."""

    database: str
    name: str


def purge_files(
    primary: NodePool,
    tables: Sequence[Table],
    replicas: Sequence[NodePool] = (),
    *,
    listener: Listener = ignore_events,
) -> None:
    """Overwrite the remains of replaced rows in the files of a primary and its replicas.

    All binary logs but the current one are deleted, so a replica that is down will not be able to catch up. The blocks
    of deleted and trimmed files return to the file system, which might not overwrite them.

    Args:
        primary: connections as an administrator, such as root of a local server.
        tables: tables that held the rows, all on this primary.
        replicas: connections to its replicas as an administrator.
        listener: receives a ``Step`` for each step.

    Raises:
        ServerTimeout: a step did not end within ``WAIT_S``: an open transaction keeps earlier rows, or a replica lags.
        ServerError: a server is unreachable, or the account is not an administrator's.
    """
    cluster = _Cluster(primary, replicas, listener)
    with _restored_settings(cluster.servers, listener):
        _purge(cluster, tables)


def _purge(cluster: _Cluster, tables: Sequence[Table]) -> None:
    primary, servers, listener = cluster.primary, cluster.servers, cluster.listener
    engines = {
        table: primary.run(partial(engine_of_cells, database=table.database, table=table.name)) for table in tables
    }
    cluster.catch_up()
    cluster.on_each("purging undo logs", _purge_undo)
    for table in tables:
        if engines[table] is INNODB:
            listener(Step(f"rebuilding {table.database}.{table.name}"))
            statement = sql.rebuild(table.database, table.name)
            primary.run(partial(_execute, statement))
    cluster.catch_up()
    if ROCKSDB in engines.values():
        cluster.on_each("compacting MyRocks", _compact)
    cluster.on_each("truncating undo tablespaces", _truncate_undo)
    with _small_redo(servers) as redo_bytes:
        listener(Step(f"overwriting {redo_bytes / 1e6:.0f} MB of redo log"))
        primary.run(partial(_overwrite_redo, redo_bytes * _FILLED))
        cluster.catch_up()
        cluster.on_each("purging undo logs", _purge_undo)
        cluster.on_each("writing pages", _flush)
    # Each way of writing pages has slots of its own in the doublewrite buffer.
    doublewrite_bytes = max(server.run(_doublewrite_bytes) for server in servers)
    primary.run(partial(_make_filler, doublewrite_bytes))
    with _without_background_writes(servers):
        cluster.write_filler("singly", _flush_singly, _SINGLE_PAGES)
        if not primary.run(lambda connection: connection.is_mariadb):
            # MariaDB's doublewrite buffer makes no difference.
            batched_pages = doublewrite_bytes // PAGE_BYTES - _SINGLE_PAGES
            cluster.write_filler("in LRU batches", _flush_by_lru, batched_pages)
    primary.run(partial(_execute, sql.UPDATE_FILLER))
    cluster.catch_up()
    cluster.on_each("writing filler pages by age", _flush)
    primary.run(partial(_execute, sql.DROP_FILLER))
    cluster.catch_up()
    cluster.on_each("deleting binary logs", _delete_binary_logs)


@dataclass(frozen=True, slots=True)
class _Cluster:
    primary: NodePool
    replicas: Sequence[NodePool]
    listener: Listener

    @property
    def servers(self) -> list[NodePool]:
        return [self.primary, *self.replicas]

    def on_each(self, words: str, operation: Callable[[Connection], None]) -> None:
        for server in self.servers:
            self.listener(Step(f"{words} on {server.node}"))
            server.run(operation)

    def catch_up(self) -> None:
        position = self.primary.run(gtid_position) if self.replicas else ""
        for replica in self.replicas:
            if not replica.run(lambda connection: wait_for_gtid(connection, position, WAIT_S)):
                raise ServerTimeout(f"the replica did not catch up within {WAIT_S:.0f} s", node=str(replica.node))

    def write_filler(self, words: str, write: Callable[[Connection], None], pages: int) -> None:
        """Change filler rows and write their pages, until each server has written at least ``pages``."""
        written = dict.fromkeys(self.servers, 0)
        for _ in range(_MAX_ROUNDS):
            self.primary.run(partial(_execute, sql.UPDATE_FILLER))
            self.catch_up()
            for server in self.servers:
                self.listener(Step(f"writing filler pages {words} on {server.node}"))
                written[server] += server.run(partial(_pages_written, write))
            if min(written.values()) >= pages:
                return
        raise ServerTimeout(
            f"only {min(written.values())} of {pages} filler pages were written {words}, so the doublewrite buffer may "
            "still have old rows; purge again when the servers are less busy",
            node=str(self.primary.node),
        )


def _execute(statement: bytes, connection: Connection) -> None:
    connection.execute(statement)


@contextmanager
def _restored_settings(servers: Sequence[NodePool], listener: Listener) -> Iterator[None]:
    """Restore the settings changed by a killed purge, and record the current ones in case this purge is killed.

    Each step restores what it has changed, unless the process dies. The record is on the primary, and is dropped
    together with the filler.
    """
    primary = servers[0]
    for statement in sql.CREATE_SETTINGS:
        primary.run(partial(_execute, statement))
    recorded: dict[str, dict[str, float]] = {}
    for node, name, value in primary.run(lambda connection: connection.rows(sql.SELECT_SETTINGS)):
        recorded.setdefault(str(node), {})[str(name)] = float(value)
    for server in servers:
        node, now = str(server.node), server.run(_settings)
        before = recorded.get(node, {})
        # A primary of that time may be a replica now, and has to stay read-only.
        changed = {
            name: before[name]
            for name, value in now.items()
            if before.get(name, value) != value and (name != "super_read_only" or before[name])
        }
        if changed:
            listener(Step(f"restoring settings of {node}, where an earlier purge was killed"))
            server.run(partial(_execute, sql.set_globals(changed)))
        primary.run(partial(_execute, sql.insert_settings(node, now)))
    try:
        yield
    finally:
        primary.run(partial(_execute, sql.DROP_FILLER))


def _settings(connection: Connection) -> dict[str, float]:
    names = _SETTINGS[connection.is_mariadb]
    return dict(zip(names, map(float, connection.rows(sql.select_globals(names))[0]), strict=True))


def _until(connection: Connection, done: Callable[[], bool], waited_for: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > until_s:
            raise ServerTimeout(
                f"{connection.node}: {waited_for} did not end within {WAIT_S:.0f} s", node=connection.node
            )
        time.sleep(_POLL_S)


@contextmanager
def _globals(connection: Connection, values: dict[str, float]) -> Iterator[None]:
    before = connection.rows(sql.select_globals(tuple(values)))[0]
    connection.execute(sql.set_globals(values))
    try:
        yield
    finally:
        # In reverse order: a limit is raised before what it limits.
        connection.execute(sql.set_globals(dict(reversed([*zip(values, before, strict=True)]))))


def _purge_undo(connection: Connection) -> None:
    with _globals(connection, {"innodb_purge_rseg_truncate_frequency": 1}):
        _until(
            connection,
            lambda: int(connection.rows(sql.SELECT_HISTORY)[0][0]) == 0,
            "purging undo logs, which an open transaction can prevent,",
        )


def _compact(connection: Connection) -> None:
    """Write MyRocks' rows to new files without obsolete versions, and delete its write-ahead logs."""
    began_s = int(connection.rows(sql.SELECT_OLDEST_SNAPSHOT)[0][1])

    def seen_by_none() -> bool:
        oldest_s = int(connection.rows(sql.SELECT_OLDEST_SNAPSHOT)[0][0])
        return not 0 < oldest_s <= began_s

    _until(connection, seen_by_none, "the snapshot of a transaction, which keeps earlier rows,")
    for statement in COMPACT:
        connection.execute(statement)


def _truncate_undo(connection: Connection) -> None:
    """Truncate MySQL's undo tablespaces. The pages of MariaDB's undo logs are reused instead."""
    if connection.is_mariadb:
        return

    def states() -> dict[str, str]:
        return {str(name): str(state) for name, state in connection.rows(sql.SELECT_UNDO_TABLESPACES)}

    def empty(name: str) -> None:
        connection.execute(sql.alter_undo_tablespace(name, active=False))
        _until(connection, lambda: states()[name] == "empty", f"truncating undo tablespace {name}")

    names = [name for name in states() if name != _SPARE_UNDO]
    # Undo tablespaces are a server's own: replicas have to allow the statements, and must not log them.
    with _globals(connection, {"super_read_only": 0}), _unlogged(connection):
        # Two must stay active while one is truncated.
        if _SPARE_UNDO not in states():
            connection.execute(sql.create_undo_tablespace(_SPARE_UNDO))
        connection.execute(sql.alter_undo_tablespace(_SPARE_UNDO, active=True))
        try:
            for name in names:
                empty(name)
                connection.execute(sql.alter_undo_tablespace(name, active=True))
        finally:
            empty(_SPARE_UNDO)
            connection.execute(sql.drop_undo_tablespace(_SPARE_UNDO))


@contextmanager
def _unlogged(connection: Connection) -> Iterator[None]:
    """Keep statements out of the binary log."""
    connection.execute(set_session({"sql_log_bin": 0}))
    try:
        yield
    finally:
        connection.execute(set_session({"sql_log_bin": 1}))


@contextmanager
def _small_redo(servers: Sequence[NodePool]) -> Iterator[int]:
    """Shrink the redo logs, which discards what precedes the last checkpoint; restore their sizes at the end."""
    before: list[tuple[NodePool, int]] = []
    try:
        smallest = 0
        for server in servers:
            small, size = server.run(_resize_redo)
            smallest = max(smallest, small)
            before.append((server, size))
        yield smallest
    finally:
        for server, size in before:
            server.run(partial(_set_redo, size))


def _resize_redo(connection: Connection) -> tuple[int, int]:
    size = int(connection.rows(sql.select_globals((_redo_variable(connection),)))[0][0])
    small = SMALL_REDO_BYTES
    if connection.is_mariadb:
        small = max(small, int(connection.rows(sql.select_globals(("innodb_log_buffer_size",)))[0][0]))
    if small == size:
        small *= 2  # it has to change, because the log is replaced by one of another size
    _flush(connection)
    _set_redo(small, connection)
    return small, size


def _redo_variable(connection: Connection) -> str:
    return "innodb_log_file_size" if connection.is_mariadb else "innodb_redo_log_capacity"


def _set_redo(size: int, connection: Connection) -> None:
    connection.execute(sql.set_globals({_redo_variable(connection): size}))
    if not connection.is_mariadb:
        _until(connection, lambda: connection.rows(sql.SHOW_REDO_RESIZE)[0][1] == "OK", "resizing the redo log")


def _overwrite_redo(redo_bytes: int, connection: Connection) -> None:
    """Insert rows and change them repeatedly, which reuses redo logs and the pages of undo logs."""
    # A row is logged when it is inserted, and twice when it is updated: the new row, and the old one in the undo log.
    _make_filler(_ROWS * sql.FILLER_ROW_BYTES, connection)
    for _ in range(math.ceil(redo_bytes / (_ROWS * sql.FILLER_ROW_BYTES * 2))):
        connection.execute(sql.UPDATE_FILLER)


def _make_filler(size: int, connection: Connection) -> None:
    """Create the filler table with rows of this total size."""
    drawn = random.Random(0)  # noqa: S311 - nothing secret
    for statement in sql.CREATE_FILLER:
        connection.execute(statement)
    for _ in range(math.ceil(size / (_ROWS * sql.FILLER_ROW_BYTES))):
        connection.execute(sql.insert_filler(_ROWS, "".join(drawn.choices(string.ascii_letters, k=60))))


def _doublewrite_bytes(connection: Connection) -> int:
    """Return the size of the doublewrite buffer, rounded up."""
    files = pages = 2
    if not connection.is_mariadb:
        files, pages = connection.rows(sql.select_globals(("innodb_doublewrite_files", "innodb_doublewrite_pages")))[0]
    return int(files) * int(pages) * 2 * PAGE_BYTES + _SINGLE_PAGES * PAGE_BYTES


@contextmanager
def _without_background_writes(servers: Sequence[NodePool]) -> Iterator[None]:
    """Keep an idle MySQL from writing changed pages by age, which would not use the slots to be overwritten."""
    quiet: dict[str, float] = {
        "innodb_idle_flush_pct": 0,
        "innodb_adaptive_flushing": 0,
        "innodb_max_dirty_pages_pct_lwm": 0,
    }
    before: list[tuple[NodePool, dict[str, float]]] = []

    def change(connection: Connection) -> dict[str, float]:
        if connection.is_mariadb:
            return {}
        values = dict(zip(quiet, connection.rows(sql.select_globals(tuple(quiet)))[0], strict=True))
        connection.execute(sql.set_globals(quiet))
        return values

    try:
        for server in servers:
            before.append((server, server.run(change)))  # noqa: PERF401 - a server may fail
        yield
    finally:
        for server, values in before:
            if values:
                server.run(partial(_execute, sql.set_globals(values)))


def _pages_written(write: Callable[[Connection], None], connection: Connection) -> int:
    """Write changed pages, and return how many were written."""
    before = int(connection.rows(sql.SHOW_DIRTY_PAGES)[0][1])
    write(connection)
    return before - int(connection.rows(sql.SHOW_DIRTY_PAGES)[0][1])


def _flush_singly(connection: Connection) -> None:
    with connection.whole():
        connection.execute(sql.EXPORT_FILLER)
        connection.execute(sql.UNLOCK)


def _flush_by_lru(connection: Connection) -> None:
    """Make MySQL's page cleaner write dirty pages in LRU batches, which normally happens only when memory is short."""

    def written() -> bool:
        # The page cleaner of a server without activity writes no such batches.
        connection.execute(sql.insert_filler(1, "x"))
        return int(connection.rows(sql.SHOW_DIRTY_PAGES)[0][1]) < _FEW_PAGES

    # Replicas have to allow the statements, and must not log them.
    settings: dict[str, float] = {"innodb_lru_scan_depth": _DEEP_SCAN, "super_read_only": 0}
    with _globals(connection, settings), _unlogged(connection):
        _until(connection, written, "writing LRU batches")


def _flush(connection: Connection) -> None:
    """Write all changed pages to the data files."""
    settings: dict[str, float] = {"innodb_max_dirty_pages_pct_lwm": 0, "innodb_max_dirty_pages_pct": 0}
    if connection.is_mariadb:
        # By default, an idle server writes 200 pages a second.
        settings |= {"innodb_io_capacity_max": _FLUSHED_PER_S, "innodb_io_capacity": _FLUSHED_PER_S}
    with _globals(connection, settings):
        _until(connection, lambda: int(connection.rows(sql.SHOW_DIRTY_PAGES)[0][1]) == 0, "writing changed pages")


def _delete_binary_logs(connection: Connection) -> None:
    connection.execute(sql.FLUSH_BINARY_LOGS)
    connection.execute(sql.FLUSH_RELAY_LOGS)
    names = [str(row[0]) for row in connection.rows(SHOW_BINARY_LOGS)]
    connection.execute(sql.purge_binary_logs(names[-1]))
