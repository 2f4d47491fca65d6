"""Servers and datastores for the suite: real ones, MySQL first and MariaDB too.

``SERVER=mysql`` or ``SERVER=mariadb`` runs the suite on one of them only.
"""

from __future__ import annotations

import itertools
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

import pytest

import schemaless
from schemaless.local.servers import LocalServer
from tests.servers import private_servers

_chosen = os.environ.get("SERVER")
_FLAVOURS = ["mysql", "mariadb"] if not _chosen else [_chosen]
_names = itertools.count(1)
_rows = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM unwind like Ctrl-C, so that the servers are stopped."""

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@pytest.fixture(scope="session", params=_FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    """The kind of server: everything that uses one runs on each."""
    return str(request.param)


@pytest.fixture(scope="session")
def servers(flavour: str) -> Iterator[list[LocalServer]]:
    """Two private servers, for the whole session. Tests that stop or kill one start their own."""
    with private_servers(flavour, 2) as running:
        yield running


@pytest.fixture(scope="session")
def server_urls(servers: list[LocalServer]) -> list[str]:
    """The URLs of the two servers."""
    return [server.url for server in servers]


@pytest.fixture(scope="session")
def datastore_url(server_urls: list[str]) -> str:
    """A datastore of four shards over two servers, shared by tests that keep to rows of their own."""
    return schemaless.create("shared", 4, server_urls)


@pytest.fixture(scope="session")
def shared_store(datastore_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to the shared datastore."""
    with schemaless.connect(datastore_url) as opened:
        yield opened


@pytest.fixture
def store(shared_store: schemaless.Datastore) -> schemaless.Datastore:
    """The shared datastore; rows of others are in it."""
    return shared_store


@pytest.fixture
def fresh_url(server_urls: list[str]) -> str:
    """A new, empty datastore of four shards over two servers."""
    return schemaless.create(f"fresh{next(_names)}", 4, server_urls)


@pytest.fixture
def fresh_store(fresh_url: str) -> Iterator[schemaless.Datastore]:
    """A connection to a new, empty datastore."""
    with schemaless.connect(fresh_url) as opened:
        yield opened


@pytest.fixture
def new_row() -> Callable[[], uuid.UUID]:
    """Makes row_keys that no other test has; the same ones in each run."""
    return lambda: uuid.uuid5(uuid.NAMESPACE_OID, f"row {next(_rows)}")


@pytest.fixture
def row(new_row: Callable[[], uuid.UUID]) -> uuid.UUID:
    """A row_key that no other test has."""
    return new_row()
