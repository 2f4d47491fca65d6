"""File sizes after a migration and a rebuild: as a capacity report predicts them, and as they are.

Loads real documents as legacy JSON text in two columns, logbooks and their single flights, makes a report from samples,
re-encodes everything, rebuilds every table, and compares the report's figure with the files. MB of 1,000,000 bytes.

    python benchmarks/capacity_rebuilt.py [--megabytes 60 240] [--shards 4] [--codec ...] [--flavour mysql mariadb]
"""

from __future__ import annotations

import argparse
import json
import random
import uuid
from collections.abc import Iterator

from schemaless.bench.logbooks import documents
from schemaless.cell import NewStoredCell
from schemaless.ops.admin.create import create
from schemaless.ops.migrate.rebuild import run as rebuild
from schemaless.ops.migrate.run import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.capacity.options import Asked
from schemaless.planning.capacity.reporting import make
from schemaless.planning.sampling.table_sizes import TableSize, cell_table_sizes
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.testing.servers import private_servers

MB = 1_000_000
BATCH = 400


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[60, 240])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--codec", nargs="*", default=["msgpack+zlib", "msgpack+zstd"])
    parser.add_argument("--flavour", nargs="*", default=["mysql", "mariadb"])
    arguments = parser.parse_args()
    print("| server | cells | files now | to | predicted, with its 95 % interval | then | off by |")
    print("|---|--:|--:|---|--:|--:|--:|")
    for flavour in arguments.flavour:
        for megabytes in arguments.megabytes:
            for number, codec in enumerate(arguments.codec):
                with private_servers(flavour, 2) as servers:
                    url = create(f"rebuilt{number}", arguments.shards, [server.url for server in servers])
                    with connect(url) as store:
                        held(store, f"{flavour} {servers[0].version}", codec, megabytes * MB, seed=number)


def held(store: Datastore, server: str, codec: str, size: int, seed: int) -> None:
    """Fill a datastore, predict, re-encode, rebuild, and print the line."""
    cells = fill(store, size, seed)
    found = make({"": store}, Asked(codec=codec, seed=seed))
    assert found.after is not None
    predicted = found.after.file_bytes
    assert predicted is not None
    before = files(store)
    migrate(store, MigrateSpec(codec))
    rebuild(store)
    then = files(store)
    low, mid, high = (value / MB for value in (predicted.low, predicted.mid, predicted.high))
    print(
        f"| {server} | {cells:,} | {before / MB:,.1f} MB | {codec} | {mid:,.1f} MB ({low:,.1f} to {high:,.1f}) "
        f"| {then / MB:,.1f} MB | {predicted.mid / then - 1:+.1%} |",
        flush=True,
    )


def fill(store: Datastore, size: int, seed: int) -> int:
    """Store documents until their bodies have ``size`` bytes; return the number of cells."""
    count = stored = 0
    batch: list[NewStoredCell] = []
    for cell in cells_of(random.Random(seed)):
        batch.append(cell)
        stored += len(cell.body)
        if len(batch) == BATCH or stored >= size:
            store.put_stored_cells(batch)
            count += len(batch)
            batch = []
        if stored >= size:
            return count
    raise AssertionError("there are always more")


def cells_of(draw: random.Random) -> Iterator[NewStoredCell]:
    """Yield logbooks, and now and then some of their flights, without end."""
    bodies = [book.body for book in documents(limit=1_000)]
    while True:
        for body in bodies:
            row = uuid.UUID(int=draw.getrandbits(128)).bytes
            yield NewStoredCell(row, "BASE", 1, json.dumps(body).encode())
            for number, value in enumerate(draw.sample(legs(body), min(3, len(legs(body)))), 1):
                yield NewStoredCell(row, "LEG", number, json.dumps(value).encode())


def legs(body: object) -> list[object]:
    """Return the longest list in a document: a logbook's flights."""
    assert isinstance(body, dict)
    lists = [value for value in body.values() if isinstance(value, list)]
    return max(lists, key=len, default=[body])


def files(store: Datastore) -> int:
    """Return the lengths of all files."""
    total = TableSize(0, 0)
    for cluster in internals_of(store).topology.clusters:
        databases = [
            internals_of(store).shards.database(shard) for shard in internals_of(store).topology.shards_of(cluster.name)
        ]
        for size in cell_table_sizes(internals_of(store).shards.pool_for(cluster.primary), databases).values():
            total += size
    return total.file_bytes


if __name__ == "__main__":
    main()
