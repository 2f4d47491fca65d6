"""verify: damage is found on the primary, on a replica and in the archive."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

import schemaless
from schemaless import BaseMissing, InvalidInput, ServerUnavailable
from schemaless.base.events import Advanced, only, together
from schemaless.base.keys import row_key_for
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named
from schemaless.local.description import LocalServer
from schemaless.ops.failover.nodes import add_replica
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.jobs.workers import workers
from schemaless.ops.migrate import replicas
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.finalise import archive_of
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import select_settled_digests, update_bodies
from schemaless.ops.migrate.verify import Fault, VerifyOptions, verify
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.accounts import accounts_on
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import TEXTS, everything, load
from tests.promotion import caught_up, semi_synchronous, sql, word

pytestmark = pytest.mark.mysql


def change(shards, store, place, assignment: str) -> None:
    shard, added_id = place
    sql = f"UPDATE `{internals_of(store).shards.database(shard)}`.cell SET {assignment} WHERE added_id={added_id}"
    shards.execute(shard, sql.encode())


def found_by(store, job, **options):
    """Return the report, and kind, shard and added_id of each fault."""
    faults = []
    report = verify(
        store,
        options=VerifyOptions(MigrateSpec.of(job), archive=archive_of(store, job), **options),
        listener=only(Fault, lambda fault: faults.append((fault.kind, fault.shard, fault.added_id))),
    )
    return report, faults


def test_verify_of_a_sound_migration_finds_nothing(migrate_store, job):
    """All cells and originals are compared without a fault, and nothing is changed."""
    before = everything(migrate_store)
    report, faults = found_by(migrate_store, job)

    assert (report.shards, report.cells, report.archived, report.faults, faults) == (4, len(TEXTS), len(TEXTS), {}, [])
    assert (report.blocks, report.blocks_of, report.seed) == (4, 4, None)
    assert sum(report.records.values()) == len(TEXTS)
    assert sum(report.by_codec.values()) == len(TEXTS)
    assert everything(migrate_store) == before


@pytest.mark.guarantee("finalise")
def test_verify_finds_each_kind_of_damage(migrate_store, fresh_store, job, by_hand):
    """A flipped bit, a legacy body, another document, key or time, an erased cell: each is reported with its cell."""
    places = list(everything(fresh_store))[:7]
    shards = by_hand(fresh_store)
    change(shards, fresh_store, places[0], "body=CONCAT(SUBSTRING(body,1,9),'?',SUBSTRING(body,11))")
    change(shards, fresh_store, places[1], "body='{\"written\": 1}'")
    other = schemaless.codec.envelope.encode_body({"other": "document"}).hex()
    change(shards, fresh_store, places[2], f"body=x'{other}'")
    change(shards, fresh_store, places[3], "ref_key=ref_key+1000")
    change(shards, fresh_store, places[4], "created_at=created_at + INTERVAL 1 MICROSECOND")
    shard, added_id = places[5]
    shards.execute(
        shard,
        f"DELETE FROM `{internals_of(fresh_store).shards.database(shard)}`.cell WHERE added_id={added_id}".encode(),
    )
    report, faults = found_by(migrate_store, job)

    assert set(faults) == {
        ("ChecksumMismatch", *places[0]),
        ("ArchivedChanged", *places[0]),
        ("NotReencoded", *places[1]),
        ("ArchivedChanged", *places[1]),
        ("ArchivedChanged", *places[2]),
        ("ArchivedElsewhere", *places[3]),
        ("ArchivedElsewhere", *places[4]),
        ("Erased", *places[5]),
    }
    assert report.faults.total() == len(faults)


def test_verify_without_a_job_takes_any_codec(migrate_store, fresh_store, new_row):
    """Legacy cells are no fault by themselves, but are for a migration that should have re-encoded them."""
    load(fresh_store, new_row)

    assert verify(migrate_store).faults == {}
    assert verify(migrate_store, options=VerifyOptions(MigrateSpec())).faults == {"NotReencoded": len(TEXTS)}
    assert verify(migrate_store, options=VerifyOptions(MigrateSpec(columns=("A",)))).faults == {
        "NotReencoded": len(TEXTS) / 2
    }
    assert verify(migrate_store, options=VerifyOptions(MigrateSpec(sources=("json+zlib",)))).faults == {}
    assert verify(migrate_store, [1, 2], VerifyOptions(MigrateSpec(to="legacy"))).faults == {}


def test_verify_sample_is_repeated_by_its_seed(migrate_store, job):
    """A seed selects the same blocks, at least one per shard, on the primary and in the archive."""
    first, _ = found_by(migrate_store, job, sample=0.2, block_rows=2)
    again, _ = found_by(migrate_store, job, sample=0.2, seed=first.seed, block_rows=2)
    least, _ = found_by(migrate_store, job, sample=0.0001, seed=7, block_rows=2)

    assert first.blocks_of == again.blocks_of > 40
    assert first.blocks == again.blocks == pytest.approx(0.2 * first.blocks_of, abs=3)
    assert (first.cells, first.archived) == (again.cells, again.archived)
    assert first.cells == first.archived == pytest.approx(2 * first.blocks, abs=4)
    assert (least.blocks, least.seed) == (4, 7)
    for wrong in (0, 1, -0.1, 2):
        with pytest.raises(InvalidInput, match="above 0 and below 1"):
            verify(migrate_store, options=VerifyOptions(sample=wrong))


@pytest.mark.long
@ONE_KIND
def test_verify_with_workers_finds_the_same(migrate_store, fresh_store, job, by_hand):
    """With processes, report, faults and sample are the same as in one thread."""
    place = next(iter(everything(fresh_store)))
    change(by_hand(fresh_store), fresh_store, place, "body='[1]'")
    options = VerifyOptions(MigrateSpec.of(job), sample=0.9, seed=3, archive=archive_of(migrate_store, job))
    alone, others, shards = [], [], []
    one = verify(migrate_store, options=options, listener=only(Fault, alone.append))
    listener = together(only(Fault, others.append), only(Advanced, shards.append))
    with workers(2) as hands:
        many = verify(migrate_store, options=options, workers=hands, listener=listener)

    assert many == one
    assert many.faults == {"NotReencoded": 1, "ArchivedChanged": 1}
    assert sorted(others, key=str) == sorted(alone, key=str)
    assert shards == [Advanced()] * 4


# Replicas


@pytest.fixture(scope="module")
def replica_accounts(replicated: LocalServer):
    """The accounts on a server that has a replica."""
    with accounts_on([replicated.url]) as made:
        yield made


@pytest.fixture(scope="module")
def replica_url(replicated, replica_accounts):
    """A migrated datastore of two shards whose topology has the replica, for ``migrate``."""
    url = replica_accounts.create("verified", 2)
    replica_accounts.allow("migrate", "verified", 2)
    add_replica(
        replica_accounts.url("admin", url), "cluster-1", replica_accounts.url("admin", replicated.replicas[0].url)
    )
    with schemaless.connect(url) as store:
        rows = iter(range(1000))
        load(store, lambda: row_key_for(str(next(rows))))
    url = replica_accounts.url("migrate", url)
    with schemaless.connect(url) as store:
        migrate.run(store)
    # What is then changed by hand on the replica is not what it has still to apply.
    with caught_up(replicated):
        return url


@pytest.fixture
def on_replica(replicated):
    """Run SQL as root on the replica only, which is writable for that time."""
    parsed = parse_url(replicated.replicas[0].url)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    lock = b"super_read_only" if replicated.flavour == "mysql" else b"read_only"

    def run(*sql: str) -> None:
        def operation(connection) -> None:
            connection.unfinished = True  # of no use to anybody else
            connection.execute(b"SET SESSION sql_log_bin=0")
            connection.execute(b"SET GLOBAL %b=OFF" % lock)
            try:
                for statement in sql:
                    connection.execute(statement.encode())
            finally:
                connection.execute(b"SET GLOBAL %b=ON" % lock)

        pool.run(operation)

    yield run
    pool.close()


@pytest.mark.long
def test_verify_compares_with_every_replica(replica_url, replicated):
    """Right after a migration, verify waits for the replica to catch up and reports no fault."""
    with schemaless.connect(replica_url) as store:
        report = verify(store, options=VerifyOptions(MigrateSpec()))

    assert report.faults == {}
    assert report.compared == {str(replicated.replicas[0].socket): len(TEXTS)}


@pytest.mark.guarantee("finalise")
def test_verify_finds_what_differs_on_a_replica(replica_url, on_replica):
    """Another body, a missing cell, an extra cell, another time; after the repair there is no fault."""
    with schemaless.connect(replica_url) as store:
        ids = [cell.added_id for cell in store.scan_shard(1)][:4]
        cell = "verified_0001.cell"
        on_replica(
            f"CREATE TABLE verified_0001.kept AS SELECT * FROM {cell}",
            f"UPDATE {cell} SET body=CONCAT(body,'x') WHERE added_id={ids[0]}",
            f"DELETE FROM {cell} WHERE added_id={ids[1]}",
            f"INSERT INTO {cell} SELECT added_id+100000, row_key, column_name, ref_key+100000, body, created_at "
            f"FROM {cell} WHERE added_id={ids[2]}",
            f"UPDATE {cell} SET created_at=created_at + INTERVAL 1 SECOND WHERE added_id={ids[3]}",
        )
        try:
            faults = []
            report = verify(store, options=VerifyOptions(lag_timeout_s=5), listener=only(Fault, faults.append))
        finally:
            on_replica(f"DELETE FROM {cell}", f"INSERT INTO {cell} SELECT * FROM verified_0001.kept")
            on_replica("DROP TABLE verified_0001.kept")

        assert {
            (fault.kind, fault.added_id, re.sub(r"on replica [^,]+", "on the replica", fault.message))
            for fault in faults
        } == {
            ("ReplicaDiffers", ids[0], "it has a different body on the replica"),
            ("ReplicaDiffers", ids[1], "it is missing on the replica"),
            (
                "ReplicaDiffers",
                ids[2] + 100_000,
                "it exists on the replica, but the primary has no cell with such a high added_id",
            ),
            ("ReplicaDiffers", ids[3], "it has a different key or created_at on the replica"),
        }
        assert report.faults == {"ReplicaDiffers": 4}
        assert verify(store).faults == {}


def test_verify_tells_a_replica_that_lags_from_one_that_differs(replica_url, on_replica, replicated):
    """A replica that lags is no difference at first; after the timeout it is one fault per shard."""
    replica = "SLAVE" if replicated.flavour == "mariadb" else "REPLICA"
    with schemaless.connect(replica_url) as store:
        cell = next(iter(store.scan_shard(0)))
        other = recode(cell.body, codec_named("json+zlib")).body
        there = [(cell.added_id, digest_of(cell.body), other)]
        back = [(cell.added_id, digest_of(other), cell.body)]
        database = internals_of(store).shards.database(0)
        with caught_up(replicated):
            on_replica(f"STOP {replica} SQL_THREAD")
        try:
            internals_of(store).shards.execute(0, update_bodies(database, there))
            late = verify(store, [0, 1], VerifyOptions(lag_timeout_s=0.3))
        finally:
            on_replica(f"START {replica} SQL_THREAD")
        in_time = verify(store, [0, 1])
        internals_of(store).shards.execute(0, update_bodies(database, back))

    assert late.faults == {"ReplicaLags": 1}
    assert in_time.faults == {}


@pytest.mark.twice
@pytest.mark.guarantee("history-exact")
def test_a_replica_that_lags_has_what_its_deltas_depend_on(replica_accounts, on_replica, replicated, row):
    """Erasures and migrations that it has not applied change nothing; a base that it lacks is no other document."""
    url = replica_accounts.root(replica_accounts.create("lagging", 1))
    add_replica(url, "cluster-1", str(replica_accounts.root(replicated.replicas[0].url)))
    applier = f"{word(replicated)} SQL_THREAD"
    documents = {n: {"n": n, "text": "x" * 900} for n in range(1, 80)}

    def read(store, ref_keys, read_from):
        cells = {n: store.get_cell(row, "A", n, read_from=read_from) for n in ref_keys}
        return {n: cell.body for n, cell in cells.items() if cell is not None}

    with schemaless.connect(url) as store, schemaless.connect(url) as other:
        pools = internals_of(store).shards
        store.put_cells([schemaless.NewCell(row, "A", n, body) for n, body in documents.items()])
        migrate.run(store, MigrateSpec(history=True))
        with caught_up(replicated):
            on_replica(f"STOP {applier}")
        try:
            for n in (8, 16, 79):
                store.erase(row, "A", n, reason="test")
            migrate.run(store, MigrateSpec("packed+zstd", history=True, thresholds=Thresholds(max_lag_s=None)))
            left = {n: body for n, body in documents.items() if n not in (8, 16, 79)}
            assert read(other, documents, "replica") == documents
            assert read(other, documents, "available") == read(other, documents, "primary") == left
            table = f"`{pools.database(0)}`.cell"
            on_replica(f"UPDATE {table} SET ref_key=ref_key+1000 WHERE ref_key=24")
            with pytest.raises(BaseMissing, match="version 24 of the same row and column, which does not exist"):
                other.get_cell(row, "A", 23, read_from="replica")
            on_replica(f"UPDATE {table} SET ref_key=ref_key-1000 WHERE ref_key=1024")
        finally:
            on_replica(f"START {applier}")
        with caught_up(replicated):
            assert read(other, documents, "replica") == left


@pytest.mark.parametrize("where", ["inside a block", "beyond the primary's last id"])
def test_verify_waits_for_a_primary_that_shows_a_transaction_after_its_replica(
    replica_url, replicated, eventually, monkeypatch, where
):
    """A semi-synchronous commit that waits is no difference: at the timeout it is "PrimaryWaits", and nothing later."""
    with schemaless.connect(replica_url) as store:
        cells = f"{internals_of(store).shards.database(0)}.cell"
        if where == "inside a block":
            change = f"UPDATE {cells} SET created_at = created_at + INTERVAL 1 SECOND"
            undo = f"UPDATE {cells} SET created_at = created_at - INTERVAL 1 SECOND"
        else:
            columns = "row_key, column_name, ref_key"
            change = f"INSERT INTO {cells} ({columns}, body) SELECT {columns} + 1000000, body FROM {cells} LIMIT 1"
            undo = f"DELETE FROM {cells} WHERE ref_key >= 1000000"
        summed = f"SELECT SUM(CRC32(CONCAT(added_id, created_at))) FROM {cells}"
        with caught_up(replicated):
            before = sql(replicated, summed)
        thread = threading.Thread(target=sql, args=(replicated, change))
        source = "master" if replicated.flavour == "mariadb" else "source"

        def end_of_wait(*arguments: Any, **options: Any) -> bytes:
            sql(replicated, f"SET GLOBAL rpl_semi_sync_{source}_enabled = 0")
            return select_settled_digests(*arguments, **options)

        with semi_synchronous(replicated):
            thread.start()
            eventually(lambda: sql(replicated.replicas[0], summed) != before, "the replica has the transaction")
            late = verify(store, [0], VerifyOptions(lag_timeout_s=0.1))
            shown = sql(replicated, summed)
            monkeypatch.setattr(replicas, "select_settled_digests", end_of_wait)
            in_time = verify(store, [0])
        thread.join(120)
        sql(replicated, undo)

    assert shown == before
    assert late.faults == {"PrimaryWaits": 1}
    assert in_time.faults == {}


def test_verify_goes_on_without_a_replica_that_does_not_answer(replica_url, monkeypatch):
    """One fault names the replica, and the cells of the primary are verified."""
    with schemaless.connect(replica_url) as store:
        original = Shards.run_on

        def run_on(shards, node, shard, operation):
            if node.role == "replica":
                raise ServerUnavailable("gone", node=str(node), shard=shard)
            return original(shards, node, shard, operation)

        monkeypatch.setattr(Shards, "run_on", run_on)
        report = verify(store)

    assert report.faults == {"ServerUnavailable": 1}
    assert (report.cells, report.compared) == (len(TEXTS), {})
