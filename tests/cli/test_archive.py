"""``schemaless migrate restore``, ``verify`` and ``finalise``: exit statuses and output."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

import schemaless
from schemaless.bench.results import this_machine
from schemaless.cell import NewStoredCell
from schemaless.codec.envelope import decode_body
from schemaless.errors import CellConflict
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.internals import internals_of
from tests.cases import each
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import TEXTS, everything, load

pytestmark = [pytest.mark.mysql, ONE_KIND]


@pytest.fixture
def before(fresh_store, new_row, migrate_url, invoke, tmp_path):
    """Migrate a datastore with an archive; return its cells before."""
    load(fresh_store, new_row)
    cells = everything(fresh_store)
    assert invoke("migrate", "run", "--execute", "--archive", tmp_path / "originals", url=migrate_url).code == 0
    return cells


def test_restore_counts_first_and_changes_only_with_execute(invoke, migrate_url, fresh_store, before, tmp_path):
    """Without --execute the figures are the same and nothing is changed; the migration records the restore."""
    migrated = everything(fresh_store)
    command = ("migrate", "restore", "--archive", tmp_path / "originals")
    dry = invoke(*command, url=migrate_url)
    unchanged = everything(fresh_store) == migrated
    some = invoke(*command, "--shards", "0,2", "--execute", "--json", url=migrate_url)
    done = invoke(*command, "--execute", url=migrate_url)

    assert (dry.code, some.code, done.code) == (0, 0, 0)
    assert unchanged
    assert dry.out.startswith(f"{len(TEXTS)} originals to restore, in 4 shards, from 4 files (")
    assert dry.err.endswith("nothing was changed; add --execute to do it\n")
    assert some.json["restored"] == sum(shard in (0, 2) for shard, _ in before)
    assert (some.json["executed"], some.json["left"], some.json["failures"], some.json["torn"]) == (True, {}, [], {})
    assert done.out.startswith(f"{len(TEXTS) - some.json['restored']} originals restored, in 4 shards, ")
    assert f"{some.json['restored']} cells already have their original" in done.out
    assert everything(fresh_store) == before
    with schemaless.connect(migrate_url) as store:
        events = JobStore(store).events(1)
    assert events[-1][2] == f"restored {len(TEXTS) - some.json['restored']} cells in 4 shards"


def test_restore_that_leaves_cells_is_exit_1_and_names_them(
    invoke, migrate_url, fresh_store, before, tmp_path, by_hand
):
    """Each cell is one line with its reason, or an object with --json."""
    shard, added_id = next(iter(before))
    sql = f"UPDATE `{internals_of(fresh_store).shards.database(shard)}`.cell SET body='[1]' WHERE added_id={added_id}"
    by_hand(fresh_store).execute(shard, sql.encode())
    command = ("migrate", "restore", "--archive", tmp_path / "originals", "--execute")
    plain, data = invoke(*command, url=migrate_url), invoke(*command, "--json", url=migrate_url)

    assert (plain.code, data.code) == (1, 1)
    assert "1 left as they are: Changed" in plain.out
    assert f"  shard {shard}, cell {before[shard, added_id][0]}: its stored body is neither" in plain.out
    assert [(left["shard"], left["added_id"], left["reason"]) for left in data.json["failures"]] == [
        (shard, added_id, "Changed")
    ]


def test_verify_is_one_line_where_all_is_sound(invoke, migrate_url, before):
    """The printed seed repeats the sample."""
    whole = invoke("migrate", "verify", url=migrate_url)
    sampled = invoke("migrate", "verify", "--sample", "50%", "--json", url=migrate_url)
    again = invoke("migrate", "verify", "--sample", "0.5", "--seed", sampled.json["seed"], url=migrate_url)
    without = invoke("migrate", "verify", "--no-archive", "--no-replicas", "--shards", "1", url=migrate_url)

    assert (whole.code, sampled.code, again.code, without.code) == (0, 0, 0, 0)
    assert whole.out.startswith(f"sound: {len(TEXTS)} cells in 4 shards, ")
    assert whole.out.endswith(f"; {len(TEXTS)} originals from 4 files compared\n")
    assert again.out.endswith(f"sample of 4 of 4 blocks, --seed {sampled.json['seed']}\n")
    assert "originals" not in without.out


@pytest.mark.parametrize("library", ["zlib_ng.zlib_ng", "zlib"])
def test_bodies_of_another_zlib_are_the_same_cells(library, invoke, migrate_url, fresh_store, before, by_hand, new_row):
    """A machine whose zlib compresses in other ways migrates and puts: verify, check and repeated puts accept both."""
    compress = pytest.importorskip(library).compress
    ours = {place: (key, body) for place, (key, body, _) in everything(fresh_store).items() if body[:2] == b"\xc1\x11"}
    theirs = {}
    for (shard, added_id), (_, body) in ours.items():
        head = body[:2] + compress(zlib.decompress(body[2:-4]), 1)
        theirs[shard, added_id] = head + zlib.crc32(head).to_bytes(4, "big")
        cell = f"`{internals_of(fresh_store).shards.database(shard)}`.cell"
        sql = f"UPDATE {cell} SET body=0x{theirs[shard, added_id].hex()} WHERE added_id={added_id}"
        by_hand(fresh_store).execute(shard, sql.encode())
    stored = [NewStoredCell(*key, theirs[place]) for place, (key, _) in ours.items()]
    documents = {key: decode_body(body) for key, body in ours.values()}
    verified, checked = invoke("migrate", "verify", url=migrate_url), invoke("check", url=migrate_url)
    again = [fresh_store.put_cell(*key, document) for key, document in documents.items()]
    row = new_row()
    fresh_store.put_stored_cells([NewStoredCell(row, "AB", n, body) for n, (_, body) in enumerate(ours.values())])
    crossed = fresh_store.put_stored_cells([NewStoredCell(row, "AB", n, cell.body) for n, cell in enumerate(stored)])

    assert len(ours) > 30
    assert all(body != theirs[place] for place, (_, body) in ours.items())
    assert (verified.code, checked.code) == (0, 0), verified.out + checked.out
    assert verified.out.startswith(f"sound: {len(TEXTS)} cells in 4 shards, ")
    assert not any(put.created for put in (*again, *crossed))
    assert all(fresh_store.get_cell(*key).body == document for key, document in documents.items())
    with pytest.raises(CellConflict):
        fresh_store.put_cell(*next(iter(documents)), {"another": "document"})


def test_verify_is_exit_1_with_one_line_for_each_fault(invoke, migrate_url, fresh_store, new_row, before):
    """Legacy bodies written since the migration, and missing originals, are faults."""
    load(fresh_store, new_row, [b"[1]", b"[2]"])
    plain = invoke("migrate", "verify", url=migrate_url)
    data = invoke("migrate", "verify", "--json", url=migrate_url)

    assert (plain.code, data.code) == (1, 1)
    assert plain.out.count("NotReencoded: shard ") == 2
    assert plain.out.splitlines()[-1].startswith(f"2 faults: {len(TEXTS) + 2} cells")
    assert data.json["fault_counts"] == {"NotReencoded": 2}
    assert [fault["kind"] for fault in data.json["faults"]] == ["NotReencoded"] * 2


def test_verify_of_an_archive_that_is_not_whole_is_exit_1(invoke, migrate_url, before, tmp_path):
    """With a part of the archive, the error names the shards; a missing folder is an error."""
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "originals").rename(elsewhere)
    gone = invoke("migrate", "verify", url=migrate_url)
    next(elsewhere.rglob("shard-0002*")).unlink()
    part = invoke("migrate", "verify", "--archive", elsewhere, url=migrate_url)

    assert (gone.code, part.code) == (2, 1)
    assert "which does not exist on this machine; name the archive folder with --archive" in gone.err
    assert "originals are missing from the archive for shards 2 (0 of " in part.out


def test_verify_covers_only_the_shards_of_the_job(invoke, migrate_url, fresh_store, new_row):
    """Only the job's own shards are verified, and others are refused."""
    load(fresh_store, new_row)
    invoke("migrate", "run", "--execute", "--shards", "0", url=migrate_url)
    first = invoke("migrate", "verify", "--json", url=migrate_url)
    other = invoke("migrate", "verify", "--shards", "0-1", url=migrate_url)

    assert (first.code, first.json["shards"], first.json["faults"]) == (0, 1, [])
    assert (other.code, other.err) == (
        2,
        "schemaless: job 1 does not include shard 1; use --job to name a job that does\n",
    )


def test_verify_before_any_migration_takes_bodies_as_they_are(invoke, migrate_url, fresh_store, new_row):
    """Without a migration, verify accepts every codec."""
    load(fresh_store, new_row)

    assert invoke("migrate", "verify", url=migrate_url).out.startswith(f"sound: {len(TEXTS)} cells")
    finalised = invoke("migrate", "finalise", url=migrate_url)
    assert (finalised.code, "no migration yet" in finalised.err) == (2, True)


@each(
    "options, message",
    [
        (("--sample", "much"), "--sample takes a share over 0 and below 1, such as 1% or 0.01, got 'much'"),
        (("--sample", "100%"), "over 0 and below 1, such as 1% or 0.01, got '100%'"),
        (("--no-archive", "--archive", "."), "contradict each other"),
        (("--archive", "nowhere"), "does not exist; name the archive folder"),
    ],
)
def test_verify_that_cannot_be_run_is_exit_2(invoke, migrate_url, before, options, message):
    """The error is one line."""
    result = invoke("migrate", "verify", *options, url=migrate_url)

    assert result.code == 2
    assert message in result.err


def test_finalise_lists_the_files_and_deletes_none(invoke, migrate_url, before, tmp_path):
    """The files are listed with their sizes; after their deletion, verify works without them."""
    plain = invoke("migrate", "finalise", url=migrate_url)
    data = invoke("migrate", "finalise", "--json", url=migrate_url)
    files = sorted((tmp_path / "originals").rglob("*.zst"))

    assert (plain.code, data.code) == (0, 0)
    assert f"is finalised: {len(TEXTS)} cells verified\n4 archive files with originals may be deleted " in plain.out
    assert all(f"{file} " in plain.out for file in files)
    assert [(Path(file["path"]), file["bytes"]) for file in data.json["files"]] == [
        (file, file.stat().st_size) for file in files
    ]
    assert (data.json["state"], data.json["refused"]) == ("finalised", [])
    for file in files:
        file.unlink()
    assert invoke("migrate", "verify", url=migrate_url).code == 0


def test_finalise_that_is_refused_is_exit_1_and_lists_nothing(invoke, migrate_url, fresh_store, new_row, before):
    """A legacy body written since the migration; after another run the job is finalised."""
    load(fresh_store, new_row, [json.dumps({"late": True}).encode()])
    refused = invoke("migrate", "finalise", "--json", url=migrate_url)
    plain = invoke("migrate", "finalise", url=migrate_url)

    assert (refused.code, plain.code) == (1, 1)
    assert (refused.json["refused"], refused.json["files"]) == (["1 NotReencoded"], [])
    assert plain.out.splitlines()[-1] == f"job {refused.json['job']} is not finalised: 1 NotReencoded"


def test_restore_reports_runners_that_died(invoke, fresh_store, new_row, migrate_url, tmp_path):
    """Originals archived after the last checkpoint are not recorded, so missing ones cannot be detected."""
    load(fresh_store, new_row)
    archive = ("--archive", tmp_path / "originals")
    with schemaless.connect(migrate_url) as store:
        spec = MigrateSpec(archive=str(tmp_path / "originals"))
        job_store = JobStore(store)
        job, _ = migrate.MIGRATE.begin_or_join(store, spec)
        assert job_store.leases.claim(job.job_id, 1, "another runner") is not None
        job_store.leases.release_dead(job.job_id, "another runner")
    assert invoke("migrate", "run", "--execute", *archive, url=migrate_url).code == 0
    plain = invoke("migrate", "restore", *archive, url=migrate_url)
    data = invoke("migrate", "restore", *archive, "--json", url=migrate_url).json

    assert plain.code == 0
    assert "killed runners: 1; the originals that each archived after its last checkpoint " in plain.err
    assert (data["interruptions"], data["missing_originals"]) == (1, [])


def test_finalise_of_the_last_job_names_those_that_are_not(invoke, migrate_url, before, tmp_path):
    """An earlier migration is noted; a later one that had nothing to do is not the default."""
    archive = ("--archive", tmp_path / "originals")
    assert invoke("migrate", "run", "--execute", "--to", "json+zlib", *archive, url=migrate_url).code == 0
    assert invoke("migrate", "run", "--execute", "--to", "json+zlib", *archive, url=migrate_url).code == 0
    last = invoke("migrate", "finalise", url=migrate_url)
    first = invoke("migrate", "finalise", "--job", "1", "--json", url=migrate_url)

    assert (last.code, first.code) == (0, 1)
    assert last.err == "other jobs that are done but not finalised (choose one with --job): 1\n"
    assert last.out.startswith("job 2 is finalised: ")
    assert first.json["fault_counts"].keys() == {"NotReencoded"}
    assert first.err == ""


@pytest.mark.parametrize("cut", [60, pytest.param(None, marks=pytest.mark.long)], ids=["cut", "missing"])
def test_an_archive_that_is_not_whole_is_exit_1_everywhere(invoke, migrate_url, before, tmp_path, cut):
    """Restore, verify and finalise name the file and the number of originals that it should have."""
    file = next((tmp_path / "originals").rglob("shard-0002*"))
    if cut is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-cut])
    calls = [("restore", "--archive", tmp_path / "originals", "--execute"), ("verify",), ("finalise",)]
    said = [
        (invoke("migrate", *call, url=migrate_url), invoke("migrate", *call, "--json", url=migrate_url))
        for call in calls
    ]
    cells = sum(shard == 2 for shard, _ in before)
    found = None if cut is None else 0

    assert [(plain.code, data.code) for plain, data in said] == [(1, 1)] * 3
    for plain, data in said:
        assert f"originals are missing from the archive for shards 2 (0 of {cells}); " in plain.out
        assert f"  job 1, shard 2: {file.name} " in plain.out
        assert "were never replaced" not in plain.err
        assert data.json["missing_originals"] == [
            {"job_id": 1, "shard": 2, "file": file.name, "found": found, "expected": cells}
        ]


@pytest.mark.long
@pytest.mark.usefixtures("like_macos")
def test_commands_and_the_library_need_nothing_that_macos_lacks(
    invoke, migrate_url, admin_url, fresh_store, new_row, tmp_path
):
    """Puts, a migration with an archive, checks, a measurement, the status, and what benchmarks say of the machine."""
    load(fresh_store, new_row)
    row = new_row()
    commands = [
        (admin_url, "cell", "put", str(row), "BASE", "1", '{"n": 1}'),
        (migrate_url, "migrate", "run", "--execute", "--archive", tmp_path / "originals"),
        (migrate_url, "migrate", "verify"),
        (migrate_url, "check"),
        (admin_url, "capacity", "measure", "--disk", "cluster-1=4GB:1GB", "--disk", "cluster-2=4GB:1GB"),
        (admin_url, "status", "--fast"),
        (migrate_url, "migrate", "restore", "--archive", tmp_path / "originals", "--execute"),
    ]
    results = [invoke(*command, url=url) for url, *command in commands]

    assert [(result.code, result.err) for result in results if result.code] == []
    assert fresh_store.get_cell(row, "BASE", 1).body == {"n": 1}
    assert this_machine().cores > 0
