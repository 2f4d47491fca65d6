"""Servers that change their roles, as a failover or a switchover has it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from schemaless.local import replication
from schemaless.local.description import LocalServer


def sql(server: LocalServer, *statements: str) -> Any:
    """Run statements on a server and return the last one's rows."""
    connection = pymysql.connect(unix_socket=str(server.socket), user="root", autocommit=True, ssl_disabled=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


def word(server: LocalServer) -> str:
    """Return what the server calls a replica in statements."""
    return "SLAVE" if server.flavour == "mariadb" else "REPLICA"


@contextmanager
def promoted(primary: LocalServer) -> Iterator[LocalServer]:
    """Make a server's replica a primary for the block, as a failover would; then a replica again."""
    (replica,) = primary.replicas
    sql(replica, f"STOP {word(replica)}", f"RESET {word(replica)} ALL", "SET GLOBAL read_only = 0")
    try:
        yield replica
    finally:
        sql(replica, "SET GLOBAL read_only = 1")
        if replica.flavour == "mysql":
            sql(replica, "SET GLOBAL super_read_only = 1")
        replication.follow(primary, replica)
        replication.wait_until_replicating(primary, replica, print)


@contextmanager
def caught_up(primary: LocalServer) -> Iterator[None]:
    """Wait until a server's replica has what was committed, and go on with the block."""
    for replica in primary.replicas:
        replication.wait_until_replicating(primary, replica, print)
    yield


@contextmanager
def read_only(server: LocalServer) -> Iterator[None]:
    """Set a server read-only for the block."""
    sql(server, "SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        sql(server, "SET GLOBAL read_only = 0")


def rebuilt(primary: LocalServer, replica: LocalServer) -> None:
    """Make a server replicate from another, as if rebuilt from it, without transactions of its own. MySQL."""
    ((executed,),) = sql(primary, "SELECT @@global.gtid_executed")
    sql(
        replica,
        "STOP REPLICA",
        "RESET REPLICA ALL",
        "SET GLOBAL read_only = 0",
        "RESET BINARY LOGS AND GTIDS",
        f"SET GLOBAL gtid_purged = '{executed}'",
        "SET GLOBAL super_read_only = 1",
    )
    replication.follow(primary, replica)
    replication.wait_until_replicating(primary, replica, print)


def sound_replica(primary: LocalServer) -> LocalServer:
    """Return a server's replica, rebuilt if tests have left transactions there that the server lacks. MySQL."""
    (replica,) = primary.replicas
    ((executed,),) = sql(primary, "SELECT @@global.gtid_executed")
    ((errant,),) = sql(replica, f"SELECT GTID_SUBTRACT(@@global.gtid_executed, '{executed}')")
    if errant:
        rebuilt(primary, replica)
    return replica


@contextmanager
def failed_over(primary: LocalServer) -> Iterator[LocalServer]:
    """Make a server's replica a primary for the block, which may write to both as it likes. MySQL."""
    (replica,) = primary.replicas
    replication.wait_until_replicating(primary, replica, print)
    sql(replica, "STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL read_only = 0")
    try:
        yield replica
    finally:
        rebuilt(primary, replica)


@contextmanager
def over(first: LocalServer) -> Iterator[LocalServer]:
    """Promote the replica of a server, which refuses writes during the block."""
    with failed_over(first) as second:
        sql(first, "SET GLOBAL super_read_only = 1")
        try:
            yield second
        finally:
            sql(first, "SET GLOBAL super_read_only = 0, read_only = 0")


@contextmanager
def semi_synchronous(primary: LocalServer, *replicas: LocalServer, timeout_ms: int = 86_400_000) -> Iterator[None]:
    """Make each commit on a server wait until one of these replicas has it, or until the timeout."""
    source, replica = ("master", "slave") if primary.flavour == "mariadb" else ("source", "replica")
    variables = [(primary, source), *((server, replica) for server in replicas)]
    for server, role in variables:
        if server.flavour == "mysql" and not sql(server, f"SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_{role}_enabled'"):
            ((locked,),) = sql(server, "SELECT @@global.super_read_only")
            plugin = f"INSTALL PLUGIN rpl_semi_sync_{role} SONAME 'semisync_{role}.so'"
            sql(server, "SET GLOBAL super_read_only = 0", plugin, f"SET GLOBAL super_read_only = {locked}")
    sql(primary, f"SET GLOBAL rpl_semi_sync_{source}_timeout = {timeout_ms}")
    sql(primary, f"SET GLOBAL rpl_semi_sync_{source}_wait_point = AFTER_SYNC")
    for server, role in reversed(variables):
        sql(server, f"SET GLOBAL rpl_semi_sync_{role}_enabled = 1")
        if server is not primary:
            sql(server, f"STOP {word(server)} IO_THREAD", f"START {word(server)} IO_THREAD")
    connected = f"SHOW GLOBAL STATUS LIKE 'rpl_semi_sync_{source}_clients'"
    give_up_s = time.monotonic() + 120
    while int(sql(primary, connected)[0][1]) < len(replicas):
        assert time.monotonic() < give_up_s, "the replicas do not connect"
        time.sleep(0.01)
    try:
        yield
    finally:
        for server, role in variables:
            sql(server, f"SET GLOBAL rpl_semi_sync_{role}_enabled = 0")
            if server is not primary:
                # Until it connects again, it acknowledges each commit; while it does, it is reported as broken.
                sql(server, f"STOP {word(server)} IO_THREAD", f"START {word(server)} IO_THREAD")
                replication.wait_until_replicating(primary, server, print)
