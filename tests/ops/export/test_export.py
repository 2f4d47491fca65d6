"""Exports contain each cell once, with its exact document, although processes are killed."""

from __future__ import annotations

import errno
import json
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from schemaless import InvalidInput, NewCell, NewStoredCell, connect
from schemaless.codec.documents import identical
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named, codec_names
from schemaless.errors import ExportFailed
from schemaless.ops.erasure.receipt import receipt
from schemaless.ops.export.admin import caught_up, export_status, export_supervisor, file_names, prepare, remove
from schemaless.ops.export.compact import compact
from schemaless.ops.export.exporter import Pace, ShardExport
from schemaless.ops.export.manifest import Definition, read_definition, read_shard
from schemaless.ops.migrate.run import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.cold.targets import LocalTarget, ObjectTarget, open_target
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.states import DIED, QUARANTINED, STOPPED
from schemaless.store.followers.status import shard_statuses
from schemaless.store.internals import internals_of
from schemaless.ui.pages.erasure_page import erasure_page
from tests.ops.admin.ndjson import LINES
from tests.ops.export.conftest import ONCE, rows_of
from tests.store.arrow.random_documents import random_document
from tests.store.followers.workers import turn

pytestmark = [pytest.mark.mysql, pytest.mark.myrocks]


@pytest.mark.guarantee("export-exact")
def test_export_has_every_cell_once_with_its_exact_document(fresh_store, fresh_url, new_row, export, tmp_path):
    """3,000 random documents and awkward texts in every codec, read back by DuckDB and by pyarrow."""
    chance = random.Random(33)
    cells = [
        NewCell(new_row(), chance.choice(["BASE", "LOG"]), chance.randrange(9), random_document(chance))
        for _ in range(3_000)
    ]
    with connect(fresh_url, allow_nan=True) as lenient:
        lenient.put_cells(cells)
    texts = [(new_row(), ref_key, name, text) for text in LINES for ref_key, name in enumerate(codec_names())]
    fresh_store.put_stored_cells(
        [NewStoredCell(row, "RAW", ref_key, recode(text, codec_named(name)).body) for row, ref_key, name, text in texts]
    )

    export(fields=("n=BASE.a:int",))

    folder = tmp_path / "lake" / "cells"
    by_duckdb = {(row["row_key"], row["column_name"], row["ref_key"]): row["body"] for row in rows_of(folder)}
    tables = [pq.read_table(path, partitioning=None) for path in folder.glob("*/*.parquet")]
    rows = [row for table in tables for row in table.to_pylist()]
    by_pyarrow = {(row["row_key"], row["column_name"], row["ref_key"]): row["body"] for row in rows}
    assert by_duckdb == by_pyarrow
    assert len(rows) == len(by_pyarrow) == len(cells) + len(texts)
    for cell in cells:
        assert identical(json.loads(by_duckdb[str(cell.row_key), cell.column_name, cell.ref_key]), cell.body)
    for row, ref_key, _, text in texts:
        assert identical(json.loads(by_duckdb[str(row), "RAW", ref_key]), json.loads(text))


@pytest.mark.guarantee("export-once")
def test_a_later_run_exports_new_cells_only(put, export, follow_store, tmp_path):
    """Files that exist are not touched, and the ranges of a shard's files follow one another."""
    first = put(40)
    export()
    names = {path: path.stat().st_mtime_ns for path in (tmp_path / "lake" / "cells").glob("*/*.parquet")}
    second = put(40)
    export("w2")
    export("w3")

    found = [(row["shard"], row["added_id"]) for row in rows_of(tmp_path / "lake" / "cells", "shard, added_id")]
    assert sorted(found) == sorted(first | second)
    assert all(path.stat().st_mtime_ns == written for path, written in names.items())
    target = open_target(str(tmp_path / "lake"))
    for shard in range(follow_store.shard_count):
        files = read_shard(target, shard).files
        assert [file.after for file in files] == [0, *(file.up_to for file in files[:-1])]
        assert len(files) == 2


def test_typed_columns_are_exact_and_nulls_are_counted(fresh_store, new_row, export, follow_store, tmp_path):
    """The status has the counts of all files."""
    values = [1.5, 7, 2**53 + 1, "x", None]
    fresh_store.put_cells([NewCell(new_row(), "BASE", 1, {"fare": {"total": value}}) for value in values])
    fresh_store.put_cell(new_row(), "BASE", 1, {})
    texts = [b'{"fare":{"total":%b}}' % value for value in (b"1e400", b"-1e400", b"NaN", b"-Infinity")]
    bodies = [recode(text, codec_named(name)).body for text in texts for name in ("json+none", "msgpack+zlib")]
    fresh_store.put_stored_cells([NewStoredCell(new_row(), "BASE", 1, body) for body in bodies])
    export(columns=("BASE",), fields=("fare.total:float",))

    found = [row["total"] for row in rows_of(tmp_path / "lake" / "cells", "total")]
    assert sorted(value for value in found if value is not None) == [1.5, 7.0]
    expected = {"not finite": 8, "inexact": 1, "wrong type": 1, "null": 1, "missing": 1}
    assert export_status(follow_store, "parquet").nulls == {"total": expected}


def test_fields_can_be_added_and_nothing_else_changed(put, export, follow_store, tmp_path):
    """Older files lack the column, and readers that unite files by name see nulls."""
    put(8, body={"a": 1})
    export(columns=("BASE",))
    put(8, body={"a": 2})
    export("w2", fields=("a:int",))

    assert sorted(str(row["a"]) for row in rows_of(tmp_path / "lake" / "cells", "a")) == ["2"] * 8 + ["None"] * 8
    uri = str(tmp_path / "lake")
    for columns, fields, name in (
        (("LOG",), (), "parquet"),
        (("BASE",), ("a:text",), "parquet"),
        (("BASE",), (), "other"),
    ):
        with pytest.raises(InvalidInput):
            prepare(follow_store, uri, Definition(name, follow_store.name, follow_store.shard_count, columns, fields))
    with pytest.raises(InvalidInput, match="writes to"):
        prepare(
            follow_store,
            str(tmp_path / "elsewhere"),
            Definition("parquet", follow_store.name, follow_store.shard_count, None, ()),
        )


def test_small_files_wait_for_more_cells_or_their_age(put, export, tmp_path, fresh_store, follow_store, new_row):
    """With --follow, a file is written once there is enough for one, or its first cell has waited for long enough.

    When cells are said to have been created does not matter. The wait does not begin again with each exporter.
    """
    rows = {fresh_store.shard_of(row): row for row in (new_row() for _ in range(200))}
    times = [datetime(2010, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC), None, datetime(2010, 1, 1, tzinfo=UTC)]
    fresh_store.put_cells([NewCell(rows[shard], "BASE", 1, {}, at) for shard, at in enumerate(times)])
    put(20)
    patient = Pace(min_bytes=1 << 20, max_age_s=3_600)
    waiting = export(pace=patient, times=2)
    assert not list((tmp_path / "lake").glob("cells/*/*"))
    assert {lease.wait.reason for lease in waiting.leases.held.values()} <= {"collecting cells for a file", ""}
    shards = internals_of(follow_store).shards
    for shard in range(3):
        database = shards.database(shard).encode()
        shards.execute(shard, b"UPDATE `%b`.follower SET moved_at=moved_at - INTERVAL 2 HOUR" % database)
    export("w2", pace=patient)
    assert {row["shard"] for row in rows_of(tmp_path / "lake" / "cells", "shard")} == {0, 1}
    export("w3", pace=Pace(min_bytes=1 << 20, max_age_s=0))
    assert len(rows_of(tmp_path / "lake" / "cells", "added_id")) == 24


def test_a_large_shard_is_exported_in_several_files(put, export, tmp_path):
    """Each file has about the given size at most."""
    cells = put(4_000, body={"text": "x" * 500})
    export(pace=Pace(file_bytes=100_000, once=True), times=8)
    paths = list((tmp_path / "lake" / "cells").glob("*/*.parquet"))
    found = [(row["shard"], row["added_id"]) for row in rows_of(tmp_path / "lake" / "cells", "shard, added_id")]
    assert sorted(found) == sorted(cells)
    assert len(paths) > 4


def test_the_same_cells_give_the_same_bytes(put, export, follow_store, tmp_path):
    """Into two targets, with pages of other sizes."""
    put(400, body={"text": "x" * 5_000})
    export()
    internals_of(follow_store).changes._sizes.clear()
    remove(follow_store, "parquet")
    export("w2", uri=str(tmp_path / "other"))
    target, other = open_target(str(tmp_path / "lake")), open_target(str(tmp_path / "other"))
    definition = Definition("parquet", follow_store.name, follow_store.shard_count, None, ())
    names = file_names(target, definition)
    assert names == file_names(other, definition)
    assert [target.read(name) for name in names] == [other.read(name) for name in names]


def test_versions_stored_as_differences_give_the_same_bytes(
    fresh_store, new_row, migrate_store, export, follow_store, tmp_path
):
    """An export before a migration with history and one after it are equal."""
    versions = [NewCell(new_row(), "BASE", n, {"text": "x" * 900, "n": n}) for n in range(3)]
    fresh_store.put_cells([replace(each, ref_key=n) for each in versions for n in range(40)])
    export()
    remove(follow_store, "parquet")
    assert migrate(migrate_store, MigrateSpec(history=True)).total().cells > 100
    export("w2", uri=str(tmp_path / "other"))
    other, lake = (rows_of(tmp_path / name / "cells") for name in ("other", "lake"))
    assert (len(lake), other) == (120, lake)


def test_latest_has_the_highest_version_of_each_row_and_column(fresh_store, new_row, export, tmp_path):
    """Also when the highest version was written first, over several runs."""
    rows = [new_row() for _ in range(20)]
    fresh_store.put_cells([NewCell(row, "BASE", 5, {"v": 5}) for row in rows])
    fresh_store.put_cells([NewCell(row, "LOG", 1, {"v": 1}) for row in rows])
    export(latest=True)
    fresh_store.put_cells([NewCell(row, "BASE", 3, {"v": 3}) for row in rows])
    fresh_store.put_cells([NewCell(row, "LOG", 2, {"v": 2}) for row in rows[:10]])
    export("w2", latest=True)

    found = {(row["row_key"], row["column_name"]): row["body"] for row in rows_of(tmp_path / "lake" / "latest")}
    expected = {(str(row), "BASE"): '{"v":5}' for row in rows} | {
        (str(row), "LOG"): '{"v":2}' if row in rows[:10] else '{"v":1}' for row in rows
    }
    assert found == expected
    assert len(rows_of(tmp_path / "lake" / "latest")) == 40


@pytest.mark.guarantee("export-erased")
def test_erased_documents_leave_the_files(fresh_store, new_row, export, follow_store, erase_store, tmp_path):
    """Files are rewritten under their names, by the next run too if no exporter ran; the erasure is acknowledged."""
    rows = [new_row() for _ in range(40)]
    fresh_store.put_cells([NewCell(row, "BASE", 1, {"secret": f"secret of {row}", "n": 5}) for row in rows])
    export(latest=True, columns=("BASE",), fields=("n:int", "secret:text"))
    before = {path.name for path in (tmp_path / "lake").glob("cells/*/*")}
    numbers = [erase_store.erase(rows[0], reason="ticket-1").number]
    numbers.append(erase_store.erase(rows[1], "BASE", reason="ticket-1").number)
    fresh_store.put_cell(rows[2], "BASE", 2, {"v": 2})
    pending = receipt(erase_store, numbers[0])
    export("w2", latest=True)

    for folder, count in (("cells", 41), ("latest", 40)):
        found = rows_of(tmp_path / "lake" / folder)
        assert len(found) == count
        erased = [row for row in found if row["body"] is None]
        assert {row["row_key"] for row in erased} == {str(rows[0]), str(rows[1])}
        assert {(row["n"], row["secret"]) for row in erased} == {(None, None)}
    content = [pq.read_table(path, partitioning=None) for path in (tmp_path / "lake").rglob("*.parquet")]
    texts = [text for table in content for name in ("body", "secret") for text in table[name].to_pylist()]
    assert [sum(str(row) in str(text) for text in texts) for row in (rows[0], rows[1], rows[3])] == [0, 0, 4]
    assert before <= {path.name for path in (tmp_path / "lake").glob("cells/*/*")}
    looked = FollowerRows(internals_of(follow_store).shards).look(("export:parquet", shard) for shard in range(4))
    assert all(row.erased_event == row.last_event for row in looked.rows.values())
    assert sum(row.last_event for row in looked.rows.values()) == 2
    target = open_target(str(tmp_path / "lake"))
    files = [file for shard in range(4) for file in read_shard(target, shard).files]
    assert sum(file.rows for file in files) == 41
    assert sum((Counter(file.erased) for file in files), Counter()) == {str(number): 1 for number in numbers}
    nulls = export_status(follow_store, "parquet").nulls
    assert nulls == {"n": {"erased": 2, "missing": 1}, "secret": {"erased": 2, "missing": 1}}

    shard = fresh_store.shard_of(rows[0])
    names = [f"cells/{shard:04d}/{read_shard(target, shard).files[0].name}", f"latest/{shard:04d}/latest.parquet"]
    issued = receipt(erase_store, numbers[0])
    assert pending["exports"][0]["files"] == [{"name": name, "documents": 0, "state": "pending"} for name in names]
    assert issued["exports"] == [
        {
            "name": "parquet",
            "uri": str(tmp_path / "lake"),
            "files": [{"name": name, "documents": 1, "state": "rewritten"} for name in names],
            "problem": None,
        }
    ]
    page = erasure_page(issued)
    assert all(name in page for name in names)
    assert page.index("What remains") < page.index("their owner deletes them") < page.index("What is gone")
    (tmp_path / "lake" / names[1]).unlink()
    assert [file["state"] for file in receipt(erase_store, numbers[0])["exports"][0]["files"]] == [
        "rewritten",
        "missing",
    ]
    (tmp_path / "lake" / "manifest.json").unlink()
    assert "there is no manifest" in json.dumps(receipt(erase_store, numbers[0])["remains"])


@pytest.mark.guarantee("export-erased")
def test_an_erased_version_makes_no_older_one_the_latest(fresh_store, row, export, erase_store, tmp_path):
    """Neither if the file of latest versions is written after the erasure, nor if an older version is put later."""
    for version in (2, 4):
        fresh_store.put_cell(row, "BASE", version, {"v": version})
    export()
    erase_store.erase(row, "BASE", 4, reason="ticket-1")
    export("w2")
    export("w3", latest=True)
    latest = tmp_path / "lake" / "latest"

    def versions() -> list[tuple[int, str | None]]:
        return [(each["ref_key"], each["body"]) for each in rows_of(latest)]

    assert versions() == [(4, None)]
    fresh_store.put_cell(row, "BASE", 3, {"v": 3})
    export("w4", latest=True)
    assert versions() == [(4, None)]
    assert fresh_store.get_cell_latest(row, "BASE") is None
    fresh_store.put_cell(row, "BASE", 5, {"v": 5})
    export("w5", latest=True)
    assert versions() == [(5, '{"v":5}')]


def test_compact_merges_files_and_loses_no_row(put, export, follow_store, tmp_path):
    """Also of exports with a field that was added, and while an exporter continues afterwards."""
    cells = put(40, body={"a": 1})
    export(columns=("BASE",))
    cells |= put(40, body={"a": 2})
    export("w2", fields=("a:int",))
    target = open_target(str(tmp_path / "lake"))

    done = compact(target, 1 << 20, range(4))
    again = compact(target, 1 << 20, range(4))
    cells |= put(40, body={"a": 3})
    export("w3")

    assert (done.files_before, done.files_after, again.files_after, done.busy) == (8, 4, 4, [])
    found = rows_of(tmp_path / "lake" / "cells", "shard, added_id, a")
    assert sorted((row["shard"], row["added_id"]) for row in found) == sorted(cells)
    assert Counter(row["a"] for row in found) == {None: 40, 2: 40, 3: 40}


class Filling(LocalTarget):
    """A folder whose disk has what the test says."""

    free = 0

    def free_bytes(self) -> int:
        """Return what the test says."""
        return self.free


def test_compact_waits_for_free_space(put, export, tmp_path, monkeypatch, caplog):
    """No file is merged before the disk has the minimum again; the reason is logged once."""
    put(40)
    export()
    put(40)
    export("w2")
    target = Filling(tmp_path / "lake")
    files, pauses = file_names(target, read_definition(target)), []

    def pause(seconds: float) -> None:
        assert file_names(target, read_definition(target)) == files
        pauses.append(seconds)
        target.free = 10**9 * (len(pauses) > 1)

    monkeypatch.setattr("schemaless.ops.export.compact.time", Mock(sleep=pause))
    done = compact(target, 1 << 20, range(4), min_free_bytes=10**9)

    assert (done.files_before, done.files_after, len(pauses)) == (8, 4, 2)
    (waits,) = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    assert "has 0 MB free (limit 1,000 MB)" in waits


def test_an_object_store_has_the_same_rows(put, export, follow_store, tmp_path):
    """Without renames: the manifest says which objects count, also after compact."""
    cells = put(40)
    filesystem = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    bucket = ObjectTarget(filesystem, "bucket", "s3://bucket")
    definition = Definition("parquet", follow_store.name, follow_store.shard_count, None, ())
    internals = internals_of(follow_store)
    for pace in (Pace(file_bytes=20, once=True), ONCE):
        for shard in range(4):
            part = ShardExport(internals, bucket, definition, pace, shard)
            part.recover(lambda: None)
            while not part.write_next(lambda: None)[1]:
                pass
        cells |= put(8)
    for shard in range(4):
        part = ShardExport(internals, bucket, definition, ONCE, shard)
        part.write_next(lambda: None)
    compact(bucket, 1 << 20, range(4))

    tables = [pq.read_table(bucket.open_input(name)) for name in file_names(bucket, definition)]
    found = [(row["shard"], row["added_id"]) for table in tables for row in table.to_pylist()]
    assert sorted(found) == sorted(cells)
    assert len(tables) == 4


def test_an_export_waits_while_its_target_is_away(put, worker_of, follow_store, tmp_path):
    """The shards say why, nothing is written beside the target, and the export continues once it is back."""
    cells = put(40)
    lake, away = tmp_path / "lake", tmp_path / "away"
    worker = worker_of(Pace(min_bytes=0, max_age_s=0), latest=True)

    def turns(times: int) -> None:
        for _ in range(times):
            for lease in worker.leases.held.values():
                lease.defer(0, "")
            turn(worker)

    with worker.membership:
        turns(2)
        lake.rename(away)
        cells |= put(40)
        turns(3)
        waiting = list(shard_statuses(internals_of(follow_store).follower_access, "export:parquet", ""))
        assert {shard.state for shard in waiting} == {"waiting"}
        assert all("is the folder mounted?" in str(shard.cause) for shard in waiting)
        with pytest.raises(InvalidInput, match="run 'schemaless export remove parquet --execute' before"):
            worker_of()
        assert not lake.exists()
        away.rename(lake)
        turns(2)

    found = [(row["shard"], row["added_id"]) for row in rows_of(lake / "cells", "shard, added_id")]
    assert sorted(found) == sorted(cells)
    assert not export_status(follow_store, "parquet").has_faults


def test_an_export_waits_for_disk_space(put, worker_of, tmp_path, caplog):
    """No file is written while the disk has less than min_free_bytes; the reason is shown, and logged once."""
    cells = put(40)
    worker = worker_of(Pace(min_bytes=0, max_age_s=0, min_free_bytes=10**18))
    with worker.membership:
        turn(worker)
        reasons = {lease.wait.reason for lease in worker.leases.held.values()}
        assert not [*(tmp_path / "lake").glob("cells/*/*.parquet")]
    worker = worker_of(Pace(min_bytes=0, max_age_s=0, min_free_bytes=1), "w2")
    with worker.membership:
        turn(worker)
        turn(worker)

    waits = f"the disk of {tmp_path / 'lake'} has "
    assert all(reason.startswith(waits) for reason in reasons - {""})
    assert len([record for record in caplog.messages if f"export:parquet: waits, because {waits}" in record]) == 1
    assert len(rows_of(tmp_path / "lake" / "cells", "added_id")) == len(cells)


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_lost_and_damaged_files_are_written_again(
    fresh_store, new_row, export, follow_store, erase_store, tmp_path, damage
):
    """A missing file by the next run; a damaged one once it is deleted, also if an erasure concerns it."""
    rows = [new_row() for _ in range(40)]
    fresh_store.put_cells([NewCell(row, "BASE", 1, {"secret": f"secret of {row}"}) for row in rows])
    export(latest=True)
    shard = fresh_store.shard_of(rows[0])
    concerned = [*(tmp_path / "lake").glob(f"*/{shard:04d}/*.parquet")]
    assert len(concerned) == 2
    erase_store.erase(rows[0], reason="ticket-1")
    if damage == "truncated":
        for path in concerned:
            path.write_bytes(path.read_bytes()[:-20])
        export("w2", latest=True)
        (status,) = [each for each in export_status(follow_store, "parquet").shards if each.follower.shard == shard]
        assert status.follower.state == "stopped"
        assert "if it is damaged, delete it" in str(status.follower.cause)
    for path in concerned:
        path.unlink()
    broken = export_status(follow_store, "parquet")
    assert broken.has_faults
    assert {name for each in broken.shards for name in each.missing} == {
        str(path.relative_to(tmp_path / "lake")) for path in concerned
    }
    export("w3", latest=True)

    assert not export_status(follow_store, "parquet").has_faults
    for folder in ("cells", "latest"):
        found = rows_of(tmp_path / "lake" / folder)
        assert [row["row_key"] for row in found if row["body"] is None] == [str(rows[0])]
        assert {row["row_key"] for row in found} == set(map(str, rows))
        assert len(found) == 40
    looked = FollowerRows(internals_of(follow_store).shards).look([("export:parquet", shard)])
    assert all(row.erased_event == row.last_event == 1 for row in looked.rows.values())


def test_missing_files_are_written_again_without_new_cells(put, export, tmp_path):
    """The run has nothing else to do, and the fields are those of the export."""
    cells = put(40, body={"a": 1})
    export(columns=("BASE",), fields=("a:int",), latest=True)
    for path in (tmp_path / "lake").rglob("*.parquet"):
        path.unlink()
    export("w2", columns=("BASE",), fields=("a:int",), latest=True)

    for folder in ("cells", "latest"):
        found = rows_of(tmp_path / "lake" / folder, "shard, added_id, a")
        assert sorted((row["shard"], row["added_id"]) for row in found) == sorted(cells)
        assert {row["a"] for row in found} == {1}


@pytest.mark.parametrize(("pace", "state"), [(ONCE, STOPPED), (Pace(), QUARANTINED)], ids=["once", "follow"])
def test_a_cell_that_kills_every_worker_ends_a_run_that_is_to_end(put, worker_of, follow_store, tmp_path, pace, state):
    """After three deaths, its shard is stopped; the next run tries it again, in quarantine."""
    pair = "export:parquet", 1
    cells = put(8)
    healthy, *dying = (worker_of(pace, name) for name in ("healthy", "w1", "w2", "w3"))
    definition = Definition("parquet", follow_store.name, follow_store.shard_count, None, ())
    keeper = export_supervisor(follow_store, str(tmp_path / "lake"), definition, pace, 1)
    ended = caught_up(follow_store, definition)

    def row() -> FollowerRow:
        return healthy.context.rows.look([pair]).rows[pair]

    for worker in dying:
        with worker.membership:
            view = worker.membership.view
            assert view is not None
            worker.leases.claim(view, pair, row())
        child = Mock(box=BlackBox())
        child.name = worker.name
        assert keeper._settle(child, pair, "SIGKILL")
    assert (row().state, str(row().message).startswith(f"{DIED} (SIGKILL)")) == (state, True)
    if state == STOPPED:
        with healthy.membership:
            turn(healthy, times=4)
            healthy.release_all()
        assert ended()
        found = [(each["shard"], each["added_id"]) for each in rows_of(tmp_path / "lake" / "cells")]
        assert sorted(found) == sorted(cell for cell in cells if cell[0] != 1)
        worker_of(pace)
        assert row().state == QUARANTINED


class Full(LocalTarget):
    """A folder on a full disk."""

    def _create(self, path: Path, content: bytes) -> None:
        super()._create(path, content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_write_leaves_no_temporary_file(tmp_path):
    """It would keep a full disk full."""
    with pytest.raises(ExportFailed, match=r"cells/0000/a: .*No space left"):
        Full(tmp_path).put("cells/0000/a", b"22", "w1")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
