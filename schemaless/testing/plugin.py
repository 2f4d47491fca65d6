"""pytest plugin: options and fixtures for tests of applications that use a datastore.

pytest imports it in every run if schemaless is installed, so it imports only pytest until a fixture is used.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from schemaless.aio.datastore import AsyncDatastore
    from schemaless.cell import Cell
    from schemaless.store.datastore import Datastore
    from schemaless.store.triggers.declaration import Call, Trigger
    from schemaless.testing.datastores import Datastores

_FLAVOURS = ("mysql", "mariadb")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options, and the same settings with underscores for the configuration file."""
    group = parser.getgroup("schemaless")
    group.addoption(
        "--schemaless-server",
        action="append",
        metavar="URL",
        help="create datastores on this server, and drop them at the end; may be repeated "
        "(default: private servers, started when a test needs them)",
    )
    group.addoption("--schemaless-flavour", choices=_FLAVOURS, help="kind of private servers (default: mysql)")
    group.addoption("--schemaless-servers", type=int, metavar="N", help="number of private servers (default: 2)")
    group.addoption("--schemaless-shards", type=int, metavar="N", help="shards of each datastore (default: 4)")
    parser.addini("schemaless_server", "URLs of servers to use, one per line", type="linelist")
    parser.addini("schemaless_flavour", "kind of private servers: mysql or mariadb", default="mysql")
    parser.addini("schemaless_servers", "number of private servers", default="2")
    parser.addini("schemaless_shards", "shards of each datastore", default="4")


@pytest.fixture(scope="session")
def schemaless_servers(pytestconfig: pytest.Config) -> Iterator[list[str]]:
    """URLs of the servers, without passwords: private servers that last for the session, or the configured ones.

    During the session, ``SCHEMALESS_PASSWORD`` is the password of the configured servers, if they have one.
    """
    with ExitStack() as stack:
        with _failing_in_one_line("no server to test on (--schemaless-server selects a running one)"):
            urls = stack.enter_context(_servers(pytestconfig))
        yield urls


@pytest.fixture(scope="session")
def _schemaless_datastores(pytestconfig: pytest.Config, schemaless_servers: list[str]) -> Iterator[Datastores]:
    from schemaless.ops.admin.create import create
    from schemaless.testing.datastores import Datastores

    shards = _number(pytestconfig, "shards")
    # The workers of one test run, and several runs, may share a server.
    prefix = f"test_{secrets.token_hex(4)}_"
    with _failing_in_one_line("no datastore to test on"):
        datastores = Datastores(schemaless_servers, lambda name: create(name, shards, schemaless_servers), prefix)
    yield datastores
    with _failing_in_one_line(f"databases {prefix}... were not dropped"):
        datastores.close(drop=bool(_setting(pytestconfig, "server")))


@pytest.fixture
def schemaless_url(_schemaless_datastores: Datastores) -> Iterator[str]:
    """URL of an empty datastore for this test, for code that connects by itself."""
    with ExitStack() as stack:
        with _failing_in_one_line("no datastore to test on"):
            url = stack.enter_context(_schemaless_datastores.fresh())
        yield url


@pytest.fixture
def schemaless_datastore(schemaless_url: str) -> Iterator[Datastore]:
    """Open, empty datastore for this test, at ``schemaless_url``."""
    from schemaless.store.opening import connect

    with connect(schemaless_url) as opened:
        yield opened


@pytest.fixture
def schemaless_async_datastore(schemaless_url: str) -> Callable[[], AbstractAsyncContextManager[AsyncDatastore]]:
    """A function that opens the datastore named by ``schemaless_url``, to be used with ``async with``.

    It is a function because an asyncio datastore belongs to the event loop that opens it, which must be the test's.
    """

    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncDatastore]:
        from schemaless.aio.opening import connect

        async with await connect(schemaless_url) as store:
            yield store

    return opened


@pytest.fixture
def schemaless_catch_up(schemaless_datastore: Datastore) -> Callable[..., None]:
    """A function that calls triggers for every cell of the test, and fills all indexes, until nothing is left to do.

    Triggers begin with the first cell of the test. The first exception that a function raises is raised again; other
    than under 'schemaless trigger run', its cell is not tried again.
    """
    from schemaless.errors import ParkCell, RetryLater
    from schemaless.ops.admin.catching_up import catch_up
    from schemaless.store.triggers.declaration import check_trigger

    def catching(trigger: Trigger, raised: list[BaseException]) -> Trigger:
        def function(cell: Cell, call: Call) -> Any:
            try:
                return trigger(cell, call)
            except BaseException as error:
                if not isinstance(error, ParkCell | RetryLater):
                    raised.append(error)
                raise

        return replace(trigger, function=function, start="beginning", attempts=1)

    def caught_up(*triggers: Trigger) -> None:
        raised: list[BaseException] = []
        observed = [catching(check_trigger(trigger), raised) for trigger in triggers]
        # Triggers may write cells for one another.
        while not raised and catch_up(schemaless_datastore, *observed):
            pass
        if raised:
            raise raised[0]

    return caught_up


@contextmanager
def _servers(config: pytest.Config) -> Iterator[list[str]]:
    if named := _setting(config, "server"):
        from schemaless.wire.pool import NodePool, PoolOptions
        from schemaless.wire.secret import PASSWORD_VARIABLE
        from schemaless.wire.sql.sessions import SELECT_ONE
        from schemaless.wire.urls import parse_url

        urls = [parse_url(url) for url in named]
        with pytest.MonkeyPatch.context() as patch:
            # Keep the password out of URLs, which appear in failure reports.
            if urls[0].credentials.password is not None:
                patch.setenv(PASSWORD_VARIABLE, urls[0].credentials.password.reveal())
            for url in urls:
                with closing(NodePool(url.node, url.credentials, PoolOptions(pool_size=1))) as pool:
                    pool.rows(SELECT_ONE)
            yield [url.for_database("") for url in urls]
    else:
        from schemaless.testing.servers import private_servers

        with private_servers(_setting(config, "flavour"), _number(config, "servers")) as running:
            yield [server.url for server in running]


@contextmanager
def _failing_in_one_line(what: str) -> Iterator[None]:
    from schemaless.errors import SchemalessError

    try:
        yield
    except SchemalessError as problem:
        raise _failed(f"{what}: {problem}") from None


def _setting(config: pytest.Config, name: str) -> Any:
    given = config.getoption(f"schemaless_{name}")
    return config.getini(f"schemaless_{name}") if given is None else given


def _number(config: pytest.Config, name: str) -> int:
    value = _setting(config, name)
    try:
        return int(value)
    except ValueError:
        raise _failed(f"schemaless_{name} in the configuration must be a number, got {value!r}") from None


def _failed(message: str) -> BaseException:
    return pytest.fail.Exception(message, pytrace=False)
