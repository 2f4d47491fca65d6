"""A purge that is killed: the next one restores the settings of the servers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from schemaless.events import Step, only
from schemaless.local.description import LocalServer
from schemaless.purge import sql
from schemaless.purge.overwrite import purge_files
from schemaless.testing.servers import private_servers
from schemaless.wire.connection import Connection
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.promotion import sql as run

SETTINGS = {
    "mysql": (
        *("read_only", "super_read_only", "innodb_redo_log_capacity", "innodb_purge_rseg_truncate_frequency"),
        *("innodb_lru_scan_depth", "innodb_idle_flush_pct", "innodb_adaptive_flushing"),
        *("innodb_max_dirty_pages_pct", "innodb_max_dirty_pages_pct_lwm"),
    ),
    "mariadb": (
        *("read_only", "innodb_log_file_size", "innodb_purge_rseg_truncate_frequency"),
        *("innodb_max_dirty_pages_pct", "innodb_max_dirty_pages_pct_lwm"),
        *("innodb_io_capacity_max", "innodb_io_capacity"),
    ),
}


def pool_of(server: LocalServer) -> NodePool:
    url = parse_url(server.url)
    return NodePool(url.node, url.credentials, PoolOptions())


def state_of(server: LocalServer) -> tuple[Any, ...]:
    """Return the settings of a server, and the undo tablespaces of MySQL."""
    (settings,) = run(server, f"SELECT {', '.join(f'@@global.{name}' for name in SETTINGS[server.flavour])}")
    spaces = run(server, sql.SELECT_UNDO_TABLESPACES.decode()) if server.flavour == "mysql" else ()
    return settings, spaces


def purge_and_die(primary: LocalServer, replica: LocalServer, node: Node, fatal: bytes) -> None:
    """Purge in a process of its own, which kills itself before a statement on one of the servers."""
    ask = Connection.ask

    def hooked(connection: Connection, statement: bytes, **how: Any) -> object:
        if statement.startswith(fatal) and connection.node == str(node):
            os.kill(os.getpid(), signal.SIGKILL)
        return ask(connection, statement, **how)

    Connection.ask = hooked  # type: ignore[method-assign]
    purge_files(pool_of(primary), [], [pool_of(replica)])


@pytest.fixture
def primary(flavour: str) -> Iterator[LocalServer]:
    """A server with a replica, for the test alone, since their binary logs are deleted."""
    # Small redo logs: to resize one takes its whole length.
    options = {"loose-innodb-redo-log-capacity": "32M"} if flavour == "mysql" else {"innodb-log-file-size": "32M"}
    with private_servers(flavour, 1, options, replicas=1) as (server,):
        yield server


@pytest.mark.long
def test_the_next_purge_restores_the_settings(primary, flavour):
    """A replica is read-only again, redo logs have their size, and all undo tablespaces are in use.

    Killed while undo tablespaces are truncated on the replica (MySQL), and while the redo log is overwritten.
    """
    (replica,) = primary.replicas
    servers = (primary, replica)
    before = [state_of(server) for server in servers]
    points = [(pool_of(primary).node, b"UPDATE `schemaless_purge`.`filler`")]
    if flavour == "mysql":
        points.insert(0, (pool_of(replica).node, b"ALTER UNDO TABLESPACE innodb_undo_002 SET INACTIVE"))
    for node, fatal in points:
        process = multiprocessing.get_context("spawn").Process(
            target=purge_and_die, args=(primary, replica, node, fatal)
        )
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, fatal
        assert [state_of(server) for server in servers] != before, fatal

    steps = list[str]()
    purge_files(pool_of(primary), [], [pool_of(replica)], listener=only(Step, lambda step: steps.append(step.what)))
    assert [state_of(server) for server in servers] == before
    assert any("an earlier purge was killed" in step for step in steps)
    assert run(primary, f"SHOW DATABASES LIKE '{sql.FILLER}'") == ()
