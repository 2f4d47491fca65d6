"""migrate --history: superseded versions become deltas, and every version reads as before."""

from __future__ import annotations

import itertools
import random
import string
import threading
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest

import schemaless
from schemaless import BaseMissing, InvalidInput, NewCell, NewStoredCell, RowHeld, ServerTimeout
from schemaless.base.events import only
from schemaless.base.numbers import Interval
from schemaless.cell import StoredCell
from schemaless.codec.deltas import expected_base, is_keyframe
from schemaless.codec.envelope import base_of, describe_body, is_delta
from schemaless.ops.admin.ndjson import dump_line, dump_reader, load
from schemaless.ops.erasure.replay import replay, undone
from schemaless.ops.jobs import driver
from schemaless.ops.jobs.job import RunStarted
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.jobs.workers import workers
from schemaless.ops.migrate import body_updates
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.body_updates import BodyUpdates
from schemaless.ops.migrate.finalise import archive_of
from schemaless.ops.migrate.plan import plan_migration
from schemaless.ops.migrate.reclaimed import reclaimed_report, record_plan
from schemaless.ops.migrate.restore import RestoreSpec
from schemaless.ops.migrate.restore import run as restore
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import update_bodies
from schemaless.ops.migrate.verify import VerifyOptions, check, verify
from schemaless.planning.sampling.advice import advise
from schemaless.planning.sampling.sampling import Bounds
from schemaless.store.cells.column_codecs import ColumnSetting, set_column
from schemaless.store.cells.paging import PageSize
from schemaless.store.cold.fetching import cache
from schemaless.store.erasures.sql import insert_lock_row, lock_log, select_log_end
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from tests.cold import ColdFolder

pytestmark = [pytest.mark.mysql]

HISTORY = MigrateSpec(history=True)


def document(row, ref_key):
    return {"legs": [{"from": f"A{number}", "to": f"B{row.int % 97}"} for number in range(30)], "n": ref_key}


@pytest.fixture
def rows(fresh_store, new_row):
    """Five rows with up to 40 versions, written in any order, in two columns and two codecs."""
    made, chance = [new_row() for _ in range(5)], random.Random(1)
    keys = [
        (row, column, 3 * n)
        for place, row in enumerate(made)
        for column in ("A", "B")
        for n in range((1, 2, 40)[(place + (column == "B")) % 3])
    ]
    chance.shuffle(keys)
    for codec in ("legacy", None):
        part = keys[::2] if codec else keys[1::2]
        fresh_store.put_cells([NewCell(*key, document(key[0], key[2])) for key in part], codec=codec)
    return {(row, column): sorted(key[2] for key in keys if key[:2] == (row, column)) for row, column, _ in keys}


def test_a_cold_cell_is_neither_a_difference_nor_the_base_of_one(fresh_store, migrate_store, by_hand, rows, tmp_path):
    """Older versions are stored against other ones, so reading them, or erasing the cold one, needs no file."""
    row, column = next(pair for pair, versions in rows.items() if len(versions) == 40)
    cold = [(row, column, 3 * n) for n in (*range(20), *range(20, 40, 2))]
    documents = {n: fresh_store.get_cell(row, column, 3 * n).body for n in range(40)}
    ColdFolder(fresh_store, by_hand(fresh_store), tmp_path / "cold").freeze(cold)
    fetched = cache().misses
    total = migrate.run(migrate_store, HISTORY).by_column()[column]

    assert total.cold == len(cold)
    assert cache().misses == fetched
    found = formats(fresh_store)
    assert {key for key, name in found.items() if name == "cold"} == set(cold)
    assert found[row, column, 63] == "msgpack+delta"
    for n in range(21, 40, 2):
        assert fresh_store.get_cell(row, column, 3 * n).body == documents[n]
    cells = cells_of(fresh_store).items()
    bases = {(*key[:2], base_of(cell.body)) for key, cell in cells if is_delta(cell.body)}
    assert bases
    assert not bases & set(cold)


def cells_of(store):
    return {cell.key: cell for shard in range(store.shard_count) for cell in store.scan_shard(shard)}


def formats(store):
    return {key: describe_body(cell.body).name for key, cell in cells_of(store).items()}


def steps(cells, key):
    """Return the number of deltas that it takes to read a version."""
    body = cells[key].body
    return 1 + steps(cells, (*key[:2], base_of(body))) if is_delta(body) else 0


def assert_readable(store, rows, erased=frozenset()):
    """Every version of every row has its document."""
    for (row, column), ref_keys in rows.items():
        found = {cell.ref_key: cell.body for cell in store.get_versions(row, column)}
        assert found == {n: document(row, n) for n in ref_keys if (row, column, n) not in erased}


@pytest.mark.parametrize("change", ["none", "erased", "cold"])
def test_a_body_is_not_replaced_by_a_delta_against_a_base_that_is_gone(
    fresh_store, erase_store, by_hand, new_row, tmp_path, change
):
    """The log of erased cells shows erasures; if the shard lists cold files, bases are read again."""
    row = new_row()
    fresh_store.put_cells([NewCell(row, "A", n, document(row, n)) for n in range(2)])
    shard, base = fresh_store.shard_of(row), (row.bytes, "A", 1)
    shards = by_hand(fresh_store)
    updates = BodyUpdates(shards, shard, full_row_images=False, has_bases=True)
    stored = cells_of(fresh_store)[row, "A", 0]
    sql = update_bodies(shards.database(shard), [(stored.added_id, digest_of(stored.body), b"{}")])
    if change == "erased":
        erase_store.erase(row, "A", 1, reason="test")
    elif change == "cold":
        ColdFolder(fresh_store, by_hand(fresh_store), tmp_path / "cold").freeze([(row, "A", 1)])

    assert updates.send(sql, {base}) == (int(change == "none"), False)
    assert updates.send(sql) == (int(change != "none"), False)


def test_a_delta_that_was_refused_is_tried_again_with_another_base(
    fresh_store, migrate_store, erase_store, new_row, monkeypatch
):
    """The run does not report that nothing is left to do."""
    row, erased, send = new_row(), [], BodyUpdates.send
    fresh_store.put_cells([NewCell(row, "A", n, document(row, n)) for n in range(20)])

    def erasing(updates, sql, bases=()):
        if bases and not erased:
            erased.append(max(bases)[2])
            erase_store.erase(row, "A", erased[0], reason="test")
        return send(updates, sql, bases)

    monkeypatch.setattr(BodyUpdates, "send", erasing)
    first, second = (migrate.run(migrate_store, HISTORY).total() for _ in range(2))

    assert erased
    assert first.cells > 10
    assert second.cells == 0
    assert_readable(fresh_store, {(row, "A"): range(20)}, {(row, "A", erased[0])})


def test_bases_in_later_blocks(fresh_store, migrate_store, new_row):
    """The latest versions of a row are looked up in the first blocks, and known in later ones."""
    row, count = new_row(), 450
    fresh_store.put_cells([NewCell(row, "A", n, {"id": "x" * 50, "n": n}) for n in range(count)], codec="legacy")
    migrate.run(migrate_store, HISTORY)
    for (_, column, n), cell in cells_of(fresh_store).items():
        is_whole = n == count - 1 or is_keyframe(row.bytes, column, n)
        assert is_delta(cell.body) is not is_whole
        assert is_whole or base_of(cell.body) == min(expected_base(row.bytes, column, n), count - 1)


@pytest.mark.guarantee("history-exact")
def test_a_shard_is_read_again_after_a_promotion(fresh_store, migrate_store, rows, monkeypatch, caplog):
    """The new primary may have lost a base, and have got another document with its key since."""
    selected = []

    def on_another_server(database):
        selected.append(database)
        other = b"1+@@server_id" if len(selected) == 2 else b"@@server_id"
        return select_log_end(database).replace(b"@@server_id", other)

    monkeypatch.setattr(body_updates, "select_log_end", on_another_server)
    migrate.run(migrate_store, HISTORY)
    assert "this server has become the shard's primary" in caplog.text
    assert "msgpack+delta" in formats(fresh_store).values()
    assert_readable(fresh_store, rows)


@pytest.mark.guarantee("history-exact")
@pytest.mark.parametrize("scan", ["scan_shard", "iter_shard"])
def test_a_scan_forgets_what_it_knows_of_bases_when_another_server_answers(
    fresh_store, migrate_store, by_hand, new_row, monkeypatch, scan
):
    """The new primary may have lost a base, and have got another document with its key since.

    The server's id changes here, instead of a primary that is killed.
    """
    made = [row for row in (new_row() for _ in range(40)) if fresh_store.shard_of(row) == 0]
    monkeypatch.setattr(PageSize.__init__, "__defaults__", (2 * len(made),))
    monkeypatch.setattr(PageSize, "learn", lambda *_: None)
    fresh_store.put_cells([NewCell(row, "A", n, document(row, n)) for row in made for n in (2, 3)])
    migrate.run(migrate_store, HISTORY, [0])
    cells = getattr(fresh_store, scan)(0)
    decoded = [(cell.row_key, cell.ref_key, decode(cell)) for cell in itertools.islice(cells, 2 * len(made))]
    by_hand(fresh_store).execute(0, b"DELETE FROM `%b`.cell" % internals_of(fresh_store).shards.database(0).encode())
    fresh_store.put_cells(
        [NewCell(row, "A", n, document(uuid.UUID(int=row.int + 1), n)) for row in made for n in (1, 3)]
    )
    migrate.run(migrate_store, HISTORY, [0])
    pool = internals_of(fresh_store).shards.pool_for(internals_of(fresh_store).shards.node_of(0))
    connect = pool.open

    def other_server(*given: object, **options: object) -> object:
        raw, facts = connect(*given, **options)
        return raw, replace(facts, server=f"not {facts.server}")

    monkeypatch.setattr(pool, "open", other_server)
    pool.close()
    decoded += [(cell.row_key, cell.ref_key, decode(cell)) for cell in cells]

    before = [(row, n, document(row, n)) for row in made for n in (2, 3)]
    after = [(row, n, another(row, n)) for row in made for n in (1, 3)]
    assert "msgpack+delta" in formats(fresh_store).values()
    assert sorted(decoded, key=str) == sorted(before + after, key=str)


def another(row, ref_key):
    """Return another document for a cell."""
    return document(uuid.UUID(int=row.int + 1), ref_key)


def decode(cell):
    """Return the document of a cell, whether it is decoded or not."""
    return cell.decode().body if isinstance(cell, StoredCell) else cell.body


@pytest.mark.twice
@pytest.mark.guarantee("history-exact")
def test_superseded_versions_become_deltas(fresh_store, migrate_store, rows):
    """All but keyframes and the latest; ids, times and documents stay, and a second run finds nothing."""
    before = cells_of(fresh_store)
    migrate.run(migrate_store)
    whole = sum(len(cell.body) for cell in cells_of(fresh_store).values())
    total = migrate.run(migrate_store, HISTORY).total()
    after = cells_of(fresh_store)

    stored = formats(fresh_store)
    for (row, column), ref_keys in rows.items():
        for ref_key in ref_keys:
            kept = ref_key == ref_keys[-1] or is_keyframe(row.bytes, column, ref_key)
            assert stored[row, column, ref_key] == ("msgpack+zlib" if kept else "msgpack+delta")

    assert max(steps(after, key) for key in after) == 2
    assert total.cells == list(stored.values()).count("msgpack+delta") > 100
    assert whole - total.reclaimed_bytes == sum(len(cell.body) for cell in after.values()) < whole / 2
    assert {key: (c.added_id, c.created_at) for key, c in before.items()} == {
        key: (c.added_id, c.created_at) for key, c in after.items()
    }
    assert_readable(fresh_store, rows)
    assert migrate.run(migrate_store, HISTORY).total().cells == 0
    assert check(fresh_store).faults == {}


@pytest.mark.guarantee("history-exact")
def test_chains_stay_short_while_versions_are_added(fresh_store, migrate_store, new_row):
    """Migrations after every few versions leave what a single one would, for dense, sparse and random ref_keys."""
    chance = random.Random(4)
    left = {
        new_row(): list(range(1, 60)),
        new_row(): list(range(7, 8 * 400, 8)),
        new_row(): sorted(chance.sample(range(2**62), 40)),
    }
    rows = {(row, "A"): list(ref_keys) for row, ref_keys in left.items()}
    for count in (3, 1, 1, 9, 1, 20, 400):
        added = [NewCell(row, "A", n, document(row, n)) for row, ref_keys in left.items() for n in ref_keys[:count]]
        left = {row: ref_keys[count:] for row, ref_keys in left.items()}
        fresh_store.put_cells(added)
        planned = plan_migration(migrate_store, HISTORY).total
        total = migrate.run(migrate_store, HISTORY).total()
        assert (planned.cells.mid, planned.bytes_after.mid) == (total.cells, total.bytes_after)
        after = cells_of(fresh_store)
        assert max(steps(after, key) for key in after) <= 2
    assert_readable(fresh_store, rows)
    assert migrate.run(migrate_store, HISTORY).total().cells == 0
    migrate.run(migrate_store, MigrateSpec(history=False))
    migrate.run(migrate_store, HISTORY)
    assert {key: cell.body for key, cell in cells_of(fresh_store).items()} == {k: c.body for k, c in after.items()}


@pytest.mark.parametrize(
    ("to", "left"),
    [
        ("msgpack+zstd", "msgpack+delta"),
        *(pytest.param(to, None, marks=pytest.mark.long) for to in ("packed+zstd", "legacy")),
    ],
)
def test_an_ordinary_migration_keeps_deltas_of_its_serializer(fresh_store, migrate_store, rows, to, left):
    """Others become whole; and --no-history makes all of them whole."""
    migrate.run(migrate_store, HISTORY)
    migrate.run(migrate_store, MigrateSpec(to))
    assert set(formats(fresh_store).values()) == {to, left} - {None}
    assert_readable(fresh_store, rows)
    migrate.run(migrate_store, MigrateSpec(to, history=False))
    assert set(formats(fresh_store).values()) == {to}
    assert_readable(fresh_store, rows)


@pytest.mark.parametrize("to", ["msgpack+zlib", pytest.param("packed+zstd", marks=pytest.mark.long)])
def test_plan_of_a_small_datastore_matches_the_run(fresh_store, migrate_store, rows, to):
    """To deltas and back; the figures of the plan, and those recorded with the job, are exact."""

    def record(begun):
        record_plan(migrate_store, begun.job)

    for history in (True, False):
        spec = MigrateSpec(to, history=history)
        found = plan_migration(migrate_store, spec)
        ran = migrate.run(migrate_store, spec, listener=only(RunStarted, record))
        total = ran.total()
        assert [found.total.cells, found.total.bytes_before, found.total.bytes_after] == [
            Interval.of(figure) for figure in (total.cells, total.bytes_before, total.bytes_after)
        ]
        report = reclaimed_report(migrate_store, JobStore(migrate_store).job(ran.job_id), datetime.now(UTC))
        assert {each.what: each.off for each in report.predictions}["body bytes after"] == 0
        if history:
            stored = formats(fresh_store)
            deltas = Counter(key.column_name for key, form in stored.items() if form.endswith("delta"))
            assert {name: each.deltas.cells.mid for name, each in found.superseded.items()} == deltas
            assert found.all_superseded.versions.mid == pytest.approx(len(stored) / len(rows))
            assert found.all_superseded.cells == Interval.of(len(stored) - len(rows))
            assert plan_migration(migrate_store, spec).columns == {}


@pytest.mark.long
def test_advice_tells_what_history_brings(fresh_store, migrate_store, rows):
    """The shares of superseded versions now and as deltas are those before and after the run."""
    migrate.run(migrate_store)
    advice = {each.column_name: each.history for each in advise(fresh_store)}
    before = {key: len(cell.body) for key, cell in cells_of(fresh_store).items()}
    migrate.run(migrate_store, HISTORY)
    after = {key: len(cell.body) for key, cell in cells_of(fresh_store).items()}
    for column in "AB":
        superseded = [key for key in before if key.column_name == column and key.ref_key < rows[key[:2]][-1]]
        whole = sum(size for key, size in before.items() if key.column_name == column)
        assert advice[column].now == Interval.of(sum(before[key] for key in superseded) / whole)
        assert advice[column].as_deltas == Interval.of(sum(after[key] for key in superseded) / whole)


@pytest.mark.long
def test_plan_of_a_sample_of_versions(fresh_store, migrate_store):
    """The result is in the interval, twice as wide, and within 10 % of the prediction, of rows that never change."""
    chance = random.Random(3)
    versions = [chance.randrange(1, 100) for _ in range(60)]
    for count in versions:
        text = "".join(chance.choices("abcdefgh ", k=chance.randrange(200, 2_000)))
        row = uuid.UUID(bytes=chance.randbytes(16))
        fresh_store.put_cells(
            [NewCell(row, "A", n, {"text": text, "n": n, "at": chance.random()}) for n in range(count)]
        )
    bounds = Bounds(windows=60, window_rows=10, whole_rows=100)
    found = plan_migration(migrate_store, HISTORY, seed=5, bounds=bounds)
    total = migrate.run(migrate_store, HISTORY).total()

    assert found.sample.rows < 1_000
    per_row = found.all_superseded.versions
    assert per_row.high < 2 * per_row.mid
    for predicted, actual in (
        (per_row, sum(versions) / len(versions)),
        (found.total.cells, total.cells),
        (found.total.bytes_before, total.bytes_before),
        (found.total.bytes_after, total.bytes_after),
    ):
        assert 2 * predicted.low - predicted.mid <= actual <= 2 * predicted.high - predicted.mid
        assert predicted.mid == pytest.approx(actual, rel=0.1)
        assert predicted.low < predicted.mid


def test_whole_bodies_that_do_not_compress(fresh_store, migrate_store, new_row):
    """They are in a fallback of the codec, and --no-history makes deltas whole nonetheless."""
    row, text = new_row(), "".join(random.Random(1).choices(string.ascii_letters, k=80))
    fresh_store.put_cells([NewCell(row, "A", n, [n, text]) for n in range(8)])
    assert set(formats(fresh_store).values()) == {"msgpack+none"}
    migrate.run(migrate_store, HISTORY)
    assert "msgpack+delta" in formats(fresh_store).values()
    spec = MigrateSpec(history=False)
    planned = plan_migration(migrate_store, spec).total
    total = migrate.run(migrate_store, spec).total()
    assert set(formats(fresh_store).values()) == {"msgpack+none"}
    assert (planned.cells.mid, planned.bytes_after.mid) == (total.cells, total.bytes_after)


def test_history_of_some_columns_and_from_text_at_once(fresh_store, migrate_store, rows):
    """Legacy bodies become deltas in one pass; other columns are left alone."""
    migrate.run(migrate_store, MigrateSpec("packed+zstd", columns=("A",), history=True))
    stored = formats(fresh_store)
    assert {form for key, form in stored.items() if key.column_name == "A"} == {"packed+zstd", "packed+delta"}
    assert {form for key, form in stored.items() if key.column_name == "B"} == {"legacy", "msgpack+zlib"}
    assert_readable(fresh_store, rows)
    with pytest.raises(InvalidInput, match="has no deltas"):
        MigrateSpec("json+zlib", history=True)


def test_the_setting_of_a_column_applies_to_every_migration(admin_url, fresh_store, migrate_store, rows):
    """As it was when the job began; and a codec without deltas is refused."""
    with schemaless.connect(admin_url) as admin:
        replicas = internals_of(admin).dictionary_replicas
        with pytest.raises(InvalidInput, match="has no deltas"):
            set_column(replicas, ColumnSetting("A", "json+zlib", history=True))
        set_column(replicas, ColumnSetting("A", "msgpack+zlib", history=True))

    planned = plan_migration(migrate_store)
    total = migrate.run(migrate_store).total()
    stored = formats(fresh_store)
    assert {form for key, form in stored.items() if key.column_name == "A"} == {"msgpack+zlib", "msgpack+delta"}
    assert list(planned.superseded) == ["A"]
    assert (planned.total.cells.mid, planned.total.bytes_after.mid) == (total.cells, total.bytes_after)
    assert {form for key, form in stored.items() if key.column_name == "B"} == {"msgpack+zlib"}
    assert_readable(fresh_store, rows)
    assert migrate.run(migrate_store).total().cells == 0
    assert migrate.run(migrate_store, MigrateSpec("json+zlib", columns=("A",))).total().cells > 40


@pytest.mark.parametrize("to", ["deltas", "whole"])
def test_a_restore_gives_back_every_first_byte(fresh_store, migrate_store, rows, tmp_path, to):
    """The archive has originals that depend on nothing."""
    if to == "whole":
        migrate.run(migrate_store, HISTORY)
    before = cells_of(fresh_store)
    spec = HISTORY if to == "deltas" else MigrateSpec("packed+zstd", history=False)
    spec = MigrateSpec(spec.to, history=spec.history, archive=str(tmp_path))
    job = migrate.run(migrate_store, spec).job_id
    assert_readable(fresh_store, rows)
    archive = archive_of(migrate_store, JobStore(migrate_store).job(job))
    verified = verify(migrate_store, options=VerifyOptions(spec, archive=archive))
    assert (verified.archived > 100, verified.faults) == (True, {})
    restore(migrate_store, RestoreSpec((str(tmp_path),), job=job))

    assert_readable(fresh_store, rows)
    after = cells_of(fresh_store)
    for key, cell in before.items():
        if describe_body(cell.body).name != "msgpack+delta":
            assert after[key].body == cell.body
    assert check(fresh_store).faults == {}


def test_copies_are_whole(fresh_store, migrate_store, rows, new_name, admin_urls, accounts):
    """Stored cells that are written elsewhere depend on nothing; without their bases, deltas are refused."""
    migrate.run(migrate_store, HISTORY)
    cells = list(cells_of(fresh_store).values())
    with schemaless.connect(accounts.create(new_name, 2)) as other:
        fields = [NewStoredCell(*cell.key, cell.body, cell.created_at) for cell in cells]
        with pytest.raises(BaseMissing):
            other.put_stored_cells([replace(fields[0], body=bytes(next(c.body for c in cells if is_delta(c.body))))])
        other.put_stored_cells(fields, trusted=True)
        assert "msgpack+delta" not in formats(other).values()
        assert_readable(other, rows)


@pytest.mark.parametrize("stored", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_dump_is_loaded_elsewhere(fresh_store, migrate_store, rows, new_name, accounts, stored):
    """Every document is there, whole, whether the dump has documents or stored bytes."""
    migrate.run(migrate_store, HISTORY)
    lines = [dump_line(cell, stored=stored) for cell in cells_of(fresh_store).values()]
    with schemaless.connect(accounts.create(new_name, 2)) as other:
        assert load(other, lines, dump_reader(None, codec_for=other.codec_for), source="x").created == len(lines)
        assert set(formats(other).values()) == {"msgpack+zlib"}
        assert_readable(other, rows)


@pytest.mark.twice
@pytest.mark.guarantee("history-erasure")
def test_differences_are_written_while_no_erasure_is(fresh_store, migrate_store, by_hand, row):
    """An UPDATE with differences waits for the lock of the log, so that an eraser finds them or they find it."""
    shard, shards = fresh_store.shard_of(row), by_hand(fresh_store)
    shards.execute(shard, insert_lock_row(shards.database(shard)))
    with schemaless.connect(str(internals_of(migrate_store).url), pool_size=1) as single:
        updates = BodyUpdates(internals_of(single).shards, shard, full_row_images=True, has_bases=True)
        updates.shards.execute(shard, b"SET SESSION innodb_lock_wait_timeout=1")
        with shards.pool_for(shards.node_of(shard)).connection() as eraser, eraser.transaction():
            eraser.rows(lock_log(shards.database(shard)))
            with pytest.raises(ServerTimeout):
                updates.send(b"DO 0", [(row.bytes, "BASE", 1)])
        assert updates.send(b"DO 0", [(row.bytes, "BASE", 1)]) == (0, False)


@pytest.mark.guarantee("history-erasure")
def test_a_replay_after_a_restore_erases_bases_again(accounts, fresh_url, fresh_store, migrate_store, rows):
    """The restored tables have the erased versions, and those that depend on them as deltas; the ledger is newer."""
    migrate.run(migrate_store, HISTORY)
    before = cells_of(fresh_store)
    bases = {(*key[:2], base_of(cell.body)) for key, cell in before.items() if is_delta(cell.body)}
    with schemaless.connect(accounts.root(fresh_url)) as root:
        for base in bases:
            root.erase(*base, reason="test")
        shards = internals_of(root).shards
        for cell in before.values():
            table, shard = f"`{shards.database(root.shard_of(cell.row_key))}`", root.shard_of(cell.row_key)
            restored = f"UPDATE {table}.cell SET body=x'{cell.body.hex()}' WHERE added_id={cell.added_id}"
            shards.execute(shard, restored.encode())
            shards.execute(shard, f"DELETE FROM {table}.erased_cell WHERE event_id>0".encode())
        assert_readable(root, rows)
        found = undone(root)
        assert sum(each.cells.total() for each in found) == len(bases) > 10
        replay(root, found, Thresholds())
        assert undone(root) == []
    assert_readable(fresh_store, rows, bases)
    assert check(fresh_store).faults == {}


@pytest.mark.twice
@pytest.mark.guarantee("history-erasure")
def test_erasures_beside_migrations_lose_no_other_version(fresh_store, migrate_store, erase_store, rows):
    """While versions become deltas and whole again, single versions are erased; no other one becomes unreadable."""
    chance = random.Random(2)
    victims = chance.sample([(*pair, n) for pair, ref_keys in rows.items() for n in ref_keys], 60)
    done = threading.Event()
    failed = []

    def migrations():
        try:
            while not done.is_set():
                migrate.run(migrate_store, HISTORY)
                migrate.run(migrate_store, MigrateSpec(history=False))
            migrate.run(migrate_store, HISTORY)
        except Exception as error:  # noqa: BLE001 - the test's own thread reports it
            failed.append(error)

    thread = threading.Thread(target=migrations)
    thread.start()
    try:
        for row, column, ref_key in victims:
            erase_store.erase(row, column, ref_key, reason="test")
    finally:
        done.set()
        thread.join()

    assert failed == []
    assert_readable(fresh_store, rows, set(victims))
    assert check(fresh_store).faults == {}


class Died(BaseException):
    """Ends a call as a kill would."""


@pytest.mark.twice
@pytest.mark.guarantee("history-exact", "history-erasure")
@pytest.mark.parametrize(
    "deaths", [(20, 35, 50), *(pytest.param(range(first, 150, 7), marks=pytest.mark.long) for first in range(1, 8))]
)
def test_deaths_at_any_statement_lose_nothing(fresh_store, migrate_store, erase_store, rows, monkeypatch, deaths):
    """Migrations there and back and erasures die, each at a later statement, and are completed by their successors."""
    remaining = [-1]
    victims = sorted((*pair, ref_keys[len(ref_keys) // 2]) for pair, ref_keys in rows.items())
    job_store = JobStore(migrate_store)

    def dying(method):
        def call(connection, *arguments):
            remaining[0] -= 1
            if remaining[0] == 0:
                raise Died
            return method(connection, *arguments)

        return call

    monkeypatch.setattr(driver, "STOP_TIMEOUT_S", 0)  # a runner that died releases no shard
    monkeypatch.setattr(Connection, "rows", dying(Connection.rows))
    monkeypatch.setattr(Connection, "execute", dying(Connection.execute))
    calls = [
        lambda number: migrate.run(migrate_store, HISTORY),
        lambda number: erase_store.erase(*victims[number % len(victims)], reason="test"),
        lambda number: migrate.run(migrate_store, MigrateSpec("packed+zstd", history=number % 2 == 0)),
    ]
    for number, at in enumerate(deaths):
        call = calls[number % 3]
        remaining[0] = at
        with suppress(Died):
            call(number)
        remaining[0] = -1
        for job in job_store.jobs("migrate"):  # as if the leases had expired
            job_store.leases.release_dead(job.job_id, "")
        erased = victims if number else []
        for (row, column), ref_keys in rows.items():
            found = {cell.ref_key: cell.body for cell in fresh_store.get_versions(row, column)}
            assert all(body == document(row, ref_key) for ref_key, body in found.items())
            assert found.keys() >= {n for n in ref_keys if (row, column, n) not in erased}
        call(number)
    assert check(fresh_store).faults == {}


@pytest.mark.long
@pytest.mark.guarantee("history-exact")
@pytest.mark.parametrize("dask", [None, "local"])
def test_processes_and_dask_make_the_same_deltas(fresh_store, migrate_store, rows, dask):
    """As one thread makes; the check by processes reads them, too."""
    if dask is not None:
        pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    migrate.run(migrate_store, HISTORY)
    expected = {key: cell.body for key, cell in cells_of(fresh_store).items()}
    migrate.run(migrate_store, MigrateSpec(history=False))
    migrate.run(migrate_store, HISTORY, count=2, dask=dask)

    assert {key: cell.body for key, cell in cells_of(fresh_store).items()} == expected
    assert_readable(fresh_store, rows)
    with workers(2, dask) as hands:
        assert check(fresh_store, workers=hands) == check(fresh_store)


@pytest.mark.guarantee("history-erasure")
def test_a_held_row_keeps_its_bases(fresh_store, migrate_store, erase_store, admin_url, rows):
    """An erasure of a base in a row under a legal hold is refused, and changes nothing; one of another row is not."""
    migrate.run(migrate_store, HISTORY)
    before = {key: bytes(cell.body) for key, cell in cells_of(fresh_store).items()}
    held, other = sorted(pair for pair, ref_keys in rows.items() if len(ref_keys) > 20)[:2]
    with schemaless.connect(admin_url) as admin:
        internals_of(admin).erasures.ledger.holds.hold([held[0]], "court", "case")
    with pytest.raises(RowHeld):
        erase_store.erase(*held, rows[held][5], reason="test")
    assert {key: bytes(cell.body) for key, cell in cells_of(fresh_store).items()} == before
    erase_store.erase(*other, rows[other][5], reason="test")
    assert_readable(fresh_store, rows, {(*other, rows[other][5])})
