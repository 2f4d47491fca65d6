"""Sizes of cells in MyRocks: stored and obsolete bytes, what compaction frees, and the result of a conversion."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import schemaless
from schemaless import Datastore
from schemaless.cell import NewCell
from schemaless.local.description import LocalServer
from schemaless.ops.migrate import rebuild
from schemaless.planning.capacity.measure import measure
from schemaless.planning.capacity.options import Asked
from schemaless.planning.capacity.reporting import make
from schemaless.planning.sampling.advice import advise
from schemaless.planning.sampling.lsm_sizes import LsmSize, lsm_sizes
from schemaless.planning.sampling.table_sizes import cell_table_sizes, obsolete_bytes
from schemaless.schema.sql import COMPACT
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from tests.promotion import sql

pytestmark = [pytest.mark.mysql, pytest.mark.twice, pytest.mark.myrocks(only=True)]

SEED = 7
CELLS = 6_000


@pytest.fixture
def own(flavour: str) -> Iterator[LocalServer]:
    """A server for one test, since its files are measured and compacted as a whole."""
    with private_servers(flavour, 1) as (server,):
        yield server


def document(n: int) -> dict[str, object]:
    """Return a document with a few recurring words and some numbers."""
    chosen = random.Random(f"{SEED} {n}")
    words = [f"{chosen.choice('abcd')}{chosen.randrange(40)}-gate" for _ in range(12)]
    return {"route": words, "fare": chosen.randrange(9000) / 100, "driver": chosen.randrange(10**9), "paid": n % 3 == 0}


def filled(server: LocalServer, name: str, engine: str) -> Datastore:
    """Return a datastore of one shard with cells."""
    store = schemaless.connect(schemaless.create(name, 1, [server.url], engine=engine))
    rows = [uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {n}") for n in range(CELLS)]
    for first in range(0, CELLS, 500):
        store.put_cells([NewCell(rows[n], "BASE", 1, document(n)) for n in range(first, first + 500)])
    return store


def size_of(store: Datastore) -> LsmSize:
    """Return the size of the only shard."""
    internals = internals_of(store)
    pool = internals.shards.pool_for(internals.topology.clusters[0].primary)
    (size,) = pool.run(lambda connection: lsm_sizes(connection, [internals.shards.database(0)])).values()
    return size


def bytes_of_files(server: LocalServer) -> int:
    """Return the size of a server's files of cells; one may be deleted at any time."""
    sizes = []
    for path in (server.data / "#rocksdb").glob("*.sst"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def compact(server: LocalServer) -> None:
    """Write what is in memory, and compact everything."""
    sql(server, *(statement.decode() for statement in COMPACT))


@pytest.mark.guarantee("myrocks-sizes")
def test_sizes_are_those_of_the_files_and_a_rebuild_frees_obsolete_versions(own: LocalServer, eventually: Callable):
    """Statistics of tables are of no use there: 'rebuild' compacts instead, and the report predicts its result."""
    with filled(own, "sizes", "rocksdb") as store:
        internals = internals_of(store)
        pool = internals.shards.pool_for(internals.topology.clusters[0].primary)
        database = internals.shards.database(0)
        compact(own)
        full = size_of(store)
        # The server deletes the files that it has compacted a moment later.
        eventually(lambda: 0.9 * bytes_of_files(own) < full.stored_bytes, "only the new files are there")
        files = bytes_of_files(own)
        reported = cell_table_sizes(pool, [database])[database]
        sql(own, f"UPDATE `{database}`.cell SET body=CONCAT(LEFT(body, 60), '')", COMPACT[0].decode())
        replaced = size_of(store)
        obsolete = obsolete_bytes(pool, [database])
        (planned,) = rebuild.plan_rebuild(store, rebuild.RebuildSpec())
        (rebuilt,) = rebuild.run(store)
        compacted = size_of(store)
        measured = measure(store).clusters[0]

    assert full.rows.entries == full.keys.entries == CELLS
    assert reported.file_bytes == full.stored_bytes
    assert full.stored_bytes <= files
    assert replaced.rows.entries == 2 * CELLS
    assert 0.3 * replaced.rows.stored_bytes < obsolete < 0.7 * replaced.rows.stored_bytes
    assert (rebuilt.state, rebuilt.before_bytes, rebuilt.after_bytes) == (
        "done",
        replaced.stored_bytes,
        compacted.stored_bytes,
    )
    assert compacted.rows.entries == CELLS
    assert compacted.stored_bytes < 0.8 * full.stored_bytes
    assert planned.refusal is None
    assert measured.file_bytes == compacted.stored_bytes
    assert measured.rebuilt_bytes is not None
    assert 0.9 < measured.rebuilt_bytes.mid / compacted.stored_bytes < 1.1


@pytest.mark.guarantee("myrocks-sizes")
def test_a_conversion_gives_the_size_that_was_predicted(own: LocalServer):
    """'codec advise' and the report predict it in InnoDB, by compressing blocks of sampled cells."""
    with filled(own, "predicted", "innodb") as store:
        (advice,) = advise(store, engine="rocksdb", seed=SEED)
        now, moved, *_ = make({"": store}, Asked(engine="rocksdb", seed=SEED), fresh=True).comparisons
        database = internals_of(store).shards.database(0)
        sql(own, f"ALTER TABLE `{database}`.cell ENGINE=ROCKSDB")
        compact(own)
        actual = size_of(store)
        (after,) = advise(store, engine="rocksdb", seed=SEED)

    predicted = advice.allocated_bytes
    assert advice.present_bytes is not None
    assert advice.present_bytes.mid > 1.2 * actual.stored_bytes
    assert predicted.low < actual.stored_bytes < predicted.high
    assert after.present_bytes is not None
    assert moved.change.name == "MyRocks"
    assert moved.stored_bytes is not None
    assert moved.stored_bytes.low < actual.stored_bytes < moved.stored_bytes.high
    assert now.stored_bytes is not None
    assert now.stored_bytes.mid > 1.2 * actual.stored_bytes
    smaller = next(candidate for candidate in advice.candidates if candidate.codec.name == "json+none")
    assert smaller.allocated_bytes.mid < 2 * actual.stored_bytes
