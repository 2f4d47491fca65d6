"""Measurements of real datastores compared with full counts: sizes, growth, and unknown figures."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest

import schemaless
from benchmarks._past_writes import Column, PastWrites, cells, write
from schemaless import InvalidInput, NewCell, NewStoredCell
from schemaless.base.numbers import Interval, added
from schemaless.codec.envelope import describe_body
from schemaless.ops.failover.nodes import add_replica
from schemaless.planning.capacity import measure as measuring
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.measure import MeasureBounds
from schemaless.planning.capacity.measurement import Measurement
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.node import Node
from tests.accounts import accounts_on
from tests.cold import ColdFolder
from tests.topologies import opened_as

pytestmark = [pytest.mark.mysql]

measure = functools.partial(measuring.measure, trials=False)
"""Codec trials take seconds and do not change sizes; test_report_uses_saved_measurements_or_takes_one has them."""

SMALL = MeasureBounds(windows=160, window_rows=8, whole_rows=400)
"""Small enough that the history below is sampled, not read completely."""

DAYS = 15
COLUMNS = (
    Column("BASE", 200, 600, 0.5, weekend_share=0.4, legacy_days=7),
    Column("NOTES", 80, 300, 0.9),
)


def until() -> date:
    """Return yesterday; a test that runs past midnight sees one more day without cells."""
    return datetime.now(UTC).date() - timedelta(days=1)


@pytest.fixture(scope="module")
def history() -> PastWrites:
    """Two weeks of writes, which end two days ago."""
    return PastWrites(7, DAYS, until(), COLUMNS, gap_bytes=50)


@pytest.fixture(scope="module")
def written(accounts, prefix, history) -> Iterator[Datastore]:
    """A datastore with that history, four shards on two servers, opened under the role measure."""
    name = f"{prefix}history"
    with schemaless.connect(accounts.create(name, 4)) as store:
        write(store, history)
    accounts.allow("measure", name, 4)
    with schemaless.connect(accounts.url("measure", accounts.servers[0], name)) as store:
        yield store


def near(estimate: Interval, counted: float) -> bool:
    """Return whether an estimate is within three half intervals of the count."""
    reach = 3 * max(estimate.mid - estimate.low, estimate.high - estimate.mid, 0.5)
    return abs(estimate.mid - counted) <= reach


def totals(found: Measurement, what: str, *names: str) -> dict[tuple[object, ...], Interval]:
    """Sum the groups that have the same values of ``names``."""
    parts = defaultdict(list)
    for group in found.groups:
        parts[tuple(getattr(group, name) for name in names)].append(getattr(group, what))
    return {key: added(estimates) for key, estimates in parts.items()}


def test_an_empty_datastore_has_a_note(fresh_store):
    """No groups and no growth, although its files have a length."""
    found = measure(fresh_store)

    assert (found.groups, found.growth, found.rows_read) == ((), (), 0)
    assert found.notes[-1] == "there are no cells"
    assert [space.shards for space in found.clusters] == [2, 2]
    assert all(space.file_bytes > 0 and space.rebuilt_bytes.mid > 0 for space in found.clusters)
    assert Measurement.from_json(found.to_json()).clusters == found.clusters


def test_one_cell_is_counted_and_is_no_history(fresh_store, row):
    """The count is exact, and its day is not over."""
    fresh_store.put_cell(row, "BASE", 1, {"fare": 12.5})
    found = measure(fresh_store)

    assert len(found.groups) == 1
    assert found.groups[0].shard == fresh_store.shard_of(row)
    assert found.groups[0].cells == Interval.of(1.0)
    assert found.groups[0].json_bytes == Interval.of(float(len(b'{"fare":12.5}')))
    assert [(each.cells.mid, each.method, each.complete) for each in found.growth] == [(1.0, "count", False)]
    assert "no day is complete yet, so the growth is unknown" in found.notes


def test_a_small_datastore_is_counted(fresh_store, new_row):
    """Cells and body bytes by column and codec are exact; JSON text is estimated; unreadable bodies are separate."""
    stored = [
        NewStoredCell(new_row(), column, 1, body)
        for number in range(60)
        for column, body in (
            ("BASE", json.dumps({"number": number, "text": "x" * number}).encode()),
            (
                "NOTES",
                schemaless.encode_body([number] * number) if hasattr(schemaless, "encode_body") else b"[%d]" % number,
            ),
        )
    ]
    fresh_store.put_stored_cells(stored)
    fresh_store.put_cells([NewCell(new_row(), "BASE", 2, {"long": "word " * 50}) for _ in range(30)])
    fresh_store.put_stored_cells([NewStoredCell(new_row(), "BASE", 3, b"\xc1\xee no such format")], trusted=True)
    rows = [cell for shard in range(4) for cell in fresh_store.scan_shard(shard)]
    counted: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for cell in rows:
        try:
            name = cell.column_name, describe_body(cell.body).name
        except schemaless.CorruptBody:
            name = cell.column_name, "unreadable"
        counted[name] += 1
        sizes[name] += len(cell.body)
    found = measure(fresh_store)

    assert totals(found, "cells", "column_name", "codec") == {name: Interval.of(n) for name, n in counted.items()}
    assert totals(found, "body_bytes", "column_name", "codec") == {name: Interval.of(n) for name, n in sizes.items()}
    assert ("BASE", "unreadable") in counted
    text = totals(found, "json_bytes", "column_name", "codec")
    assert text["BASE", "legacy"] == Interval.of(sizes["BASE", "legacy"])
    assert near(text["BASE", "msgpack+zlib"], 30 * len(b'{"long":"%b"}' % (b"word " * 50)))
    space = added(each.rebuilt_bytes for each in found.clusters)
    assert sum(each.allocated_bytes.mid for each in found.groups) == pytest.approx(space.mid)


def test_cold_cells_and_their_files_are_counted_apart(fresh_store, by_hand, new_row, tmp_path):
    """References by number, texts by the length that they state, files by what the shard lists; nothing is fetched."""
    rows = list(itertools.islice((row for row in iter(new_row, None) if fresh_store.shard_of(row) == 1), 5))
    for row in rows:
        fresh_store.put_cell(row, "BASE", 1, {"words": "and more words " * 40})
    folder = ColdFolder(fresh_store, by_hand(fresh_store), tmp_path)
    (file,) = folder.freeze((row, "BASE", 1) for row in rows[:3])
    folder.target.delete([file.name])
    found = measure(fresh_store, trials=False)
    groups = {group.codec: group for group in found.groups}
    (day,) = found.growth

    assert {codec: group.cells.mid for codec, group in groups.items()} == {"cold": 3, "msgpack+zlib": 2}
    assert groups["cold"].body_bytes.mid == 3 * 30
    assert groups["cold"].json_bytes.mid == day.cold_text_bytes == file.text_bytes > 3 * 600
    assert (day.cells.mid, day.cold_cells) == (5, 3)
    listed = [(space.cold_files, space.cold_file_bytes, space.cold_text_bytes) for space in found.clusters]
    assert sorted(listed) == [(0, 0, 0), (1, file.file_bytes, file.text_bytes)]


@pytest.mark.twice
def test_a_sample_agrees_with_a_full_count(written, history):
    """Cells, body bytes and JSON text by column, codec and shard are near the counts, and reproducible by seed."""
    counted: Counter[tuple[object, ...]] = Counter()
    for made in cells(history, 4):
        codec = describe_body(made.body).name
        for what, amount in (("cells", 1), ("body_bytes", len(made.body)), ("json_bytes", made.text_bytes)):
            counted[what, made.column_name, codec] += amount
            counted[what, made.shard] += amount
    found = measure(written, seed=3, bounds=SMALL)

    assert not any(group.cells.exact for group in found.groups)
    for what in ("cells", "body_bytes", "json_bytes"):
        for key, estimate in (totals(found, what, "column_name", "codec") | totals(found, what, "shard")).items():
            assert near(estimate, counted[(what, *key)]), (what, key, estimate)
    assert all(space.file_bytes_measured for space in found.clusters)
    again = measure(written, seed=3, bounds=SMALL)
    assert (again.groups, again.growth) == (found.groups, found.growth)


@pytest.mark.twice
def test_days_are_searched_for_and_agree_with_a_full_count(written, history):
    """For each day and column, weekends included; today and the first day are incomplete."""
    counted = Counter((made.created_at.date(), made.column_name) for made in cells(history, 4))
    found = measure(written, seed=5, bounds=SMALL)
    by_day = defaultdict(list)
    for each in found.growth:
        by_day[each.day, each.column_name].append(each)

    assert {each.method for each in found.growth} == {"search"}
    assert len(by_day) in (2 * (DAYS + 2), 2 * (DAYS + 3)), "one more day if midnight has passed"
    for key, parts in by_day.items():
        assert near(added(each.cells for each in parts), counted[key]), (key, parts)
        assert {each.complete for each in parts} == {key[0] not in (min(by_day)[0], max(by_day)[0])}
    assert added(each.cells for each in found.growth).mid == pytest.approx(sum(counted.values()), rel=0.05)


def test_imported_history_is_detected_and_estimated_from_the_sample(fresh_store, new_row):
    """Days can be anywhere along added_id; the method and a note say so."""
    drawn = random.Random(2)
    start = datetime.now(UTC) - timedelta(days=10)
    fresh_store.put_cells(
        [NewCell(new_row(), "BASE", 1, {}, start + timedelta(days=8 * drawn.random())) for _ in range(1_500)]
    )
    found = measure(fresh_store, seed=1, bounds=SMALL)

    assert {each.method for each in found.growth} == {"sample"}
    assert any("does not follow added_id" in each for each in found.notes)
    assert added(each.cells for each in found.growth).mid == pytest.approx(1_500, rel=0.2)


def test_cells_of_the_future_are_in_no_day(fresh_store, new_row):
    """Cells from a wrong clock count for the sizes, and a note gives their number."""
    later = datetime.now(UTC) + timedelta(days=400)
    fresh_store.put_cells([NewCell(new_row(), "BASE", 1, {}, later) for _ in range(5)])
    fresh_store.put_cells([NewCell(new_row(), "BASE", 1, {}) for _ in range(5)])
    found = measure(fresh_store)

    assert added(group.cells for group in found.groups).mid == 10
    assert sum(each.cells.mid for each in found.growth) == 5
    assert {each.day for each in found.growth} == {found.taken_at.date()}
    assert any("have a created_at in the future" in each for each in found.notes)


def test_a_few_cells_out_of_order_do_not_prevent_the_search_for_days(fresh_store, by_hand):
    """A clock that jumps briefly does not invalidate two weeks of history, and a note mentions it."""
    short = PastWrites(8, 14, until(), COLUMNS[:1], gap_bytes=0)
    write(fresh_store, short)
    root = by_hand(fresh_store)
    for shard in range(4):
        table = b"`%b`.cell" % root.database(shard).encode()
        root.execute(shard, b"UPDATE %b SET created_at='2001-01-01' WHERE added_id%%90=7" % table)
    counted = Counter(made.created_at.date() for made in cells(short, 4))
    found = measure(fresh_store, seed=6, bounds=dataclasses.replace(SMALL, inverted_share=0.03))

    assert {each.method for each in found.growth} == {"search"}
    assert any("out of order" in each for each in found.notes)
    for day in list(counted)[1:-1]:
        mine = [each.cells for each in found.growth if each.day == day]
        assert near(added(mine), counted[day]), (day, mine, counted[day])


def test_a_large_gap_in_the_ids_does_not_affect_any_day(fresh_store, by_hand):
    """After AUTO_INCREMENT was raised in the middle of a day, nothing is counted in the gap."""
    short = PastWrites(9, 14, until(), COLUMNS[:1], gap_bytes=100)
    write(fresh_store, short)
    root = by_hand(fresh_store)
    for shard in range(4):
        table = b"`%b`.cell" % root.database(shard).encode()
        # In descending order, so that no id is duplicated during the update.
        root.execute(
            shard, b"UPDATE %b SET added_id=added_id+100000000 WHERE added_id>1500 ORDER BY added_id DESC" % table
        )
    counted = Counter(made.created_at.date() for made in cells(short, 4))
    found = measure(fresh_store, seed=6, bounds=dataclasses.replace(SMALL, inverted_share=0.03))

    assert {each.method for each in found.growth} == {"search"}
    assert near(added(group.cells for group in found.groups), sum(counted.values()))
    for day in list(counted)[1:-1]:
        mine = [each.cells for each in found.growth if each.day == day]
        assert near(added(mine), counted[day]), (day, mine, counted[day])
        assert added(mine).mid == pytest.approx(counted[day], rel=0.6), day


def test_a_cluster_that_is_down_has_a_problem_and_no_figures(fresh_store, new_row, tmp_path):
    """The other cluster is measured, and a given disk is still reported."""
    fresh_store.put_cells([NewCell(new_row(), "BASE", 1, {}) for _ in range(40)])
    unreachable = Node("primary", socket=str(tmp_path / "unreachable.sock"))
    up, down = internals_of(fresh_store).topology.clusters
    topology = dataclasses.replace(
        internals_of(fresh_store).topology, clusters=(up, dataclasses.replace(down, nodes=(unreachable,)))
    )
    with opened_as(fresh_store, topology) as half:
        found = measure(half, disks={down.name: GivenDisk(1_000, 400)})

    assert {group.shard for group in found.groups} <= {0, 1}
    assert {each.cluster for each in found.growth} == {up.name}
    assert [space.cluster for space in found.problems] == [down.name]
    problem = found.problems[0]
    assert "unreachable.sock" in problem.problem
    assert (problem.file_bytes, problem.rebuilt_bytes, problem.disk_bytes, problem.disk_from) == (
        None,
        None,
        1_000,
        "flag",
    )
    assert any(down.name in each for each in found.notes)


@pytest.mark.twice
def test_bodies_in_overflow_pages_are_read_within_bounds(fresh_store, new_row):
    """The server reads a touched body completely, so fewer long bodies are touched."""
    fresh_store.put_stored_cells(
        [NewStoredCell(new_row(), "BASE", 1, b'"%b"' % (b"x" * 20_000)) for _ in range(900)], trusted=True
    )
    found = measure(fresh_store, seed=1, bounds=dataclasses.replace(SMALL, pages=600, whole_rows=0))

    assert found.pages_read < 1_000
    assert near(added(group.body_bytes for group in found.groups), 900 * 20_002)


def test_more_shards_than_parts_are_measured_by_cluster(written, history):
    """Groups are by cluster and days are searched in some shards, so thousands of shards do not cost more."""
    counted = Counter(made.shard for made in cells(history, 4))
    found = measure(written, seed=4, bounds=dataclasses.replace(SMALL, parts=1, day_shards=1))

    assert {group.shard for group in found.groups} == {None}
    for cluster, shards in (("cluster-1", (0, 1)), ("cluster-2", (2, 3))):
        mine = added(group.cells for group in found.groups if group.cluster == cluster)
        assert near(mine, sum(counted[shard] for shard in shards)), cluster
    grown = added(each.cells for each in found.growth)
    assert grown.mid == pytest.approx(sum(counted.values()), rel=0.2)


def test_a_disk_for_an_unknown_cluster_is_refused(fresh_store):
    """The error names the known clusters."""
    with pytest.raises(
        InvalidInput,
        match="--disk names the cluster 'nowhere', which does not exist; the clusters are cluster-1, cluster-2",
    ):
        measure(fresh_store, disks={"nowhere": GivenDisk(1)})


def test_a_given_disk_overrides_what_its_server_reports(fresh_store):
    """A note says that the two differ."""
    shown = {space.cluster: space for space in measure(fresh_store).clusters}
    found = measure(fresh_store, disks={"cluster-1": GivenDisk(4_000_000_000_000, 1_500_000_000_000)})

    given, other = found.clusters
    assert (given.disk_bytes, given.free_bytes, given.disk_from) == (4_000_000_000_000, 1_500_000_000_000, "flag")
    assert other.disk_from == shown["cluster-2"].disk_from
    notes = [note for note in found.notes if "the report uses the given one" in note]
    if shown["cluster-1"].disk_bytes is None:  # The server is not on this machine.
        assert notes == []
    else:
        assert notes[0].startswith("cluster-1: the given disk has 4.00 TB with 1.50 TB free, but its server reports ")


@pytest.mark.long
def test_a_replica_is_read_if_it_answers_and_the_primary_otherwise(replicated, tmp_path):
    """The measurement names the server read; a replica that is down causes a note, not a problem."""
    with accounts_on([replicated.url]) as own:
        url = own.create("measured", 1)
        own.allow("measure", "measured", 1)
        add_replica(own.url("admin", url), "cluster-1", own.url("admin", replicated.replicas[0].url))
        with schemaless.connect(own.url("measure", url)) as store:
            found = measure(store)
            cluster = internals_of(store).topology.clusters[0]
            gone = dataclasses.replace(cluster.replicas[0], socket=str(tmp_path / "gone.sock"))
            topology = dataclasses.replace(
                internals_of(store).topology, clusters=(dataclasses.replace(cluster, nodes=(cluster.primary, gone)),)
            )
            with opened_as(store, topology) as other:
                without = measure(other)

    assert [(space.read_from, space.node, space.copies) for space in found.clusters] == [
        ("replica", str(cluster.replicas[0]), 2)
    ]
    assert [(space.read_from, space.problem) for space in without.clusters] == [("primary", None)]
    assert any("its replica could not be read" in each for each in without.notes)
