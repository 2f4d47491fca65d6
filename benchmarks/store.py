"""This library against a bare PyMySQL loop that does the same work, on the same shards of the same servers.

    python benchmarks/store.py [--flavour mysql|mariadb] [--relaxed] [--shards N] [--rounds N] [--server URL ...]

Both sides write the same cells, each into a datastore of its own with the same tables on the same servers, and read
them back. They take turns in short rounds, and which side begins changes from round to round, so that other load on the
machine affects both alike. A figure is the median over the rounds of the ratio within a round, with its quartiles.
``_bare.py`` is the other side.

Documents: the demo's aircraft logbooks, about 19 KB of JSON each, and the flights in them, about 300 bytes each.

- Encoding apart: both sides are given the same bytes and give bytes back. The library writes them with
  ``put_stored_cells(trusted=True)``, even a single cell, and reads them with ``get_stored_versions(limit=1)``, which
  stands for ``get_cell_latest``, with ``scan_shard`` and with ``get_stored_cells_for_shard``. At the end, every cell is
  compared, byte by byte.
- Encoding included: both sides are given documents and give documents back; the bare loop uses plain ``msgpack`` and
  ``zlib``, level 6. At the end, the documents are compared.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from _bare import Bare, Given, connect
from codec import processor

import schemaless
from schemaless.base.keys import heartbeat_database, shard_database
from schemaless.bench.logbooks import documents as logbook_documents
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import encode_body
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.store.internals import internals_of
from schemaless.wire.urls import Credentials, parse_url

BATCH = 100
THREADS = 8
COLUMN = "BASE"
ROW_COLUMNS = ("BASE", "FARE", "ROUTE", "STATUS")
PACKAGES = ("PyMySQL", "SQLAlchemy", "msgpack", "ormsgpack", "orjson", "msgspec", "schemaless-packed")
SETTINGS = (
    "innodb_flush_log_at_trx_commit",
    "sync_binlog",
    "innodb_flush_method",
    "log_bin",
    "innodb_buffer_pool_size",
)


class Library:
    """The library's side; shared by threads."""

    def __init__(self, store: schemaless.Datastore, encoding: bool) -> None:
        self.store = store
        self._encoding = encoding

    def another(self) -> Library:
        """Return itself: one Datastore serves all threads."""
        return self

    def close(self) -> None:
        """Do nothing: the caller that opened the Datastore closes it."""

    def put(self, cells: Sequence[Given]) -> None:
        """Write a batch."""
        if self._encoding:
            self.store.put_cells([schemaless.NewCell(*cell) for cell in cells])
        else:
            self.store.put_stored_cells([schemaless.NewStoredCell(*cell) for cell in cells], trusted=True)

    def put_one(self, cell: Given) -> None:
        """Write one cell; bytes as a batch of one, since only that call takes bytes."""
        if self._encoding:
            self.store.put_cell(*cell)
        else:
            self.store.put_stored_cells([schemaless.NewStoredCell(*cell)], trusted=True)

    def latest(self, key: tuple[uuid.UUID, str]) -> object:
        """Read one cell; bytes by asking for one version."""
        if self._encoding:
            return self.store.get_cell_latest(*key)
        return next(self.store.get_stored_versions(*key, limit=1))

    def latest_of_many(self, keys: Sequence[tuple[uuid.UUID, str]]) -> object:
        """Read many cells."""
        return self.store.get_cells_latest(keys)

    def row(self, row_key: uuid.UUID) -> object:
        """Read the latest cell of each column of a row."""
        return self.store.get_row(row_key)

    def scan(self, shard: int) -> Iterator[Any]:
        """Read what a shard holds now."""
        stored = self.store.scan_shard(shard)
        return (cell.decode() for cell in stored) if self._encoding else stored

    def feed(self, shard: int) -> Iterator[Any]:
        """Read a shard's change feed; for its bytes, page by page."""
        if self._encoding:
            yield from self.store.iter_shard(shard)
            return
        location = 0
        while (page := self.store.get_stored_cells_for_shard(shard, location)).cells:
            yield from page.cells
            location = page.next_location


Side = Library | Bare


@dataclass(frozen=True)
class Task:
    """One measured task: a row of the table.

    Attributes:
        name: label of the row.
        work: makes a round's items, the same for both sides.
        call: processes one item.
        target: ratio to reach (throughput) or not to exceed (latency); None if only for information.
        latency: whether the ratio compares the median times of one call; lower is better. Otherwise it compares the
            work done in the same time; higher is better.
        threads: number of threads that share the items.
    """

    name: str
    work: Callable[[], Sequence[Any]]
    call: Callable[[Any, Any], object]
    target: float | None = None
    latency: bool = False
    threads: int = 1


def run(task: Task, side: Side, items: Sequence[Any]) -> float:
    """Process a round's items and return the seconds per item: the median (latency), or the mean (throughput)."""
    if task.threads > 1:
        return run_by_threads(task, side, items)
    seconds = []
    for item in items:
        start = time.perf_counter()
        task.call(side, item)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) if task.latency else statistics.mean(seconds)


def run_by_threads(task: Task, side: Side, items: Sequence[Any]) -> float:
    """Process a round's items in threads and return the mean seconds between completions."""
    sides = [side.another() for _ in range(task.threads)]

    def do(number: int) -> None:
        for item in items[number :: task.threads]:
            task.call(sides[number], item)

    with ThreadPoolExecutor(task.threads) as pool:
        start = time.perf_counter()
        list(pool.map(do, range(task.threads)))
        seconds = time.perf_counter() - start
    for each in sides:
        each.close()
    return seconds / len(items)


class Contest:
    """Both sides with one set of bodies, each on its own datastore, which is dropped at the end."""

    def __init__(self, name: str, encoding: bool, bodies: Sequence[Any], urls: Sequence[str], options: Any) -> None:
        self._name = name
        self._encoding = encoding
        self._bodies = itertools.cycle(bodies)
        self._options = options
        self._random = random.Random(2013)  # the same keys in every run
        self._account = parse_url(urls[0]).credentials
        self._keys: list[tuple[uuid.UUID, str]] = []
        with ExitStack() as undo:
            self._exit = undo
            self.library, self.bare = self._open(f"{options.name}_{name}", options.shards, urls)
            # In one shard, so that pages are full.
            self.library_scan, self.bare_scan = self._open(f"{options.name}_{name}_scan", 1, urls[:1])
            self._exit = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _open(self, name: str, shards: int, urls: Sequence[str]) -> tuple[Library, Bare]:
        stores = []
        for datastore in (f"{name}_library", f"{name}_bare"):
            databases = [datastore, heartbeat_database(datastore)]
            self._exit.callback(drop, urls, databases + [shard_database(datastore, each) for each in range(shards)])
            stores.append(self._exit.enter_context(schemaless.connect(schemaless.create(datastore, shards, urls))))
        account = self._account.username, _word(self._account)
        bare = Bare(internals_of(stores[1]).topology, account, self._encoding, self._options.page)
        self._exit.callback(bare.close)
        return Library(stores[0], self._encoding), bare

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks, in an order in which cells are written before they are read."""
        size = self._options
        yield Task("put_cells of 100", lambda: self._batches(size.batches), lambda side, cells: side.put(cells), 0.85)
        yield Task("put_cell", lambda: self._cells(size.calls), lambda side, cell: side.put_one(cell), 1.15, True)
        yield Task("get_cell_latest", lambda: self._chosen(size.calls), lambda side, key: side.latest(key), 1.15, True)
        self._fill_scans()
        yield Task("scan_shard", lambda: [0], self._scan, 0.85)
        yield Task("iter_shard", lambda: [0], self._feed, 0.85)
        if not self._encoding:
            return
        many = lambda: [self._chosen(BATCH) for _ in range(size.batches)]  # noqa: E731
        yield Task("get_cells_latest of 100", many, lambda side, keys: side.latest_of_many(keys), latency=True)
        rows = self._wide_rows(size.calls)
        yield Task("get_row of 4 columns", lambda: rows, lambda side, row: side.row(row), latency=True)
        name = f"put_cell, {THREADS} threads"
        yield Task(name, lambda: self._cells(8 * size.calls), lambda side, cell: side.put_one(cell), threads=THREADS)
        name = f"get_cell_latest, {THREADS} threads"
        yield Task(name, lambda: self._chosen(8 * size.calls), lambda side, key: side.latest(key), threads=THREADS)

    def _scan(self, side: Side, shard: int) -> None:
        for _ in (self.library_scan if side is self.library else self.bare_scan).scan(shard):
            pass

    def _feed(self, side: Side, shard: int) -> None:
        for _ in self.library_scan.feed(shard) if side is self.library else self.bare_scan.scan(shard):
            pass

    def _cells(self, count: int) -> list[Given]:
        """Return cells with new keys."""
        cells = [(uuid.UUID(bytes=self._random.randbytes(16)), COLUMN, 1, next(self._bodies)) for _ in range(count)]
        self._keys += [(row, column) for row, column, _, _ in cells]
        return cells

    def _batches(self, count: int) -> list[list[Given]]:
        return [self._cells(BATCH) for _ in range(count)]

    def _chosen(self, count: int) -> list[tuple[uuid.UUID, str]]:
        """Return keys of cells that were written, at random."""
        return self._random.choices(self._keys, k=count)

    def _wide_rows(self, count: int) -> list[uuid.UUID]:
        """Write rows of four columns with two versions each, and return their keys."""
        rows = [uuid.UUID(bytes=self._random.randbytes(16)) for _ in range(count)]
        cells = [(row, column, ref, next(self._bodies)) for row in rows for column in ROW_COLUMNS for ref in (1, 2)]
        for side in (self.library, self.bare):
            side.put(cells)
        return rows

    def _fill_scans(self) -> None:
        for start in range(0, self._options.scanned, BATCH):
            bodies = itertools.islice(self._bodies, min(BATCH, self._options.scanned - start))
            cells = [(uuid.UUID(bytes=self._random.randbytes(16)), COLUMN, 1, body) for body in bodies]
            for side in (self.library_scan, self.bare_scan):
                side.put(cells)

    def compare(self) -> int:
        """Compare all cells and return their number: as bytes, or as documents if each side encoded its own.

        Raises:
            SystemExit: they differ.
        """
        count = 0
        for library, bare in ((self.library, self.bare), (self.library_scan, self.bare_scan)):
            for shard in range(library.store.shard_count):
                ours = {(cell.row_key.bytes, cell.column_name, cell.ref_key): cell.body for cell in library.scan(shard)}
                theirs = {row[1:4]: row[4] for row in bare.scan(shard)}
                if ours != theirs:
                    raise SystemExit(f"{self._name}: the two sides differ in shard {shard}; no figure counts")
                count += len(ours)
        return count


def _word(credentials: Credentials) -> str | None:
    return None if credentials.password is None else credentials.password.reveal()


def drop(urls: Sequence[str], databases: Sequence[str]) -> None:
    """Remove databases from every server."""
    for url in urls:
        parsed = parse_url(url)
        connection = connect(parsed.node, parsed.credentials.username, _word(parsed.credentials))
        for database in databases:
            connection.query(f"DROP DATABASE IF EXISTS `{database}`")
        connection.close()


def measure(contest: Contest, rounds: int) -> Iterator[tuple[Task, list[float], list[float]]]:
    """Yield each task with both sides' seconds per item, one figure per round, after a warm-up round."""
    for task in contest.tasks():
        seconds: dict[Side, list[float]] = {contest.library: [], contest.bare: []}
        for number in range(rounds + 1):
            items = task.work()
            for side in list(seconds)[:: 1 if number % 2 else -1]:
                took = run(task, side, items)
                if number:
                    seconds[side].append(took)
        yield task, seconds[contest.library], seconds[contest.bare]


def line(task: Task, library: Sequence[float], bare: Sequence[float]) -> str:
    """Return a row of the table: both sides' medians in microseconds per item, the ratio, its quartiles, the target."""
    pairs = zip(library, bare, strict=True)
    ratios = [ours / plain if task.latency else plain / ours for ours, plain in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    each = [statistics.median(side) * 1e6 for side in (library, bare)]
    target = "" if task.target is None else f"{'<=' if task.latency else '>='} {task.target}"
    if target and (middle > task.target if task.latency else middle < task.target):
        target += "  MISSED"
    kind = "latency" if task.latency else "throughput"
    return f"{task.name:28}{kind:11}{each[0]:10.1f}{each[1]:10.1f}{middle:8.3f}   {low:.2f}-{high:.2f}   {target}"


def flights(logbooks: Sequence[Any]) -> list[Any]:
    """Return small documents: the flights of logbooks, without the details of airports and weather."""
    return [
        {
            **{name: book[name] for name in ("tail_number", "year", "month")},
            **{name: value for name, value in leg.items() if not isinstance(value, dict)},
            **{name: leg[name]["code"] for name in ("carrier", "origin", "destination") if leg.get(name)},
        }
        for book in logbooks
        for leg in book["legs"]
    ]


@contextmanager
def servers(options: Any) -> Iterator[list[str]]:
    """Yield the URLs of the servers to measure on: those given, or two new private ones."""
    if options.server:
        yield options.server
        return
    folder = Path(tempfile.mkdtemp(prefix="schemaless-bench-"))
    relaxed = RELAXED if options.relaxed else {}
    try:
        yield [server.url for server in up(folder, 2, options.flavour, tied=True, remove=True, options=relaxed)]
    finally:
        down(folder, delete=True)


def describe(urls: Sequence[str], options: Any) -> None:
    """Print the servers and the options."""
    packages = ", ".join(f"{package} {version_of(package)}" for package in PACKAGES)
    print(f"{platform.python_implementation()} {platform.python_version()}, {packages}")
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {processor()}"
    print(f"{machine}, load {os.getloadavg()[0]:.1f}")
    parsed = parse_url(urls[0])
    connection = connect(parsed.node, parsed.credentials.username, _word(parsed.credentials))
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        print(f"{len(urls)} servers {cursor.fetchone()[0]} on {'a socket' if parsed.node.socket else 'TCP'}", end="")
        for setting in SETTINGS:
            cursor.execute(f"SELECT @@{setting}")
            print(f", {setting}={cursor.fetchone()[0]}", end="")
    connection.close()
    print(
        f"\nfast {'on' if ENGINE.fast else 'off'}, {options.shards} shards, {options.rounds} rounds of "
        f"{options.batches} batches or {options.calls} calls; scans of {options.scanned:,} cells, by the bare loop in "
        f"pages of {options.page}"
    )


def version_of(package: str) -> str:
    """Return an installed package's version, or a note that there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--relaxed", action="store_true", help="servers that do not wait for the disk at a commit")
    parser.add_argument("--server", action="append", help="URL of a server to measure on; repeat for each server")
    parser.add_argument("--name", default="bench", help="prefix of the names of datastores, which are dropped")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batches", type=int, default=4, help="batches of a round")
    parser.add_argument("--calls", type=int, default=30, help="single calls per round")
    parser.add_argument("--scanned", type=int, default=2500, help="cells of a scanned shard")
    parser.add_argument("--page", type=int, default=500, help="rows per page of the bare scan")
    parser.add_argument("--documents", type=int, default=200, help="logbooks that bodies are taken from")
    options = parser.parse_args(arguments)
    logbooks = [logbook.body for logbook in logbook_documents(limit=options.documents, report=print)]
    with servers(options) as urls:
        describe(urls, options)
        for name, documents in (("logbooks", logbooks), ("flights", flights(logbooks))):
            for encoding in (False, True):
                bodies = documents if encoding else [encode_body(document) for document in documents]
                kind = "included" if encoding else "apart"
                mean = statistics.mean(len(json.dumps(each, separators=(",", ":"))) for each in documents)
                print(f"\n{name}, {mean:,.0f} bytes of JSON on average, encoding {kind}")
                print(f"{'microseconds a call':28}{'':11}{'library':>10}{'bare':>10}{'ratio':>8}   quartiles   target")
                with Contest(f"{name}_{kind}", encoding, bodies, urls, options) as contest:
                    for task, library, bare in measure(contest, options.rounds):
                        print(line(task, library, bare), flush=True)
                    same = "documents" if encoding else "bodies"
                    print(f"compared: {contest.compare():,} cells of each side have the same {same}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
