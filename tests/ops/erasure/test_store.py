"""Erasing through ``Datastore.erase``: what reads, puts, the feed and the log say afterwards."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import schemaless
from schemaless import Erased
from schemaless.codec.envelope import tombstone
from schemaless.errors import BatchError, CellConflict, CellErased, InvalidCell, InvalidInput
from schemaless.ops.erasure.replay import replay, undone
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.store.erasures.sql import replace_bodies
from schemaless.store.internals import internals_of
from schemaless.wire.sql.sessions import process_list

pytestmark = [pytest.mark.myrocks, pytest.mark.twice]

REASON = "gdpr-art-17"


@pytest.fixture
def written(fresh_store: schemaless.Datastore, new_row: Callable[[], uuid.UUID]) -> tuple[uuid.UUID, uuid.UUID]:
    """Two rows of one shard: the one to erase has three versions of BASE and one cell in LOG."""
    subject = new_row()
    shard = fresh_store.shard_of(subject)
    other = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == shard)
    for row in (subject, other):
        for version in (1, 2, 3):
            fresh_store.put_cell(row, "BASE", version, {"secret": f"{row} {version}"})
        fresh_store.put_cell(row, "LOG", 7, ["secret"])
    return subject, other


def everything(store: schemaless.Datastore, shard: int) -> list[Any]:
    return [(*cell.key, cell.added_id, cell.created_at, cell.body) for cell in store.iter_shard(shard)]


@pytest.mark.guarantee("erased-reads")
def test_an_erased_column_reads_as_absent_and_its_other_cells_stay(fresh_store, erase_store, written):
    """Nothing falls back to an older version; other columns and rows are as they were."""
    subject, other = written
    shard = fresh_store.shard_of(subject)
    before = everything(fresh_store, shard)
    entry = erase_store.erase(subject, "BASE", reason=REASON)

    assert (entry.cells, entry.reason) == (3, REASON)
    assert entry.intended_at <= entry.executed_at
    assert fresh_store.get_cell(subject, "BASE", 2) is None
    assert fresh_store.get_cell_latest(subject, "BASE") is None
    assert fresh_store.get_cells_latest([(subject, "BASE"), (other, "BASE")]).keys() == {(other, "BASE")}
    assert fresh_store.get_row(subject).keys() == {"LOG"}
    assert list(fresh_store.get_versions(subject, "BASE")) == []
    shown = list(fresh_store.get_versions(subject, "BASE", include_erased=True, limit=2))
    assert [(cell.ref_key, cell.body, cell.erased) for cell in shown] == [
        (3, Erased(entry.number), True),
        (2, Erased(entry.number), True),
    ]
    after = everything(fresh_store, shard)
    assert [row[:-1] for row in after] == [row[:-1] for row in before]
    assert [row for row in after if row[0] != subject or row[1] != "BASE"] == [
        row for row in before if row[0] != subject or row[1] != "BASE"
    ]
    assert fresh_store.get_row(other)["BASE"].ref_key == 3


@pytest.mark.guarantee("erased-reads")
def test_an_erased_key_cannot_be_written_and_appends_count_it(fresh_store, erase_store, written):
    """Written-once holds, for single puts and batches, and after the same document, too."""
    subject, _ = written
    fresh_store.get_cell_latest(subject, "BASE")
    entry = erase_store.erase(subject, reason=REASON)

    with pytest.raises(CellErased) as raised:
        fresh_store.put_cell(subject, "BASE", 3, {"secret": f"{subject} 3"})
    assert (raised.value.key.ref_key, raised.value.erasure) == (3, entry.number)
    with pytest.raises(BatchError) as batch:
        fresh_store.put_cells([schemaless.NewCell(subject, "LOG", 7, ["secret"])])
    assert isinstance(batch.value.causes[fresh_store.shard_of(subject)], CellErased)
    assert fresh_store.append_cell(subject, "BASE", {"new": True}).key.ref_key == 4
    assert fresh_store.get_cell_latest(subject, "BASE").body == {"new": True}
    assert list(fresh_store.get_row(subject)) == ["BASE"]


def test_an_append_without_refill_does_not_follow_an_erased_version(fresh_store, erase_store, written):
    """It raises with the erased key, until a version was put; a column that has no version is no erased one."""
    subject, _ = written
    entry = erase_store.erase(subject, "BASE", 3, reason=REASON)
    with pytest.raises(CellErased) as raised:
        fresh_store.append_cell(subject, "BASE", {"late": True}, refill=False)
    versions = [cell.ref_key for cell in fresh_store.get_versions(subject, "BASE", include_erased=True)]
    fresh_store.put_cell(subject, "BASE", 4, {"again": True})

    assert (raised.value.key, raised.value.erasure) == ((subject, "BASE", 3), entry.number)
    assert versions == [3, 2, 1]
    assert fresh_store.append_cell(subject, "BASE", {}, refill=False).key.ref_key == 5
    assert fresh_store.append_cell(subject, "NEW", {}, refill=False).key.ref_key == 1


def test_an_append_without_refill_waits_for_an_erasure_that_has_begun(fresh_store, by_hand, written, eventually):
    """What the erasure has not committed yet counts; one that begins later finds the new version."""
    subject, _ = written
    shard = fresh_store.shard_of(subject)
    shards, latest = by_hand(fresh_store), fresh_store.get_cell_latest(subject, "BASE")
    with ThreadPoolExecutor(1) as threads, shards.pool_for(shards.node_of(shard)).connection() as connection:
        with connection.transaction():
            connection.execute(replace_bodies(shards.database(shard), "cell", [latest.added_id], tombstone(1)))
            append = threads.submit(fresh_store.append_cell, subject, "BASE", {"late": True}, refill=False)
            view = process_list(mariadb=connection.is_mariadb)
            waits = b"SELECT 1 FROM " + view + b" WHERE INFO LIKE 'SELECT added_id%LOCK IN SHARE MODE'"
            eventually(lambda: shards.pool_for(shards.node_of(shard)).rows(waits), "the append waits")
            assert not append.done()
        with pytest.raises(CellErased):
            append.result(120)

    assert [cell.ref_key for cell in fresh_store.get_versions(subject, "BASE", include_erased=True)] == [3, 2, 1]


@pytest.mark.guarantee("erased-reads")
def test_one_version_is_erased_only_if_it_is_named(fresh_store, erase_store, written):
    """The latest version leaves nothing in its place; an older one leaves the latest."""
    subject, _ = written
    erase_store.erase(subject, "BASE", 1, reason=REASON)
    assert fresh_store.get_cell_latest(subject, "BASE").ref_key == 3
    erase_store.erase(subject, "BASE", 3, reason=REASON)

    assert fresh_store.get_cell_latest(subject, "BASE") is None
    assert [cell.ref_key for cell in fresh_store.get_versions(subject, "BASE")] == [2]
    with pytest.raises(InvalidInput, match="also give its column"):
        erase_store.erase(subject, None, 3, reason=REASON)
    with pytest.raises(InvalidInput, match="must not name a person"):
        erase_store.erase(subject, reason="Mrs. Smith asked for it")


@pytest.mark.guarantee("erasure-followers")
def test_the_log_has_each_erased_cell_once_in_order(fresh_store, erase_store, written):
    """Erasing again erases nothing, logs nothing, and has its own entry in the ledger."""
    subject, _ = written
    shard = fresh_store.shard_of(subject)
    ids = {cell.added_id: cell.key for cell in fresh_store.iter_shard(shard) if cell.row_key == subject}
    first = erase_store.erase(subject, "BASE", reason=REASON)
    second = erase_store.erase(subject, reason=REASON)
    again = erase_store.erase(subject, reason=REASON)
    log = fresh_store.get_erased_for_shard(shard)

    assert [event.event_id for event in log] == [1, 2, 3, 4]
    assert {event.added_id: event.key for event in log} == ids
    assert [event.erasure for event in log] == [first.number] * 3 + [second.number]
    assert fresh_store.get_erased_for_shard(shard, after=3) == log[3:]
    assert (second.cells, again.cells, second.number < again.number) == (1, 0, True)
    assert again.executed_at is not None


def test_many_keys_are_one_erasure_or_none(fresh_store, erase_store, written):
    """Rows, columns and versions under one number; with ``must_exist``, a mistyped key refuses all of them."""
    subject, other = written
    keys = [subject.bytes, (other, "LOG"), (other, "BASE", 2), subject]
    before = len(internals_of(erase_store).erasures.ledger.entries())
    for wrong in (uuid.uuid4(), (other, "BSAE"), (other, "BASE", 9)):
        with pytest.raises(InvalidInput, match="nothing was erased, because there are no cells of") as raised:
            erase_store.erase_many([*keys, wrong], reason=REASON, must_exist=True)
        assert str(wrong[1] if isinstance(wrong, tuple) else wrong) in str(raised.value)
    for unusable in ((), (other, "BASE", 2, 3)):
        with pytest.raises(InvalidInput, match="a key to erase is"):
            erase_store.erase_many([subject, unusable], reason=REASON)
    untouched = fresh_store.get_row(subject).keys(), len(internals_of(erase_store).erasures.ledger.entries())
    entry = erase_store.erase_many(keys, reason=REASON, must_exist=True)
    again = erase_store.erase_many(keys, reason=REASON, must_exist=True)

    assert untouched == ({"BASE", "LOG"}, before)
    assert (entry.cells, again.cells, entry.scope) == (6, 0, {"keys": 3})
    assert fresh_store.get_row(subject) == {}
    assert [cell.ref_key for cell in fresh_store.get_versions(other, "BASE")] == [3, 1]


def test_an_erased_body_is_a_marker_that_no_document_is(fresh_store, erase_store, written):
    """It cannot be put, dumped as a document or compared by accident."""
    subject, _ = written
    entry = erase_store.erase(subject, "LOG", reason=REASON)
    (stored,) = fresh_store.get_stored_versions(subject, "LOG", include_erased=True)

    assert stored.erased
    assert stored.body == tombstone(entry.number)
    assert fresh_store.decode(stored.body) == Erased(entry.number)
    with pytest.raises(schemaless.InvalidBody):
        fresh_store.put_cell(subject, "LOG", 8, Erased(entry.number))
    with pytest.raises(TypeError):
        json.dumps(stored.decode().body)


def test_a_copy_of_an_erased_cell_is_the_same_cell(fresh_store, erase_store, new_row, written):
    """A dump's tombstone may be put, and put again; a document does not take its place, nor it that of a document."""
    _, other = written
    copy = schemaless.NewStoredCell(new_row(), "BASE", 1, tombstone(99))
    put = fresh_store.put_stored_cells([copy])
    assert put[0].created
    assert not fresh_store.put_stored_cells([copy])[0].created
    assert fresh_store.get_cell(copy.row_key, "BASE", 1) is None
    with pytest.raises(CellErased):
        fresh_store.put_cell(copy.row_key, "BASE", 1, {})
    with pytest.raises(BatchError) as batch:
        fresh_store.put_stored_cells([schemaless.NewStoredCell(other, "BASE", 1, tombstone(99))])
    assert isinstance(next(iter(batch.value.causes.values())), CellConflict)
    with pytest.raises(InvalidCell, match="two different bodies"):
        fresh_store.put_stored_cells([copy, schemaless.NewStoredCell(copy.row_key, "BASE", 1, b"{}")])


@pytest.mark.guarantee("erasure-exact")
def test_an_interrupted_erasure_is_in_the_ledger(fresh_store, erase_store, written, monkeypatch):
    """It was intended and not executed; a repetition is another erasure, and a replay completes the first one."""
    subject, _ = written
    erasures = internals_of(erase_store).erasures
    with monkeypatch.context() as patch:
        patch.setattr(erasures.ledger, "record_shard", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            erase_store.erase(subject, reason=REASON)
    (entry,) = erasures.ledger.entries()

    assert (entry.executed_at, entry.reason, entry.scope) == (None, REASON, {"keys": 1})
    assert [str(each) for each in erasures.ledger.targets(entry.number)] == [f"({subject}, all columns, all versions)"]
    again = erase_store.erase(subject, reason=REASON)
    (left,) = undone(erase_store)
    assert again.number > left.entry.number == entry.number
    replay(erase_store, [left], Thresholds())
    assert undone(erase_store) == []
    assert erasures.ledger.entry(entry.number).executed_at is not None
