"""Export to Parquet: speed and size beside a plain loop, and kills under writers and moving shards.

    python benchmarks/export.py speed [--flavour mysql|mariadb] [--documents N] [--rounds N]
    python benchmarks/export.py kills [--flavour mysql|mariadb] [--kills N] [--seed N]

``speed`` exports the documents of four shards, with one typed column: by a plain loop over PyMySQL, zlib, msgpack, json
and pyarrow, and by the exporter with one process and with two. Rounds alternate; the median counts. The processes are
started beforehand. Files are compressed alike, and are compared with gzip'd NDJSON.

``kills`` puts cells and moves shards between two servers, while a process that exports is killed at random moments and
replaced. Afterwards each cell must be in the files once. Exit status: 1 if one is missing or there twice.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql

import schemaless
from schemaless import Datastore, NewCell
from schemaless.admin.ndjson import dump_line
from schemaless.errors import LeaseLost
from schemaless.export.admin import file_names
from schemaless.export.exporter import Pace, ShardExport
from schemaless.export.manifest import Definition
from schemaless.export.target import LocalTarget
from schemaless.internals import internals_of
from schemaless.keys import row_key_for
from schemaless.testing.servers import private_servers
from schemaless.wire.urls import parse_url

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.movers import move_away

SHARDS = 4
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Syncs take no time there, so kills meet every step; what a power failure does is simulated by the tests."""
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
    """Export as one would write it in an afternoon."""
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


def warm(number: int) -> int:
    """Keep a process busy, so that each of the pool's processes starts."""
    time.sleep(0.5)
    return number


def speed(flavour: str, documents: int, rounds: int) -> int:
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
            for _ in range(rounds):
                for name, work in works.items():
                    root = Path(folder, "out")
                    root.mkdir()
                    began_s = time.perf_counter()
                    work(root)
                    took_s.setdefault(name, []).append(time.perf_counter() - began_s)
                    sizes[name] = sum(path.stat().st_size for path in root.rglob("*.parquet"))
                    shutil.rmtree(root)
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


def keep_exporting(url: str, root: str, ready: Connection) -> None:
    """Export shards in turns until killed, as a service does that writes a file for a few cells."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with schemaless.connect(url) as store:
        definition = Definition("parquet", store.name, store.shard_count, None, FIELDS)
        parts: dict[int, ShardExport] = {}
        ready.send_bytes(b"ready")
        while True:
            for shard in range(SHARDS):
                try:
                    if shard not in parts:
                        parts[shard] = ShardExport(
                            internals_of(store), LocalTarget(Path(root)), definition, Pace(once=True), shard
                        )
                        parts[shard].recover(lambda: None)
                    parts[shard].write_next(lambda: None)
                except LeaseLost:
                    del parts[shard]


def kills(flavour: str, count: int, seed: int) -> int:
    """Kill exporters under writers and moves, and compare the files with the store."""
    chance = random.Random(seed)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["schemaless.export.admin", "pyarrow.parquet", "benchmarks.export"])
    with private_servers(flavour, 2) as servers, tempfile.TemporaryDirectory(dir=IN_MEMORY) as root:
        url = schemaless.create("trips", SHARDS, [server.url for server in servers])
        stop, put, moved, own = threading.Event(), [0], [0], random.Random(seed + 1)

        def write() -> None:
            with schemaless.connect(url) as store:
                while not stop.is_set():
                    store.put_cells(NewCell(uuid.uuid4(), "BASE", 1, document(own)) for _ in range(own.randrange(1, 9)))
                    put[0] += 1
                    time.sleep(0.02)

        def move() -> None:
            with schemaless.connect(url) as store:
                while not stop.wait(2.0):
                    move_away(store, moved[0] % SHARDS)
                    moved[0] += 1

        threads = [threading.Thread(target=work) for work in (write, move)]
        for thread in threads:
            thread.start()
        began_s = time.monotonic()
        for number in range(count):
            ours, theirs = processes.Pipe()
            process = processes.Process(target=keep_exporting, args=(url, root, theirs))
            process.start()
            theirs.close()
            ours.recv_bytes()
            time.sleep(chance.uniform(0.0, 2.0))
            process.kill()
            process.join()
            if number % 50 == 49:
                print(f"{number + 1} kills, {put[0]:,} batches, {moved[0]} moves", file=sys.stderr, flush=True)
        stop.set()
        for thread in threads:
            thread.join()
        export_shards(url, root, list(range(SHARDS)))
        with schemaless.connect(url) as store:
            wrong = compare(store, Path(root))
        took_s = time.monotonic() - began_s
    traffic = f"{put[0]:,} batches, {moved[0]} moves of shards"
    print(f"{flavour}, seed {seed}: {count} kills in {took_s:.0f} s, {traffic}: {wrong}")
    return 0 if wrong.startswith("0 missing, 0 twice") else 1


def compare(store: Datastore, root: Path) -> str:
    """Return how the files differ from the store: by the manifest, and as a reader of the folder sees them."""
    expected = {(shard, cell.added_id) for shard in range(SHARDS) for cell in store.scan_shard(shard)}
    target = LocalTarget(root)
    definition = Definition("parquet", store.name, store.shard_count, None, FIELDS)
    listed = [root / name for name in file_names(target, definition)]
    assert sorted(listed) == sorted(root.glob("cells/*/*.parquet")), "the folder has other files than the manifest"
    found: Counter[tuple[int, int]] = Counter()
    for path in listed:
        table = pq.read_table(path, columns=["shard", "added_id"], partitioning=None)
        found.update(zip(table["shard"].to_pylist(), table["added_id"].to_pylist(), strict=True))
    missing = len(expected - found.keys())
    twice = sum(times > 1 for times in found.values())
    return f"{missing} missing, {twice} twice of {len(expected):,} cells in {len(listed):,} files"


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "kills"])
    parser.add_argument("--flavour", default="mysql", choices=["mysql", "mariadb"])
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "speed":
        return speed(arguments.flavour, arguments.documents, arguments.rounds)
    return kills(arguments.flavour, arguments.kills, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
