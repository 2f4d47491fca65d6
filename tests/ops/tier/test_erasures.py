"""Cold files: what erasures remove from them, what a restored database still reads, and what sweeps delete."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from schemaless import ColdBodyMissing, Datastore, JobConflict, NewCell
from schemaless.codec.envelope import is_reference
from schemaless.errors import TopologyError
from schemaless.ops.erasure import cold_files, job
from schemaless.ops.erasure.job import ErasureSpec, finish_erasure
from schemaless.ops.erasure.receipt import receipt
from schemaless.ops.erasure.replay import replay, undone
from schemaless.ops.erasure.verify import verify as verify_erasure
from schemaless.ops.failover import restored as failover
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate.verify import check
from schemaless.ops.tier.cooling import TIER
from schemaless.ops.tier.recall import RECALL, RecallSpec
from schemaless.ops.tier.survey import verify
from schemaless.ops.tier.sweep import SWEEP, SweepSpec
from schemaless.store.cold.fetching import cache
from schemaless.store.cold.files import ShardFiles
from schemaless.store.cold.targets import MARKER
from schemaless.store.erasures.ledger import target
from schemaless.store.erasures.retention import Policy
from schemaless.store.erasures.sql import insert_lock_row, lock_log
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from schemaless.wire.sql.sessions import process_list

pytestmark = [pytest.mark.mysql]

SHARDS = range(4)
TABLES = ("cell", "cold_file", "erased_cell")
REASON = "gdpr-art-17"


@pytest.fixture
def root(fresh_store: Datastore, by_hand: Callable[[Datastore], Shards]) -> Shards:
    """The shards as root reaches them."""
    return by_hand(fresh_store)


@pytest.fixture
def rows(fresh_store: Datastore, new_row: Callable[[], uuid.UUID]) -> list[uuid.UUID]:
    """Eight rows of each shard with two versions of BASE, 400 days old, and one cell of LOG."""
    made: list[uuid.UUID] = []
    while len(made) < 32:
        row = new_row()
        shard = fresh_store.shard_of(row)
        made += [row] if sum(fresh_store.shard_of(each) == shard for each in made) < 8 else []
    old = datetime.now(UTC) - timedelta(400)
    for ref_key in (1, 2):
        fresh_store.put_cells([NewCell(row, "BASE", ref_key, marked(row), created_at=old) for row in made])
    fresh_store.put_cells([NewCell(row, "LOG", 1, marked(row)) for row in made])
    return sorted(made, key=fresh_store.shard_of)


def marked(row: uuid.UUID) -> dict[str, Any]:
    return {"marker": marker(row), "words": f"{row} " * 9}


def marker(row: uuid.UUID) -> str:
    return f"sesame {row}"


def cold_texts(folder: Path) -> Iterator[str]:
    """Yield the documents in all objects of the cold store, of whatever generation and state."""
    for path in objects(folder):
        yield from texts_in(path)


def texts_in(path: Path) -> Iterator[str]:
    yield from map(str, pq.ParquetFile(path).read()["body"].to_pylist())


def places_of(row: uuid.UUID, store: Datastore, root: Shards, folder: Path) -> set[str]:
    """Return where a row's marker is: in the cold store, in the bodies of cells, in other tables of its shard."""
    wanted, shard = marker(row), store.shard_of(row)
    database = root.database(shard)
    found = {"cold store"} if any(wanted in text for text in cold_texts(folder)) else set()
    cells = [cell for cell in store.iter_shard(shard) if cell.row_key == row]
    found |= {"cells"} if any(wanted in str(cell.body) for cell in cells) else set()
    tables = root.rows(
        shard, f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA='{database}'".encode()
    )
    for (name,) in tables:
        values = root.rows(shard, f"SELECT * FROM `{database}`.`{name}`".encode())
        if name not in KEPT and any(wanted in str(value) for each in values for value in each):
            found.add(str(name))
    return found


KEPT = {table: f"backup{number}" for number, table in enumerate(TABLES)}


def back_up(root: Shards) -> None:
    """Keep the tables of all shards as they are."""
    for shard in SHARDS:
        for table, kept in KEPT.items():
            database = root.database(shard)
            root.execute(shard, f"CREATE TABLE `{database}`.{kept} LIKE `{database}`.{table}".encode())
            root.execute(shard, f"INSERT INTO `{database}`.{kept} SELECT * FROM `{database}`.{table}".encode())


def restore(root: Shards, store: Datastore, *, replaces_original: bool) -> None:
    """Put the tables of all shards back; a copy beside the original gets an incarnation of its own."""
    for shard in SHARDS:
        for table, kept in KEPT.items():
            database = root.database(shard)
            root.execute(shard, f"DELETE FROM `{database}`.{table}".encode())
            root.execute(shard, f"INSERT INTO `{database}`.{table} SELECT * FROM `{database}`.{kept}".encode())
            root.execute(shard, f"DROP TABLE `{database}`.{kept}".encode())
    if not replaces_original:
        catalog = root.pool_for(internals_of(store).catalog.node)
        catalog.execute(f"UPDATE `{store.name}`.cold_store SET incarnation='{'0' * 32}'".encode())
    cache().clear()


def erase(store: Datastore, *rows: uuid.UUID) -> int:
    """Erase rows by a job; return the number of the erasure."""
    number = internals_of(store).erasures.ledger.intend(REASON, [target(row) for row in rows])
    job.run(store, ErasureSpec(number))
    return number


def retain(store: Datastore) -> int:
    """Erase what has expired; return the number of the erasure."""
    number = job.begin_retention(store)
    assert number is not None
    job.run(store, ErasureSpec(number))
    return number


def objects(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.name != MARKER}


@pytest.mark.guarantee("erasure-cold")
def test_no_object_of_any_generation_has_a_marker_after_its_erasure(
    fresh_store, erase_store, migrate_store, tail_store, root, rows, spec, cold_folder, monkeypatch
):
    """By erasures, retention, during a run, after a recall, after a second run, and in files kept for backups."""

    def places(row: uuid.UUID) -> set[str]:
        return places_of(row, tail_store, root, cold_folder)

    first, second, raced, recalled, again, kept, held, expired = rows[:8]
    assert places(first) == {"cells"}
    publish = ShardFiles.publish

    def overtaken(files, file, written, replaces=None, state="live"):
        if fresh_store.shard_of(raced) == file.shard and not numbers.get("raced"):
            numbers["raced"] = 0  # ShardFiles.publish is called by the erasure, too
            numbers["raced"] = erase(erase_store, raced)
        return publish(files, file, written, replaces, state)

    numbers: dict[str, int] = {}
    monkeypatch.setattr(ShardFiles, "publish", overtaken)
    TIER.run(migrate_store, spec)
    monkeypatch.undo()
    assert places(raced) == set()
    number = erase_store.erase(first, reason=REASON).number
    assert places(first) == {"cold store"}  # the control: its tombstone alone does not remove it from files
    assert verify_erasure(erase_store, number).faults
    finish_erasure(erase_store, number)
    assert places(first) == set()
    assert receipt(erase_store, number)["cold_files"]
    erase(erase_store, second)  # a second generation is replaced
    assert places(second) == set()
    RECALL.run(migrate_store, RecallSpec())
    assert places(recalled) == {"cold store", "cells"}
    erase(erase_store, recalled)
    assert places(recalled) == set()
    TIER.run(migrate_store, spec)
    erase(erase_store, again)
    assert places(again) == set()
    SWEEP.run(migrate_store, SweepSpec(30))
    states = {file.state for file in ShardFiles(root, fresh_store.shard_of(kept)).all()}
    assert states == {"live", "condemned", "deleted"}
    number = erase(erase_store, kept)
    assert places(kept) == set()
    assert len(receipt(erase_store, number)["cold_files"]) > 1
    internals_of(erase_store).holds.hold([held], "court", "case-7")
    internals_of(erase_store).policies.set(Policy("BASE", keep_days=365))
    retain(erase_store)
    SWEEP.run(migrate_store, SweepSpec(0))
    SWEEP.run(migrate_store, SweepSpec(0))

    assert [cell.body for cell in fresh_store.get_versions(held, "BASE")] == [marked(held)] * 2
    assert fresh_store.get_cell_latest(expired, "BASE") is None
    assert fresh_store.get_cell(expired, "LOG", 1).body == marked(expired)
    texts = [text for text in cold_texts(cold_folder) if marker(expired) in text]
    assert len(texts) == 1  # that of LOG
    assert verify(migrate_store, SHARDS).faults == []
    assert check(fresh_store, cold=True).faults == {}


@pytest.mark.guarantee("erasure-cold", "cold-present")
@pytest.mark.parametrize("replaces_original", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_restored_database_reads_whatever_was_not_erased(
    fresh_store, erase_store, migrate_store, tail_store, root, rows, spec, cold_folder, replaces_original
):
    """An old backup beside a newer cold store, after erasures, recalls and sweeps; files are kept for it."""
    TIER.run(migrate_store, spec)
    back_up(root)
    erased = [rows[0], *rows[8:16]]  # one shard loses all documents
    erase(erase_store, rows[0])
    RECALL.run(migrate_store, RecallSpec())
    erase(erase_store, *rows[8:12])
    SWEEP.run(migrate_store, SweepSpec(30))
    erase(erase_store, *rows[12:16])
    TIER.run(migrate_store, spec)
    before = objects(cold_folder)
    restore(root, erase_store, replaces_original=replaces_original)
    kept = [row for row in rows if row not in erased]

    assert all(fresh_store.get_cell(row, "BASE", 1).body == marked(row) for row in kept)
    for row in erased:
        with pytest.raises(ColdBodyMissing):
            fresh_store.get_cell(row, "BASE", 1)
    assert verify(migrate_store, range(1)).cells == 24
    assert check(fresh_store, [0, 2, 3], cold=True).faults == {"ColdBodyMissing": 3}
    replay(erase_store, undone(erase_store), Thresholds())
    assert undone(erase_store) == []
    last = erase(erase_store, rows[1])  # also from files that the backup does not know
    assert (verify(migrate_store, SHARDS).faults, check(fresh_store, cold=True).faults) == ([], {})
    for _ in range(2):
        SWEEP.run(migrate_store, SweepSpec(0))
    assert verify_erasure(erase_store, last).clean
    of_original = set() if replaces_original else {"cold store"}
    for row in [*erased, rows[1]]:
        assert fresh_store.get_cell(row, "BASE", 1) is None
        assert places_of(row, tail_store, root, cold_folder) <= of_original
    assert all(fresh_store.get_cell(row, "BASE", 1).body == marked(row) for row in kept[1:])
    assert replaces_original or before <= objects(cold_folder)
    RECALL.run(migrate_store, RecallSpec())
    assert all(fresh_store.get_cell(row, "BASE", 1).body == marked(row) for row in kept[1:])


@pytest.fixture
def prepared(accounts: Any, fresh_url: str, fresh_store: Datastore, root: Shards) -> Callable[..., failover.Restored]:
    """Prepare the datastore as if it were a copy of another one: repeat its erasures, and give it its servers."""
    internals = internals_of(fresh_store)
    clusters = internals.topology.clusters
    urls = {cluster.name: f"mysql:///?unix_socket={cluster.primary.socket}" for cluster in clusters}
    of_original = f"UPDATE `{fresh_store.name}`.node SET server='another', socket=CONCAT(socket,'.original')"
    root.pool_for(internals.catalog.node).execute(of_original.encode())

    def prepare(**options: Any) -> failover.Restored:
        def again(store: Datastore) -> None:
            replay(store, undone(store), Thresholds())

        return failover.restored(accounts.root(fresh_url), urls, again, **options)

    return prepare


@pytest.mark.guarantee("restored-datastore", "erasure-cold")
def test_a_copy_is_prepared_beside_an_original_that_has_erased_since(
    fresh_store, erase_store, migrate_store, root, rows, spec, cold_folder, monkeypatch, request
):
    """Interrupted calls leave no file, whether it was being written or live; nothing of the original is deleted."""
    TIER.run(migrate_store, spec)
    back_up(root)
    erase(erase_store, *rows[8:20])  # all of a shard, and half of the next
    internals_of(erase_store).erasures.ledger.intend(REASON, [target(row) for row in rows[:8:2]])
    restore(root, erase_store, replaces_original=True)
    internals = internals_of(fresh_store)
    original, of_original = internals.cold.store().incarnation, objects(cold_folder)
    prepare = request.getfixturevalue("prepared")

    for place, name in ((cold_files, "put_object"), (ShardFiles, "publish")):
        done = getattr(place, name)

        def interrupt(*arguments: object, done: Any = done, **options: object) -> None:
            done(*arguments, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(place, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                prepare()
        with pytest.raises(TopologyError, match="without --replaces-original began to make"):
            prepare(replaces_original=True)
    assert prepare().changed

    internals.shards.router.again(internals.shards.routing)
    assert verify(migrate_store, SHARDS).faults == []
    assert all(fresh_store.get_cell(row, "BASE", 1) is None for row in (*rows[:8:2], *rows[8:20]))
    assert all(fresh_store.get_cell(row, "BASE", 1).body == marked(row) for row in (*rows[1:8:2], *rows[20:]))
    assert erase(erase_store, rows[1])
    for _ in range(2):
        SWEEP.run(migrate_store, SweepSpec(0))
    own, left = internals.cold.store().incarnation, objects(cold_folder)
    assert of_original <= left
    assert {path.relative_to(cold_folder).parts[0] for path in left} == {own, original}
    # A sweep condemns what is being written after a day.
    kept = {file.name for shard in SHARDS for file in ShardFiles(root, shard).all("live", "writing")}
    assert {str(path.relative_to(cold_folder)) for path in left - of_original} <= kept
    assert marker(rows[1]) not in "".join(text for path in left - of_original for text in texts_in(path))


@pytest.mark.guarantee("cold-verified")
def test_no_reference_is_written_to_a_file_that_is_not_live_any_more(
    fresh_store, migrate_store, rows, spec, cold_folder, monkeypatch
):
    """A worker that stalls after its file became live may go on when the file was swept."""
    publish, condemned = ShardFiles.publish, []

    def interrupted(files, file, *how):
        published = publish(files, file, *how)
        if not condemned:
            condemned.append(file)
            assert files.condemn(file, "live")
        return published

    monkeypatch.setattr(ShardFiles, "publish", interrupted)
    with pytest.raises(JobConflict, match="was rewritten or removed"):
        TIER.run(migrate_store, spec)
    assert [fault.message for fault in verify(migrate_store, SHARDS).faults] == []
    assert check(fresh_store).faults == {}
    TIER.run(migrate_store, spec)
    assert all(is_reference(cell.body) for shard in SHARDS for cell in fresh_store.scan_shard(shard))
    assert verify(migrate_store, SHARDS).cells == 96


@pytest.mark.twice
@pytest.mark.guarantee("cold-verified")
def test_a_cell_that_is_erased_before_its_body_is_replaced_stays_erased(
    fresh_store, erase_store, migrate_store, root, rows, spec, monkeypatch
):
    """The file is live and still has the document; a reference in place of the tombstone would bring it back."""
    publish, numbers = ShardFiles.publish, []

    def overtaken(files, file, *how):
        published = publish(files, file, *how)
        if not numbers and files.all("live"):
            numbers.append(0)
            numbers[0] = erase_store.erase_many(rows, reason=REASON).number
        return published

    with monkeypatch.context() as patch:
        patch.setattr(ShardFiles, "publish", overtaken)
        done = TIER.run(migrate_store, spec)
    assert sum(state.counters["changed"] for state in JobStore(migrate_store).shards(done.job_id)) > 0
    assert fresh_store.get_cells_latest([(row, "BASE") for row in rows]) == {}
    assert [cell for shard in SHARDS for cell in fresh_store.iter_shard(shard) if not cell.erased] == []
    assert finish_erasure(erase_store, numbers[0]).state == "acknowledged"


@pytest.mark.twice
@pytest.mark.guarantee("cold-verified")
def test_bodies_are_replaced_while_no_erasure_or_difference_is_written(
    fresh_store, migrate_store, root, rows, spec, eventually, monkeypatch
):
    """A run waits for the lock of the log, which both hold."""
    publish, published, locked = ShardFiles.publish, threading.Event(), threading.Event()

    def before_bodies_are_replaced(files, file, *how):
        done = publish(files, file, *how)
        published.set()
        assert locked.wait(120)
        return done

    monkeypatch.setattr(ShardFiles, "publish", before_bodies_are_replaced)
    pool = root.pool_for(root.node_of(0))
    with ThreadPoolExecutor(1) as threads, pool.connection() as connection:
        connection.execute(insert_lock_row(root.database(0)))
        running = threads.submit(TIER.run, migrate_store, spec, [0])
        assert published.wait(120)
        view = process_list(mariadb=connection.is_mariadb)
        waits = b"SELECT 1 FROM " + view + b" WHERE INFO LIKE 'SELECT event_id%FOR UPDATE'"
        with connection.transaction():
            connection.rows(lock_log(root.database(0)))
            locked.set()
            eventually(lambda: running.done() or pool.rows(waits), "the run waits")
            assert not running.done()
            assert not any(is_reference(cell.body) for cell in fresh_store.scan_shard(0))
        running.result(120)
    assert all(is_reference(cell.body) for cell in fresh_store.scan_shard(0))


def test_a_sweep_deletes_only_unused_files_of_its_own(fresh_store, migrate_store, root, rows, spec, cold_folder):
    """Not one that a cell refers to, nor one of the datastore that this one was restored from."""
    TIER.run(migrate_store, replace(spec, file_text_bytes=1 << 20))
    files = ShardFiles(root, 0)
    RECALL.run(migrate_store, RecallSpec(("LOG",)), range(1, 4))
    before = objects(cold_folder)
    own = internals_of(fresh_store).cold.store().incarnation
    unfinished = files.list_new(own, 1, 9)
    for _ in range(2):
        SWEEP.run(migrate_store, SweepSpec(0))
    assert objects(cold_folder) == before
    assert [file.state for file in files.all(file_id=unfinished.file_id)] == ["writing"]
    assert files.condemn(unfinished, "writing")
    RECALL.run(migrate_store, RecallSpec())
    catalog = root.pool_for(internals_of(fresh_store).catalog.node)
    for incarnation, left in (("0" * 32, before), (own, set())):
        catalog.execute(f"UPDATE `{fresh_store.name}`.cold_store SET incarnation='{incarnation}'".encode())
        for _ in range(2):
            SWEEP.run(migrate_store, SweepSpec(0))
        assert objects(cold_folder) == left
    assert {file.state for file in files.all()} == {"deleted"}
