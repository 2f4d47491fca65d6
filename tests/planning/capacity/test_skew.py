"""Skew of shards and clusters, and the moves that even it out."""

from __future__ import annotations

import random

import pytest

from schemaless.errors import InvalidInput
from schemaless.planning.capacity.skew import ShardSize, skew

pytestmark = pytest.mark.once


def sizes(**clusters: list[float]) -> tuple[list[ShardSize], dict[str, float]]:
    shards: list[ShardSize] = []
    for name, each in clusters.items():
        shards += [ShardSize(len(shards) + number, name, size) for number, size in enumerate(each)]
    return shards, {name: sum(each) for name, each in clusters.items()}


def test_even_clusters_need_no_move():
    """Clusters within two percent of their fair share need no move, even if their shards are uneven."""
    found = skew(*sizes(a=[10, 30, 60], b=[50, 51]))

    assert found.moves == ()
    assert found.cluster_ratio == pytest.approx(101 / 100.5)
    assert found.shard_ratio == pytest.approx(60 / (201 / 5))


def test_the_moves_even_clusters_out():
    """A cluster with twice the shards of another gives up enough of them; each shard moves once."""
    found = skew(*sizes(a=[10.0] * 12, b=[10.0] * 6))

    assert [(move.from_cluster, move.to_cluster, move.size_bytes) for move in found.moves] == [("a", "b", 10.0)] * 3
    assert len({move.shard for move in found.moves}) == 3
    assert found.cluster_ratio == pytest.approx(120 / 90)
    assert found.cluster_ratio_after == pytest.approx(1.0)
    assert found.moved_bytes == 30


def test_fair_shares_follow_the_disks_if_all_are_known():
    """A disk of three times the size gets three times the share; with an unknown disk, all shares are equal."""
    shards, clusters = sizes(a=[10.0] * 10, b=[10.0] * 10)

    assert [round(fill.even_bytes) for fill in skew(shards, clusters, {"a": 300, "b": 100}).clusters] == [150, 50]
    assert [fill.even_bytes for fill in skew(shards, clusters, {"a": 300, "b": None}).clusters] == [100, 100]


def test_an_empty_cluster_gets_its_share():
    """All moves go to a new cluster without shards."""
    found = skew(*sizes(a=[10.0] * 6, b=[10.0] * 6, new=[]))

    assert {move.to_cluster for move in found.moves} == {"new"}
    assert [fill.after_bytes for fill in found.clusters] == [40, 40, 40]


def test_a_shard_that_is_too_large_to_help_stays():
    """A move that only makes another cluster the fullest one is not proposed."""
    assert skew(*sizes(a=[100.0], b=[1.0])).moves == ()


def test_clusters_measured_as_a_whole_have_a_ratio_and_no_moves():
    """Thousands of shards are not measured one by one."""
    found = skew([], {"a": 300.0, "b": 100.0}, shard_count=4096)

    assert found.cluster_ratio == 1.5
    assert (found.moves, found.shard_ratio) == ((), None)


def test_an_empty_datastore_is_even():
    """No division by zero."""
    found = skew([], {"a": 0.0, "b": 0.0})

    assert (found.cluster_ratio, found.shard_ratio, found.moves) == (1.0, None, ())


def test_a_shard_of_an_unknown_cluster_is_refused():
    """Its bytes would be missing from the clusters."""
    with pytest.raises(InvalidInput, match="shard 3 is in cluster 'b', which is not one of a"):
        skew([ShardSize(3, "b", 1.0)], {"a": 1.0})


def test_moves_never_increase_the_skew():
    """Over seeded random datastores, the fullest cluster never gets fuller and the total stays the same."""
    for seed in range(50):
        draw = random.Random(seed)
        shards, clusters = sizes(
            **{f"c{number}": [draw.lognormvariate(0, 1) for _ in range(draw.randrange(9))] for number in range(4)}
        )
        found = skew(shards, clusters)

        assert found.cluster_ratio_after <= found.cluster_ratio + 1e-9, seed
        assert sum(fill.after_bytes for fill in found.clusters) == pytest.approx(sum(clusters.values())), seed
        assert len({move.shard for move in found.moves}) == len(found.moves), seed
