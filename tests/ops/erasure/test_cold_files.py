"""Erasures and cold files: documents leave every file that a shard lists, and nothing else changes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemaless import ColdBodyMissing, ColdFileDamaged, ColdStoreUnavailable, Datastore, NewCell, finish_erasure
from schemaless.monitoring.status.cold import ColdReader
from schemaless.monitoring.status.model import ColdView
from schemaless.ops.erasure import job
from schemaless.ops.erasure.cold_files import ColdEraser
from schemaless.ops.erasure.receipt import receipt
from schemaless.ops.erasure.status import record_acknowledgements, status
from schemaless.ops.erasure.verify import verify
from schemaless.ops.jobs import driver
from schemaless.ops.tier.sweep import SWEEP, SweepSpec
from schemaless.store.cold.files import ShardFiles
from schemaless.store.erasures.ledger import target
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from tests.cold import ColdFolder

pytestmark = [pytest.mark.mysql]

REASON = "gdpr-art-17"
Rows = list[uuid.UUID]


@pytest.fixture
def cold(fresh_store: Datastore, by_hand: Callable[[Datastore], Shards], tmp_path: Path) -> ColdFolder:
    """The cold store of the datastore."""
    return ColdFolder(fresh_store, by_hand(fresh_store), tmp_path / "cold")


@pytest.fixture
def rows(fresh_store: Datastore, new_row: Callable[[], uuid.UUID]) -> Rows:
    """Three rows of one shard with four versions each."""
    made = [new_row()]
    while len(made) < 3:
        row = new_row()
        made += [row] if fresh_store.shard_of(row) == fresh_store.shard_of(made[0]) else []
    keys = [(row, version) for version in range(4) for row in made]
    fresh_store.put_cells([NewCell(row, "BASE", version, {"of": f"{row} {version}"}) for row, version in keys])
    return made


def frozen(cold: ColdFolder, rows: Rows) -> list[list[str | None]]:
    """Make all cells cold; return the texts of their file."""
    (file,) = cold.freeze([(row, "BASE", version) for row in rows for version in range(4)])
    return cold.texts(file)


def without(texts: list[list[str | None]], marker: str) -> list[list[str | None]]:
    return [[None if text is None or marker in text else text for text in group] for group in texts]


def erase(store: Datastore, *rows: uuid.UUID) -> int:
    """Erase rows by a job; return the number of the erasure."""
    number = internals_of(store).erasures.ledger.intend(REASON, [target(row) for row in rows])
    job.run(store, job.ErasureSpec(number))
    return number


@pytest.mark.guarantee("erasure-cold")
def test_an_erasure_removes_documents_from_files_and_keeps_the_others_in_place(erase_store, cold, rows):
    """The old file is gone, the receipt names it, and the new one has null where the documents were."""
    subject, shard = rows[1], erase_store.shard_of(rows[1])
    texts = frozen(cold, rows)
    (old,) = ShardFiles(cold.shards, shard).all()
    number = erase(erase_store, subject)
    new = cold.live(old)

    assert cold.texts(new) == without(texts, str(subject)) != texts
    assert (new.generation, new.cells, cold.names()) == (1, 12, {new.name})
    assert new.text_bytes == sum(len(text) for group in cold.texts(new) for text in group if text is not None)
    assert cold.states(shard) == [(0, "deleted"), (1, "live")]
    assert receipt(erase_store, number)["cold_files"] == [old.name]
    assert (status(erase_store, number).state, verify(erase_store, number).faults) == ("acknowledged", {})
    assert ColdEraser(internals_of(erase_store), shard).run() == 0
    assert ShardFiles(cold.shards, shard).references(0, 1 << 40) == {old.file_id: 8}


@pytest.mark.twice
@pytest.mark.guarantee("erasure-cold")
def test_an_erasure_is_not_acknowledged_before_the_files_are_rewritten(erase_store, cold, rows):
    """A file that is missing ends the job, and finish_erasure goes on; a job waits for a store that does not answer."""
    shard = erase_store.shard_of(rows[0])
    texts = frozen(cold, rows)
    number = erase_store.erase(rows[0], reason=REASON).number
    found = record_acknowledgements(erase_store, number)

    assert (found.state, found.cold, found.entry.acknowledged_at) == ("executed", [shard], None)
    assert [fault for fault in verify(erase_store, number).faults if "cold file" in fault] != []
    assert any("cold files of shard" in each["where"] for each in receipt(erase_store, number)["remains"])
    (file,) = ShardFiles(cold.shards, shard).all()
    place = internals_of(erase_store).topology.cluster_of(shard).name
    views = {view.cluster: view for view in ColdReader(erase_store)()}
    assert views.pop(place) == ColdView(place, 1, file.file_bytes, waiting=1, erasure=number)
    assert set(views.values()) == {ColdView(name, 0, 0) for name in views}
    away = cold.folder / "away"
    (cold.folder / file.name).rename(away)
    with pytest.raises(ColdBodyMissing, match="does not exist"):
        finish_erasure(erase_store, number)
    (cold.folder / file.name).mkdir()
    with pytest.raises(ColdStoreUnavailable):
        ColdEraser(internals_of(erase_store), shard).run()
    assert status(erase_store, number).state == "executed"
    (cold.folder / file.name).rmdir()
    away.rename(cold.folder / file.name)

    assert finish_erasure(erase_store, number).state == "acknowledged"
    assert cold.texts(cold.live(file)) == without(texts, str(rows[0]))
    assert verify(erase_store, number).faults == {}
    views = {view.cluster: view for view in ColdReader(erase_store)()}
    assert views[place] == ColdView(place, 1, cold.live(file).file_bytes)


@pytest.mark.guarantee("erasure-cold")
def test_files_that_no_cell_refers_to_and_unfinished_ones_are_free_of_the_document_too(
    fresh_store, erase_store, cold, rows
):
    """A file may have a document whose cell has its body back, or not yet a reference; a killed writer left a copy."""
    shard = erase_store.shard_of(rows[0])
    cells = list(fresh_store.scan_shard(shard))
    complete = cold.listed(cells)
    cold.published(complete, cold.put(complete, cells))
    unfinished, stalled = cold.listed(cells), cold.listed(cells)
    cold.put(unfinished, cells)
    temporary = cold.folder / "tmp" / f"{shard:04d}-abcd-{stalled.name.rpartition('/')[2]}"
    temporary.write_bytes(b"a part of a document")
    erase(erase_store, rows[0])

    assert str(rows[0]) not in str(cold.texts(cold.live(complete)))
    assert cold.names() == {cold.live(complete).name}
    for file in (unfinished, stalled):
        assert not ShardFiles(cold.shards, shard).publish(file, {"cells": 12, "sha256": "ab" * 32})
    states = {file.file_id: file.state for file in ShardFiles(cold.shards, shard).all() if not file.generation}
    assert states == {complete.file_id: "deleted", unfinished.file_id: "deleted", stalled.file_id: "deleted"}


@pytest.mark.twice
@pytest.mark.guarantee("erasure-cold")
@pytest.mark.parametrize("rewrites", [True, False])
def test_two_erasures_at_once_both_leave_the_file(erase_store, cold, rows, rewrites):
    """The one that is overtaken rewrites the new generation; one that is late finds that it has its documents."""
    shard = erase_store.shard_of(rows[0])
    texts = frozen(cold, rows)
    (file,) = ShardFiles(cold.shards, shard).all()
    internals, overtaken = internals_of(erase_store), []
    erase_store.erase(rows[0], reason=REASON)

    def overtake(document: object) -> None:
        if not overtaken:
            overtaken.append(document)
            erase_store.erase(rows[1], reason=REASON)
            assert not rewrites or ColdEraser(internals, shard).run() == 1

    files = 0 if rewrites else 1
    assert ColdEraser(internals, shard, see=overtake).run() == files
    assert ColdEraser(internals, shard).run() == files
    expected = without(without(texts, str(rows[0])), str(rows[1]))
    assert cold.texts(cold.live(file)) == expected
    assert cold.names() == {cold.live(file).name}
    assert {state for _, state in cold.states(shard)} == {"deleted", "live"}


@pytest.mark.guarantee("erasure-cold")
def test_a_file_that_becomes_live_while_it_is_looked_at_is_rewritten(fresh_store, erase_store, cold, rows, monkeypatch):
    """Only files that are being written are condemned: its writer replaces bodies by references at this moment."""
    shard, condemn, live = erase_store.shard_of(rows[0]), ShardFiles.condemn, []
    cells = list(fresh_store.scan_shard(shard))
    file = cold.listed(cells)
    content = cold.put(file, cells)

    def overtaken(files, each, *states):
        live.extend([cold.published(file, content)] if not live else [])
        return condemn(files, each, *states)

    monkeypatch.setattr(ShardFiles, "condemn", overtaken)
    erase(erase_store, rows[0])

    assert cold.states(shard) == [(0, "deleted"), (1, "live")]
    assert [text is None for group in cold.texts(cold.live(file)) for text in group] == [
        cell.row_key == rows[0] for cell in sorted(cells, key=lambda cell: (cell.row_key.bytes, cell.ref_key))
    ]


@pytest.mark.guarantee("erasure-cold", "cold-present")
def test_what_is_left_of_a_lost_file_is_kept_until_its_cells_are_erased(erase_store, migrate_store, cold, rows):
    """A sweep leaves a later generation that is damaged; a file without live cells is not read."""
    shard = erase_store.shard_of(rows[0])
    frozen(cold, rows)
    (old,) = ShardFiles(cold.shards, shard).all()
    erase(erase_store, rows[0])
    new = cold.live(old)
    # As in a database that was restored from a backup.
    database = cold.shards.database(shard).encode()
    cold.shards.execute(shard, b"DELETE FROM `%b`.cold_file WHERE generation=1" % database)
    cold.shards.execute(shard, b"UPDATE `%b`.cold_file SET state='live'" % database)
    whole = (cold.folder / new.name).read_bytes()
    (cold.folder / new.name).write_bytes(whole[:-1])
    for _ in range(2):
        SWEEP.run(migrate_store, SweepSpec(0))
    assert (cold.names(), cold.states(shard)) == ({new.name}, [(0, "live")])
    number = erase_store.erase(rows[1], reason=REASON).number
    with pytest.raises(ColdFileDamaged):
        finish_erasure(erase_store, number)
    (cold.folder / new.name).write_bytes(whole)
    assert finish_erasure(erase_store, number).state == "acknowledged"
    assert cold.states(shard) == [(0, "deleted"), (1, "deleted"), (2, "live")]
    number = erase_store.erase(rows[2], reason=REASON).number
    # A folder that is not mounted is not one whose files are gone.
    cold.folder.rename(cold.folder.with_name("away"))
    with pytest.raises(ColdStoreUnavailable, match="mounted"):
        ColdEraser(internals_of(erase_store), shard).run()
    cold.folder.with_name("away").rename(cold.folder)
    (cold.folder / cold.live(old).name).unlink()
    finish_erasure(erase_store, number)
    assert cold.states(shard)[2:] == [(2, "deleted"), (3, "condemned")]


@pytest.mark.guarantee("erasure-cold")
def test_the_store_is_listed_even_if_the_shard_lists_no_file(erase_store, cold, rows):
    """A shard that was restored to before its first run keeps erasures open until then; a new incarnation has none."""
    internals, shard = internals_of(erase_store), erase_store.shard_of(rows[0])
    stored = {cell.added_id: cell.body for cell in internals.scan(shard)}
    frozen(cold, rows)
    (name,) = cold.names()
    for added_id, body in stored.items():
        cold.write(shard, added_id, body)
    cold.shards.execute(shard, b"DELETE FROM `%b`.cold_file" % cold.shards.database(shard).encode())
    number = erase_store.erase(rows[0], reason=REASON).number
    away = cold.folder.rename(cold.folder.with_name("away"))
    for step in (ColdEraser(internals, shard).run, lambda: verify(erase_store, number)):
        with pytest.raises(ColdStoreUnavailable, match="not mounted"):
            step()
    assert status(erase_store, number).state == "executed"
    assert "not mounted" in str(receipt(erase_store, number)["remains"])
    internals.cold.is_new = True
    assert ColdEraser(internals, shard).run() == 0
    internals.cold.is_new = False
    away.rename(cold.folder)
    assert name in str(receipt(erase_store, number)["remains"])
    assert (status(erase_store, number).state, status(erase_store, number).cold) == ("executed", [shard])
    assert [fault for fault in verify(erase_store, number).faults if name in fault] != []
    assert finish_erasure(erase_store, number).state == "acknowledged"

    assert str(rows[0]) not in str([cold.texts(each) for each in ShardFiles(cold.shards, shard).all("condemned")])
    assert verify(erase_store, number).faults == {}
    assert "not list" not in str(receipt(erase_store, number)["remains"])


@pytest.mark.guarantee("erasure-cold")
def test_a_file_whose_cells_have_all_expired_is_deleted(fresh_store, erase_store, cold, rows, by_hand):
    """A retention run rewrites each file once, however many of its cells expire, or deletes it; held rows stay."""
    internals, shard = internals_of(erase_store), erase_store.shard_of(rows[0])
    database = internals.shards.database(shard).encode()
    long_ago = f"{datetime.now(UTC) - timedelta(400):%Y-%m-%d}".encode()
    by_hand(fresh_store).execute(shard, b"UPDATE `%b`.cell SET created_at='%b'" % (database, long_ago))
    for row in rows[1:]:
        (file,) = cold.freeze([(row, "BASE", version) for version in range(4)])
    internals.holds.hold([rows[2]], "court", "case-7")
    internals.policies.set(Policy("BASE", keep_days=365))
    number = job.begin_retention(erase_store)
    job.run(erase_store, job.ErasureSpec(number))

    assert cold.states(shard) == [(0, "deleted"), (1, "condemned"), (0, "live")]
    assert cold.names() == {file.name, *(each.name for each in ShardFiles(cold.shards, shard).all("condemned"))}
    assert [cold.texts(each) for each in ShardFiles(cold.shards, shard).all("condemned")] == [[]]
    assert str(rows[2]) in str(cold.texts(file))
    assert status(erase_store, number).state == "acknowledged"


def test_a_restored_copy_says_what_its_erasures_wait_for(erase_store, cold, rows, monkeypatch):
    """Without the cold store of the original, it cannot erase documents in the files that its backup lists."""
    frozen(cold, rows)
    cold.folder.rename(cold.folder.with_name("away"))
    internals_of(erase_store).cold.is_new = True
    monkeypatch.setattr(driver, "GIVE_UP_S", -1.0)
    with pytest.raises(ColdStoreUnavailable, match=r"not mounted.* this copy cannot be opened before then: make the "):
        erase(erase_store, rows[0])


def test_a_restored_copy_does_not_delete_the_files_of_the_original(erase_store, cold, rows):
    """It writes a file of its own without the document, and the receipt says what remains."""
    shard = erase_store.shard_of(rows[0])
    frozen(cold, rows)
    (original,) = ShardFiles(cold.shards, shard).all()
    catalog = cold.shards.pool_for(internals_of(erase_store).catalog.node)
    catalog.execute(b"UPDATE `%b`.cold_store SET incarnation='%b'" % (erase_store.name.encode(), b"0" * 32))
    number = erase(erase_store, rows[0])
    issued = receipt(erase_store, number)

    assert cold.names() == {original.name, cold.live(original).name}
    assert cold.live(original).incarnation == "0" * 32
    assert issued["cold_files"] == []
    assert [each["until"] for each in issued["remains"] if each["where"] == f"cold file {original.name}"] == [
        "the datastore that this one was restored from erases them"
    ]
