"""Versions stored as deltas: bytes per version, and the time of calls and of the migration, beside whole bodies.

    python benchmarks/history.py [--data FILE.ndjson.gz] [--engine innodb rocksdb] [--trips 25] [--rounds 9]

Version histories are loaded as JSON text into three datastores on one private server: "text" stays as it is, "whole" is
migrated to msgpack+zlib, and "history" to msgpack+zlib with --history. InnoDB is measured on MySQL, MyRocks on MariaDB.

- Bytes per version: bodies, and files of the table after a rebuild.
- Cost of the migration: both datastores become text again and are migrated, in turns. The time, and the CPU time of
  client and server, per cell of "history", relative to "whole".
- Calls: the same keys in both datastores, call by call in turns, in short rounds. Figures are medians over the rounds
  of the ratio within a round, with quartiles, of the time per call and of the client's CPU time. At the end, all
  documents of both are compared, or 1,000 of them.

Histories: trips of 16 KB, or as many --points, in which one field changes, or a list grows, and --data, with lines
{"key", "at", "body"}, in order of time: text, seconds since 1970, and a document.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from migrate import cpu_of, database_url

import schemaless
from schemaless.cell import JSONDocument, NewStoredCell
from schemaless.local.description import LocalServer
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.rebuild import run as rebuild
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.sampling.table_sizes import cell_table_sizes
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers

COLUMN = "BASE"
SEED = 32
SPECS = {"whole": MigrateSpec(), "history": MigrateSpec(history=True)}
FLAVOURS = {"innodb": "mysql", "rocksdb": "mariadb"}

History = list[tuple[float, JSONDocument]]
"""The versions of one document, each with its time, in seconds since 1970."""


def main() -> None:
    """Measure each history on each engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[])
    parser.add_argument("--engine", nargs="*", choices=FLAVOURS, default=list(FLAVOURS))
    parser.add_argument("--copies", type=int, default=1, help="row keys of each document of --data")
    parser.add_argument("--times", type=int, default=1, help="row keys of each version, copied by the server")
    parser.add_argument("--trips", type=int, default=25)
    parser.add_argument("--versions", type=int, default=200, help="versions of each trip")
    parser.add_argument("--points", type=int, default=275, help="points of a trip in which one field changes")
    parser.add_argument("--kinds", nargs="*", choices=("changes", "grows"), default=("changes", "grows"))
    parser.add_argument("--rounds", type=int, default=9, help="rounds of calls; 0 for sizes only")
    parser.add_argument("--migrations", type=int, default=3)
    arguments = parser.parse_args()
    for engine in arguments.engine:
        for kind in (*arguments.data, *arguments.kinds):
            if isinstance(kind, Path):
                name, histories = kind.name.partition(".")[0], read(kind) * arguments.copies
            else:
                grows = kind == "grows"
                name = "trip, a list grows" if grows else "trip, one field changes"
                points = 180 if grows else arguments.points
                histories = trips(arguments.trips, arguments.versions, points, grows=grows)
            with private_servers(FLAVOURS[engine], 1, {"skip-log-bin": "1"}, engine=engine) as (server,):
                print(f"\n{name}, {server.flavour} {server.version}, {engine}")
                measure(server, engine, histories, arguments.times, arguments.rounds, arguments.migrations)


def read(path: Path) -> list[History]:
    """Read the histories of a file."""
    found: dict[str, History] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            version = json.loads(line)
            found[version["key"]].append((version["at"], version["body"]))
    return list(found.values())


def trips(count: int, versions: int, point_count: int, *, grows: bool) -> list[History]:
    """Make the histories of trips whose status changes, or which get one more event in each version."""
    chance = random.Random(SEED)
    made = []
    for number in range(count):
        latitude, longitude, history = 37.7, -122.4, []
        points = []
        for second in range(0, 4 * point_count, 4):
            latitude += chance.gauss(0, 1e-4)
            longitude += chance.gauss(0, 1e-4)
            speed = round(abs(chance.gauss(9, 3)), 1)
            points.append(
                {"t": 1_450_000_000 + second, "lat": round(latitude, 6), "lng": round(longitude, 6), "v": speed}
            )
        trip = {"trip": f"{uuid.UUID(int=chance.getrandbits(128))}", "city": number % 7, "points": points, "events": []}
        for version in range(versions):
            if grows:
                event = {"at": 1_450_000_000 + 9 * version, "kind": chance.choice(("eta", "fare", "status"))}
                trip = {**trip, "events": [*trip["events"], {**event, "value": chance.randrange(10_000)}]}
            else:
                trip = {**trip, "fare": chance.randrange(10_000)}
            history.append((1_450_000_000 + 9 * version, trip))
        made.append(history)
    return made


def measure(
    server: LocalServer, engine: str, histories: Sequence[History], times: int, rounds: int, migrations: int
) -> None:
    """Load the histories, and print sizes and ratios."""
    stores = {}
    for side in ("text", *SPECS):
        schemaless.create(side, 1, [server.url], engine=engine)
        stores[side] = schemaless.connect(database_url(server.url, side), read_timeout_s=1800)
        cells = stored_cells(histories)
        while part := list(itertools.islice(cells, 200)):
            stores[side].put_stored_cells(part, trusted=True)
        if times > 1:
            multiply(stores[side], times)
    count = sum(map(len, histories)) * times
    print(f"  {len(histories) * times:,} documents, {count:,} versions")
    print_migrations(server, stores, count, migrations)
    for side, store in stores.items():
        rebuild(store)
        bodies = sum(len(cell.body) for cell in store.scan_shard(0)) / count
        print(
            f"  {side:8} {bodies:8,.0f} bytes of bodies, {file_bytes(store) / count:8,.0f} of files, per version",
            flush=True,
        )
    if rounds:
        print_calls(stores["whole"], stores["history"], histories, rounds)
    for row_key, history in itertools.islice(rows(histories), 1_000):
        for _, store in sorted(stores.items()):
            versions = {cell.ref_key: cell.body for cell in store.get_versions(row_key, COLUMN)}
            assert all(versions[number] == body for number, (_, body) in enumerate(history, 1))
    for store in stores.values():
        store.close()


def rows(histories: Sequence[History]) -> Iterator[tuple[uuid.UUID, History]]:
    """Yield each history with its row key."""
    for number, history in enumerate(histories):
        yield uuid.uuid5(uuid.NAMESPACE_OID, str(number)), history


def stored_cells(histories: Sequence[History]) -> Iterator[NewStoredCell]:
    """Yield the versions of all documents as JSON text, in order of time."""
    cells = [
        (at, row_key, number, body)
        for row_key, history in rows(histories)
        for number, (at, body) in enumerate(history, 1)
    ]
    for at, row_key, number, body in sorted(cells, key=lambda cell: cell[0]):
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        yield NewStoredCell(row_key, COLUMN, number, text, datetime.fromtimestamp(at, UTC))


def multiply(store: Datastore, times: int) -> None:
    """Copy each version under further row keys; each version of all documents still comes before the next one."""
    shards = internals_of(store).shards
    name = shards.database(0)

    def execute(sql: str) -> None:
        shards.run(0, lambda connection: connection.execute(sql.encode()), writes=True)

    execute(f"CREATE TABLE `{name}`.loaded LIKE `{name}`.cell")
    execute(f"INSERT INTO `{name}`.loaded SELECT * FROM `{name}`.cell")
    execute(f"DELETE FROM `{name}`.cell")
    columns = "row_key, column_name, ref_key, body, created_at"
    select = f"SELECT ref_key, MIN(added_id), MAX(added_id) FROM `{name}`.loaded GROUP BY ref_key ORDER BY ref_key"
    for (number, first, last), copy in itertools.product(shards.rows(0, select.encode()), range(times)):
        key = f"CONCAT(CHAR((ORD(row_key) + {copy}) MOD 256), SUBSTRING(row_key, 2))"
        execute(
            f"INSERT INTO `{name}`.cell ({columns}) SELECT {columns.replace('row_key', key)} "
            f"FROM `{name}`.loaded WHERE ref_key={number} AND added_id BETWEEN {first} AND {last} ORDER BY added_id"
        )
    execute(f"DROP TABLE `{name}`.loaded")


def file_bytes(store: Datastore) -> int:
    """Return the size of the shard's table."""
    internals = internals_of(store)
    pool = internals.shards.pool_for(internals.topology.clusters[0].primary)
    return cell_table_sizes(pool, [internals.shards.database(0)])[internals.shards.database(0)].file_bytes


def print_migrations(server: LocalServer, stores: dict[str, Datastore], count: int, times: int) -> None:
    """Migrate both sides from text, in turns, and print what that takes per cell."""
    took: dict[str, list[tuple[float, float]]] = {side: [] for side in SPECS}
    for turn in range(times):
        for side in SPECS if turn % 2 else reversed(SPECS):
            if turn:
                migrate.run(stores[side], MigrateSpec("legacy"))
            began_s, began_cpu_s = time.perf_counter(), time.process_time() + cpu_of(server.pid)
            total = migrate.run(stores[side], SPECS[side]).total()
            cpu_s = time.process_time() + cpu_of(server.pid) - began_cpu_s
            took[side].append((time.perf_counter() - began_s, cpu_s))
            assert total.cells == count, total
    for place, what in enumerate(("time", "CPU time")):
        each = {side: [pair[place] / count * 1e6 for pair in pairs] for side, pairs in took.items()}
        ratio = statistics.median(a / b for a, b in zip(each["history"], each["whole"], strict=True))
        print(
            f"  migration, {what}: {statistics.median(each['history']):,.0f} us per cell with history, "
            f"{statistics.median(each['whole']):,.0f} without: {ratio:.2f}",
            flush=True,
        )


def print_calls(whole: Datastore, history: Datastore, histories: Sequence[History], rounds: int) -> None:
    """Print how long calls take with history, relative to the datastore without."""
    chance = random.Random(SEED)
    keys = [(row_key, len(versions)) for row_key, versions in rows(histories) if len(versions) > 1]
    bodies = [versions[-1][1] for versions in histories]
    numbers = {store.name: itertools.count(1) for store in (whole, history)}

    def some(times: int) -> list[tuple[uuid.UUID, int]]:
        return [(row_key, chance.randrange(1, newest)) for row_key, newest in chance.choices(keys, k=times)]

    calls: dict[str, tuple[int, Callable[[Datastore, uuid.UUID, int], Any]]] = {
        "get_cell_latest": (200, lambda store, row_key, _: store.get_cell_latest(row_key, COLUMN)),
        "get_row": (200, lambda store, row_key, _: store.get_row(row_key)),
        "get_cell of an older version": (200, lambda store, row_key, number: store.get_cell(row_key, COLUMN, number)),
        "get_versions of 100": (10, lambda store, row_key, _: list(store.get_versions(row_key, COLUMN, limit=100))),
        "iter_shard, 2,000 cells": (1, lambda store, *_: sum(1 for _ in itertools.islice(store.iter_shard(0), 2_000))),
        "iter_shard, all cells": (1, lambda store, *_: sum(1 for _ in store.iter_shard(0))),
        "put_cell": (
            100,
            lambda store, row_key, _: store.put_cell(row_key, "OTHER", next(numbers[store.name]), bodies[0]),
        ),
        "append_cell": (100, lambda store, row_key, n: store.append_cell(row_key, COLUMN, bodies[n % len(bodies)])),
    }
    for what, (times, call) in calls.items():
        ratios, cpu_ratios, medians = [], [], []
        for turn in range(rounds + 1):
            took: dict[str, list[float]] = {"whole": [], "history": []}
            cpu_s = dict.fromkeys(took, 0.0)
            for number, item in enumerate(some(times)):
                for store in (whole, history) if (turn + number) % 2 else (history, whole):
                    began_s, began_cpu_s = time.perf_counter(), time.process_time()
                    call(store, *item)
                    cpu_s[store.name] += time.process_time() - began_cpu_s
                    took[store.name].append(time.perf_counter() - began_s)
            if turn:  # the first round warms up
                each = {side: statistics.median(seconds) for side, seconds in took.items()}
                ratios.append(each["history"] / each["whole"])
                cpu_ratios.append(cpu_s["history"] / cpu_s["whole"])
                medians.append(each["history"])
        low, mid, high = statistics.quantiles(ratios, n=4)
        print(
            f"  {what:28} {statistics.median(medians) * 1e3:9.3f} ms, {mid:5.2f} times as long "
            f"({low:.2f} to {high:.2f}), CPU time {statistics.median(cpu_ratios):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
