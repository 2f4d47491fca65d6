"""plan: predicts what a migration does, with intervals if it was sampled."""

from __future__ import annotations

import json
import random

import pytest

from schemaless import NewStoredCell
from schemaless.base.numbers import Interval
from schemaless.codec.recode import recode
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.plan import plan_migration
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import update_bodies
from schemaless.planning.sampling.sampling import Bounds
from schemaless.store.internals import internals_of

pytestmark = pytest.mark.mysql

KEPT = b'{"twice": 1, "twice": 2, "text": "%b"}' % (b"text " * 40)


@pytest.fixture
def mixed(fresh_store, new_row):
    """A datastore of 400 cells: legacy in two columns, some enveloped, two kept as text."""
    legacy = [
        NewStoredCell(
            new_row(), "AB"[number % 2], 1, json.dumps({"n": number, "text": "text " * (number % 60)}).encode()
        )
        for number in range(298)
    ]
    fresh_store.put_stored_cells([*legacy, *(NewStoredCell(new_row(), "B", 1, KEPT) for _ in range(2))])
    for number in range(100):
        fresh_store.put_cell(new_row(), "A", 1, {"n": number, "text": "text " * 50}, codec="json+zlib")


def everything(store) -> dict:
    return {
        (shard, cell.added_id): (cell.key, cell.body, cell.created_at)
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


@pytest.mark.parametrize(
    ("to", "sources"),
    [
        ("msgpack+zstd", ("legacy",)),
        *(pytest.param(to, (), marks=pytest.mark.long) for to in ("msgpack+zlib", "legacy")),
    ],
)
def test_plan_of_a_small_datastore_matches_the_run(fresh_store, mixed, migrate_store, to, sources):
    """Exact counts and bytes by column; the plan changes nothing; after the run there is nothing to do."""
    before = everything(fresh_store)
    found = plan_migration(migrate_store, MigrateSpec(to, sources))
    unchanged = everything(fresh_store) == before
    report = migrate.run(migrate_store, MigrateSpec(to, sources))
    total = report.total()

    assert unchanged
    assert found.sample.exact
    assert found.cells == Interval.of(400)
    assert sum(stored.cells.mid for stored in found.stored) == 400
    assert {(stored.column_name, stored.codec) for stored in found.stored} == {
        ("A", "legacy"),
        ("B", "legacy"),
        ("A", "json+zlib"),
    }
    assert found.total.cells == Interval.of(total.cells)
    assert found.total.bytes_before == Interval.of(total.bytes_before)
    assert found.total.bytes_after == Interval.of(total.bytes_after)
    assert found.total.after_share == Interval.of(total.bytes_after / total.bytes_before)
    assert {name: change.cells.mid for name, change in found.columns.items()} == {
        name: tally.cells for name, tally in report.by_column().items() if tally.cells
    }
    assert {reason: cells.mid for reason, cells in found.kept_as_text.items()} == total.kept_as_text
    assert found.left == {}
    again = plan_migration(migrate_store, MigrateSpec(to, sources))
    assert (again.columns, again.run_time, again.binary_log) == ({}, None, None)
    assert again.total.cells == Interval.of(0)


def test_plan_of_one_column_and_some_shards_keeps_to_them(fresh_store, mixed, migrate_store):
    """Other codecs and columns are not counted."""
    whole = plan_migration(migrate_store, MigrateSpec(columns=("B",)))
    parts = [plan_migration(migrate_store, MigrateSpec(columns=("B",)), [shard]) for shard in range(4)]

    assert list(whole.columns) == ["B"]
    assert {stored.column_name for stored in whole.stored} == {"B"}
    assert whole.total.cells.mid == sum(part.total.cells.mid for part in parts) == 151
    assert all(part.shards == 1 for part in parts)


def test_plan_says_what_cannot_be_read_with_examples(fresh_store, mixed, migrate_store, by_hand):
    """Unreadable bodies are counted by reason, with examples, and in no other figure."""
    cell = next(cell for cell in fresh_store.scan_shard(2) if cell.body[:1] == b"{")
    name = internals_of(fresh_store).shards.database(2).encode()
    by_hand(fresh_store).execute(2, b"UPDATE `%b`.cell SET body='{broken' WHERE added_id=%d" % (name, cell.added_id))
    found = plan_migration(migrate_store)

    assert {reason: left.cells for reason, left in found.left.items()} == {"UnreadableLegacy": Interval.of(1)}
    assert found.left["UnreadableLegacy"].body_bytes == Interval.of(7)
    [example] = found.examples
    assert (example.shard, example.key, example.added_id) == (2, cell.key, cell.added_id)
    assert example.reason == "UnreadableLegacy"
    assert "{broken" in example.message or "JSON" in example.message
    assert found.total.cells == Interval.of(399)


def test_plan_of_a_sample_holds_the_truth_in_its_intervals(fresh_store, migrate_store, new_row):
    """The intervals of a sample contain the actual figures; an exact plan has intervals without width."""
    drawn = random.Random(3)
    cells = [
        NewStoredCell(
            new_row(),
            "AB"[number % 3 == 0],
            1,
            json.dumps([drawn.random() for _ in range(drawn.randrange(40))]).encode(),
        )
        for number in range(3_000)
    ]
    fresh_store.put_stored_cells(cells)
    bounds = Bounds(windows=80, window_rows=10, whole_rows=100)
    exact = plan_migration(migrate_store, exact=True, bounds=bounds)
    sampled = plan_migration(migrate_store, seed=7, bounds=bounds)

    assert exact.sample.exact
    assert exact.total.cells == Interval.of(3_000)
    assert not sampled.sample.exact
    assert sampled.sample.rows < 1_500
    for one, other in (
        (sampled.columns["B"].cells, exact.columns["B"].cells),
        (sampled.total.bytes_before, exact.total.bytes_before),
        (sampled.total.bytes_after, exact.total.bytes_after),
        (sampled.columns["B"].bytes_after, exact.columns["B"].bytes_after),
        (sampled.total.after_share, exact.total.after_share),
    ):
        # A single sample: allow twice the interval, since a 95 % interval misses one time in twenty.
        assert one.low - (one.mid - one.low) <= other.mid <= one.high + (one.high - one.mid)
        assert 0 < one.high - one.low < 0.3 * other.mid
    assert sampled.binary_log.full.mid > sampled.binary_log.noblob.mid > sampled.total.bytes_after.mid
    assert sampled.run_time.seconds.low < sampled.run_time.seconds.mid < sampled.run_time.seconds.high


@pytest.mark.parametrize("image", ["noblob", "full"])
def test_plan_predicts_the_binary_log(fresh_store, migrate_store, new_row, image, by_hand, servers):
    """Within 5 % of the bytes that the server writes for the UPDATEs, row events and overhead."""
    rows = [row for row in (new_row() for _ in range(900)) if fresh_store.shard_of(row) == 0]
    fresh_store.put_stored_cells(
        NewStoredCell(row, "BASE", 1, json.dumps({"n": row.int, "text": row.hex * (1 + 99 * (n % 2))}).encode())
        for n, row in enumerate(rows)
    )
    found = getattr(plan_migration(migrate_store).binary_log, image)

    def written(connection) -> int:
        return sum(int(row[1]) for row in connection.rows(b"SHOW BINARY LOGS"))

    def update(connection) -> int:
        with connection.whole():
            connection.execute(b"SET SESSION binlog_row_image=%b" % image.encode())
            if connection.is_mariadb:
                connection.execute(b"SET SESSION binlog_annotate_row_events=0")
            before = written(connection)
            cells = list(fresh_store.scan_shard(0))
            for start in range(0, len(cells), 100):
                changes = [
                    (cell.added_id, digest_of(cell.body), recode(cell.body).body) for cell in cells[start : start + 100]
                ]
                connection.execute(update_bodies(internals_of(fresh_store).shards.database(0), changes))
            connection.unfinished = True
            return written(connection) - before

    actual = by_hand(fresh_store).run(0, update)

    assert found.exact
    assert found.mid == pytest.approx(actual, rel=0.05)
