"""Disk space of tables: sizes after a rebuild, predicted by the page model and actual, and growth during a migration.

The first table loads cells of one or several body lengths, rebuilds with ALTER TABLE ... FORCE, and compares the file
with the prediction of mysql/page_model.py for these lengths; body bytes, file and rest are in MB of 1,000,000 bytes.
The second one loads legacy documents, re-encodes them, and shows how much the file grew and how much a rebuild then
freed.

    python benchmarks/space.py [--megabytes 3 40 200] [--flavour mysql mariadb]
"""

from __future__ import annotations

import argparse
import json
import random
import time
import uuid
from collections.abc import Iterator, Sequence

from schemaless.bench.logbooks import documents
from schemaless.cell import NewStoredCell
from schemaless.local.description import LocalServer
from schemaless.ops.admin.create import create
from schemaless.ops.migrate import run as migrate
from schemaless.planning.sampling.page_model import Packer, rebuilt_file_bytes
from schemaless.planning.sampling.table_sizes import cell_table_sizes, layout_of
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.testing.servers import private_servers

LENGTHS = {
    "300": (300,),
    "2,600": (2_600,),
    "7,900": (7_900,),
    "8,200": (8_200,),
    "12,000": (12_000,),
    "16,000": (16_000,),
    "40,000": (40_000,),
    "all": (300, 2_600, 7_900, 8_200, 12_000, 16_000, 40_000),
}
MB = 1_000_000


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[3, 40, 200])
    parser.add_argument("--growth-megabytes", type=int, nargs="*", default=[5, 25, 100])
    parser.add_argument("--flavour", nargs="*", default=["mysql", "mariadb"])
    arguments = parser.parse_args()
    for flavour in arguments.flavour:
        with private_servers(flavour, 1) as (server,):
            print(f"\n{flavour} {server.version}: predicted and rebuilt")
            header("body bytes", "cells", "bodies", "loaded", "rebuilt", "predicted", "off", "s")
            for megabytes in arguments.megabytes:
                for name, lengths in LENGTHS.items():
                    predicted_and_rebuilt(server, name, lengths, megabytes * MB)
            print(f"\n{flavour} {server.version}: files under a migration of one shard")
            header("documents", "cells", "bodies", "loaded", "after", "growth", "rebuilt", "s")

            for megabytes in arguments.growth_megabytes:
                for name in ("legs", "logbooks", "8 logbooks"):
                    growth(server, name, megabytes * MB)


def header(*names: str) -> None:
    """Print the names of a table's columns."""
    print("".join(f"{name:>11}" for name in names))


def one_shard(server: LocalServer, cells: Iterator[NewStoredCell], body_bytes: int) -> Datastore:
    """Create a datastore of one shard, with cells of ``body_bytes`` in all."""
    store = connect(create(f"s{uuid.uuid4().hex[:8]}", 1, [server.url]), read_timeout_s=600)
    batch, size = [], 0
    for cell in cells:
        batch.append(cell)
        size += len(cell.body)
        body_bytes -= len(cell.body)
        if size > MB or body_bytes <= 0:
            store.put_stored_cells(batch, trusted=True)
            batch, size = [], 0
            if body_bytes <= 0:
                break
    return store


def drop(store: Datastore) -> None:
    """Drop a datastore."""
    for name in (store.name, internals_of(store).shards.database(0)):
        internals_of(store).shards.execute(0, b"DROP DATABASE `%b`" % name.encode())
    store.close()


def file_bytes(store: Datastore) -> int:
    """Return the length of the shard's file."""
    pool = internals_of(store).shards.pool_for(internals_of(store).topology.clusters[0].primary)
    (size,) = cell_table_sizes(pool, [internals_of(store).shards.database(0)]).values()
    return size.file_bytes


def rebuild(store: Datastore) -> tuple[int, float]:
    """Rebuild the shard; return its file's length, and the duration in seconds."""
    started = time.perf_counter()
    table = b"`%b`.cell" % internals_of(store).shards.database(0).encode()
    internals_of(store).shards.execute(0, b"ALTER TABLE %b FORCE, ALGORITHM=INPLACE, LOCK=NONE" % table)
    return file_bytes(store), time.perf_counter() - started


def predicted_and_rebuilt(server: LocalServer, name: str, lengths: Sequence[int], body_bytes: int) -> None:
    """Print a line of the first table."""
    drawn = random.Random(1)

    def cells() -> Iterator[NewStoredCell]:
        while True:
            length = int(drawn.choice(lengths) * drawn.uniform(0.97, 1))
            yield NewStoredCell(uuid.UUID(bytes=drawn.randbytes(16)), "BASE", 1, b"1" * length)

    store = one_shard(server, cells(), body_bytes)
    layout = layout_of(internals_of(store).shards.pool_for(internals_of(store).topology.clusters[0].primary))
    assert layout is not None
    packer = Packer(layout)
    count = size = 0
    for cell in store.scan_shard(0):
        packer.add(cell.column_name, len(cell.body))
        count += 1
        size += len(cell.body)
    predicted = rebuilt_file_bytes(packer.content(), layout)
    loaded = file_bytes(store)
    rebuilt, seconds = rebuild(store)
    print(
        f"{name:>11}{count:>11,}{size / MB:>11.1f}{loaded / MB:>11.1f}{rebuilt / MB:>11.1f}{predicted / MB:>11.1f}"
        f"{predicted / rebuilt - 1:>11.1%}{seconds:>11.1f}",
        flush=True,
    )
    drop(store)


def growth(server: LocalServer, name: str, body_bytes: int) -> None:
    """Print a line of the second table."""

    def bodies() -> Iterator[bytes]:
        several: list[bytes] = []
        while True:
            for logbook in documents(limit=2_219):
                text = logbook.json_text()
                if name == "legs":
                    yield from (json.dumps(leg).encode() for leg in json.loads(text)["legs"])
                elif name == "logbooks":
                    yield text
                else:
                    several.append(text)
                    if len(several) == 8:
                        yield b"[" + b",".join(several) + b"]"
                        several = []

    cells = (NewStoredCell(uuid.uuid4(), "BASE", 1, body) for body in bodies())
    store = one_shard(server, cells, body_bytes)
    loaded = file_bytes(store)
    started = time.perf_counter()
    total = migrate.run(store).total()
    seconds = time.perf_counter() - started
    after = file_bytes(store)
    rebuilt, _ = rebuild(store)
    print(
        f"{name:>11}{total.cells:>11,}{total.bytes_before / MB:>11.1f}{loaded / MB:>11.1f}{after / MB:>11.1f}"
        f"{after / loaded - 1:>11.1%}{rebuilt / MB:>11.1f}{seconds:>11.1f}",
        flush=True,
    )
    drop(store)


if __name__ == "__main__":
    main()
