"""Replicas of private servers, on real MySQL and MariaDB: they follow, they come back, and give no access to others."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from schemaless.errors import LocalServerError
from schemaless.local import servers
from schemaless.local.description import Description, LocalServer
from schemaless.testing.servers import private_servers
from tests.foreign import FLAVOURS

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.fixture(scope="module", params=FLAVOURS)
def pair_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder with a server of some history that got its replica later; each test leaves both of them replicating."""
    with private_servers(request.param, 1) as (alone,):
        connection = pymysql.connect(unix_socket=str(alone.socket), user="root", autocommit=True, ssl_disabled=True)
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
            cursor.execute("INSERT INTO d.t VALUES (1)")
        folder = alone.folder.parent
        servers.up(folder, 1, request.param, replicas=1, tied=True, remove=True)
        yield folder


@pytest.fixture
def pair(pair_folder: Path) -> tuple[LocalServer, LocalServer]:
    """The server and its replica."""
    return both(pair_folder)


def both(folder: Path) -> tuple[LocalServer, LocalServer]:
    """Bring a server and its replica up, whatever state they are in, and return them."""
    (primary,) = servers.up(folder, 1, servers.status(folder)[0].flavour, tied=True, remove=True)
    (replica,) = primary.replicas
    return primary, replica


@pytest.fixture
def arrives(query: Callable[..., Any], eventually: Callable[..., None]) -> Callable[[LocalServer, LocalServer], None]:
    """Write a row on the primary, and wait until the replica has all that the primary has."""

    def write(primary: LocalServer, replica: LocalServer) -> None:
        query(primary.socket, "INSERT INTO d.t SELECT MAX(id) + 1 FROM d.t")
        everything = "SELECT COUNT(*), MAX(id) FROM d.t"
        wanted = query(primary.socket, everything)
        eventually(lambda: query(replica.socket, everything) == wanted, f"{wanted} on the replica")

    return write


@pytest.mark.long
def test_replica_added_later_has_everything_and_takes_no_writes(pair, query, arrives):
    """A replica that joins a server with a history has its first rows, gets its next ones, and is read-only."""
    primary, replica = pair
    arrives(primary, replica)

    assert (primary.role, replica.role) == ("primary", "replica")
    assert (primary.number, replica.number, replica.replica) == (1, 1, 1)
    assert query(replica.socket, "SELECT MIN(id) FROM d.t") == ((1,),)
    assert query(primary.socket, "SELECT @@server_id, @@read_only") == ((1, 0),)
    assert query(replica.socket, "SELECT @@server_id, @@read_only, @@relay_log_recovery") == ((1001, 1, 1),)
    if primary.flavour == "mysql":
        assert query(replica.socket, "SELECT @@replica_preserve_commit_order") == ((1,),)
        with pytest.raises(pymysql.err.OperationalError, match="super-read-only"):
            query(replica.socket, "INSERT INTO d.t VALUES (-1)")
    else:
        assert query(replica.socket, "SHOW SLAVE STATUS")[0].count("Slave_Pos") == 1


@pytest.mark.long
def test_only_the_account_of_replicas_gets_in_by_the_port(pair, query):
    """A primary listens on 127.0.0.1 only, and refuses everyone there but the replica's account."""
    primary, replica = pair
    assert primary.port is not None

    assert query(primary.socket, "SELECT @@bind_address, @@skip_name_resolve") == (("127.0.0.1", 1),)
    assert query(replica.socket, "SELECT @@skip_networking") == ((1,),)
    accounts = query(primary.socket, "SELECT user, host FROM mysql.user WHERE host <> 'localhost'")
    assert accounts == (("replica_1", "127.0.0.1"),)
    for host in ("127.0.0.1", "localhost"):
        for user in ("root", "", "replica_1", "mysql.sys", "mariadb.sys"):
            for password in ("", "root"):
                with pytest.raises(pymysql.err.OperationalError, match=r"\((1045|1130|1698|4151), "):
                    # PyMySQL takes "localhost" for the port too, where it is given no socket.
                    pymysql.connect(host=host, port=primary.port, user=user, password=password)
    grants = query(primary.socket, "SHOW GRANTS FOR 'replica_1'@'127.0.0.1'")
    assert [re.match(r"GRANT REPLICATION SLAVE ON \*\.\* TO ", grant) is not None for (grant,) in grants] == [True]


@pytest.mark.parametrize("victim", ["primary", "replica"])
@pytest.mark.long
def test_replica_comes_back_after_kill_9_while_rows_are_written(victim, pair, pair_folder, query, arrives):
    """Either side killed in the middle of writes: started again, the replica has exactly the primary's rows."""
    primary, replica = pair
    began, done = threading.Event(), threading.Event()
    connection = pymysql.connect(unix_socket=str(primary.socket), user="root", autocommit=True, ssl_disabled=True)

    def write() -> None:
        with contextlib.suppress(pymysql.err.Error), contextlib.closing(connection), connection.cursor() as cursor:
            while not done.is_set():
                cursor.execute("INSERT INTO d.t SELECT MAX(id) + 1 FROM d.t")
                began.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert began.wait(120)
    try:
        servers.kill(primary if victim == "primary" else replica)
    finally:
        done.set()
        writer.join()
    if victim == "primary":
        primary = servers.start(primary)
    else:
        primary, replica = both(pair_folder)
    arrives(primary, replica)

    assert [state.fault for state in servers.status(pair_folder)] == [None, None]


@pytest.mark.long
def test_replica_comes_back_after_down_and_up_with_the_port_taken(pair, pair_folder, arrives):
    """Down stops both; a primary whose port is taken then gets another, and its replica follows it there."""
    primary, _ = pair
    states = [(state.name, state.state) for state in servers.down(pair_folder)]
    stopped = [state.state for state in servers.status(pair_folder)]
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", primary.port))
        other.listen()
        moved, replica = both(pair_folder)
        arrives(moved, replica)

    assert states == [("server 1", "running"), ("replica 1 of server 1", "running")]
    assert stopped == ["stopped", "stopped"]
    assert moved.port not in (None, primary.port)
    assert Description.read(primary.folder).port == moved.port


@pytest.mark.long
def test_status_shows_a_replica_that_runs_and_does_not_replicate(pair, pair_folder, query, command, eventually):
    """Replication that stopped is shown with the server's error and ends in status 1; up starts it again."""
    _, replica = pair
    mariadb = replica.flavour == "mariadb"
    healthy = command("status", "--folder", pair_folder)
    query(replica.socket, "STOP SLAVE" if mariadb else "STOP REPLICA")
    stopped = command("status", "--folder", pair_folder)
    both(pair_folder)
    again = command("status", "--folder", pair_folder)

    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert stopped.returncode == 1
    assert "not replicating" in stopped.stdout
    assert "replica 1 of server 1 is not replicating: its replication is stopped" in stopped.stderr
    assert again.returncode == 0

    writable = ["SET GLOBAL super_read_only = 0"] * (not mariadb)
    query(replica.socket, *writable, "SET sql_log_bin = 0", "INSERT INTO d.t VALUES (-1)")
    query(pair[0].socket, "INSERT INTO d.t VALUES (-1)")
    eventually(lambda: "1062" in str(servers.status(pair_folder)[1].fault), "the conflict in status")
    with pytest.raises(LocalServerError, match=r"replica 1 of server 1 does not replicate: .*1062"):
        both(pair_folder)
    query(replica.socket, "SET sql_log_bin = 0", "DELETE FROM d.t WHERE id = -1")
    both(pair_folder)

    assert servers.status(pair_folder)[1].fault is None


@pytest.mark.long
def test_replica_of_a_primary_with_purged_logs_is_refused(pair, pair_folder, query):
    """Without the binary logs, no further replica is created; existing servers continue."""
    primary, _ = pair
    query(primary.socket, "FLUSH BINARY LOGS")
    latest = query(primary.socket, "SHOW BINARY LOGS")[-1][0]
    query(primary.socket, f"PURGE BINARY LOGS TO '{latest}'")
    with pytest.raises(LocalServerError, match=r"server 1 cannot get a new replica: .* were purged .*--delete'"):
        servers.up(pair_folder, 1, primary.flavour, replicas=2, tied=True, remove=True)

    assert [state.state for state in servers.status(pair_folder)] == ["running", "running"]
    assert both(pair_folder)[0].replicas[0].pid == pair[1].pid
