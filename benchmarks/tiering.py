"""Cold documents in files: bytes, the time of reads, and the speed of a run, beside hot documents and a plain loop.

    python benchmarks/tiering.py --data FILE.ndjson.gz... [--engine innodb rocksdb] [--reads 300] [--copies 1]
    python benchmarks/tiering.py --live DOCUMENTS

Documents are put into a new datastore of two shards on a private server with created_at in the past, and become cold.

- Bytes: bodies in the default codec, cold files relative to them, and the table's file per cell after a rebuild.
- Reads, in turns on the same keys: get_cell of a hot cell, of the same cell when it is cold without anything in the
  cache, and a bare pyarrow read of its row group; get_cells_latest of 100 cold cells of one file. Medians.
- Speed: `tier run` with one and two workers, and a loop of PyMySQL, json and pyarrow that writes one file and replaces
  the same bodies, without any check. Cells per second.

InnoDB is measured on MySQL, MyRocks on MariaDB. Lines with "key" and "body" are versions of documents.

With ``--live``, latencies of four clients while no run is active, and while one is, as in ``migrate_latency.py``.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import random
import statistics
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import migrate_latency
import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
from history import FLAVOURS
from migrate import database_url

import schemaless
from schemaless import NewCell
from schemaless.bench.logbooks import ALL_DOCUMENTS
from schemaless.bench.logbooks import documents as logbook_documents
from schemaless.codec.references import reference_of
from schemaless.local.description import LocalServer
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.rebuild import run as rebuild
from schemaless.ops.tier.cooling import TIER, spec_of
from schemaless.ops.tier.recall import RECALL, RecallSpec
from schemaless.planning.sampling.table_sizes import cell_table_sizes
from schemaless.store.cold.fetching import cache
from schemaless.store.cold.files import ShardFiles
from schemaless.store.cold.settings import TierPolicy
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers

COLUMN = "BASE"
OLD = datetime.now(UTC) - timedelta(400)
SEED = 47


def main() -> None:
    """Measure each set on each engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[])
    parser.add_argument("--engine", nargs="*", choices=FLAVOURS, default=list(FLAVOURS))
    parser.add_argument("--reads", type=int, default=300)
    parser.add_argument("--copies", type=int, default=1, help="cells of each document")
    parser.add_argument("--live", type=int, default=0, metavar="DOCUMENTS", help="logbooks to make cold beside clients")
    asked = parser.parse_args()
    if asked.live:
        live(asked.live)
    for engine in asked.engine:
        shares = []
        for path in asked.data:
            with private_servers(FLAVOURS[engine], 1, {"skip-log-bin": "1"}, engine=engine) as (server,):
                print(f"\n{path.name.partition('.')[0]}, {server.flavour} {server.version}, {engine}", flush=True)
                with tempfile.TemporaryDirectory() as folder:
                    cells = list(cells_of(path, asked.copies))
                    shares.append(measure(server, engine, cells, Path(folder), asked.reads))
        if shares:
            print(f"\ngeometric mean of files to bodies: {math.exp(statistics.fmean(map(math.log, shares))):.3f}")


def live(count: int) -> None:
    """Print latencies of clients while no run is active, and while one is."""
    logbooks = [logbook.body for logbook in logbook_documents(limit=min(count, ALL_DOCUMENTS))]
    options = argparse.Namespace(pause_ms=10.0, phase=30.0, rounds=2, run="", command=("tier", "run"))
    with private_servers("mysql", 2, migrate_latency.DURABLE) as servers, tempfile.TemporaryDirectory() as folder:
        url = schemaless.create("latency", 16, [server.url for server in servers])
        with schemaless.connect(url) as store:
            internals_of(store).cold.set_store(folder, 0)
            internals_of(store).cold.set(TierPolicy(migrate_latency.COLUMN, 0))
        rows = migrate_latency.load(url, logbooks, count)
        phases, notes = migrate_latency.measure(url, rows, logbooks, [server.pid for server in servers], options)
    print("\n".join(notes))
    migrate_latency.show(phases)


def cells_of(path: Path, copies: int) -> Iterator[NewCell]:
    """Make cells of the documents, or of their versions, of a file."""
    numbers: dict[str, int] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for position, line in enumerate(lines):
            document = json.loads(line)
            key, number = str(position), 1
            if {"key", "body"} <= set(document):
                key, document = document["key"], document["body"]
                number = numbers[key] = numbers.get(key, 0) + 1
            for copy in range(copies):
                row = uuid.uuid5(uuid.NAMESPACE_OID, f"{key} {copy}")
                yield NewCell(row, COLUMN, number, document, created_at=OLD)


def measure(server: LocalServer, engine: str, cells: list[NewCell], folder: Path, reads: int) -> float:
    """Print what there is to say about one set; return the share of the files."""
    schemaless.create("tiers", 2, [server.url], engine=engine)
    with schemaless.connect(database_url(server.url, "tiers"), read_timeout_s=600) as store:
        random.Random(SEED).shuffle(cells)
        waiting = iter(cells)
        while part := list(itertools.islice(waiting, 200)):
            store.put_cells(part)
        internals_of(store).cold.set_store(str(folder / "cold"), 0)
        internals_of(store).cold.set(TierPolicy(COLUMN, 180))
        rebuild(store)
        hot_file = table_bytes(store)
        sample = random.Random(SEED).sample(
            [(cell.row_key, cell.column_name, cell.ref_key) for cell in cells], min(reads, len(cells))
        )
        hot = [seconds(lambda key=key: store.get_cell(*key)) for key in sample]
        speeds = {f"{count} workers": run(store, count) for count in (1, 2)}
        speeds["plain loop"] = plain_loop(server, store, folder)
        job = TIER.run(store, spec_of(store))
        states = JobStore(store).shards(job.job_id)
        files, before = sum(each.counters["file_bytes"] for each in states), sum(each.bytes_before for each in states)
        share = files / before
        rebuild(store)
        count = len(cells)
        print(
            f"  {count:,} cells: {before / count:,.0f} bytes of bodies, {files / count:,.0f} of files per cell "
            f"({share:.3f}); table {hot_file / count:,.0f} -> {table_bytes(store) / count:,.0f} bytes a cell"
        )
        print(f"  run, cells/s: {', '.join(f'{name} {count / took:,.0f}' for name, took in speeds.items())}")
        print_reads(store, sample, hot, folder)
    return share


def run(store: Datastore, workers: int) -> float:
    """Return how long a run takes, in seconds, and put everything back."""
    began = time.perf_counter()
    TIER.run(store, spec_of(store), count=workers)
    took = time.perf_counter() - began
    RECALL.run(store, RecallSpec())
    return took


def plain_loop(server: LocalServer, store: Datastore, folder: Path) -> float:
    """Return how long a loop takes that writes one file and replaces bodies, and put them back."""
    took = 0.0
    for shard in range(store.shard_count):
        database = internals_of(store).shards.database(shard)
        connection = pymysql.connect(unix_socket=str(server.socket), user="root", database=database, autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE kept AS SELECT added_id, body FROM cell")
            began = time.perf_counter()
            plain_shard(cursor, folder)
            took += time.perf_counter() - began
            cursor.execute("UPDATE cell JOIN kept USING (added_id) SET cell.body=kept.body")
            cursor.execute("DROP TABLE kept")
    return took


def plain_shard(cursor: Any, folder: Path) -> None:
    """Write the documents of one shard into one file, and replace their bodies."""
    after = 0
    fields = {"row_key": pa.binary(), "column_name": pa.string(), "ref_key": pa.int64(), "body": pa.string()}
    options = {"compression": "zstd", "compression_level": 9}
    with pq.ParquetWriter(folder / "plain.parquet", pa.schema(list(fields.items())), **options) as writer:
        while True:
            cursor.execute(
                "SELECT added_id, row_key, column_name, ref_key, body FROM cell WHERE added_id>%s "
                "ORDER BY added_id LIMIT 1000",
                (after,),
            )
            rows = cursor.fetchall()
            if not rows:
                break
            after = rows[-1][0]
            texts = [json.dumps(msgpack.unpackb(payload(row[4]))) for row in rows]
            writer.write_table(
                pa.Table.from_arrays(
                    [pa.array([row[position] for row in rows]) for position in (1, 2, 3)] + [pa.array(texts)],
                    schema=writer.schema,
                )
            )
            ids = ",".join(str(row[0]) for row in rows)
            cursor.execute(f"UPDATE cell SET body=REPEAT('x',30) WHERE added_id IN ({ids})")


def payload(body: bytes) -> bytes:
    """Return the MessagePack of a body."""
    return zlib.decompress(body[2:-4]) if body[1] & 15 else body[2:-4]


def print_reads(store: Datastore, sample: list[Any], hot: list[float], folder: Path) -> None:
    """Print the times of cold reads beside those of hot ones."""
    cold, bare, warm = [], [], []
    shards = internals_of(store).shards
    files = {file.file_id: file for shard in range(store.shard_count) for file in ShardFiles(shards, shard).all("live")}
    for key in sample:
        cache().clear()
        cold.append(seconds(lambda key=key: store.get_cell(*key)))
        warm.append(seconds(lambda key=key: store.get_cell(*key)))
        (stored,) = store.get_stored_versions(*key[:2], after=key[2] - 1, before=key[2] + 1, limit=1)
        reference = reference_of(stored.body)
        content = folder / "cold" / files[reference.file].name

        def read(content: Path = content, group: int = reference.group) -> None:
            pq.ParquetFile(content).read_row_group(group, columns=["row_key", "column_name", "ref_key", "body"])

        bare.append(seconds(read))
    cache().clear()
    many = [key[:2] for key in sample[:100]]
    hundred = []
    for _ in range(9):
        cache().clear()
        hundred.append(seconds(lambda: store.get_cells_latest(many)))
    all_times = {"hot": hot, "cold": cold, "cached": warm, "bare": bare, "hundred": hundred}
    ms = {name: statistics.median(times) * 1e3 for name, times in all_times.items()}
    print(
        f"  get_cell, ms: hot {ms['hot']:.2f}, cold {ms['cold']:.2f} ({ms['cold'] / ms['hot']:.1f} times), from the "
        f"cache {ms['cached']:.2f}; bare pyarrow {ms['bare']:.2f} (cold {ms['cold'] / ms['bare']:.2f} times); 100 cold "
        f"cells {ms['hundred']:.2f} ({ms['hundred'] / ms['cold']:.1f} times one)",
        flush=True,
    )


def table_bytes(store: Datastore) -> int:
    """Return the size of the tables of cells."""
    internals = internals_of(store)
    databases = [internals.shards.database(shard) for shard in range(store.shard_count)]
    sizes = cell_table_sizes(internals.shards.pool_for(internals.topology.clusters[0].primary), databases)
    return sum(size.file_bytes for size in sizes.values())


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
