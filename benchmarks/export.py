"""Export to Parquet: speed and size compared with a plain loop, and kills while cells are written and shards move.

    python benchmarks/export.py speed [--flavour mysql|mariadb] [--documents N] [--rounds N] [--scanner PYTHON]
    python benchmarks/export.py kills [--flavour mysql|mariadb] [--kills N] [--seed N] [--control FAULT]
    python benchmarks/export.py live [--flavour mysql|mariadb] [--documents N] [--rounds N]

``speed`` exports the documents of four shards, with one typed column: by a plain loop over PyMySQL, zlib, msgpack, json
and pyarrow, and by the exporter with one process and with two. Rounds alternate; the median counts. The processes are
started beforehand. Files are compressed alike, and are compared with gzip'd NDJSON. ``--scanner`` takes the path of a
Python that has DuckDB and its MySQL extension (see _duckdb_scanner.py), and adds DuckDB's scanner: over the tables,
whose bodies it cannot decode, and over tables that hold JSON text instead, with the typed column.

``kills`` kills a process that exports and merges files at each of its steps in turn, with and without a power failure,
and starts the next one, while cells are put and shards move between two clusters. On MySQL, the primary of the first
cluster is killed once per ``--kills-per-failover`` kills and its replica is promoted, on new servers each time. Readers
of the manifest and of the folder must see no cell twice after each kill, and each cell once at the end. ``--control``
adds a fault that must be found. Exit status: 1 if a cell is missing or duplicated, or the control was not found.

``live``: clients put and get documents as in ``erasure.py``, in turns undisturbed (quiet) and during a command that
exports all cells. Exit status: 1 if the p99 of puts is more than 1.3 times the quiet one.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import itertools
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql

import schemaless
from schemaless import Datastore, NewCell
from schemaless.base.keys import row_key_for
from schemaless.local.description import LocalServer
from schemaless.local.servers import kill
from schemaless.ops.admin.ndjson import dump_line
from schemaless.ops.export.exporter import Pace, ShardExport
from schemaless.ops.export.manifest import Definition
from schemaless.ops.failover import nodes
from schemaless.ops.failover.adopt import adopt
from schemaless.store.cold.targets import LocalTarget
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.urls import parse_url

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import erasure
from failover import promote

from tests.movers import move_away
from tests.ops.export.killed import CONTROLS, STEPS, Death, Exporters
from tests.processes import preload

SHARDS = 4
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Folder in memory, where syncs take no time; the effects of a power failure are simulated."""
TARGET = 1.3
PATIENCE_S = 30.0
FIELDS = ("total=BASE.fare.total:float",)
WORDS = ("pickup", "dropoff", "airport", "station", "hotel", "street", "square", "bridge", "tower", "harbour", "north")


def document(chance: random.Random) -> dict[str, Any]:
    """Return a trip: about 1 KB of JSON."""
    return {
        "client": str(uuid.UUID(int=chance.getrandbits(128))),
        "fare": {"total": round(chance.random() * 90, 2), "currency": "USD", "surge": chance.random()},
        "route": [
            {"at": f"2026-03-{chance.randrange(1, 29):02d}T12:{chance.randrange(60):02d}:00Z", "lat": chance.random()}
            for _ in range(9)
        ],
        "notes": " ".join(chance.choice(WORDS) for _ in range(40)),
        "paid": chance.random() < 0.5,
    }


def plain_loop(url: str, root: Path) -> None:
    """Export with a loop as one would write it in an afternoon."""
    parsed = parse_url(url)
    connection = pymysql.connect(user="root", unix_socket=parsed.node.socket, charset="utf8mb4")
    for shard in range(SHARDS):
        columns: dict[str, list[Any]] = {
            name: []
            for name in ("row_key", "column_name", "ref_key", "added_id", "shard", "created_at", "body", "total")
        }
        location = 0
        with connection.cursor() as cursor:
            while cursor.execute(
                f"SELECT added_id, row_key, column_name, ref_key, body, created_at FROM {parsed.database}_{shard:04d}"
                ".cell WHERE added_id > %s ORDER BY added_id LIMIT 1000",
                (location,),
            ):
                for added_id, row_key, column_name, ref_key, body, created_at in cursor.fetchall():
                    payload = body[2:-4]
                    found = msgpack.unpackb(zlib.decompress(payload) if body[1] == 0x11 else payload)
                    columns["row_key"].append(str(uuid.UUID(bytes=row_key)))
                    columns["column_name"].append(column_name)
                    columns["ref_key"].append(ref_key)
                    columns["added_id"].append(added_id)
                    columns["shard"].append(shard)
                    columns["created_at"].append(created_at)
                    columns["body"].append(json.dumps(found, ensure_ascii=False, separators=(",", ":")))
                    columns["total"].append(found["fare"]["total"])
                    location = added_id
        pq.write_table(pa.table(columns), root / f"{shard}.parquet", compression="zstd", compression_level=3)
    connection.close()


def export_shards(url: str, root: str, shards: list[int]) -> int:
    """Export some shards by the library; return the number of cells."""
    rows = 0
    with schemaless.connect(url) as store:
        definition = Definition("parquet", store.name, store.shard_count, None, FIELDS)
        for shard in shards:
            part = ShardExport(internals_of(store), LocalTarget(Path(root)), definition, Pace(once=True), shard)
            part.recover(lambda: None)
            is_end = False
            while not is_end:
                count, is_end = part.write_next(lambda: None)
                rows += count
    return rows


class Scanner:
    """DuckDB's MySQL scanner, in a process of its own."""

    def __init__(self, python: str, url: str) -> None:
        parsed = parse_url(url)
        self._socket, self._database = parsed.node.socket, parsed.database
        script = Path(__file__).with_name("_duckdb_scanner.py")
        self._process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def copy(self, table: str, total: str, root: Path) -> None:
        """Copy a table of each shard, with an expression for the typed column."""
        queries = {
            str(shard): "SELECT lower(hex(row_key)) AS row_key, column_name, ref_key, added_id, "
            f"{shard} AS shard, created_at, body{total} FROM source.{self._database}_{shard:04d}.{table}"
            for shard in range(SHARDS)
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"socket": self._socket, "folder": str(root), "queries": queries}),
            file=self._process.stdin,
            flush=True,
        )
        if not self._process.stdout.readline():
            raise RuntimeError("DuckDB's scanner has failed; its message is above")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def write_text_tables(url: str) -> None:
    """Write, next to the cells of each shard, a table with the JSON text of each document."""
    parsed = parse_url(url)
    connection = pymysql.connect(user="root", unix_socket=parsed.node.socket, charset="utf8mb4", autocommit=True)
    with schemaless.connect(url) as store, connection.cursor() as cursor:
        for shard in range(SHARDS):
            database = f"{parsed.database}_{shard:04d}"
            cursor.execute(f"CREATE TABLE {database}.text LIKE {database}.cell")
            cursor.execute(f"ALTER TABLE {database}.text MODIFY body MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL")
            cursor.executemany(
                f"INSERT INTO {database}.text (added_id, row_key, column_name, ref_key, body) "
                "VALUES (%s, %s, %s, %s, %s)",
                (
                    (
                        cell.added_id,
                        cell.row_key.bytes,
                        cell.column_name,
                        cell.ref_key,
                        json.dumps(cell.body, ensure_ascii=False, separators=(",", ":")),
                    )
                    for cell in store.iter_shard(shard)
                ),
            )
    connection.close()


def warm(number: int) -> int:
    """Keep a process busy, so that each of the pool's processes starts."""
    time.sleep(0.5)
    return number


def speed(flavour: str, documents: int, rounds: int, python: str | None) -> int:
    """Measure the loop and the exporter in turns."""
    chance = random.Random(32)
    with private_servers(flavour, 1) as (server,), tempfile.TemporaryDirectory() as folder:
        url = schemaless.create("trips", SHARDS, [server.url])
        with schemaless.connect(url) as store:
            for start in range(0, documents, 1_000):
                store.put_cells(
                    NewCell(row_key_for(f"trip {number}"), "BASE", 1, document(chance))
                    for number in range(start, min(documents, start + 1_000))
                )
        took_s: dict[str, list[float]] = {}
        sizes: dict[str, int] = {}
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(warm, range(2)))
            works: dict[str, Callable[[Path], Any]] = {
                "plain loop": lambda root: plain_loop(url, root),
                "exporter, 1 process": lambda root: pool.submit(export_shards, url, str(root), [0, 1, 2, 3]).result(),
                "exporter, 2 processes": lambda root: list(
                    pool.map(export_shards, [url, url], [str(root)] * 2, [[0, 1], [2, 3]])
                ),
            }
            scanner = None
            if python is not None:
                write_text_tables(url)
                scanner = Scanner(python, url)
                total = ", CAST(json_extract_string(body, '$.fare.total') AS DOUBLE) AS total"
                works["DuckDB, encoded bodies"] = functools.partial(scanner.copy, "cell", "")
                works["DuckDB, JSON text"] = functools.partial(scanner.copy, "text", total)
            for _ in range(rounds):
                for name, work in works.items():
                    root = Path(folder, "out")
                    root.mkdir()
                    began_s = time.perf_counter()
                    work(root)
                    took_s.setdefault(name, []).append(time.perf_counter() - began_s)
                    sizes[name] = sum(path.stat().st_size for path in root.rglob("*.parquet"))
                    shutil.rmtree(root)
            if scanner is not None:
                scanner.close()
        with schemaless.connect(url) as store:
            path = Path(folder, "cells.ndjson.gz")
            with gzip.open(path, "wb", compresslevel=6) as file:
                for shard in range(SHARDS):
                    for cell in store.scan_shard(shard):
                        file.write(dump_line(cell, stored=False) + b"\n")
            zipped = path.stat().st_size
    base_s = statistics.median(took_s["plain loop"])
    print(f"{flavour}: {documents:,} documents in {SHARDS} shards, {rounds} rounds, {os.cpu_count()} cores")
    print(f"{'':24}{'seconds (median)':>18}{'cells/s':>12}{'of the loop':>13}{'MB':>8}")
    for name, times in took_s.items():
        median_s = statistics.median(times)
        ratio, megabytes = base_s / median_s, sizes[name] / 1e6
        print(f"{name:24}{median_s:>18.2f}{documents / median_s:>12,.0f}{ratio:>13.2f}{megabytes:>8.1f}")
    print(f"{'gzip -6 of NDJSON':24}{'':>43}{zipped / 1e6:>8.1f}")
    print(f"Parquet over gzip'd NDJSON: {sizes['exporter, 1 process'] / zipped:.2f}")
    return 0


class Traffic:
    """Writers and moves of shards, which go on during failovers.

    Args:
        url: the datastore, as root.
        seed: seed of the documents.

    Attributes:
        url: the datastore; after a failover, by its new primary.
        batches: number of batches put.
        moved: number of moves.
        failed: number of calls that failed and were repeated.
        still: held while a shard moves.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.batches = self.moved = self.failed = 0
        self._chance = random.Random(seed)
        self.still = threading.Lock()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(2)
        self._running = [self._pool.submit(work) for work in (self._write, self._move)]

    def fail_over(self, primary: LocalServer) -> None:
        """Kill the first cluster's primary, and let its replica take over; no shard may move."""
        (replica,) = primary.replicas
        kill(primary)
        promote(replica)
        self.url = replica.url.replace("/?", "/trips?", 1)
        adopt(self.url, "cluster-1", replica.url)

    def end(self) -> None:
        """Stop, and raise any exception of a thread."""
        self._stop.set()
        self._pool.shutdown()
        for each in self._running:
            each.result()

    def _write(self) -> None:
        with schemaless.connect(self.url) as store:
            while not self._stop.wait(0.02):
                count = self._chance.randrange(1, 9)
                cells = [NewCell(uuid.uuid4(), "BASE", 1, document(self._chance)) for _ in range(count)]
                while not self._put(store, cells):
                    time.sleep(0.05)
                self.batches += 1

    def _put(self, store: Datastore, cells: list[NewCell]) -> bool:
        try:
            store.put_cells(cells)
        except (schemaless.ServerError, schemaless.BatchError):
            self.failed += 1
            return False
        return True

    def _move(self) -> None:
        while not self._stop.wait(2.0):
            with self.still, schemaless.connect(self.url) as store:
                move_away(store, self.moved % SHARDS)
                self.moved += 1


def kills(options: argparse.Namespace) -> int:
    """Kill exporters at each step in turn, print what was wrong, and return the exit status."""
    preload("benchmarks.export")
    counts: Counter[str] = Counter()
    chance, steps = random.Random(options.seed), itertools.cycle(STEPS)
    began_s = time.monotonic()
    faults: list[str] = []
    late: Counter[str] = Counter()
    while counts["kills"] < options.kills and time.monotonic() < began_s + options.at_most:
        count = min(options.kills - counts["kills"], options.kills_per_failover)
        exporters, figures = round_of_kills(options, count, chance, steps, began_s + options.at_most)
        counts.update(figures)
        faults += exporters.faults
        late += exporters.late
        print(f"{dict(counts)}, late {dict(late)}: {faults or 'no fault'}", file=sys.stderr, flush=True)
        if faults:
            break
    took_s = time.monotonic() - began_s
    print(
        f"{options.flavour}, seed {options.seed}, {took_s:.0f} s: " + ", ".join(f"{n:,} {k}" for k, n in counts.items())
    )
    if late:
        print("steps that were not reached in time, so the kill came at another one:", dict(late))
    if options.control:
        print(f"control, {options.control}: {f'found: {faults[0]}' if faults else 'NOT FOUND'}")
        return int(not faults)
    print("\n".join(faults) or "0 missing, 0 twice, 0 that the store does not have, 0 files that no manifest lists")
    return int(bool(faults))


def round_of_kills(
    options: argparse.Namespace, count: int, chance: random.Random, steps: Iterator[str], until_s: float
) -> tuple[Exporters, dict[str, int]]:
    """Kill exporters on new servers, with one failover among the kills; return them and figures."""
    fails_over = options.flavour == "mysql"
    with (
        private_servers(options.flavour, 1, replicas=int(fails_over), semi_sync=fails_over) as (first,),
        private_servers(options.flavour, 1) as (second,),
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder,
    ):
        url = schemaless.create("trips", SHARDS, [first.url, second.url])
        if fails_over:
            nodes.add_replica(url, "cluster-1", first.replicas[0].url)
        exporters = Exporters(url, Path(folder) / "lake", PATIENCE_S)
        exporters.prepare()
        traffic = Traffic(url, chance.getrandbits(32))
        failover_at = chance.randrange(count) if fails_over else None
        try:
            for number in range(count):
                power = chance.getrandbits(32) if options.control or chance.random() < 0.5 else None
                death = Death(next(steps), chance.randrange(4), power, options.control)
                if number == failover_at:
                    # The process dies some time after the failover.
                    death = Death("create cells", 40)
                    with traffic.still:
                        process = exporters.start(death)
                        traffic.fail_over(first)
                    exporters.url = traffic.url
                else:
                    process = exporters.start(death)
                exporters.end(process, death)
                if exporters.faults or time.monotonic() > until_s:
                    break
        finally:
            traffic.end()
        cells, files = (0, 0) if exporters.faults else exporters.finish()
    return exporters, {
        "kills": exporters.killed.total() + exporters.late.total(),
        "of them with a power failure": exporters.without_power,
        "failovers": int(exporters.url != url),
        "moves": traffic.moved,
        "batches": traffic.batches,
        "puts repeated": traffic.failed,
        "cells": cells,
        "files": files,
    }


def live(options: argparse.Namespace) -> int:
    """Measure puts and gets of clients during exports of all cells, and print the ratios to quiet phases."""
    with (
        private_servers(options.flavour, 1, {"innodb-buffer-pool-size": "2G"}) as (server,),
        tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder,
    ):
        url = schemaless.create("live", 2, [server.url])
        print(f"{server.flavour} {server.version}, 1 server, 2 shards, {os.cpu_count()} cores", flush=True)
        with schemaless.connect(url) as store:
            documents = options.documents or 150_000
            rows = erasure.fill(store, "live", documents)
            ends, quiet, beside = threading.Event(), [], []
            for number in range(options.rounds):
                seed, name = 2 * number * erasure.CLIENTS, f"lake{number}"
                quiet.append(erasure.clients(url, rows, lambda: ends.wait(options.seconds), seed, "quiet"))
                job = partial(export_once, url, f"{folder}/{name}", name)
                beside.append(erasure.clients(url, rows, job, seed + erasure.CLIENTS, "export"))
            erasure.ratios("exports", quiet, beside, options.rounds * documents)
        (before, after) = (erasure.merged(phases, "put")[1] for phases in (quiet, beside))
    return int(after > TARGET * before)


def export_once(url: str, folder: str, name: str) -> None:
    """Export all cells by the command, with its defaults."""
    command = [sys.executable, "-m", "schemaless.cli.entry", "export", "parquet", "--to", folder, "--name", name]
    environment = {**os.environ, "SCHEMALESS_URL": url}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "kills", "live"])
    parser.add_argument("--flavour", default="mysql", choices=["mysql", "mariadb"])
    parser.add_argument("--documents", type=int, help="40,000 for speed, 150,000 for live")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="with live: seconds of a quiet phase")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--kills-per-failover", type=int, default=50)
    parser.add_argument("--at-most", type=float, default=3_600.0, help="seconds after which no further kill begins")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", default="", choices=["", *CONTROLS], help="a fault that kills must find")
    parser.add_argument("--scanner", metavar="PYTHON", help="with speed: a Python with DuckDB's MySQL extension")
    options = parser.parse_args()
    if options.what == "speed":
        return speed(options.flavour, options.documents or 40_000, options.rounds, options.scanner)
    return kills(options) if options.what == "kills" else live(options)


if __name__ == "__main__":
    sys.exit(main())
