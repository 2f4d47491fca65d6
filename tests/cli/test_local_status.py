"""``schemaless local status --url`` and ``local sql``: one server for a script, or an error that says what to start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemaless.local import servers as local_servers
from schemaless.local.description import LocalServer, ServerStatus


def state(number: int, word: str, socket: Path | None = None) -> ServerStatus:
    return ServerStatus(
        number=number,
        replica=0,
        flavour="mysql",
        version="9.7",
        socket=socket or Path(f"/{number}"),
        folder=Path(f"/data/{number}"),
        state=word,
        pid=None,
        data_bytes=0,
        fault=None,
    )


def running_as(server: LocalServer) -> ServerStatus:
    return state(1, "running", server.socket)


@pytest.fixture
def running(monkeypatch):
    """Two servers of which the second one is stopped."""
    monkeypatch.setattr(local_servers, "status", lambda folder: [state(1, "running"), state(2, "stopped")])


def test_status_with_a_number_prints_that_servers_url_alone(running, invoke):
    """The output is a URL and nothing else."""
    done = invoke("local", "status", "--url", "1")

    assert (done.code, done.out) == (0, "mysql://root@/?unix_socket=/1\n")


@pytest.mark.parametrize("number", ["2", "3", "0", "x"])
def test_status_of_a_server_that_does_not_run_prints_no_url(running, invoke, number):
    """Nothing that a script could take for a URL goes to standard output."""
    done = invoke("local", "status", "--url", number)

    assert (done.code, done.out) == (2, "")
    assert "local up" in done.err or "--url" in done.err


@pytest.mark.mysql
def test_up_proposes_a_datastore_only_where_there_is_none(invoke, monkeypatch, servers, fresh_store):
    """Servers are also started again after each start of the machine."""
    monkeypatch.setattr(local_servers, "up", lambda *arguments, **options: [servers[0]])
    again = invoke("local", "up")
    monkeypatch.setattr("schemaless.local.sql.SELECT_ANY_SHARD", b"SELECT 1 FROM DUAL WHERE 1 = 0")
    first = invoke("local", "up")

    assert (again.code, first.code) == (0, 0)
    assert ["schemaless create" in each.out for each in (again, first)] == [False, True]
    assert ["next, create" in each.err for each in (again, first)] == [False, True]


@pytest.mark.mysql
def test_sql_without_a_client_runs_the_statements_itself(invoke, monkeypatch, tmp_path, servers):
    """Rows are printed as a table; the first statement that fails ends the command with exit status 1."""
    monkeypatch.setattr(local_servers, "status", lambda folder: [running_as(servers[0])])
    monkeypatch.setenv("PATH", str(tmp_path))
    given = invoke(
        "local", "sql", "-e", "SELECT 'ä' AS a, NULL AS b", "-e", "SELECT x'c1f0' AS body; SELECT 'a;\\';' `c;` -- d;"
    )
    piped = invoke(
        "local", "sql", "1", stdin=b"SET @n = 0; SET @n = 1;\nSELECT\n  @n AS n;\nSELECT oops;\nSELECT 3 AS never\n"
    )

    assert (given.code, given.out.split()) == (0, ["a", "b", "ä", "NULL", "body", "0xc1f0", "c;", "a;';"])
    assert (piped.code, piped.out.split()) == (1, ["n", "1"])
    assert "1054 Unknown column 'oops'" in piped.err


def test_sql_becomes_the_installed_client(running, invoke, monkeypatch, tmp_path):
    """The client of the server's kind comes first; the user's option files do not apply."""
    for name in ("mariadb", "mysql"):
        (tmp_path / name).touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    ran: list[object] = []

    def execv(path: str, arguments: list[str]) -> None:
        ran.extend([path, arguments])
        raise InterruptedError

    monkeypatch.setattr(os, "execv", execv)
    invoke("local", "sql", "-e", "SELECT 1", "-e", "SELECT 2")

    client = str(tmp_path / "mysql")
    assert ran == [client, [client, "--no-defaults", "--user=root", "--socket=/1", "--execute=SELECT 1; SELECT 2"]]
