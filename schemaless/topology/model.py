"""Topology of a datastore: clusters, nodes and shard ranges. Pure values and their validation, without I/O."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from schemaless.base.keys import check_datastore_name
from schemaless.errors import InvalidInput, TopologyError
from schemaless.schema.versions import Identity
from schemaless.topology.placement import MAX_SHARD_COUNT, PLACEMENT
from schemaless.wire.node import Node


@dataclass(frozen=True, slots=True)
class Cluster:
    """A primary and its replicas, which host some of the shards.

    Attributes:
        name: the cluster's name.
        nodes: the primary and the replicas.
        epoch: epoch of the claim that the primary must hold; 0 if there is no claim yet and none is required.
        id_block: highest block of added_ids that a claim has started in the cluster's shards; 0 without a claim.
        engine: storage engine of the cells, "innodb" or "rocksdb".
        expected_replicas: how many replicas it should have: the most that it has had, unless the operator said another
            number; None if neither.
        semi_sync: whether its primary should be semi-synchronous, because one was.
    """

    name: str
    nodes: tuple[Node, ...]
    epoch: int = 0
    id_block: int = 0
    engine: str = "innodb"
    expected_replicas: int | None = field(default=None, compare=False)
    semi_sync: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        primaries = [node for node in self.nodes if node.role == "primary"]
        if len(primaries) != 1:
            raise TopologyError(f"cluster {self.name!r} must have one primary; the catalog names {len(primaries)}")

    @property
    def primary(self) -> Node:
        """The node that takes writes."""
        return next(node for node in self.nodes if node.role == "primary")

    @property
    def replicas(self) -> tuple[Node, ...]:
        """The nodes that follow the primary."""
        return tuple(node for node in self.nodes if node.role == "replica")

    def has(self, address: Node) -> bool:
        """Return True if an address, with the role "primary", is that of a node in any role."""
        return any(node.having("primary") == address for node in self.nodes)


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Consecutive shards on one cluster, both ends included."""

    first: int
    last: int
    cluster: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Topology of a datastore; its ranges are in order.

    Raises:
        TopologyError: the ranges do not cover every shard exactly once, or name an unknown cluster.
    """

    name: str
    shard_count: int
    clusters: tuple[Cluster, ...]
    ranges: tuple[ShardRange, ...]
    placement: str = PLACEMENT

    def __post_init__(self) -> None:
        if self.placement != PLACEMENT:
            raise TopologyError(
                f"datastore {self.name!r} has placement {self.placement!r}, but this version knows only {PLACEMENT!r}; "
                "use the version that created it, or a later one"
            )
        names = {cluster.name for cluster in self.clusters}
        if len(names) != len(self.clusters):
            raise TopologyError(f"datastore {self.name!r}: two clusters have the same name")
        expected = 0
        for part in self.ranges:
            if part.first != expected or part.last < part.first:
                raise TopologyError(
                    f"datastore {self.name!r}: the catalog's shard ranges are wrong at shard {expected}: "
                    f"the next range is {part.first} to {part.last}"
                )
            if part.cluster not in names:
                raise TopologyError(
                    f"datastore {self.name!r}: shard {part.first} is on unknown cluster {part.cluster!r}"
                )
            expected = part.last + 1
        if expected != self.shard_count:
            raise TopologyError(
                f"datastore {self.name!r} has {self.shard_count} shards, but the catalog's ranges cover {expected}"
            )

    def cluster(self, name: str) -> Cluster:
        """Return a cluster by its name.

        Raises:
            InvalidInput: there is no such cluster.
        """
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        names = ", ".join(cluster.name for cluster in self.clusters)
        raise InvalidInput(f"datastore {self.name!r} has no cluster {name!r}; its clusters are {names}")

    def identity(self, shard: int) -> Identity:
        """Return the identity that a shard's database must have."""
        return Identity(self.name, shard, self.shard_count, self.placement)

    def with_cluster(self, changed: Cluster) -> Topology:
        """Return the topology with a cluster replaced by the given one of the same name."""
        return replace(
            self, clusters=tuple(changed if cluster.name == changed.name else cluster for cluster in self.clusters)
        )

    def with_place(self, shard: int, cluster: str) -> Topology:
        """Return the topology with one shard on another cluster.

        Raises:
            InvalidInput: there is no such shard, or no such cluster.
        """
        self.cluster(cluster)
        check_shard(shard, self.shard_count)
        homes = [part.cluster for part in self.ranges for _ in range(part.first, part.last + 1)]
        homes[shard] = cluster
        grouped = [(home, list(numbers)) for home, numbers in groupby(range(self.shard_count), homes.__getitem__)]
        return replace(self, ranges=tuple(ShardRange(numbers[0], numbers[-1], home) for home, numbers in grouped))

    def cluster_of(self, shard: int) -> Cluster:
        """Return the cluster that hosts ``shard``.

        Raises:
            InvalidInput: there is no such shard.
        """
        check_shard(shard, self.shard_count)
        position = bisect.bisect_right(self.ranges, shard, key=lambda part: part.first) - 1
        return self.cluster(self.ranges[position].cluster)

    def shards_of(self, cluster: str) -> list[int]:
        """Return the numbers of the shards on ``cluster``, in order."""
        return [shard for part in self.ranges if part.cluster == cluster for shard in range(part.first, part.last + 1)]


def check_shard(shard: int, shard_count: int) -> int:
    """Return ``shard`` if it is valid for a datastore of ``shard_count`` shards.

    Raises:
        InvalidInput: there is no such shard.
    """
    if type(shard) is not int or not 0 <= shard < shard_count:
        raise InvalidInput(f"shard must be a number from 0 to {shard_count - 1}, got {shard!r}")
    return shard


def check_shard_count(shard_count: int) -> int:
    """Return ``shard_count`` if it is a valid number of shards.

    Raises:
        InvalidInput: ``shard_count`` is out of range or not an int.
    """
    if type(shard_count) is not int or not 1 <= shard_count <= MAX_SHARD_COUNT:
        raise InvalidInput(f"shards must be a number from 1 to {MAX_SHARD_COUNT}, got {shard_count!r}")
    return shard_count


def even_ranges(shard_count: int, clusters: Sequence[str]) -> tuple[ShardRange, ...]:
    """Spread shards over clusters in consecutive ranges whose lengths differ by at most one.

    >>> [(part.first, part.last) for part in even_ranges(16, ["a", "b", "c"])]
    [(0, 4), (5, 9), (10, 15)]

    Raises:
        InvalidInput: there are fewer shards than clusters, or no cluster.
    """
    if not clusters or shard_count < len(clusters):
        raise InvalidInput(
            f"a shard count of {shard_count} cannot be spread over {len(clusters)} clusters; each needs at least one"
        )
    edges = [shard_count * position // len(clusters) for position in range(len(clusters) + 1)]
    return tuple(
        ShardRange(first, after - 1, cluster) for first, after, cluster in zip(edges, edges[1:], clusters, strict=False)
    )


def new_topology(name: str, shard_count: int, primaries: Sequence[Node], engine: str = "innodb") -> Topology:
    """Return a new datastore's topology: one cluster per primary, and shards spread evenly in consecutive ranges.

    Args:
        name: 1 to 48 characters of ``[a-z0-9_]``, beginning with a letter.
        shard_count: 1 to 65,536.
        primaries: at least one, without duplicates.
        engine: storage engine of the cells.

    Raises:
        InvalidInput: an argument cannot be used.
    """
    check_datastore_name(name)
    check_shard_count(shard_count)
    if not primaries:
        raise InvalidInput("a datastore needs at least one cluster; give the URL of its primary")
    if len(set(primaries)) != len(primaries):
        raise InvalidInput("the same server is given for two clusters")
    names = [f"cluster-{position + 1}" for position in range(len(primaries))]
    return Topology(
        name=name,
        shard_count=shard_count,
        clusters=tuple(
            Cluster(cluster, (primary,), engine=engine) for cluster, primary in zip(names, primaries, strict=True)
        ),
        ranges=even_ranges(shard_count, names),
    )
