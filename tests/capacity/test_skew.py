"""Skew over shards and clusters, and the moves that even it out."""

from __future__ import annotations

import random

import pytest

from schemaless.capacity.skew import ShardSize, skew
from schemaless.errors import InvalidInput

pytestmark = pytest.mark.once


def sizes(**clusters: list[float]) -> tuple[list[ShardSize], dict[str, float]]:
    shards: list[ShardSize] = []
    for name, each in clusters.items():
        shards += [ShardSize(len(shards) + number, name, size) for number, size in enumerate(each)]
    return shards, {name: sum(each) for name, each in clusters.items()}


def test_even_clusters_need_no_move():
    """Within two percent of its share a cluster is left alone, however uneven its shards are."""
    found = skew(*sizes(a=[10, 30, 60], b=[50, 51]))

    assert found.moves == ()
    assert found.cluster_ratio == pytest.approx(101 / 100.5)
    assert found.shard_ratio == pytest.approx(60 / (201 / 5))


def test_the_moves_even_clusters_out():
    """A cluster with twice the shards of another gives what brings both to their share; each shard moves once."""
    found = skew(*sizes(a=[10.0] * 12, b=[10.0] * 6))

    assert [(move.from_cluster, move.to_cluster, move.size_bytes) for move in found.moves] == [("a", "b", 10.0)] * 3
    assert len({move.shard for move in found.moves}) == 3
    assert found.cluster_ratio == pytest.approx(120 / 90)
    assert found.cluster_ratio_after == pytest.approx(1.0)
    assert found.moved_bytes == 30


def test_shares_follow_the_disks_where_all_are_known():
    """A disk of three times the size is to hold three times as much; with one unknown, all clusters count the same."""
    shards, clusters = sizes(a=[10.0] * 10, b=[10.0] * 10)

    assert [round(fill.even_bytes) for fill in skew(shards, clusters, {"a": 300, "b": 100}).clusters] == [150, 50]
    assert [fill.even_bytes for fill in skew(shards, clusters, {"a": 300, "b": None}).clusters] == [100, 100]


def test_an_empty_cluster_gets_its_share():
    """A new cluster without shards is where the moves go."""
    found = skew(*sizes(a=[10.0] * 6, b=[10.0] * 6, new=[]))

    assert {move.to_cluster for move in found.moves} == {"new"}
    assert [fill.after_bytes for fill in found.clusters] == [40, 40, 40]


def test_one_shard_that_is_too_large_stays():
    """A move that only makes another cluster the fullest one is none."""
    assert skew(*sizes(a=[100.0], b=[1.0])).moves == ()


def test_clusters_measured_as_a_whole_have_a_ratio_and_no_moves():
    """With thousands of shards these are not known one by one."""
    found = skew([], {"a": 300.0, "b": 100.0}, shard_count=4096)

    assert found.cluster_ratio == 1.5
    assert (found.moves, found.shard_ratio) == ((), None)


def test_nothing_stored_is_even():
    """An empty datastore has no skew, and none that could be divided by."""
    found = skew([], {"a": 0.0, "b": 0.0})

    assert (found.cluster_ratio, found.shard_ratio, found.moves) == (1.0, None, ())


def test_a_shard_of_another_cluster_is_refused():
    """What does not add up is not planned with."""
    with pytest.raises(InvalidInput, match="shard 3 is in 'b', which is none of a"):
        skew([ShardSize(3, "b", 1.0)], {"a": 1.0})


def test_moves_never_make_it_worse_and_end():
    """Over seeded random datastores the fullest cluster never gets fuller, and nothing is lost on the way."""
    for seed in range(50):
        draw = random.Random(seed)
        shards, clusters = sizes(
            **{f"c{number}": [draw.lognormvariate(0, 1) for _ in range(draw.randrange(9))] for number in range(4)}
        )
        found = skew(shards, clusters)

        assert found.cluster_ratio_after <= found.cluster_ratio + 1e-9, seed
        assert sum(fill.after_bytes for fill in found.clusters) == pytest.approx(sum(clusters.values())), seed
        assert len({move.shard for move in found.moves}) == len(found.moves), seed
