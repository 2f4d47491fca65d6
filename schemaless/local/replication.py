"""Replication between private servers: connecting replicas to their primary, waiting for them, diagnosing faults."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pymysql
from pymysql.cursors import DictCursor

from schemaless.errors import LocalServerError
from schemaless.local import sql
from schemaless.local.description import LocalServer, ServerStatus
from schemaless.topology.sql import replicas
from schemaless.wire.sql import sessions as servers

MINIMUM: Final = {"mysql": (8, 0, 27), "mariadb": (10, 6, 1)}
"""Oldest versions for replicas: from these on, parallel appliers preserve the commit order by default."""

HOST: Final = "127.0.0.1"
STANDSTILL_S: Final = 120.0
"""Timeout for a replica that makes no progress in catching up with its primary, in seconds."""

_ACCESS_DENIED: Final = 1045
_PURGED: Final = 1236
_START_AGAIN: Final = "delete the servers with 'schemaless local down --delete' and recreate them with their replicas"


class Session:
    """Connection to a private server over its socket, as root."""

    def __init__(self, socket: Path) -> None:
        self._connection = pymysql.connect(
            unix_socket=str(socket),
            user="root",
            ssl_disabled=True,  # pointless on a Unix socket, and most of the connect time
            autocommit=True,
            connect_timeout=10,
            read_timeout=60,
        )

    def run(self, sql: bytes) -> Any:
        """Run a statement and return the first value of its first row, or None."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql.decode())
            row = cursor.fetchone()
        return row[0] if row else None

    def table(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run any statement and return its column names and rows; no names if it returns no result set.

        Raises:
            LocalServerError: the server rejects the statement.
        """
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(sql)
            except pymysql.err.MySQLError as problem:
                raise LocalServerError(" ".join(map(str, problem.args))) from problem
            return [column[0] for column in cursor.description or ()], list(cursor.fetchall())

    def rows(self, sql: bytes) -> list[dict[str, Any]]:
        """Run a query and return its rows as dictionaries by column name."""
        with self._connection.cursor(DictCursor) as cursor:
            cursor.execute(sql.decode())
            return list(cursor.fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def session(server: LocalServer | ServerStatus) -> Iterator[Session]:
    """Open a session on a running server.

    Raises:
        LocalServerError: the connection or a statement fails.
    """
    opened = None
    try:
        opened = Session(server.socket)
        yield opened
    except (pymysql.err.Error, OSError) as problem:
        code = problem.args[0] if problem.args else None
        if code == _ACCESS_DENIED:
            raise LocalServerError(
                f"{server.name} rejects root on its socket ({problem.args[-1]}); replicas are managed as root without "
                "a password: remove root's password"
            ) from problem
        raise LocalServerError(f"{server.name} ({server.socket}): {problem}; see its log, {server.log}") from problem
    finally:
        if opened is not None:
            opened.close()


@dataclass(frozen=True)
class Condition:
    """Replication status of a replica.

    Attributes:
        replicates: it is connected to its primary, and its applier is running.
        retries: it is reconnecting, once a second.
        code: error number of the server, or 0.
        error: error message of the server, or empty.
        source: configured host, port, account and CA file (or empty) of its primary.
    """

    replicates: bool
    retries: bool
    code: int
    error: str
    source: tuple[str, int, str, str]

    @property
    def fault(self) -> str | None:
        """Reason why it does not replicate; None if it does."""
        if self.replicates:
            return None
        return self.error or ("it is connecting to its primary" if self.retries else "its replication is stopped")


def condition(replica: Session) -> Condition | None:
    """Return the replication status, or None if no primary was ever configured."""
    rows = replica.rows(sql.SHOW_REPLICA)
    if not rows:
        return None
    # MariaDB says Slave and Master.
    row = {name.replace("Slave", "Replica").replace("Master", "Source"): value for name, value in rows[0].items()}
    code = int(row["Last_SQL_Errno"]) or int(row["Last_IO_Errno"])
    return Condition(
        replicates=row["Replica_IO_Running"] == row["Replica_SQL_Running"] == "Yes",
        retries=row["Replica_IO_Running"] in ("Connecting", "Preparing") and row["Replica_SQL_Running"] == "Yes",
        code=code,
        error=f"{row['Last_SQL_Error'] or row['Last_IO_Error']} (error {code})" if code else "",
        source=(row["Source_Host"], int(row["Source_Port"]), row["Source_User"], row["Source_SSL_CA_File"]),
    )


def fault(replica: LocalServer) -> str | None:
    """Return the reason why a running replica does not replicate; None if it does, or only connects."""
    try:
        with session(replica) as opened:
            state = condition(opened)
    except LocalServerError as problem:
        return str(problem)
    if state is None:
        return "no primary is configured; run 'schemaless local up'"
    return None if state.retries and not state.code else state.fault


def require_able(flavour: str, version: str) -> None:
    """Raise LocalServerError for a server that is too old for replicas."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < MINIMUM[flavour]:
        oldest = ".".join(map(str, MINIMUM[flavour]))
        raise LocalServerError(f"replicas need {flavour} {oldest} or later, but this is {version}; omit --replicas")


def require_whole_binary_log(primary: LocalServer) -> None:
    """Check that a new replica can fetch every transaction since the first.

    Raises:
        LocalServerError: the primary's first binary logs were purged, by default after a day.
    """
    with session(primary) as opened:
        first = str(opened.run(servers.SHOW_BINARY_LOGS) or "")
        purged = "" if _is_mariadb(opened) else str(opened.run(sql.SELECT_GTID_PURGED))
    if purged or not re.search(r"\.0*1\Z", first):
        raise LocalServerError(
            f"{primary.name} cannot get a new replica: its earliest binary logs were purged (after a day, unless "
            f"--option binlog-expire-logs-seconds is set); oldest remaining log: {first or 'none'}; "
            f"{_START_AGAIN}, or omit --replicas"
        )


def follow(primary: LocalServer, replica: LocalServer) -> None:
    """Point a replica at its primary if necessary, and start the replica's replication.

    The replication account gets a random password that only the two servers know.
    """
    account = f"replica_{replica.replica}"
    with session(primary) as source, session(replica) as opened:
        mariadb = _is_mariadb(opened)
        port = int(source.run(servers.SELECT_PORT))
        if int(source.run(sql.SELECT_SKIPS_NETWORKING)):
            raise LocalServerError(
                f"{primary.name} does not listen on {HOST}, where its replicas connect; omit the option skip-networking"
            )
        # Verify the primary's certificate, since another server may get its port; MariaDB creates no certificates.
        authority = "" if mariadb else str(primary.data / "ca.pem")
        wanted = (HOST, port, account, authority)
        state = condition(opened)
        change: dict[str, str | int | float | None] = {"HOST": HOST, "PORT": port}
        if not mariadb:
            change["SSL_CA"] = authority
        if state is None or state.source[2] != account or state.code == _ACCESS_DENIED:
            password = secrets.token_urlsafe(24)
            for statement in sql.make_replication_account(account, HOST, password):
                source.run(statement)
            change |= {"USER": account, "PASSWORD": password, "CONNECT_RETRY": 1}
            if not mariadb:
                change |= {"AUTO_POSITION": 1, "SSL": 1, "RETRY_COUNT": 0}
            state = None
        if state is None or state.source != wanted:
            opened.run(sql.STOP_REPLICA)
            opened.run(sql.point_replica(change, mariadb=mariadb))
            state = None
        if state is None or not state.replicates:
            opened.run(sql.START_REPLICA)


def wait_until_replicating(primary: LocalServer, replica: LocalServer, say: Callable[[str], None]) -> None:
    """Wait until a replica replicates and has applied everything that its primary had committed before the call.

    Raises:
        LocalServerError: its replication stopped with an error, or makes no progress.
    """
    with session(primary) as source, session(replica) as opened:
        mariadb = _is_mariadb(opened)
        position = replicas.SELECT_GTID_POSITION_MARIADB if mariadb else replicas.SELECT_GTID_POSITION
        applied = sql.SELECT_GTID_APPLIED_MARIADB if mariadb else replicas.SELECT_GTID_APPLIED
        target = str(source.run(position)).replace("\n", "")
        wait = replicas.select_gtid_wait(target, 0.1, mariadb=mariadb)
        before, moved = "", time.monotonic()
        said = moved
        while True:
            state = condition(opened)
            arrived = not target or int(opened.run(wait)) == 0
            if state is not None and state.fault is None and arrived:
                return
            now = time.monotonic()
            here = str(opened.run(applied))
            if here != before:
                before, moved = here, now
            has_failed = state is None or (state.code and not state.retries and not state.replicates)
            if state is None or has_failed or now - moved > STANDSTILL_S:
                why = "no primary is configured" if state is None else state.fault or "it makes no progress"
                if state is not None and state.code == _PURGED:
                    why += f"; the primary has purged logs that it needs: {_START_AGAIN}"
                raise LocalServerError(f"{replica.name} does not replicate: {why}; see its log, {replica.log}")
            if now - said > 5:
                said = now
                say(f"{replica.name} has not caught up yet: {state.fault or 'it is applying transactions'}")
            time.sleep(0.05)


def _is_mariadb(opened: Session) -> bool:
    return "mariadb" in str(opened.run(servers.SELECT_VERSION)).lower()
