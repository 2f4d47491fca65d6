"""Documents move into cold files and back, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import schemaless
import schemaless.aio
from schemaless import ColdStoreUnavailable, InvalidInput, JobConflict, NewCell, NewStoredCell
from schemaless.cell import CellKey
from schemaless.codec.deltas import is_keyframe
from schemaless.codec.envelope import base_of, is_delta, is_reference
from schemaless.codec.exact_text import exact_text
from schemaless.codec.recode import recode
from schemaless.codec.references import reference_body
from schemaless.codec.registry import DEFAULT, LEGACY, codec_named
from schemaless.errors import CorruptBody
from schemaless.ops.erasure.job import ErasureSpec, begin_retention
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.jobs import driver
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.body_updates import BodyUpdates
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import update_bodies
from schemaless.ops.tier import cooling
from schemaless.ops.tier.cooling import TIER, TierSpec, spec_of
from schemaless.ops.tier.recall import RECALL, RecallSpec
from schemaless.ops.tier.survey import survey, verify
from schemaless.ops.tier.sweep import SWEEP, SweepSpec
from schemaless.store.cold.fetching import cache
from schemaless.store.cold.files import ShardFiles
from schemaless.store.cold.objects import cells_of, content_in
from schemaless.store.cold.settings import TierPolicy
from schemaless.store.cold.targets import LocalTarget, open_target
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
from tests.ops.migrate.originals import TEXTS, public_texts
from tests.skips import shared
from tests.store.arrow.random_documents import random_document

pytestmark = [pytest.mark.mysql]


def bodies(store, shard_count=4):
    """Return the stored bodies of all shards by key."""
    scan = internals_of(store).scan
    return {cell.key: cell.body for shard in range(shard_count) for cell in scan(shard)}


@pytest.mark.twice
@pytest.mark.guarantee("cold-verified")
def test_a_run_replaces_bodies_by_references_to_verified_files(cells, migrate_store, spec, cold_folder):
    """Those of columns with a policy, and only these; the files have every document as exact text."""
    before = bodies(migrate_store)
    job = TIER.run(migrate_store, spec)
    after = bodies(migrate_store)
    states = JobStore(migrate_store).shards(job.job_id)
    found = verify(migrate_store, range(4))

    cold = {key for key in cells if key.column_name != "HOT"}
    assert {key for key, body in after.items() if is_reference(body)} == cold
    assert {key: after[key] for key in cells if key not in cold} == {
        key: before[key] for key in cells if key not in cold
    }
    assert sum(state.cells for state in states) == len(cold)
    assert sum(state.bytes_before for state in states) == sum(len(before[key]) for key in cold)
    assert (found.faults, found.cells) == ([], len(cold))
    assert found.files == len([*cold_folder.rglob("*.parquet")]) > 4
    counted = survey(migrate_store, [], range(4))
    assert (counted.total.cells, counted.total.cold_cells) == (len(cells), len(cold))
    assert counted.total.cold_text_bytes == sum(len(exact_text(before[key])[0]) for key in cold)
    assert counted.columns["HOT"].cold_cells == 0


def test_the_disk_of_a_cold_store_that_is_a_folder_is_watched(cells, migrate_store, erase_store, spec, cold_folder):
    """A run that fills it waits (--min-free), like one that fills the disk of a server; erasures write files again."""
    jobs = [TIER.run(migrate_store, spec)]
    row_key, *_ = next(iter(cells))
    jobs.append(run_erasure(erase_store, ErasureSpec(erase_store.erase(row_key, reason="x").number)))
    internals_of(erase_store).policies.set(Policy("BASE", keep_days=365))
    jobs.append(run_erasure(erase_store, ErasureSpec(begin_retention(erase_store))))
    for job in jobs:
        watched = [state.figures["free_bytes"] for state in JobStore(migrate_store).clusters(job.job_id)]
        assert watched
        assert all(free[str(cold_folder)] > 0 for free in watched)


def test_the_asyncio_client_imports_pyarrow_outside_the_loop(cells, migrate_store, spec, fresh_url, monkeypatch):
    """The import takes a second, so the loop's thread must not do it at the first read of a cold cell."""
    TIER.run(migrate_store, spec)
    importers = []

    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "pyarrow":
                importers.append(threading.current_thread())

    async def read():
        async with await schemaless.aio.connect(fresh_url) as store:
            return {key: (await store.get_cell(*key)).body for key in list(cells)[:3]}

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert asyncio.run(read()) == {key: cells[key] for key in list(cells)[:3]}
    assert importers
    assert threading.current_thread() not in importers


def test_a_second_run_finds_nothing(cells, migrate_store, spec, cold_folder):
    """A cell that is cold is not eligible."""
    TIER.run(migrate_store, spec)
    files = sorted(cold_folder.rglob("*.parquet"))
    again = TIER.run(migrate_store, spec)
    assert sum(state.cells for state in JobStore(migrate_store).shards(again.job_id)) == 0
    assert sorted(cold_folder.rglob("*.parquet")) == files


def test_young_cells_stay(cells, migrate_store, cold_folder, admin_url):
    """Ages count as of the start of the job."""
    with schemaless.connect(admin_url) as admin:
        internals_of(admin).cold.set(TierPolicy("BASE", 1))
    spec = spec_of(migrate_store)
    assert spec.policies == ("BASE 1", "LOG 0")
    assert spec_of(migrate_store, ["BASE"]).policies == ("BASE 1",)
    with pytest.raises(InvalidInput, match="column HOT has no tier policy"):
        spec_of(migrate_store, ["HOT"])
    TIER.run(migrate_store, spec)
    assert {key.column_name for key, body in bodies(migrate_store).items() if is_reference(body)} == {"LOG"}


def test_verify_names_what_is_wrong(cells, migrate_store, spec, cold_folder):
    """A file that is gone, one with other bytes, and a reference to a file that is not live."""
    TIER.run(migrate_store, spec)
    removed, changed = sorted(cold_folder.rglob("*.parquet"))[:2]
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    removed.unlink()
    shards = internals_of(migrate_store).shards
    condemned = ShardFiles(shards, 3).all("live")[0]
    assert ShardFiles(shards, 3).condemn(condemned, "live")
    messages = [fault.message for fault in verify(migrate_store, range(4)).faults]

    expected = ["does not exist", "another SHA-256", "which is not live"]
    assert [part for part in expected for message in messages if part in message] == expected
    assert len(messages) == 3


@pytest.mark.guarantee("cold-present", "cold-verified")
def test_an_empty_mount_point_has_lost_no_file(cells, migrate_store, spec, cold_folder, monkeypatch):
    """Nothing is written to it, called lost or swept; every job goes on once it is mounted."""
    monkeypatch.setattr(driver, "GIVE_UP_S", -1.0)
    TIER.run(migrate_store, replace(spec, policies=("LOG 0",)))
    written = {path.name for path in cold_folder.rglob("*.parquet")}
    for step in (
        lambda: verify(migrate_store, range(4)),
        lambda: SWEEP.run(migrate_store, SweepSpec(0)),
        lambda: TIER.run(migrate_store, spec),
        lambda: RECALL.run(migrate_store, RecallSpec()),
    ):
        cache().clear()
        mounted = cold_folder.rename(cold_folder.with_name("mounted"))
        cold_folder.mkdir()
        with pytest.raises(ColdStoreUnavailable, match="not mounted"):
            step()
        assert [*cold_folder.iterdir()] == []
        cold_folder.rmdir()
        mounted.rename(cold_folder)
        assert written <= {path.name for path in cold_folder.rglob("*.parquet")}
        step()
        assert verify(migrate_store, range(4)).faults == []
    assert {cell.key: cell.body for shard in range(4) for cell in migrate_store.iter_shard(shard)} == cells


@pytest.mark.guarantee("cold-verified")
@pytest.mark.parametrize("step", ["put", "publish"])
def test_a_file_that_is_condemned_while_it_is_written_is_written_again(
    cells, migrate_store, spec, cold_folder, monkeypatch, step
):
    """An erasure in the meantime condemns and deletes it; its writer deletes what it has written, and starts again."""
    shards, condemned = internals_of(migrate_store).shards, []
    publish, put = ShardFiles.publish, LocalTarget.put

    def condemn(files, file):
        condemned.append(file)
        assert files.condemn(file, "writing")
        assert files.deleted(file)

    def before_publish(files, file, written, replaces=None):
        if not condemned:
            condemn(files, file)
        return publish(files, file, written, replaces)

    def after_put(target, name, *content):
        put(target, name, *content)
        if not condemned:
            files = ShardFiles(shards, int(name.split("/")[1]))
            condemn(files, next(file for file in files.all("writing") if file.name == name))
            target.delete([name])

    if step == "put":
        monkeypatch.setattr(LocalTarget, "put", after_put)
    else:
        monkeypatch.setattr(ShardFiles, "publish", before_publish)
    TIER.run(migrate_store, spec)
    found = verify(migrate_store, range(4))
    (file,) = condemned
    states = {each.state for each in ShardFiles(shards, file.shard).all(file_id=file.file_id)}
    assert (states, found.faults) == ({"deleted"}, [])
    assert found.files == len([*cold_folder.rglob("*.parquet")])
    assert found.cells == sum(key.column_name != "HOT" for key in cells)


@pytest.mark.twice
@pytest.mark.guarantee("cold-verified")
def test_a_run_that_ends_while_bodies_are_replaced_is_continued(cells, migrate_store, spec, cold_folder, monkeypatch):
    """The next one replaces the remaining bodies of the live file from its own list; cold ones are not fetched."""
    publish, shards = ShardFiles.publish, internals_of(migrate_store).shards

    def interrupted(files, file, written, replaces=None):
        assert publish(files, file, written, replaces)
        # As if the reply to an UPDATE of a part of the cells had been lost.
        (live,) = files.all("live", file_id=file.file_id)
        listed = list(cells_of(*content_in(open_target(str(cold_folder)), live)))
        changes = []
        for stored in internals_of(migrate_store).read_stored(live.shard, [cell.added_id for cell, _ in listed[::2]]):
            (place,) = [place for cell, place in listed if cell.added_id == stored.added_id]
            reference = reference_body(live.file_id, *place, exact_text(stored.body)[0])
            changes.append((stored.added_id, digest_of(stored.body), reference))
        shards.execute(live.shard, update_bodies(shards.database(live.shard), changes))
        raise RuntimeError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(ShardFiles, "publish", interrupted)
        with pytest.raises(RuntimeError, match="interrupted"):
            TIER.run(migrate_store, spec)
    assert any(map(is_reference, bodies(migrate_store).values()))
    fetched = cache().misses
    TIER.run(migrate_store, spec)
    assert cache().misses == fetched
    found = verify(migrate_store, range(4))
    assert (found.faults, found.cells) == ([], sum(key.column_name != "HOT" for key in cells))
    assert found.files == len([*cold_folder.rglob("*.parquet")])


@pytest.mark.guarantee("cold-verified")
def test_a_sweep_believes_no_listing(cells, migrate_store, spec, cold_folder, monkeypatch):
    """What an erasure begins to write while the folder is listed is kept, and what is shown wrongly does not matter."""
    TIER.run(migrate_store, spec)
    shards = internals_of(migrate_store).shards
    incarnation = internals_of(migrate_store).cold.store().incarnation
    names, written = LocalTarget.names, {}

    def slowly(target, folder):
        if folder.startswith(incarnation) and folder not in written:
            # Its name says that it is old, like that of the next generation of an old file.
            file = ShardFiles(shards, int(folder[-4:])).list_new(incarnation, 1, 2, file_id=1 << 20)
            target.put(file.name, b"", "test")
            written[folder] = cold_folder / file.name
        return [*names(target, folder), f"{2:016x}-0-{'ab' * 8}.parquet"]

    monkeypatch.setattr(LocalTarget, "names", slowly)
    SWEEP.run(migrate_store, SweepSpec(0))
    assert [path.exists() for path in written.values()] == [True] * 4
    monkeypatch.setattr(LocalTarget, "names", lambda target, folder: [])
    SWEEP.run(migrate_store, SweepSpec(0))
    found = verify(migrate_store, range(4))
    assert (found.faults, found.cells) == ([], sum(key.column_name != "HOT" for key in cells))


@pytest.mark.guarantee("cold-verified")
def test_a_sweep_keeps_a_file_that_a_stalled_run_refers_to(cells, migrate_store, spec, cold_folder, monkeypatch):
    """It has counted no references when a run, which has lost its lease long ago, writes them."""
    TIER.run(migrate_store, spec)
    cold = bodies(migrate_store)
    texts = {key: exact_text(body)[0] for key, body in cold.items()}
    RECALL.run(migrate_store, RecallSpec())
    shards = internals_of(migrate_store).shards
    condemn, written = ShardFiles.condemn, []

    def interrupted(files, file, *states):
        number = file.file_id.to_bytes(8, "big")
        for cell in internals_of(migrate_store).scan(file.shard) if not written else ():
            if bytes(cold[cell.key])[2:10] == number:
                changes = [(cell.added_id, digest_of(cell.body), bytes(cold[cell.key]))]
                shards.execute(file.shard, update_bodies(shards.database(file.shard), changes))
                written.append(file)
        return condemn(files, file, *states)

    monkeypatch.setattr(ShardFiles, "condemn", interrupted)
    for _ in range(2):
        SWEEP.run(migrate_store, SweepSpec(0))
        cells = [cell for shard in range(4) for cell in migrate_store.scan_shard(shard)]
        assert {cell.key: exact_text(cell.body)[0] for cell in cells} == texts
    (file,) = {*written}
    assert [each.state for each in ShardFiles(shards, file.shard).all(file_id=file.file_id)] == ["live"]
    assert [path.name for path in cold_folder.rglob("*.parquet")] == [file.name.rpartition("/")[2]]


@pytest.mark.guarantee("cold-exact")
@pytest.mark.parametrize("cancelled", ["migrate", "tier"])
def test_a_job_that_still_works_after_it_was_cancelled(
    fresh_store, new_row, migrate_store, erase_store, cold_folder, monkeypatch, cancelled
):
    """The next job has begun; still, no version becomes a difference from a cold one, which could not be erased."""
    row, now, begun = new_row(), datetime.now(UTC), []
    older = next(n for n in range(64) if not is_keyframe(row.bytes, "BASE", n))
    shard, documents = fresh_store.shard_of(row), {n: {"n": n, "text": "words " * 90} for n in (older, older + 1)}
    for age, (n, document) in enumerate(documents.items()):
        fresh_store.put_cells([NewCell(row, "BASE", n, document, created_at=now - timedelta(9 * age))])

    def tier():
        TIER.run(migrate_store, TierSpec(("BASE 5",), (now + timedelta(minutes=5)).isoformat()), [shard])

    def make_deltas():
        migrate.run(migrate_store, MigrateSpec(history=True), [shard])

    def interrupted(call, following):
        def wrapped(*arguments):
            if not begun:
                begun.append(following)
                jobs = JobStore(migrate_store)
                assert jobs.change_state(jobs.latest(cancelled).job_id, ["running"], "cancelled")
                following()
            return call(*arguments)

        return wrapped

    if cancelled == "migrate":
        monkeypatch.setattr(BodyUpdates, "send", interrupted(BodyUpdates.send, tier))
    else:
        monkeypatch.setattr(cooling, "reference_body", interrupted(reference_body, make_deltas))
    with pytest.raises(JobConflict, match="was cancelled"):
        (make_deltas if cancelled == "migrate" else tier)()
    assert begun
    stored = bodies(migrate_store)
    assert [is_delta(stored[row, "BASE", older]), is_reference(stored[row, "BASE", older + 1])] == [
        cancelled == "tier",
        cancelled == "migrate",
    ]
    erase_store.erase(row, "BASE", older + 1, reason="test")
    assert fresh_store.get_cell(row, "BASE", older).body == documents[older]


def texts_of_every_kind(count, chance):
    """Return texts of random documents, and for many of them texts of the public suites, some of which do not parse."""
    texts = [*TEXTS, b'{"no": "end', b'{"not": "UTF-8 \xff"}']
    if count > 1_000:
        naughty = json.loads(shared("conformance", "blns", "blns.json").read_bytes())
        texts += [json.dumps({text: text}).encode() for text in naughty]
        texts += chance.sample(public_texts(), 1_000)
    spellings = ({}, {"indent": 1}, {"separators": (",", ":")})
    while len(texts) < count:
        texts.append(json.dumps(random_document(chance), **chance.choice(spellings)).encode())
    return texts


@pytest.mark.guarantee("cold-exact")
@pytest.mark.parametrize("count", [400, pytest.param(3_000, marks=pytest.mark.long)])
def test_documents_of_every_kind_stay_exactly_equal(fresh_store, new_row, migrate_store, spec, count):
    """Texts byte for byte while they are cold; recalled bodies too, if they were in the column's codec before."""
    chance = random.Random(count)
    codecs = [LEGACY, DEFAULT, codec_named("json+zlib"), codec_named("packed+zlib")]
    stored, expected, codec_of = [], {}, {}
    for number, text in enumerate(texts_of_every_kind(count, chance)):
        key = CellKey(new_row(), chance.choice(["BASE", "LOG"]), number)
        codec_of[key], body = chance.choice(codecs), text
        with suppress(CorruptBody):
            body = recode(text, codec_of[key]).body
            expected[key] = exact_text(body)
        stored.append(NewStoredCell(*key, body))
    fresh_store.put_stored_cells(stored, trusted=True)
    before = bodies(migrate_store)
    tiered = TIER.run(migrate_store, spec)
    cold = bodies(migrate_store)
    read = fresh_store.get_cells_latest([key[:2] for key in expected])
    RECALL.run(migrate_store, RecallSpec())
    recalled = bodies(migrate_store)

    assert {key for key, body in cold.items() if is_reference(body)} == expected.keys()
    left = sum(state.left_cells for state in JobStore(migrate_store).shards(tiered.job_id))
    assert left == len(before) - len(expected) > 0
    for key, (text, document) in expected.items():
        assert bytes(exact_text(cold[key])[0]) == bytes(text)
        # JSON text distinguishes 1 from 1.0 and 0.0 from -0.0, keeps key order, and NaN equals NaN.
        assert json.dumps(read[key[:2]].body) == json.dumps(document)
        assert json.dumps(exact_text(recalled[key])[1]) == json.dumps(document)
        if codec_of[key] is DEFAULT:
            assert recalled[key] == before[key]
    assert {key: recalled[key] for key in before.keys() - expected.keys()} == {
        key: before[key] for key in before.keys() - expected.keys()
    }


@pytest.mark.guarantee("cold-exact")
def test_differences_become_cold_before_the_versions_that_they_depend_on(fresh_store, new_row, migrate_store, spec):
    """All of a column's versions become cold in one run, in files of a few cells, and stay readable meanwhile."""
    row, other = new_row(), new_row()
    for ref_key in range(1, 41):
        document = {"n": ref_key, "words": [f"word {number}" for number in range(200)]}
        fresh_store.put_cell(row, "BASE", ref_key, document)
        fresh_store.put_cell(other, "OTHER", ref_key, document)
    migrate.run(migrate_store, MigrateSpec(history=True))
    before = {key: exact_text(body)[0] for key, body in bodies(migrate_store).items()}
    deltas = {key for key, body in bodies(migrate_store).items() if is_delta(body)}
    TIER.run(migrate_store, spec)
    after = bodies(migrate_store)

    assert {key.column_name for key in deltas} == {"BASE", "OTHER"}
    assert {key for key, body in after.items() if is_reference(body)} == {key for key in before if key[1] == "BASE"}
    assert {key: exact_text(body)[0] for key, body in after.items()} == before


def test_a_version_that_others_depend_on_stays(fresh_store, new_row, migrate_store, cold_folder):
    """So does what that one depends on itself; they are counted, and the next run takes all of them."""
    row, now = new_row(), datetime.now(UTC)
    for ref_key in range(40, 0, -1):
        document = {"n": ref_key, "words": [f"word {number}" for number in range(200)]}
        created_at = now - timedelta(hours=ref_key)
        fresh_store.put_cells([NewCell(row, "BASE", ref_key, document, created_at=created_at)])
    migrate.run(migrate_store, MigrateSpec(history=True))
    stored = bodies(migrate_store)
    before = {key: exact_text(body)[0] for key, body in stored.items()}
    bases = {key.ref_key: base_of(body) for key, body in stored.items() if is_delta(body)}
    # A delta on which younger versions depend is the youngest that is old enough.
    oldest = min(base for base in bases.values() if base in bases)
    as_of = now + timedelta(days=5, minutes=-30) - timedelta(hours=oldest - 1)
    job = TIER.run(migrate_store, TierSpec(("BASE 5",), as_of.isoformat()))
    (count,) = [state.counters["bases"] for state in JobStore(migrate_store).shards(job.job_id) if state.cells]
    hot = {key.ref_key for key, body in bodies(migrate_store).items() if not is_reference(body)}
    depended = {base for ref_key, base in bases.items() if ref_key < oldest}

    assert {oldest, bases[oldest]} <= hot
    assert hot == set(range(1, oldest)) | depended | {bases[base] for base in depended if base in bases}
    assert count == len(hot) - (oldest - 1)
    TIER.run(migrate_store, TierSpec(("BASE 0",), (now + timedelta(minutes=5)).isoformat()))
    after = bodies(migrate_store)
    assert all(map(is_reference, after.values()))
    assert {key: exact_text(body)[0] for key, body in after.items()} == before


@pytest.mark.parametrize(("kind", "make"), [(TIER, None), (RECALL, RecallSpec()), (SWEEP, SweepSpec())])
def test_without_pyarrow_no_job_is_begun(migrate_store, spec, monkeypatch, kind, make):
    """It would stand in the way of other jobs."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInput, match=r"\[cold\]"):
        kind.run(migrate_store, make or spec)
    assert JobStore(migrate_store).jobs() == []
