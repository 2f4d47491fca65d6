"""Topology: inconsistent values are rejected before any connection."""

from __future__ import annotations

import pytest

from schemaless.base.keys import check_datastore_name
from schemaless.errors import InvalidInput, TopologyError
from schemaless.topology.model import Cluster, ShardRange, Topology, check_shard_count, even_ranges
from schemaless.wire.node import Node

pytestmark = pytest.mark.once

PRIMARY = Node("primary", host="db-1", port=3306)
CLUSTERS = (Cluster("a", (PRIMARY,)), Cluster("b", (Node("primary", host="db-2"),)))


def test_even_ranges_any_numbers_cover_each_shard_once():
    """Range lengths differ by at most one, and no shard is left out."""
    for shards in range(1, 40):
        for clusters in range(1, min(shards, 7) + 1):
            parts = even_ranges(shards, [str(number) for number in range(clusters)])
            sizes = [part.last - part.first + 1 for part in parts]

            assert [shard for part in parts for shard in range(part.first, part.last + 1)] == list(range(shards))
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("ranges", "complaint"),
    [
        ([(0, 3, "a"), (5, 7, "b")], "wrong at shard 4"),
        ([(0, 4, "a"), (4, 7, "b")], "wrong at shard 5"),
        ([(0, 3, "a"), (4, 6, "b")], "8 shards, but the catalog's ranges cover 7"),
        ([(0, 3, "a"), (4, 7, "c")], "unknown cluster 'c'"),
        ([], "cover 0"),
    ],
)
def test_topology_with_a_gap_or_an_overlap_is_refused(ranges, complaint):
    """An inconsistent catalog is rejected."""
    with pytest.raises(TopologyError, match=complaint):
        Topology("trips", 8, CLUSTERS, tuple(ShardRange(*part) for part in ranges))


def test_topology_with_unknown_placement_is_refused():
    """A placement rule of a later version is an error."""
    with pytest.raises(TopologyError, match="has placement 'jump'"):
        Topology("trips", 8, CLUSTERS, even_ranges(8, ["a", "b"]), placement="jump")


@pytest.mark.parametrize("nodes", [(), (PRIMARY, PRIMARY), (Node("replica", host="db-3"),)])
def test_cluster_without_exactly_one_primary_is_refused(nodes):
    """A cluster has exactly one source of truth."""
    with pytest.raises(TopologyError, match="must have one primary"):
        Cluster("a", nodes)


@pytest.mark.parametrize(
    "name", ["", "Trips", "1trips", "trips-1", "t" * 49, "trips_0001", "trips_12345", "trips_heartbeat", "a`b", "a\n"]
)
def test_check_datastore_name_unusable_is_refused(name):
    """Names become database names, and shards add their number to them."""
    with pytest.raises(InvalidInput):
        check_datastore_name(name)


@pytest.mark.parametrize("count", [0, -1, 65_537, 1.0, "4", True])
def test_check_shard_count_out_of_bounds_is_refused(count):
    """The bounds are 1 and 65,536; other types are rejected."""
    with pytest.raises(InvalidInput):
        check_shard_count(count)
