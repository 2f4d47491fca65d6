"""``schemaless local status --url``: one URL for a script, or an error that says what to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemaless.local import servers as local_servers
from schemaless.local.description import ServerStatus


@pytest.fixture
def running(monkeypatch):
    """Two servers of which the second one is stopped."""

    def state(number: int, word: str) -> ServerStatus:
        return ServerStatus(
            number=number,
            replica=0,
            flavour="mysql",
            version="9.7",
            socket=Path(f"/{number}"),
            folder=Path(f"/data/{number}"),
            state=word,
            pid=None,
            data_bytes=0,
            of_group=False,
            fault=None,
        )

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
