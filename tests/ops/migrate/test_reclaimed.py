"""The space report: sizes of bodies, files and binary logs, and their predictions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html import escape

import pytest

import schemaless
from schemaless import NewStoredCell
from schemaless.base.events import only
from schemaless.base.numbers import Interval
from schemaless.ops.erasure.job import ErasureSpec
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.jobs.job import RunStarted
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.reclaimed import reclaimed_report, record_plan
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.sampling.table_sizes import cell_table_sizes
from schemaless.store.erasures.ledger import target
from schemaless.store.internals import internals_of
from schemaless.ui.pages.reclaimed_page import reclaimed_html

pytestmark = pytest.mark.mysql

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def legacy(fresh_store, new_row):
    """A datastore of 200 legacy cells in two columns."""
    fresh_store.put_stored_cells(
        [
            NewStoredCell(
                new_row(), "AB"[n % 2], 1, json.dumps({"n": n, "text": "text " * (40 + 2_000 * (n % 2))}).encode()
            )
            for n in range(200)
        ]
    )


def files(store, by_hand) -> dict[int, int]:
    """Return the length of each shard's file."""
    found = {}
    for shard in range(4):
        database = internals_of(store).shards.database(shard)
        pool = by_hand(store).pool_for(internals_of(store).topology.cluster_of(shard).primary)
        found[shard] = cell_table_sizes(pool, [database])[database].file_bytes
    return found


@pytest.mark.innodb("a compaction needs SUPER, and the files of a small datastore in MyRocks are empty until then")
def test_report_tells_bodies_files_and_binary_log_apart(fresh_store, legacy, migrate_store, move_url, by_hand):
    """Sizes before, after the run and after a rebuild, by cluster, shard and column, match those of the servers."""
    before = files(fresh_store, by_hand)
    job_store = JobStore(migrate_store)
    ran = migrate.run(migrate_store, listener=only(RunStarted, lambda begun: record_plan(migrate_store, begun.job)))
    after = files(fresh_store, by_hand)
    with schemaless.connect(move_url) as move_store:
        rebuild.run(move_store, shards=[0, 1, 2])
    rebuilt = files(fresh_store, by_hand)
    found = reclaimed_report(migrate_store, job_store.job(ran.job_id), NOW)

    assert [part.file.before for part in found.shards] == list(before.values())
    assert [part.file.after for part in found.shards] == list(after.values())
    assert [part.file.rebuilt for part in found.shards] == [*list(rebuilt.values())[:3], None]
    assert (found.total.shards, found.total.rebuilt_shards, found.total.measured) == (4, 3, True)
    assert found.total.file.rebuilt == sum(rebuilt.values())
    assert found.total.tally.as_json() == ran.total().as_json()
    assert {name: tally.cells for name, tally in found.columns.items()} == {"A": 100, "B": 100}
    assert [part.name for part in found.clusters] == ["cluster-1", "cluster-2"]
    assert sum(part.tally.bytes_after for part in found.clusters) == ran.total().bytes_after
    assert all(written > 1_000 for written in found.binary_log.values())
    assert found.binary_log_bytes == sum(found.binary_log.values())
    assert found.stored_before == [
        ("A", "legacy", Interval.of(100.0), Interval.of(float(found.columns["A"].bytes_before))),
        ("B", "legacy", Interval.of(100.0), Interval.of(float(found.columns["B"].bytes_before))),
    ]


@pytest.mark.long
@pytest.mark.innodb("a compaction needs SUPER, and the files of a small datastore in MyRocks are empty until then")
def test_report_compares_predictions_with_results(fresh_store, legacy, migrate_store, move_url):
    """A small datastore is read completely, so the prediction is exact."""
    ran = migrate.run(migrate_store, listener=only(RunStarted, lambda begun: record_plan(migrate_store, begun.job)))
    with schemaless.connect(move_url) as move_store:
        rebuild.run(move_store)
    found = reclaimed_report(migrate_store, JobStore(migrate_store).job(ran.job_id), NOW)
    off = {each.what: each.off for each in found.predictions}

    assert off["cells re-encoded"] == off["body bytes before"] == off["body bytes after"] == 0
    assert abs(off["files after a rebuild, predicted before the run"]) < 0.1
    assert abs(off["files after a rebuild, predicted just before it"]) < 0.1
    assert {"binary log", "growth of the files"} <= set(off) | {"growth of the files"}


@pytest.mark.innodb("a compaction needs SUPER, and the files of a small datastore in MyRocks are empty until then")
def test_report_names_other_jobs_before_the_rebuild(fresh_store, legacy, migrate_store, erase_store, move_url):
    """What an erasure freed is not the migration's; erasures after the rebuild do not matter."""
    ran = migrate.run(migrate_store)
    rows = [cell.row_key for shard in range(4) for cell in fresh_store.scan_shard(shard)]
    for number, erased in enumerate((rows[::4], rows[1::4])):
        made = internals_of(erase_store).erasures.ledger.intend("x", [target(row) for row in erased])
        run_erasure(erase_store, ErasureSpec(made))
        with schemaless.connect(move_url) as move_store:
            for shards in () if number else ([0, 1], [2]):
                rebuild.run(move_store, shards=shards)
    job_store = JobStore(migrate_store)
    found = reclaimed_report(migrate_store, job_store.job(ran.job_id), NOW)
    states = job_store.shards(2)[:3]

    (other,) = found.others
    assert (other.job_id, other.kind) == (2, "erase")
    assert other.bytes_before == sum(state.bytes_before for state in states) > other.bytes_after > 0
    assert escape(str(other)) in reclaimed_html(found)
    assert "job 2 (erasure) replaced bodies of" in str(other)


def test_report_of_a_migration_without_records(fresh_store, legacy, migrate_store):
    """A job that has not run has neither sizes nor predictions, and the report invents none."""
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    found = reclaimed_report(migrate_store, job, NOW)

    assert (found.total.tally.cells, found.total.file.before, found.total.file.last) == (0, None, None)
    assert found.binary_log_bytes is None
    assert (found.predictions, found.stored_before, found.columns) == ([], [], {})
