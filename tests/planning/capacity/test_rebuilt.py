"""File lengths after a migration and a rebuild: predictions by shard, compared with real servers."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import replace

import pytest

import schemaless
from schemaless import NewStoredCell
from schemaless.base.numbers import Interval
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.capacity.history import changes_since
from schemaless.planning.capacity.measure import measure
from schemaless.planning.capacity.options import Asked
from schemaless.planning.capacity.rebuilt import disk_per_body, predicted, predicted_files, unit_in_blocks, unit_of
from schemaless.planning.capacity.reporting import make
from schemaless.planning.sampling.block_trial import MODEL_ERROR
from schemaless.planning.sampling.page_model import MYROCKS, MYSQL
from schemaless.planning.sampling.table_sizes import cell_table_sizes
from schemaless.store.internals import internals_of
from tests.planning.capacity.reports import down, measurement, space, within


def test_a_unit_is_of_one_cell():
    """Short bodies share pages, long ones have overflow pages."""
    short, long = unit_of("BASE", [300] * 10, MYSQL, None), unit_of("BASE", [20_000] * 10, MYSQL, within(0.5, 0.02))
    assert short is not None
    assert long is not None

    assert short.content.rows == long.content.rows == 1
    assert short.content.leaf_pages * 16_384 == pytest.approx(300 + 80, rel=0.1)
    assert short.content.overflow_pages == 0
    assert long.content.overflow_pages == 2
    assert (short.variation, short.error) == (0, 0)
    assert long.error == pytest.approx(0.02 / 1.96)
    assert unit_of("BASE", [], MYSQL, None) is None


def test_a_unit_in_blocks_takes_the_space_that_was_tried():
    """On MyRocks, codecs do not have the compression of the present bodies, so the space comes from their own trial."""
    unit = unit_in_blocks([100, 120], [200, 240], within(0.4, 0.05))
    assert unit is not None

    size = predicted_files(measurement(), space("cluster-1"), {"BASE": unit, "STATUS": unit}, MYROCKS)
    bodies = sum(group.body_bytes.mid for group in measurement().groups if group.cluster == "cluster-1")
    assert size is not None
    assert size.mid == pytest.approx(0.4 * bodies)
    assert size.high / size.mid > 1 + 1.96 * MODEL_ERROR
    assert (unit.error, unit.before_bytes) == (pytest.approx(0.05 / 1.96), 220)
    assert unit_in_blocks([], [], within(0.4)) is None


def test_disk_per_body_byte_is_that_of_a_large_file():
    """Fixed costs of a file are excluded, and without bodies there is no ratio."""
    assert disk_per_body("BASE", [2_822], MYSQL) == pytest.approx(3_836 / 2_822, rel=0.02)
    assert disk_per_body("BASE", [0], MYSQL) is None


def test_close_to_a_step_the_interval_includes_both_sides():
    """Files of about 32 pages are either small or some MB large; the interval covers both."""
    found = measurement(clusters=[space("cluster-1", stored=1.2e6)])
    unit = unit_of("BASE", list(range(1_000, 3_000, 10)), MYSQL, within(0.15))
    assert unit is not None
    near = 30.5 / unit.content.leaf_pages
    groups = [group for group in found.groups if group.column_name == "BASE"]
    sized = replace(found, groups=tuple(replace(group, cells=Interval.of(near)) for group in groups))

    size = predicted_files(sized, found.clusters[0], {"BASE": unit}, MYSQL)

    assert size is not None
    pages = [value / 16_384 / 4 for value in (size.low, size.mid, size.high)]
    assert pages[0] < 60 < pages[1] < 400
    assert pages[2] > 200


def test_a_cluster_that_is_down_has_no_prediction():
    """Its shards are unknown."""
    assert predicted_files(measurement(), down("cluster-1"), {}, MYSQL) is None


@pytest.mark.mysql
def test_free_pages_of_a_column_that_was_not_tried_are_counted_once(fresh_store):
    """In the codec that all cells are in, files become as long as by a rebuild alone."""
    draw = random.Random(5)
    for column, count, size in (("BASE", 1_400, 2_000), ("RARE", 100, 8_000)):  # RARE is in few windows of the sample.
        bodies = ({"text": draw.randbytes(size // 2).hex()} for _ in range(count))
        fresh_store.put_cells(
            [schemaless.NewCell(uuid.UUID(int=draw.getrandbits(128)), column, 1, body) for body in bodies]
        )
    found = measure(fresh_store, seed=1)
    codec = "msgpack+zlib"
    assert {group.codec for group in found.groups} == {codec}
    assert set(found.trials.units[codec]) == {"BASE"}

    files = predicted(found)
    for each in found.clusters:
        assert files[each.cluster, codec].mid == pytest.approx(each.rebuilt_bytes.mid, abs=1.5 * 2**20), "an extent"


@pytest.mark.long
@pytest.mark.mysql
def test_the_report_predicts_what_a_migration_and_rebuild_give(fresh_store, migrate_store, move_url, new_row, by_hand):
    """With two columns and four shards, away from a step, the result is in the interval and near its middle."""
    draw = random.Random(3)
    words = [f"word{number:05}" for number in range(3_000)]
    cells = []
    for number in range(200):
        count = draw.randrange(200, 2_400) if number % 4 else 12
        text = json.dumps({"words": [draw.choice(words) for _ in range(count)]}).encode()
        cells.append(NewStoredCell(new_row(), "BASE" if number % 4 else "STATUS", 1, text))
    fresh_store.put_stored_cells(cells)

    found = make({"": fresh_store}, Asked(codec="msgpack+zlib"), fresh=True)
    assert found.after is not None
    expected = found.after.file_bytes
    assert expected is not None
    migrate.run(migrate_store, MigrateSpec("msgpack+zlib"))
    with schemaless.connect(move_url) as store:
        outcomes = rebuild.run(store)
    assert [shard.state for shard in outcomes] == ["done"] * 4, outcomes
    assert changes_since(fresh_store, found.measurement) == [
        "migration 1 has changed cells",
        "rebuild 2 has rebuilt tables",
    ]
    shards = by_hand(fresh_store)
    then = 0
    for cluster in internals_of(fresh_store).topology.clusters:
        databases = [shards.database(shard) for shard in internals_of(fresh_store).topology.shards_of(cluster.name)]
        then += sum(size.file_bytes for size in cell_table_sizes(shards.pool_for(cluster.primary), databases).values())

    assert expected.low <= then <= expected.high, (expected, then, outcomes)
    assert expected.mid == pytest.approx(then, rel=0.1), (expected, then)
