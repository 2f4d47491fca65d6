"""``schemaless migrate plan``: text and JSON output; nothing is changed."""

from __future__ import annotations

import pytest

from schemaless import NewCell
from schemaless.codec.deltas import is_keyframe
from schemaless.store.internals import internals_of
from tests.cli.conftest import LEGACY_CELLS

pytestmark = pytest.mark.mysql


def stored(store) -> dict:
    return {(shard, cell.added_id): cell.body for shard in range(store.shard_count) for cell in store.scan_shard(shard)}


def test_plan_prints_what_a_run_would_do(invoke, migrate_url, fresh_store, legacy):
    """Cells, bytes, bodies kept as text, run time, binary log and file sizes come before the tables."""
    before = stored(fresh_store)
    plan = invoke("migrate", "plan", url=migrate_url)

    assert stored(fresh_store) == before
    assert (plan.code, plan.err) == (0, "")
    assert plan.out.startswith(f"a run with --to msgpack+zlib would re-encode {LEGACY_CELLS} bodies: ")
    assert plan.out.index("table files now: ") < plan.out.index("stored now\n") < plan.out.index("to do\n")
    assert "1 kept as compressed JSON text: duplicate keys" in plan.out
    assert "run time with one worker, without throttling: " in plan.out
    assert "with binlog_row_image=NOBLOB" in plan.out
    assert "table files now: " in plan.out
    assert "after a rebuild: " in plan.out
    assert "estimated" not in plan.out


def test_plan_as_json_has_each_figure_with_its_interval(invoke, migrate_url, legacy):
    """An exact figure has an interval without width, and ``exact`` is true."""
    data = invoke("migrate", "plan", "--json", "--seed", 5, "--column", "B", url=migrate_url).json

    half = {"low": LEGACY_CELLS // 2, "mid": LEGACY_CELLS // 2, "high": LEGACY_CELLS // 2, "exact": True}
    assert (data["to"], data["sample"]["exact"], data["sample"]["seed"]) == ("msgpack+zlib", True, 5)
    assert data["total"]["cells"] == half
    assert [(entry["column_name"], entry["codec"], entry["cells"]) for entry in data["stored"]] == [
        ("B", "legacy", half)
    ]
    assert [column["column_name"] for column in data["columns"]] == ["B"]
    assert 0 < data["total"]["after_share"]["mid"] < 1
    assert data["binary_log_bytes"]["noblob"]["mid"] < data["binary_log_bytes"]["full"]["mid"]
    space = data["space"]
    assert space["file_bytes_measured"]
    assert 0 < space["rebuilt_after_bytes"]["mid"] <= space["rebuilt_now_bytes"]["mid"]
    assert 0 < space["largest_rebuild_bytes"] <= space["rebuilt_after_bytes"]["high"]
    assert data["run_time"]["seconds_of_one_worker"]["low"] >= 0


def test_plan_says_that_bodies_get_longer(invoke, migrate_url, fresh_store, new_row):
    """A growth is more, not a negative share less."""
    fresh_store.put_cells([NewCell(new_row(), name, 1, {"text": "word " * 100}) for name in ("A", "B")])
    shown = invoke("migrate", "plan", "--to", "legacy", url=migrate_url).out

    assert shown.splitlines()[0].endswith("% more")
    assert shown.count("% more") == 3
    assert "-" not in shown.splitlines()[0].partition(" B ")[2]


def test_plan_with_nothing_to_do_says_so(invoke, migrate_url, legacy):
    """A source codec without bodies, and a target codec that all bodies are in."""
    back = invoke("migrate", "plan", "--to", "legacy", url=migrate_url)
    none = invoke("migrate", "plan", "--from", "json+zlib", "--exact", url=migrate_url)

    assert back.code == none.code == 0
    assert back.out.startswith("nothing to do: no body is left to re-encode\n")
    assert none.out.startswith("nothing to do: no body is left to re-encode\n")


def test_plan_names_what_cannot_be_read(invoke, migrate_url, fresh_store, legacy, by_hand):
    """Counts by reason go to standard output, examples to standard error; the exit status is 0."""
    name = internals_of(fresh_store).shards.database(3).encode()
    by_hand(fresh_store).execute(3, b"UPDATE `%b`.cell SET body='{broken' ORDER BY added_id LIMIT 1" % name)
    plan = invoke("migrate", "plan", url=migrate_url)

    assert plan.code == 0
    assert "1 left as they are: UnreadableLegacy" in plan.out
    assert "  shard 3, cell (" in plan.err


def test_plan_prints_the_grant_that_makes_the_binary_log_less(invoke, fresh_url, legacy):
    """Without privileges, the plan prints the GRANT for a smaller binary log, and that file sizes are incomplete."""
    plan = invoke("migrate", "plan", url=fresh_url)

    assert plan.code == 0
    assert "may not set binlog_row_image on cluster-1, so a run there would write full row images; " in plan.err
    assert "; to allow it: GRANT " in plan.err
    assert "or more (the exact size requires the PROCESS privilege)" in plan.out


def test_plan_of_history_shows_versions(invoke, migrate_url, fresh_store, new_row):
    """In the plan, as JSON, and in the dry run of the migration."""
    row = new_row()
    fresh_store.put_cells([NewCell(row, "A", n, [n, *map(str, range(200))]) for n in range(10)])
    whole = sum(not is_keyframe(row.bytes, "A", n) for n in range(9))
    plan = invoke("migrate", "plan", "--history", url=migrate_url)
    data = invoke("migrate", "plan", "--history", "--json", url=migrate_url).json["superseded"]
    dry_run = invoke("migrate", "run", "--history", url=migrate_url)

    assert f"re-encode {whole} bodies" in plan.out
    for shown in (plan, dry_run):
        assert "versions per row and column: 10.0\nversions that have a higher one: 9, with " in shown.out
        assert f"; as differences, {whole} of them would take " in shown.out
    assert (data["versions_per_row_and_column"]["mid"], data["cells"]["mid"]) == (10, 9)
    assert data["deltas"]["cells"]["mid"] == whole
