"""Cancelled calls: the connection is closed at once, its slot is free, and no reply reaches another call."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

import schemaless
import schemaless.aio
from schemaless import NewCell
from schemaless.aio import AsyncDatastore
from schemaless.local.description import LocalServer
from tests.accounts import connect, run
from tests.aio.cancelling import at_every_wait, cases
from tests.aio.random_cancelling import Run, connections_of
from tests.aio.slow_proxy import SlowProxy, slow_proxy
from tests.loopback import Loopback

pytestmark = [pytest.mark.mysql]

ROWS = [uuid.uuid5(uuid.NAMESPACE_OID, f"there before {number}") for number in range(12)]
SHARDS = 2
Slow = tuple[str, SlowProxy]


@pytest.fixture(scope="module")
def through_a_socket(servers: list[LocalServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    """The URL of a datastore that is reached through a slow proxy on a local socket, and the proxy."""
    path = tmp_path_factory.mktemp("proxy") / "slow.sock"
    with slow_proxy(str(servers[0].socket), str(path), seed=1) as (proxy, address):
        yield schemaless.create("slowly", SHARDS, [f"mysql://root@/?unix_socket={address}"]), proxy


@pytest.fixture(scope="module")
def through_tls(loopback: Loopback) -> Iterator[Slow]:
    """The same over TCP, with TLS."""
    with closing(connect(loopback.root, None)) as root:
        run(root, "CREATE USER IF NOT EXISTS everything@'%'")
        run(root, "GRANT ALL ON *.* TO everything@'%'")
    with slow_proxy(loopback.port, 0, seed=2) as (proxy, port):
        url = f"mysql://everything@localhost:{port}/?ssl_ca={loopback.folder}/ca.pem"
        yield schemaless.create("slowly", SHARDS, [url]), proxy


@pytest.fixture(params=[pytest.param("through_a_socket", marks=pytest.mark.long), "through_tls"])
def slow(request: pytest.FixtureRequest, flavour: str) -> Iterator[Slow]:
    """Either of them; ``flavour`` has the test run on each kind of server."""
    url, proxy = request.getfixturevalue(request.param)
    yield url, proxy
    proxy.slow = False


async def filled(url: str, **options: int) -> AsyncDatastore:
    """Open a datastore, and write the rows that are read."""
    store = await schemaless.aio.connect(url, **options)
    await store.put_cells([NewCell(row, "BASE", 1, {"n": number, "s": "x" * 2000}) for number, row in enumerate(ROWS)])
    return store


@pytest.mark.guarantee("aio-cancelled", "aio-cancelled-write", "signal-handlers")
def test_a_call_cancelled_at_any_wait_leaves_no_trace(slow: Slow) -> None:
    """Each call, at each wait, when it begins to wait and when its reply is there; on open connections."""
    url, proxy = slow

    async def main() -> None:
        async with await filled(url) as store:
            proxy.slow = True
            count = await at_every_wait(store, cases(store, ROWS), ROWS, cold=False)
            assert count > 60

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.guarantee("aio-cancelled", "aio-cancelled-write", "signal-handlers")
def test_a_call_cancelled_while_connecting_leaves_no_trace(slow: Slow) -> None:
    """Connecting, logging in and setting up a session are waits as well."""
    url, _ = slow

    async def main() -> None:
        async with await filled(url) as store:
            count = await at_every_wait(store, cases(store, ROWS), ROWS, cold=True)
            assert count > 200

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.guarantee("aio-cancelled", "aio-cancelled-write", "signal-handlers")
def test_cancelled_at_random_nothing_is_wrong(slow: Slow, eventually: Callable[..., None]) -> None:
    """30 tasks: cancelled, timed out, or in a task group that fails. The benchmark does it 20,000 times."""
    url, proxy = slow

    async def main() -> None:
        async with await schemaless.aio.connect(url, pool_size=6) as store:
            proxy.slow = True
            run = Run(store, seed=7, wanted=300)
            await run.run(30)
            assert run.wrong == Counter()
            assert run.cancelled >= 300
            assert run.outcomes["undecided"] > 10
            kept = connections_of(store)
            await asyncio.to_thread(eventually, lambda: proxy.connections == kept, "only idle connections are open")

    asyncio.run(main())
