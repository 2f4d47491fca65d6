"""Sessions: variables that could break a guarantee are set for each connection and read back."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

import schemaless
from schemaless.local.description import LocalServer
from schemaless.wire import session as connect
from schemaless.wire.driver import DriverConnection
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.faults.proxy import Proxy

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

SINGLE: dict[str, dict[str, Any]] = {
    "sql_select_limit": {"sql_select_limit": 1},
    "sql_safe_updates": {"sql_safe_updates": 1},
    "max_join_size": {"max_join_size": 1},
    "sql_auto_is_null": {"sql_auto_is_null": 1},
    "unique_checks": {"unique_checks": 0},
    "foreign_key_checks": {"foreign_key_checks": 0},
    "max_sort_length": {"max_sort_length": 64},
    "eq_range_index_dive_limit": {"eq_range_index_dive_limit": 0},
    "default_storage_engine": {"default_storage_engine": "MyISAM"},
    "sql_mode": {"sql_mode": "ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE"},
    "time_zone": {"time_zone": "+09:00"},
    "character sets": {
        "character_set_client": "latin1",
        "character_set_connection": "latin1",
        "character_set_results": "latin1",
    },
    "low_priority_updates": {"low_priority_updates": 1},
}
"""Settings that do not hide each other's effects."""

HOSTILE: dict[str, dict[str, Any]] = {
    "autocommit": {"autocommit": 0},
    "completion_type chain": {"completion_type": 1},
    "completion_type release": {"completion_type": 2},
    "autocommit and chain": {"autocommit": 0, "completion_type": 1},
    "read uncommitted": {"isolation": "READ-UNCOMMITTED"},
    "serializable": {"isolation": "SERIALIZABLE"},
    "init_connect": {
        "init_connect": "SET autocommit=0, completion_type=1, sql_select_limit=2, sql_mode='NO_BACKSLASH_ESCAPES', "
        "unique_checks=0, time_zone='+05:00', timestamp=86400, sql_safe_updates=1"
    },
    "all others": {name: value for settings in SINGLE.values() for name, value in settings.items()},
    **SINGLE,
}


@pytest.fixture(scope="module")
def server(servers: list[LocalServer]) -> str:
    """The server whose global settings the tests change, and restore."""
    return servers[0].url


@contextlib.contextmanager
def root_of(server: str) -> Iterator[Any]:
    """Open a cursor as root, without this package."""
    socket = parse_url(server).node.socket
    with (
        contextlib.closing(
            pymysql.connect(unix_socket=socket, user="root", autocommit=True, ssl_disabled=True)
        ) as root,
        root.cursor() as cursor,
    ):
        cursor.execute("SET SESSION autocommit=1, completion_type=0, sql_select_limit=1000000, sql_big_selects=1")
        yield cursor


@pytest.fixture
def set_globally(server: str, flavour: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Set global variables; they are restored at the end."""
    with root_of(server) as cursor:
        before: dict[str, Any] = {}

        def change(settings: dict[str, Any]) -> None:
            for name, value in settings.items():
                variable = name
                if name == "isolation":
                    variable = "tx_isolation" if flavour == "mariadb" else "transaction_isolation"
                cursor.execute(f"SELECT @@global.{variable}")
                before.setdefault(variable, cursor.fetchone()[0])
                cursor.execute(f"SET GLOBAL {variable}=%s", (value,))

        yield change
        for name, value in before.items():
            cursor.execute(f"SET GLOBAL {name}=%s", (value,))
            cursor.execute(f"SELECT @@global.{name}")
            assert cursor.fetchone()[0] == value


@pytest.fixture(scope="module")
def account(server: str) -> Iterator[str]:
    """An account without administrative privileges, for which init_connect is executed."""
    with root_of(server) as cursor:
        cursor.execute("CREATE USER plain@localhost")
        cursor.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, CREATE VIEW, "
            "LOCK TABLES ON *.* TO plain@localhost"
        )
    yield server.replace("root@", "plain@")
    with root_of(server) as cursor:
        cursor.execute("DROP USER plain@localhost")


def committed(server: str, name: str) -> list[tuple[Any, ...]]:
    """Return the cells that another session sees in a datastore of one shard: column name, and whether it is recent."""
    with root_of(server) as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        recent = "ABS(TIMESTAMPDIFF(SECOND, created_at, UTC_TIMESTAMP())) < 600"
        cursor.execute(f"SELECT column_name, {recent} FROM `{name}_0000`.cell")
        return list(cursor.fetchall())


@pytest.mark.guarantee("session-variables")
@pytest.mark.parametrize(
    "hostile", [pytest.param(name, marks=pytest.mark.long) if name in SINGLE else name for name in HOSTILE]
)
def test_no_cell_is_lost_or_missing_whatever_the_server_settings(server, account, set_globally, hostile):
    """Each setting is overridden: creating, writing and reading work as usual, and other sessions see every cell."""
    name = f"hostile{list(HOSTILE).index(hostile)}"
    set_globally(HOSTILE[hostile])
    url = schemaless.create(name, 1, [account])
    row = uuid.uuid4()
    with schemaless.connect(url) as store:
        for n in range(8):
            store.put_cell(row, "BASE", n, {"n": n, "text": "it's \\ \u00fc\U0001f600"})
            store.append_cell(row, "LOG", n)
        store.put_cells([schemaless.NewCell(row, f"{'C' * 63}{n}", 1, n) for n in range(6)])
        for n in range(4):
            store.put_cell(row, "LAST", n, n)
        seen = committed(server, name)

        assert len(seen) == 26
        assert all(is_recent for _, is_recent in seen)
        assert [cell.body["n"] for cell in store.get_versions(row, "BASE")] == [7, 6, 5, 4, 3, 2, 1, 0]
        assert store.get_cell(row, "BASE", 0).body["text"] == "it's \\ \u00fc\U0001f600"
        assert list(store.get_row(row)) == sorted(["BASE", "LAST", "LOG", *(f"{'C' * 63}{n}" for n in range(6))])
        assert len(store.get_cells_latest([(row, name) for name in ("BASE", "LOG", "LAST")])) == 3
        assert len(list(store.iter_shard(0))) == 26


@pytest.mark.guarantee("session-variables")
def test_a_read_only_default_is_refused_and_named(server, account, set_globally, flavour):
    """It may be intended, so it is not overridden; the error of a write names the variable."""
    url = schemaless.create("readonly", 1, [account])
    set_globally({"tx_read_only" if flavour == "mariadb" else "transaction_read_only": 1})

    with schemaless.connect(url) as store, pytest.raises(schemaless.ServerRefused, match="transaction_read_only"):
        store.put_cell(uuid.uuid4(), "BASE", 1, 1)


def test_a_write_that_the_binary_log_refuses_names_the_variable_to_set(server, account):
    """A rebuild writes at READ COMMITTED, at which statements cannot be logged."""
    schemaless.create("refused", 1, [account])
    parsed = parse_url(server)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    with contextlib.closing(pool), pool.connection() as connection:
        connection.unfinished = True
        connection.execute(b"SET SESSION binlog_format='STATEMENT'")
        connection.execute(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        with pytest.raises(schemaless.ServerRefused, match=r"error 1665\); set binlog_format=ROW on the server"):
            connection.execute(b"DELETE FROM refused.job")


@pytest.mark.guarantee("session-variables")
@pytest.mark.parametrize("name", [*connect.SETTINGS, *connect.READ_BACK, "autocommit", "isolation"])
def test_a_session_variable_that_does_not_keep_its_value_is_named(server, monkeypatch, flavour, name):
    """A proxy may acknowledge a SET without executing it; the value read back decides."""
    name = name if name != "isolation" else {"mariadb": "tx_isolation"}.get(flavour, "transaction_isolation")
    send = DriverConnection.send

    def pretend(raw: DriverConnection, sql: bytes) -> None:
        send(raw, sql.replace(b"@@session." + name.encode(), b"'something else'"))

    monkeypatch.setattr(DriverConnection, "send", pretend)
    parsed = parse_url(server)
    with (
        contextlib.closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool,
        pytest.raises(schemaless.ServerRefused, match=f"{name}=something else"),
    ):
        pool.run(lambda connection: connection.rows(b"SELECT 1"))


@pytest.mark.parametrize("reported", ["8.0.11-ProxySQL", "5.5.5-10.4.32-MariaDB MaxScale", "11.4.2-MariaDB", "10.1"])
def test_the_product_is_asked_of_the_server_not_taken_from_the_greeting(servers, flavour, reported):
    """A proxy may report another product than the server's."""
    with contextlib.closing(Proxy([str(servers[0].socket)])) as proxy:
        proxy.reports = reported
        parsed = parse_url(proxy.urls[0])
        with contextlib.closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool:
            is_mariadb, version = pool.run(lambda connection: (connection.is_mariadb, connection.version))
            ((switches,),) = pool.run(lambda connection: connection.rows(b"SELECT @@optimizer_switch"))

    assert is_mariadb == (flavour == "mariadb")
    assert version.startswith(servers[0].version)
    assert ("index_condition_pushdown=off" in switches) == is_mariadb


@pytest.mark.parametrize("reported", ["ProxySQL", "v8.0", "\N{SUPERSCRIPT TWO}.0", ""])
def test_a_version_that_is_no_number_is_refused(servers, reported):
    """The driver takes it for a number."""
    with contextlib.closing(Proxy([str(servers[0].socket)])) as proxy:
        proxy.reports = reported
        parsed = parse_url(proxy.urls[0])
        with (
            contextlib.closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool,
            pytest.raises(
                schemaless.ServerRefused, match=r"reports the version .*, which does not begin with a number"
            ),
        ):
            pool.run(lambda connection: connection.version)


def test_a_new_connection_is_set_up_in_three_statements(server):
    """Two statements set the session and one reads it back."""
    parsed = parse_url(server)
    with contextlib.closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool:
        ((_, questions),) = pool.run(lambda connection: connection.rows(b"SHOW SESSION STATUS LIKE 'Questions'"))

    # SET NAMES, which the driver sends; SET SESSION; the SELECT; and this one.
    assert int(questions) == 4
