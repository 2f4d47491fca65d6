"""The asyncio client against threads, a bare asyncmy loop and the synchronous client; and the effects of cancellation.

    python benchmarks/asyncio_client.py speed [--tasks N...] [--seconds S] [--rounds N]    needs asyncmy, uvloop
    python benchmarks/asyncio_client.py lag [--seconds S]
    python benchmarks/asyncio_client.py cancel [--cancellations N] [--tasks N] [--flavour mysql|mariadb] [--seed N]

speed: each contender makes the same calls on the same datastore of one private server, in turns of a few seconds; which
one begins changes from round to round. Encoding is included: by the library, and by plain ``msgpack``, ``zlib`` level 6
and ``zlib.crc32`` in the asyncmy loop, which uses the library's statements, session variables and envelope, and one
connection pool of the same size, and does not retry, check or follow anything else. CPU is that of the client process.
Throughput is the median over the rounds; CPU is the least, since other work on the machine only adds to it.

lag: a task that sleeps 5 ms at a time, while 100 others put and get documents of 20 KB, measures how late it is.

cancel: tasks whose calls are cancelled, time out, or belong to a task group that fails, through a proxy that delays and
splits what it forwards. Every reply is compared with what was written (tests/aio/random_cancelling.py). Exit status 1
if anything was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from codec import processor
from indexes import filled as with_index

import schemaless
import schemaless.aio
from schemaless.base.keys import shard_database
from schemaless.store.cells.sql import insert_cells, select_latest
from schemaless.store.indexes import sql as index_sql
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.session import SETTINGS
from schemaless.wire.sql.parts import all_limited
from schemaless.wire.sql.sessions import set_session
from tests.aio.random_cancelling import Run, connections_of
from tests.aio.slow_proxy import slow_proxy

SHARDS: Final = 4
CANCEL_POOL: Final = 16
ROWS: Final = 2_000
MANY: Final = 20
COLUMN: Final = "DOC"
CALLS: Final = ("put", "get", "get_cells_latest", "query")
KINDS: Final = {"small": 8, "large": 420}
"""Legs per document: 0.5 KB and 20 KB of JSON."""


def document(number: int, legs: int) -> dict[str, Any]:
    """Return a trip."""
    chance = random.Random(number)
    return {
        "trip": number,
        "legs": [{"to": chance.choice(("JFK", "LGA", "EWR")), "fare": chance.randrange(9_000)} for _ in range(legs)],
    }


class Work:
    """The calls, the same ones for every contender.

    Args:
        kind: kind of documents, one of ``KINDS``.
        rows: existing rows, for reads.
        clients: clients in the index.
        pool: maximum number of connections per contender.
    """

    def __init__(self, kind: str, rows: Sequence[uuid.UUID], clients: Sequence[str], pool: int) -> None:
        self.pool = pool
        self.documents = [document(number, KINDS[kind]) for number in range(50)]
        self.rows = rows
        self.clients = clients
        self._number = itertools.count()

    def arguments(self, call: str) -> Any:
        """Return the next arguments of a call."""
        number = next(self._number)
        if call == "put":
            return uuid.uuid4(), self.documents[number % len(self.documents)]
        if call == "get":
            return self.rows[number % len(self.rows)]
        if call == "get_cells_latest":
            start = number * MANY % (len(self.rows) - MANY)
            return [(row, COLUMN) for row in self.rows[start : start + MANY]]
        return self.clients[number % len(self.clients)]


@dataclass
class Measured:
    """What a contender did in one turn: calls per second, client CPU per call, and delays of the loop in seconds."""

    per_s: float
    cpu_us: float
    lags_s: Sequence[float] = ()


class Asyncio:
    """``schemaless.aio``, on asyncio's loop or on uvloop."""

    def __init__(self, url: str, work: Work, loop_factory: Callable[[], Any] | None = None) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory)
        self._work = work
        self._store = self._runner.run(self._open(url))

    async def _open(self, url: str) -> Any:
        store = await schemaless.aio.connect(url, pool_size=self._work.pool)
        self._index = store.index("trips") if self._work.clients else None
        return store

    def close(self) -> None:
        """Close the connections and the loop."""
        self._runner.run(self._store.close())
        self._runner.close()

    async def call(self, call: str) -> None:
        """Make one call."""
        given = self._work.arguments(call)
        if call == "put":
            await self._store.put_cell(given[0], COLUMN, 1, given[1])
        elif call == "get":
            assert await self._store.get_cell_latest(given, COLUMN)
        elif call == "get_cells_latest":
            assert len(await self._store.get_cells_latest(given)) == MANY
        else:
            await self._index.query(client=given, order_by="-at", limit=20)

    def measure(self, call: str, tasks: int, seconds: float) -> Measured:
        """Make calls from a number of tasks for some seconds."""
        return self._runner.run(_in_tasks(self.call, call, tasks, seconds))


class Asyncmy:
    """Loop over asyncmy's pool, without any of the library's checks and retries."""

    def __init__(self, url: str, work: Work) -> None:
        import asyncmy

        self._runner = asyncio.Runner()
        self._work = work
        with schemaless.connect(url) as store:
            internals = internals_of(store)
            node, user = internals.topology.clusters[0].primary, internals.url.credentials.username
            self._databases = [shard_database(store.name, shard) for shard in range(SHARDS)]
            self._entry = internals.registry.ready("trips") if work.clients else None

        async def opened() -> Any:
            settings = SETTINGS | {"transaction_isolation": "REPEATABLE-READ"}
            return await asyncmy.create_pool(
                work.pool,
                work.pool,
                unix_socket=node.socket,
                user=user,
                charset="utf8mb4",
                autocommit=True,
                init_command=set_session(settings).decode(),
            )

        self._pool = self._runner.run(opened())

    def close(self) -> None:
        """Close the connections and the loop."""

        async def closed() -> None:
            self._pool.close()
            await self._pool.wait_closed()

        self._runner.run(closed())
        self._runner.close()

    async def _execute(self, sql: bytes) -> Any:
        async with self._pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute(sql)
            return await cursor.fetchall()

    async def call(self, call: str) -> None:
        """Make one call."""
        given = self._work.arguments(call)
        if call == "put":
            content = b"\xc1\x11" + zlib.compress(msgpack.packb(given[1]), 6)
            body = content + zlib.crc32(content).to_bytes(4, "big")
            await self._execute(insert_cells(self._of(given[0]), [(given[0].bytes, COLUMN, 1, body)]))
            return
        if call == "get":
            (row,) = await self._execute(select_latest(self._of(given), [(given.bytes, COLUMN)]))
            _document(row[4])
        elif call == "get_cells_latest":
            by_database: dict[str, list[tuple[bytes, str]]] = {}
            for row, column in given:
                by_database.setdefault(self._of(row), []).append((row.bytes, column))
            # One server, so one statement for all shards, as in the library.
            parts = [select_latest(database, pairs) for database, pairs in by_database.items()]
            found = [_document(row[4]) for row in await self._execute(all_limited(parts))]
            assert len(found) == MANY
        else:
            await self._query(given)

    async def _query(self, client: str) -> None:
        assert self._entry is not None
        definition, layout = self._entry.definition, self._entry.layout
        value = definition.shard_field.argument(client)
        shard = definition.shard_of(value, SHARDS)
        test = index_sql.comparison("client", "<=>", definition.shard_field.literal(value))
        sql = index_sql.select_matches(self._databases[shard], layout, [test], descending=True, limit=20)
        by_database: dict[str, list[bytes]] = {}
        for match in await self._execute(sql):
            by_database.setdefault(self._of(uuid.UUID(bytes=match[0])), []).append(match[0])
        # One server, so one statement for the rows of all shards, as in the library.
        parts = [
            index_sql.select_versions_of_rows(name, rows, definition.sources, 3 * len(definition.sources))
            for name, rows in by_database.items()
        ]
        for row in await self._execute(b" UNION ALL ".join(parts)):
            _document(row[4])

    def _of(self, row: uuid.UUID) -> str:
        return self._databases[zlib.crc32(row.bytes) % SHARDS]

    def measure(self, call: str, tasks: int, seconds: float) -> Measured:
        """Make calls from a number of tasks for some seconds."""
        return self._runner.run(_in_tasks(self.call, call, tasks, seconds))


class Threads:
    """The synchronous client, called by threads, or by the main thread if there is one task."""

    def __init__(self, url: str, work: Work) -> None:
        self._store = schemaless.connect(url, pool_size=work.pool)
        self._index = self._store.index("trips") if work.clients else None
        self._work = work

    def close(self) -> None:
        """Close the connections."""
        self._store.close()

    def call(self, call: str) -> None:
        """Make one call."""
        given = self._work.arguments(call)
        if call == "put":
            self._store.put_cell(given[0], COLUMN, 1, given[1])
        elif call == "get":
            assert self._store.get_cell_latest(given, COLUMN)
        elif call == "get_cells_latest":
            assert len(self._store.get_cells_latest(given)) == MANY
        else:
            assert self._index is not None
            self._index.query(client=given, order_by="-at", limit=20)

    def measure(self, call: str, tasks: int, seconds: float) -> Measured:
        """Make calls from a number of threads for some seconds."""
        began_s, cpu_s = time.perf_counter(), time.process_time()
        ends_s = began_s + seconds

        def work(_: int) -> int:
            count = 0
            while time.perf_counter() < ends_s:
                self.call(call)
                count += 1
            return count

        if tasks == 1:
            calls = work(0)
        else:
            with ThreadPoolExecutor(tasks) as pool:
                calls = sum(pool.map(work, range(tasks)))
        return Measured(calls / (time.perf_counter() - began_s), (time.process_time() - cpu_s) / max(1, calls) * 1e6)


async def _in_tasks(make: Callable[[str], Awaitable[None]], call: str, tasks: int, seconds: float) -> Measured:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    ends_s = began_s + seconds
    lags: list[float] = []

    async def work() -> int:
        count = 0
        while time.perf_counter() < ends_s:
            await make(call)
            count += 1
        return count

    async def watch() -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - before_s - 0.005)

    watching = asyncio.ensure_future(watch())
    calls = sum(await asyncio.gather(*(work() for _ in range(tasks))))
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    watching.cancel()
    return Measured(calls / took_s, cpu_s / max(1, calls) * 1e6, lags)


def _document(body: bytes) -> Any:
    """Verify and decode a body of the library's default codec, MessagePack + zlib or uncompressed."""
    assert zlib.crc32(body[:-4]) == int.from_bytes(body[-4:], "big")
    payload = body[2:-4]
    return msgpack.unpackb(zlib.decompress(payload) if body[1] == 0x11 else payload)


@contextmanager
def filled(flavour: str, kind: str, pool: int, *, index: bool) -> Iterator[tuple[str, Work]]:
    """Yield a datastore on a new server, and the work on it."""
    with private_servers(flavour, 1, {"max_connections": 1_000}) as servers:
        url = schemaless.create("bench", SHARDS, [servers[0].url])
        clients = with_index(url, 8_000, 1) if index else []
        rows = [uuid.UUID(int=number << 64) for number in range(1, ROWS + 1)]
        work = Work(kind, rows, clients, pool)
        with schemaless.connect(url) as store:
            for start in range(0, ROWS, 100):
                part = rows[start : start + 100]
                store.put_cells(
                    [schemaless.NewCell(row, COLUMN, 1, document(row.int >> 64, KINDS[kind])) for row in part]
                )
        print(
            f"{platform.python_implementation()} {platform.python_version()}, {processor()}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}; {flavour}, {SHARDS} shards, {pool} connections, {kind} documents",
            flush=True,
        )
        yield url, work


def speed(options: argparse.Namespace) -> int:
    """Print a table of throughputs and client CPU."""
    import uvloop

    print(f"{'call':17}{'tasks':>6}  {'contender':16}{'calls/s':>9}{'CPU us':>8}{'of aio':>8}{'CPU':>7}{'lag p99':>9}")
    with filled(options.flavour, options.documents, options.pool, index="query" in options.calls) as (url, work):
        contenders = {
            "aio": Asyncio(url, work),
            "aio, uvloop": Asyncio(url, work, uvloop.new_event_loop),
            "threads": Threads(url, work),
            "bare asyncmy": Asyncmy(url, work),
        }
        _settle_heap(options.freeze)
        for call in options.calls:
            for tasks in options.tasks:
                found: dict[str, list[Measured]] = {name: [] for name in contenders}
                for number in range(options.rounds + 1):
                    for name in list(contenders)[:: 1 if number % 2 else -1]:
                        measured = contenders[name].measure(call, tasks, options.seconds if number else 0.2)
                        if number:
                            found[name].append(measured)
                own = _summary(found["aio"])
                for name, turns in found.items():
                    per_s, cpu_us, lag_ms = _summary(turns)
                    shown = "sync, one thread" if name == "threads" and tasks == 1 else name
                    lag = f"{lag_ms:6.1f} ms" if turns[0].lags_s else ""
                    print(
                        f"{call:17}{tasks:6}  {shown:16}{per_s:9,.0f}{cpu_us:8.0f}{own[0] / per_s:8.2f}"
                        f"{own[1] / cpu_us:7.2f}{lag:>9}",
                        flush=True,
                    )
        for contender in contenders.values():
            contender.close()
    return 0


def _settle_heap(freeze: bool) -> None:
    """Collect the set-up's garbage; if ``freeze``, exempt the rest from later collections, as a server can."""
    gc.collect()
    if freeze:
        gc.freeze()


def _summary(turns: Sequence[Measured]) -> tuple[float, float, float]:
    lags = [lag for turn in turns for lag in turn.lags_s]
    late_ms = statistics.quantiles(lags, n=100)[98] * 1e3 if len(lags) > 1 else 0.0
    return statistics.median(turn.per_s for turn in turns), min(turn.cpu_us for turn in turns), late_ms


def lag(options: argparse.Namespace) -> int:
    """Print how late a task is while others put and get large documents."""
    with filled(options.flavour, "large", options.pool, index=False) as (url, work):
        contender = Asyncio(url, work)
        _settle_heap(options.freeze)
        for call in ("put", "get", "get_cells_latest"):
            for tasks in options.tasks:
                contender.measure(call, tasks, 0.5)
                measured = contender.measure(call, tasks, options.seconds)
                lags_ms = sorted(each * 1e3 for each in measured.lags_s)
                parts = {name: lags_ms[int(len(lags_ms) * share)] for name, share in (("p50", 0.5), ("p99", 0.99))}
                print(
                    f"{call:17}{tasks:4} tasks {measured.per_s:7,.0f} calls/s, CPU {measured.cpu_us:5.0f} us a call; "
                    f"lag p50 {parts['p50']:.2f} ms, p99 {parts['p99']:.2f} ms, most {lags_ms[-1]:.2f} ms",
                    flush=True,
                )
        contender.close()
    return 0


def cancel(options: argparse.Namespace) -> int:
    """Print the outcome of random cancellations; return 1 if anything was wrong."""
    with (
        private_servers(options.flavour, 1) as (server,),
        tempfile.TemporaryDirectory() as folder,
        slow_proxy(str(server.socket), f"{folder}/slow.sock", options.seed) as (proxy, address),
    ):
        url = schemaless.create("cancelled", SHARDS, [f"mysql://root@/?unix_socket={address}"])

        async def main() -> Run:
            async with await schemaless.aio.connect(url, pool_size=CANCEL_POOL) as store:
                proxy.slow = True
                run = Run(store, options.seed, options.cancellations)
                await run.run(options.tasks)
                await asyncio.sleep(1)
                leaked = proxy.connections - connections_of(store)
                run.outcomes["wrong: leaked connections"] += leaked
            return run

        began_s = time.perf_counter()
        run = asyncio.run(main())
    wrong = run.wrong.total()
    print(
        f"{options.flavour}, seed {options.seed}, {options.tasks} tasks, {CANCEL_POOL} connections: "
        f"{run.cancelled:,} calls cancelled in {time.perf_counter() - began_s:.0f} s: {wrong} wrong"
    )
    for outcome, times in sorted(run.outcomes.items()):
        if times:
            print(f"  {outcome}: {times:,}")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("speed", speed), ("lag", lag), ("cancel", cancel)):
        command = commands.add_parser(name, help=(run.__doc__ or "").partition(".")[0])
        command.set_defaults(run=run)
        if name == "cancel":
            command.add_argument("--cancellations", type=int, default=20_000)
            command.add_argument("--tasks", type=int, default=50)
            command.add_argument("--seed", type=int, default=1)
        else:
            command.add_argument(
                "--tasks", type=int, nargs="+", default=[1, 16, 100, 500] if name == "speed" else [100]
            )
            command.add_argument("--pool", type=int, default=16, help="connections per contender (default: 16)")
            command.add_argument("--freeze", action="store_true", help="gc.freeze() after set-up")
            command.add_argument("--seconds", type=float, default=1.0 if name == "speed" else 5.0)
        if name == "speed":
            command.add_argument("--rounds", type=int, default=3)
            command.add_argument("--calls", nargs="+", choices=CALLS, default=list(CALLS))
            command.add_argument("--documents", choices=tuple(KINDS), default="small")
    options = parser.parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
