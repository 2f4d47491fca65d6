"""Storage engines of cells and index entries: InnoDB, or MyRocks on MariaDB; other tables are always in InnoDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemaless.errors import InvalidInput, TopologyError
from schemaless.schema.sql import select_engine_support, select_global_variables, select_table_engine
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool


@dataclass(frozen=True, slots=True)
class StorageEngine:
    """A storage engine.

    Attributes:
        name: its name in the catalog and on the command line, which is the server's name for it in lower case.
        title: its name in messages.
        clause: its name in DDL statements.
    """

    name: str
    title: str
    clause: str


INNODB: Final = StorageEngine("innodb", "InnoDB", "InnoDB")
ROCKSDB: Final = StorageEngine("rocksdb", "MyRocks", "ROCKSDB")

ENGINES: Final = {engine.name: engine for engine in (INNODB, ROCKSDB)}
"""Storage engines by name."""

WITHDRAWN: Final = ("8.0.38", "8.4.1", "9.0.0")
"""Releases of MySQL that do not start again once they have about 8,000 tables, and were withdrawn for that."""

_OLDEST_MARIADB: Final = (10, 6)

_REQUIRED: Final = {
    "rocksdb_flush_log_at_trx_commit": ("1", "an acknowledged cell could be lost in a crash"),
    "rocksdb_deadlock_detect": ("ON", "deadlocks would last until rocksdb_lock_wait_timeout"),
    "rocksdb_enable_2pc": ("ON", "cells and binary log could differ after a crash"),
    "rocksdb_write_disable_wal": ("OFF", "an acknowledged cell could be lost in a crash"),
    "rocksdb_bulk_load": ("OFF", "cells could be written twice"),
    "rocksdb_commit_in_the_middle": ("OFF", "a batch could be written in part"),
    "rocksdb_skip_unique_check": ("OFF", "cells could be written twice"),
    "rocksdb_unsafe_for_binlog": ("OFF", "replicas could differ from their primary"),
}
"""Required settings of MyRocks, and what could happen with any other value."""

_LEAST_LOCK_WAIT_S: Final = 10
"""Minimum of ``rocksdb_lock_wait_timeout``, in seconds. With its default of 1, writes to a busy row would fail."""

_LOCK_WAIT: Final = "rocksdb_lock_wait_timeout"


def engine_named(name: str) -> StorageEngine:
    """Return a storage engine by name.

    Raises:
        InvalidInput: there is no such engine.
    """
    if name not in ENGINES:
        raise InvalidInput(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    return ENGINES[name]


def engine_of_cells(connection: Connection, database: str) -> StorageEngine:
    """Return the storage engine that a shard's table of cells is in; on MySQL without a query."""
    if not connection.is_mariadb:
        return INNODB
    rows = connection.rows(select_table_engine(database, "cell"))
    return engine_named(str(rows[0][0]).lower()) if rows else INNODB


def check_server(pool: NodePool, name: str) -> None:
    """Check that a server can store cells in an engine without weakening any guarantee.

    Raises:
        TopologyError: it cannot; the message has the lines for the server's configuration.
    """
    if engine_named(name) is ROCKSDB and (problem := pool.run(_problem)) is not None:
        raise TopologyError(f"{pool.node} cannot store cells in MyRocks: {problem}. Nothing was written")


def withdrawn_release(pool: NodePool) -> str | None:
    """Return the version of a server of MySQL that was withdrawn, or None."""
    version, mariadb = pool.run(lambda connection: (connection.version, connection.is_mariadb))
    return version if not mariadb and version.partition("-")[0] in WITHDRAWN else None


def setting_faults(pool: NodePool, name: str) -> list[str]:
    """Return the settings of a server that would weaken an engine's guarantees, with the right values."""
    return pool.run(_faults) if name == ROCKSDB.name else []


def _problem(connection: Connection) -> str | None:
    """Return why a server cannot store cells in MyRocks, or None."""
    if not connection.is_mariadb:
        return (
            f"it is MySQL {connection.version}, and MyRocks is supported on MariaDB only. Shards cannot be moved from "
            "MySQL to MariaDB, so create the datastore there and copy it with 'schemaless dump' and 'load'"
        )
    version = tuple(int(part) for part in connection.version.split("-", 1)[0].split(".")[:2])
    if version < _OLDEST_MARIADB:
        return f"it is MariaDB {connection.version}; {'.'.join(map(str, _OLDEST_MARIADB))} or later is required"
    support = connection.rows(select_engine_support(ROCKSDB.clause))
    if not support or str(support[0][0]) not in ("YES", "DEFAULT"):
        return (
            "its plugin is not loaded. Install it (on Debian and Ubuntu, the package mariadb-plugin-rocksdb), add "
            f"these lines to the section [mariadb] of the server's configuration, and restart the server: {_lines()}"
        )
    if faults := _faults(connection):
        return f"{'; '.join(faults)}. Change them in section [mariadb] of the server's configuration, and restart it"
    return None


def _lines() -> str:
    settings = {name: value for name, (value, _) in _REQUIRED.items() if value in ("1", "ON")}
    lines = [f"{name}={value}" for name, value in settings.items() if name != "rocksdb_enable_2pc"]
    return "; ".join(["plugin-load-add=ha_rocksdb", *lines, f"{_LOCK_WAIT}=50", "binlog_format=ROW"])


def _faults(connection: Connection) -> list[str]:
    names = [*_REQUIRED, _LOCK_WAIT, "binlog_format"]
    rows = connection.rows(select_global_variables(names))
    found = {str(name).lower(): str(value) for name, value in rows}
    faults = [
        f"{name} is {found[name]} ({danger}), set {name}={needed}"
        for name, (needed, danger) in _REQUIRED.items()
        if found.get(name, needed) != needed
    ]
    if int(found.get(_LOCK_WAIT, 0)) < _LEAST_LOCK_WAIT_S:
        faults.append(
            f"{_LOCK_WAIT} is {found.get(_LOCK_WAIT)} (a write that waits for another write to the same row would "
            f"fail), set {_LOCK_WAIT}=50"
        )
    if found.get("binlog_format") == "STATEMENT":
        faults.append("binlog_format is STATEMENT (MyRocks would refuse writes), set binlog_format=ROW")
    return faults
