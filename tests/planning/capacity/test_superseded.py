"""What a report learns of a live datastore's policies."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import schemaless
from schemaless import Datastore, InvalidInput, NewCell
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.capacity.basis import Collected
from schemaless.planning.capacity.codec_trials import TRIAL_BOUNDS
from schemaless.planning.capacity.measure import measure
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.options import Asked, WhatIf
from schemaless.planning.capacity.reporting import assemble_report, collect, make
from schemaless.planning.sampling.advice import train_column
from schemaless.planning.sampling.column_trials import WITH_DICTIONARY, sample_cells, versions_of
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from schemaless.ui.pages.capacity_json import report_json
from schemaless.ui.pages.capacity_tables import tables


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


@pytest.fixture
def move_store(move_url: str) -> Iterator[Datastore]:
    with schemaless.connect(move_url) as opened:
        yield opened


def test_the_share_of_superseded_bytes_is_sampled(
    fresh_store: Datastore, admin: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """Four versions of each row: of one kept, three quarters are superseded; of three, a quarter; of ten, nothing."""
    rows = [new_row() for _ in range(20)]
    fresh_store.put_cells([NewCell(row, "LOG", version, {"n": version}) for row in rows for version in range(4)])
    internals_of(admin).policies.set(Policy("LOG", 400, 1))
    collected = collect(fresh_store)

    assert {column: str(policy) for column, policy in collected.policies.items()} == {
        "LOG": "keep 400 days and the last version"
    }
    superseded = collected.measurements[-1].trials.superseded
    assert [superseded["LOG", kept] for kept in (1, 2, 3, 4, 10, 100)] == [0.75, 0.5, 0.25, 0, 0, 0]


def test_a_report_of_a_catalog_without_policies_says_so(
    fresh_store: Datastore, by_hand: Callable[[Datastore], Shards], new_row: Callable[[], uuid.UUID]
) -> None:
    """Of a catalog that was not upgraded, or an account without the privilege: a note, and codecs are tried."""
    fresh_store.put_cells([NewCell(new_row(), "LOG", 1, {"n": number}) for number in range(40)])
    catalog = by_hand(fresh_store).pool_for(internals_of(fresh_store).catalog.node)
    table = f"`{fresh_store.name}`.retention_policy".encode()
    catalog.run(lambda connection: connection.execute(b"RENAME TABLE %b TO %b_away" % (table, table)))
    collected = collect(fresh_store)
    catalog.run(lambda connection: connection.execute(b"RENAME TABLE %b_away TO %b" % (table, table)))

    assert any(note.startswith("policies could not be read: ") for note in collected.notes)
    assert collected.measurements[-1].trials.columns


@pytest.mark.long
def test_erased_cells_are_no_part_of_codec_trials(
    fresh_store: Datastore, erase_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """Tombstones stay as they are in every codec, so they would make every codec look alike."""
    rows = [new_row() for _ in range(40)]
    fresh_store.put_cells([NewCell(row, "LOG", 1, {"text": "abc" * 300}) for row in rows])
    before = collect(fresh_store).measurements[-1].trials
    for row in rows[:20]:
        erase_store.erase(row, reason="test")
    newest = collect(fresh_store).measurements[-1]
    after = newest.trials

    assert sum(round(each.erased_share * each.cells.mid) for each in newest.growth) == 20
    assert after.disk_per_body["LOG"].mid == pytest.approx(before.disk_per_body["LOG"].mid, rel=0.05)
    assert {trial.sampled for trial in after.columns} == {20}


def test_deltas_are_measured_as_a_codec_of_their_own(
    fresh_store: Datastore, migrate_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """They are decoded with the versions that they depend on, so none counts as damaged."""
    row = new_row()
    fresh_store.put_cells([NewCell(row, "LOG", n, {"text": list(range(300)), "n": n}) for n in range(40)])
    migrate.run(migrate_store, MigrateSpec(history=True))
    measured = collect(fresh_store).measurements[-1]

    groups = {group.codec: group for group in measured.groups}
    assert groups.keys() == {"msgpack+zlib", "msgpack+delta"}
    assert groups["msgpack+delta"].cells.mid > 30
    assert groups["msgpack+delta"].json_bytes.mid > 10 * groups["msgpack+delta"].body_bytes.mid
    assert not any("decoded" in note for note in measured.notes)


@pytest.mark.long
def test_a_report_predicts_what_differences_bring(
    fresh_store: Datastore, migrate_store: Datastore, move_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """Bodies, files and the growth of a scenario with ``history``, compared with a migration and a rebuild."""
    fields = [f"field {n}" for n in range(400)]
    for _ in range(100):
        row, count = new_row(), 1 + len(fields) % 17
        cells = [NewCell(row, "LOG", n, {"id": str(row), "n": n, "fields": fields}) for n in range(count)]
        fresh_store.put_cells([*cells, NewCell(row, "ONCE", 1, {"id": str(row)})])
        fields.append(f"{len(fields)}th field")
    options = Asked(codec="msgpack+zlib", what_ifs=(WhatIf(name="differences", codec="msgpack+zlib", history=True),))
    report = make({"": move_store}, options)
    trial = next(each for each in report.history if each.codec == "msgpack+zlib, history")
    scenario = next(each for each in report.scenarios if each.name == "differences")
    measured = report.measurement
    assert [each.name for each in report.scenarios].count("msgpack+zlib, history") == 1
    assert trial.column_name == "LOG"
    cells = sum(group.cells.mid for group in measured.groups if group.column_name == "LOG")
    assert trial.versions.mid == pytest.approx(cells / 100, rel=0.4)
    shown = {table.title: table for table in tables(report)}
    assert shown["Versions"].rows[0][0] == "LOG"
    assert ["codec", "as now", "msgpack+zlib, history"] in shown["Scenarios side by side"].rows or not report.disks
    assert report_json(report)["versions"][0]["superseded_share"]["mid"] == round(trial.now.mid, 5)

    before = sum(group.body_bytes.mid for group in measured.groups if group.column_name == "LOG")
    migrate.run(migrate_store, MigrateSpec(history=True))
    rebuild.run(move_store)
    after = measure(move_store)
    stored = sum(group.body_bytes.mid for group in after.groups if group.column_name == "LOG")
    assert trial.share.low * 0.9 <= stored / before <= trial.share.high * 1.1
    assert scenario.file_bytes is not None
    assert scenario.file_bytes.low <= sum(space.file_bytes or 0 for space in after.clusters) <= scenario.file_bytes.high
    again = next(each for each in after.trials.history if each.codec == trial.codec)
    assert again.as_deltas.mid == pytest.approx(again.now.mid, rel=0.05)  # There is nothing more to gain.
    assert again.share.mid == pytest.approx(1, rel=0.05)


@pytest.mark.long
def test_dictionaries_take_what_the_measurement_predicts(
    fresh_store: Datastore, admin: Datastore, migrate_store: Datastore, move_store: Datastore
) -> None:
    """Bodies and pages after 'codec train' and a migration, compared with the trial on a few cells."""
    chance = random.Random(5)
    words = [f"a longer word {n}" for n in range(40)]
    for column, count in (("LOG", 1500), ("RARE", 5)):
        fresh_store.put_cells(
            [
                NewCell(uuid.UUID(int=chance.getrandbits(128)), column, 1, dict.fromkeys(chance.sample(words, 6), n))
                for n in range(count)
            ]
        )
    asked = Asked(seed=1, what_ifs=(WhatIf(name="trained", codec="msgpack+zstd", dictionary=True),))
    report = make({"": move_store}, asked)
    (trial,) = report.dictionaries

    def sizes(measured: Measurement) -> list[float]:
        groups = [group for group in measured.groups if group.column_name == "LOG"]
        return [sum(group.body_bytes.mid for group in groups), sum(group.allocated_bytes.mid for group in groups)]

    training, source = train_column(fresh_store, "LOG", WITH_DICTIONARY, seed=1)
    kept = internals_of(admin).dictionary_replicas.keep(training.dictionary, source)
    migrate.run(migrate_store, MigrateSpec("msgpack+zstd", columns=("LOG",), dictionary=kept.id))
    after = measure(move_store)
    bodies, pages = (now / before for before, now in zip(sizes(report.measurement), sizes(after), strict=True))
    assert (trial.column_name, trial.codec) == ("LOG", "msgpack+zstd, dictionary")
    assert trial.sampled < 150
    assert trial.migrated_pages_share.low < trial.migrated_pages_share.mid < 0.97
    assert trial.share.mid == pytest.approx(bodies, rel=0.05)
    assert trial.migrated_pages_share.mid == pytest.approx(pages, rel=0.05)
    with pytest.raises(InvalidInput, match="no dictionary that helps"):
        assemble_report(
            Collected((replace(after, trials=replace(after.trials, dictionaries=())),)), after.taken_at, asked
        )


def test_rows_with_many_versions_do_not_count_more_than_others(
    fresh_store: Datastore, new_row: Callable[[], uuid.UUID]
) -> None:
    """Their cells are sampled more often: an average over cells would give 64 versions per row, not 4.5."""
    many = [NewCell(row, "LOG", n, {"n": n}) for row in (new_row() for _ in range(20)) for n in range(64)]
    few = [NewCell(new_row(), "LOG", 1, {"n": 1}) for _ in range(340)]
    fresh_store.put_cells(many + few)
    versions = versions_of(fresh_store, sample_cells(fresh_store, seed=1, bounds=TRIAL_BOUNDS), "LOG")
    assert versions is not None
    assert versions.per_row.low <= 4.5 <= versions.per_row.high < 20


def test_a_scenario_needs_a_codec_that_has_its_differences_or_dictionary() -> None:
    """Without one, or with one that has none, the scenario is refused."""
    for others in ({}, {"codec": "msgpack+zlib"}, {"codec": "msgpack+zstd", "history": True}):
        with pytest.raises(InvalidInput, match="dictionary = true needs codec = "):
            WhatIf(name="a", dictionary=True, **others)  # type: ignore[arg-type]
    for codec in (None, "json+zlib"):
        with pytest.raises(InvalidInput, match="history = true needs a codec that has differences"):
            WhatIf(name="a", codec=codec, history=True)
