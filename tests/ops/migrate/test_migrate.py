"""migrate: every legacy body is re-encoded, verified, and nothing else changes."""

from __future__ import annotations

import base64
import itertools
import json
import random
import threading

import pytest

import schemaless
from schemaless import InvalidInput, NewStoredCell, UnknownCodec
from schemaless.codec.envelope import describe_body
from schemaless.errors import VerificationFailed
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate import body_updates, rebuild, reencode
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.plan import plan_migration
from schemaless.ops.migrate.rebuild import RebuildSpec
from schemaless.ops.migrate.reencode import BlockBounds
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import select_block, update_bodies
from schemaless.ops.migrate.verify import check, verify
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from tests.cold import ColdFolder
from tests.packets import small_packets

pytestmark = [pytest.mark.mysql]

DOCUMENTS = [
    {"n": number, "text": "a longer text " * (number % 7), "list": [1.5] * (number % 5)} for number in range(300)
]


@pytest.fixture
def legacy(fresh_store, new_row):
    """Store 300 legacy cells in two columns; return their keys and documents."""
    cells = [
        NewStoredCell(new_row(), ("A", "B")[number % 2], number, json.dumps(document, indent=number % 3).encode())
        for number, document in enumerate(DOCUMENTS)
    ]
    fresh_store.put_stored_cells(cells)
    return [(cell.row_key, cell.column_name, cell.ref_key, json.loads(cell.body)) for cell in cells]


def everything(store) -> dict[tuple, tuple]:
    """Return body, added_id and created_at of every cell by its key."""
    return {
        (shard, cell.key): (cell.body, cell.added_id, cell.created_at)
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


@pytest.mark.guarantee("migrate-unnoticed")
@pytest.mark.twice
def test_run_reencodes_every_legacy_body_and_keeps_ids_and_times(fresh_store, legacy, migrate_store):
    """Documents, added_id and created_at stay the same, bodies are in the new codec, a second run does nothing."""
    before = everything(fresh_store)
    report = migrate.run(migrate_store)
    after = everything(fresh_store)
    total = report.total()

    assert total.cells == 300
    assert total.bytes_before == sum(len(body) for body, _, _ in before.values())
    assert total.bytes_after == sum(len(body) for body, _, _ in after.values())
    assert {key: value[1:] for key, value in before.items()} == {key: value[1:] for key, value in after.items()}
    assert {describe_body(body).name for body, _, _ in after.values()} <= {"msgpack+zlib", "msgpack+none"}
    for row, column, ref_key, document in legacy:
        assert fresh_store.get_cell(row, column, ref_key).body == document
    assert {column: tally.cells for column, tally in report.by_column().items()} == {"A": 150, "B": 150}
    assert check(fresh_store).faults == {}

    again = migrate.run(migrate_store)
    assert again.tallies == {}
    assert everything(fresh_store) == after


def test_run_to_another_codec_leaves_enveloped_bodies_alone(fresh_store, legacy, new_row, migrate_store):
    """Only legacy bodies are re-encoded, to the codec that was asked for."""
    fresh_store.put_cell(new_row(), "A", 1, DOCUMENTS[0], codec="json+zlib")
    report = migrate.run(migrate_store, MigrateSpec("msgpack+zstd", sources=("legacy",)))

    assert report.total().cells == 300
    assert {describe_body(body).name for body, _, _ in everything(fresh_store).values()} <= {
        "msgpack+zstd",
        "msgpack+none",
        "json+zlib",
        "json+none",
    }


@pytest.mark.twice
def test_cold_cells_are_left_alone_and_counted(fresh_store, legacy, migrate_store, by_hand, tmp_path):
    """Their bodies stay references, also if they are in a column of interest; a plan counts them too."""
    cold = [key[:3] for key in legacy[::3]]
    ColdFolder(fresh_store, by_hand(fresh_store), tmp_path / "cold").freeze(cold)
    before = everything(fresh_store)
    plan = plan_migration(fresh_store, exact=True)
    total = migrate.run(migrate_store, MigrateSpec(columns=("A",))).by_column()["A"]
    after = everything(fresh_store)

    assert {column: found.cells.mid for column, found in plan.columns.items()} == {"A": 100, "B": 100}
    assert [(found.column_name, found.cells.mid) for found in plan.stored if found.codec == "cold"] == [
        ("A", 50),
        ("B", 50),
    ]
    assert (total.cells, total.cold) == (100, 50)
    assert {key: value for key, value in after.items() if key[1] in cold} == {
        key: value for key, value in before.items() if key[1] in cold
    }
    total = migrate.run(migrate_store).total()
    assert (total.cells, total.cold) == (100, 100)


KEPT_AS_TEXT = {
    "integer": b'{"n": 123456789012345678901234567890}',
    "surrogate": b'{"s": "\\ud800"}',
    "duplicate": b'{"a": 1, "a": 2}',
    "double": b"[1e999]",
}


def test_run_keeps_as_text_what_messagepack_would_lose(fresh_store, new_row, migrate_store):
    """The exact text is kept in an envelope, counted by reason, and skipped by the next run."""
    rows = {reason: new_row() for reason in KEPT_AS_TEXT}
    padded = {reason: text[:-1] + b" " * 200 + text[-1:] for reason, text in KEPT_AS_TEXT.items()}
    fresh_store.put_stored_cells([NewStoredCell(rows[reason], "A", 1, padded[reason]) for reason in KEPT_AS_TEXT])
    total = migrate.run(migrate_store).total()

    assert list(total.kept_as_text.values()) == [1] * 4
    for reason, row in rows.items():
        assert [reason in name for name in total.kept_as_text].count(True) == 1
        cell = next(fresh_store.get_stored_versions(row, "A"))
        assert describe_body(cell.body).name == "json+zlib"
        assert fresh_store.get_cell(row, "A", 1).body == json.loads(padded[reason])
    assert migrate.run(migrate_store).tallies == {}


UNREADABLE = [b"", b"{", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\x1f\x8b\x08\x00rest", b"[" * 100_000]


def test_run_leaves_what_it_cannot_read_and_names_it(fresh_store, new_row, migrate_store, by_hand):
    """Unreadable bodies are unchanged and reported with their cells, and the others are re-encoded."""
    sound, spoiled = [new_row() for _ in range(12)], {new_row(): body for body in UNREADABLE}
    fresh_store.put_stored_cells([NewStoredCell(row, "A", 1, b'{"fine": true}') for row in [*sound, *spoiled]])
    for row, body in spoiled.items():
        shard = fresh_store.shard_of(row)
        by_hand(fresh_store).execute(
            shard,
            b"UPDATE `%b`.cell SET body=x'%b' WHERE row_key=x'%b'"
            % (internals_of(fresh_store).shards.database(shard).encode(), body.hex().encode(), row.hex.encode()),
        )
    report = migrate.run(migrate_store)

    assert report.total().cells == 12
    assert report.total().left.total() == 6
    assert report.total().left_bytes == sum(map(len, UNREADABLE))
    assert {(failure.key.row_key, failure.shard) for failure in report.failures} == {
        (row, fresh_store.shard_of(row)) for row in spoiled
    }
    assert {row: next(fresh_store.get_stored_versions(row, "A")).body for row in spoiled} == spoiled


def test_run_to_legacy_restores_the_documents_as_text(fresh_store, legacy, migrate_store):
    """Migrating to legacy turns every body back into bare JSON text of the same document."""
    before = everything(fresh_store)
    migrate.run(migrate_store, MigrateSpec("json+zstd"))
    migrate.run(migrate_store)
    report = migrate.run(migrate_store, MigrateSpec("legacy"))
    after = everything(fresh_store)

    assert report.total().cells == 300
    assert {describe_body(body).name for body, _, _ in after.values()} == {"legacy"}
    assert {key: (json.loads(body), *rest) for key, (body, *rest) in after.items()} == {
        key: (json.loads(body), *rest) for key, (body, *rest) in before.items()
    }


def test_run_takes_only_the_columns_and_codecs_that_are_asked_for(fresh_store, legacy, migrate_store):
    """Only the given ``sources`` and ``columns`` are re-encoded; other bodies are unchanged."""
    migrate.run(migrate_store, MigrateSpec("json+zlib", columns=("A",)))
    before = everything(fresh_store)
    report = migrate.run(migrate_store, MigrateSpec("msgpack+zstd", sources=("json+zlib",)))
    after = everything(fresh_store)

    changed = {key for key in before if before[key] != after[key]}
    assert len(changed) == report.total().cells
    assert {key[1].column_name for key in changed} == {"A"}
    assert {describe_body(before[key][0]).name for key in changed} == {"json+zlib"}
    assert {describe_body(after[key][0]).name for key in changed} <= {"msgpack+zstd", "msgpack+none"}


def test_run_refuses_invalid_arguments(fresh_store, migrate_store):
    """A shard or a codec that does not exist, and a migration from a codec to itself."""
    with pytest.raises(InvalidInput, match="source and target codec are both"):
        MigrateSpec("legacy", sources=("legacy",))
    with pytest.raises(UnknownCodec, match="no codec is called 'pickle'"):
        MigrateSpec(sources=("pickle",))
    with pytest.raises(InvalidInput, match="0 to 3, got 4"):
        migrate.run(migrate_store, shards=[4])


@pytest.fixture
def meddle(monkeypatch):
    """Run a function once, between the read of a block and its UPDATE."""

    def arrange(action) -> None:
        pending = [action]

        def update(database, changes):
            changes = list(changes)
            if pending:
                pending.pop()(database, changes)
            return update_bodies(database, changes)

        monkeypatch.setattr(body_updates, "update_bodies", update)

    return arrange


@pytest.mark.guarantee("migrate-lossless")
@pytest.mark.twice
def test_run_does_not_bring_back_a_cell_erased_under_it(fresh_store, legacy, meddle, migrate_store, by_hand):
    """A cell erased between the read and the UPDATE stays erased and is counted."""
    erased = []

    def erase(database: str, changes: list) -> None:
        erased.append(changes[0][0])
        sql = f"DELETE FROM `{database}`.cell WHERE added_id = {changes[0][0]}".encode()
        by_hand(fresh_store).execute(0, sql)

    meddle(erase)
    report = migrate.run(migrate_store, shards=[0])

    assert (report.total().left, report.total().erased) == ({}, 1)
    assert erased[0] not in [cell.added_id for cell in fresh_store.scan_shard(0)]
    assert list(fresh_store.scan_shard(0, legacy_only=True)) == []


def test_no_shards_are_not_all_shards(fresh_store, legacy, migrate_store):
    """An empty list of shards: a job refuses it, a plan is empty, and nothing is changed."""
    before = everything(fresh_store)
    for call in (migrate.run, migrate.MIGRATE.begin_or_join, rebuild.run):
        spec = RebuildSpec() if call is rebuild.run else MigrateSpec()
        with pytest.raises(InvalidInput, match="a job needs at least one shard"):
            call(migrate_store, spec, shards=[])
    planned = plan_migration(migrate_store, shards=[])

    assert (planned.total.cells.mid, planned.columns, planned.stored) == (0, {}, [])
    assert check(fresh_store, []).cells == verify(fresh_store, []).cells == 0
    assert JobStore(migrate_store).jobs() == []
    assert everything(fresh_store) == before


@pytest.mark.guarantee("migrate-lossless")
@pytest.mark.twice
@pytest.mark.parametrize("change", [b'{"changed": true}', b'{"changed": 12345678901234567890123}'])
def test_run_does_not_overwrite_a_body_changed_under_it(fresh_store, legacy, meddle, change, migrate_store, by_hand):
    """A body that changed since it was read is read again, and the new document is kept."""
    changed = []

    def alter(database: str, changes: list) -> None:
        changed.append(changes[0][0])
        sql = b"UPDATE `%b`.cell SET body=x'%b' WHERE added_id=%d" % (
            database.encode(),
            change.hex().encode(),
            changes[0][0],
        )
        by_hand(fresh_store).execute(0, sql)

    meddle(alter)
    report = migrate.run(migrate_store, shards=[0])
    cell = next(cell for cell in fresh_store.scan_shard(0) if cell.added_id == changed[0])

    assert cell.decode().body == json.loads(change)
    assert describe_body(cell.body).name != "legacy"
    assert report.total().left == {}
    assert list(fresh_store.scan_shard(0, legacy_only=True)) == []


def test_run_counts_only_what_it_replaced_itself(fresh_store, legacy, meddle, migrate_store):
    """If another run re-encodes part of a block first, only the rest is re-encoded and counted."""
    cells = len(list(fresh_store.scan_shard(0)))

    def take_three(database: str, changes: list) -> None:
        internals_of(migrate_store).shards.execute(0, update_bodies(database, changes[:3]))

    meddle(take_three)
    total = migrate.run(migrate_store, shards=[0]).total()

    assert (total.cells, total.left) == (cells - 3, {})
    assert list(fresh_store.scan_shard(0, legacy_only=True)) == []


@pytest.mark.guarantee("migrate-runners-agree")
@pytest.mark.twice
def test_two_runs_at_once_share_one_job(fresh_store, legacy, migrate_store, fresh_url, migrate_url):
    """Two runs together re-encode and count each cell once."""
    reports = []
    with schemaless.connect(migrate_url) as other:
        threads = [
            threading.Thread(target=lambda store=store: reports.append(migrate.run(store)))
            for store in (migrate_store, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert [report.total().left for report in reports] == [{}, {}]
    assert {(report.job_id, report.total().cells, report.interruptions) for report in reports} == {(1, 300, 0)}
    assert all(not list(fresh_store.scan_shard(shard, legacy_only=True)) for shard in range(4))
    for row, column, ref_key, document in legacy:
        assert fresh_store.get_cell(row, column, ref_key).body == document


OF_TEN = BlockBounds(first_rows=10, most_rows=10)
"""Blocks of ten cells, so that a shard has several; of fewer after a statement that takes longer than ``chunk_ms``."""


def test_run_continues_an_interrupted_one(fresh_store, legacy, monkeypatch, migrate_store):
    """After an interruption the next run completes the job, with the result of an uninterrupted run."""
    blocks = itertools.count()

    def breaks(*arguments):
        if next(blocks) == 7:
            raise KeyboardInterrupt
        return select_block(*arguments)

    monkeypatch.setattr(reencode, "select_block", breaks)
    with pytest.raises(KeyboardInterrupt):
        migrate.run(migrate_store, bounds=OF_TEN)
    monkeypatch.undo()
    report = migrate.run(migrate_store, bounds=OF_TEN)

    assert (report.job_id, report.total().cells, report.interruptions) == (1, 300, 0)
    for row, column, ref_key, document in legacy:
        assert fresh_store.get_cell(row, column, ref_key).body == document


def test_a_run_counts_its_work_before_it_waits_for_the_rate_limit(fresh_store, legacy, migrate_store, monkeypatch):
    """A run that is paused while it waits, and then killed, leaves no block out of its counts."""
    counted, replaced, reserved, waits, gate = [], [], itertools.count(), [], ShardRun.gate

    def spend(job_store, *_):
        waits.append(float(next(reserved) in (4, 6)))
        return waits[-1]

    def gated(run):
        if waits and waits.pop():
            counted.append(next(state.cells for state in run.job_store.shards(1) if state.shard == run.state.shard))
            bodies = [cell.body for cell in fresh_store.scan_shard(run.state.shard)]
            replaced.append(sum(describe_body(body).name != "legacy" for body in bodies))
        gate(run)

    monkeypatch.setattr(JobStore, "spend", spend)
    monkeypatch.setattr(ShardRun, "gate", gated)
    spec = MigrateSpec(thresholds=Thresholds(max_mb_per_s=1))
    report = migrate.run(migrate_store, spec, count=1, bounds=OF_TEN)

    assert report.total().cells == 300
    assert len(counted) == 2
    assert counted == replaced


def failing(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Make one UPDATE fail, by its number; return the shards of all UPDATEs sent."""
    original = Shards.run
    calls: list[int] = []

    def fails(shards, shard, operation, *arguments, writes=False, **options):
        if writes:
            calls.append(shard)
            if len(calls) == number:
                raise VerificationFailed("at an UPDATE")
        return original(shards, shard, operation, *arguments, writes=writes, **options)

    monkeypatch.setattr(Shards, "run", fails)
    return calls


def test_checkpoint_is_never_ahead_of_the_updates(fresh_store, legacy, monkeypatch, migrate_store):
    """The next block is read while one is updated; if the UPDATE fails, the checkpoint is before that block."""
    calls = failing(monkeypatch, 3)
    monkeypatch.setattr(reencode.ShardRun, "yields", False)
    with pytest.raises(VerificationFailed, match="at an UPDATE"):
        migrate.run(migrate_store, MigrateSpec(chunk_ms=60_000), bounds=OF_TEN)
    states = {state.shard: state for state in JobStore(migrate_store).shards(1)}
    state = states[calls[2]]
    left = [cell.added_id for cell in fresh_store.scan_shard(calls[2], legacy_only=True)]
    ids = [cell.added_id for cell in fresh_store.scan_shard(calls[2])]

    assert state.checkpoint == ids[19] == min(left) - 1
    assert state.cells == 20


def test_updates_of_a_failed_block_are_counted(fresh_store, legacy, monkeypatch, migrate_store):
    """If the second of a block's two statements fails, the cells of the first are done and counted."""
    calls = failing(monkeypatch, 2)
    with small_packets(migrate_store, 4_024) as store, pytest.raises(VerificationFailed, match="at an UPDATE"):
        migrate.run(store)
    monkeypatch.undo()
    report = migrate.run(migrate_store)

    assert calls[0] == calls[1]
    assert (report.job_id, report.total().cells) == (1, 300)


def test_blocks_begin_as_large_as_those_of_the_shard_before(fresh_store, legacy, monkeypatch, migrate_store):
    """A shard that fits in one block costs one read, and a short last block does not shrink the next ones."""
    blocks: dict[str, list[int]] = {}

    def noted(database, after, rows, *others):
        blocks.setdefault(database, []).append(rows)
        return select_block(database, after, rows, *others)

    monkeypatch.setattr(reencode, "select_block", noted)
    monkeypatch.setattr(reencode.ShardRun, "yields", False)
    report = migrate.run(migrate_store, MigrateSpec(chunk_ms=60_000), bounds=BlockBounds(first_rows=16))
    asked = [rows for each in blocks.values() for rows in each]

    assert report.total().cells == 300
    assert asked[0] == 16
    assert asked == sorted(asked)
    assert [len(each) for each in blocks.values()][-1] == 1


def test_run_takes_bodies_longer_than_their_share(fresh_store, new_row, migrate_store):
    """Long bodies share the block, are processed by themselves, or wait for the next block."""
    bounds = BlockBounds(first_rows=20, most_bytes=100_000)
    sizes = [10, 6_000, 30_000, 90_000, 50_000, 20, 60_000, 10] * 4
    rows = [new_row() for _ in sizes]
    fresh_store.put_stored_cells(
        [
            NewStoredCell(row, "A", 1, json.dumps({"n": number, "x": "a" * size}).encode())
            for number, (row, size) in enumerate(zip(rows, sizes, strict=True))
        ]
    )
    report = migrate.run(migrate_store, bounds=bounds)

    assert report.total().cells == len(sizes)
    for number, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        assert fresh_store.get_cell(row, "A", 1).body == {"n": number, "x": "a" * size}


@pytest.mark.long
def test_run_large_bodies_stay_under_the_packet(fresh_store, new_row, migrate_store):
    """Incompressible bodies of several MB are split into statements that fit the packet limit."""
    noise = base64.b64encode(random.Random(1).randbytes(2_250_000)).decode()
    rows = list(itertools.islice((row for row in iter(new_row, None) if fresh_store.shard_of(row) == 1), 6))
    fresh_store.put_stored_cells(
        [NewStoredCell(row, "BIG", 1, json.dumps([noise, number]).encode()) for number, row in enumerate(rows)]
    )
    report = migrate.run(migrate_store)

    assert report.total().cells == len(rows)
    assert [fresh_store.get_cell(row, "BIG", 1).body[1] for row in rows] == list(range(len(rows)))


def test_update_statement_uses_the_primary_key(fresh_store, legacy, migrate_store):
    """The UPDATE locks only its own rows: the server looks them up by primary key."""
    cells = list(fresh_store.scan_shard(0))[:5]
    sql = update_bodies(
        internals_of(fresh_store).shards.database(0), [(cell.added_id, digest_of(cell.body), b"1") for cell in cells]
    )
    plan = json.loads(internals_of(migrate_store).shards.rows(0, b"EXPLAIN FORMAT=JSON " + sql)[0][0])
    text = json.dumps(plan)

    assert '"key": "PRIMARY"' in text or "Single-row index lookup on c using PRIMARY" in text, text
