"""How unevenly shards and clusters are filled, and which shards to move so that they are even. A plan; pure.

A cluster's share should be that of its disk, where all disks are known, and the same for all where one is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.capacity.measurement import Measurement
from schemaless.errors import InvalidInput

__all__ = ["Fill", "Move", "ShardSize", "Skew", "fullest", "skew", "skew_of"]

TOLERANCE: Final = 0.02
"""Clusters within so much of their share count as even: no move is worth less."""

_MOST_FULLEST: Final = 10


@dataclass(frozen=True, slots=True)
class ShardSize:
    """What a shard takes: its number, its cluster, and bytes on disk, of one copy."""

    shard: int
    cluster: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Move:
    """A shard that would go from one cluster to another, and its bytes."""

    shard: int
    from_cluster: str
    to_cluster: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Fill:
    """A cluster's bytes.

    Attributes:
        now_bytes: what its shards take.
        even_bytes: its share of what all take.
        after_bytes: what its shards take after the moves.
    """

    cluster: str
    now_bytes: float
    even_bytes: float
    after_bytes: float


@dataclass(frozen=True, slots=True)
class Skew:
    """How even it is.

    Attributes:
        shards: as they came.
        clusters: in the order of their names.
        moves: in the order in which they help most; none where it is even enough, or cannot be bettered.
        by_disk: whether shares follow the disks.
        shard_count: of all these clusters, empty shards too.
    """

    shards: tuple[ShardSize, ...]
    clusters: tuple[Fill, ...]
    moves: tuple[Move, ...]
    by_disk: bool
    shard_count: int

    @property
    def shard_ratio(self) -> float | None:
        """The largest shard over the average one; None where shards were not measured one by one, or hold nothing."""
        total = sum(size.size_bytes for size in self.shards)
        return max(size.size_bytes for size in self.shards) * self.shard_count / total if total else None

    @property
    def cluster_ratio(self) -> float:
        """How many times its share the fullest cluster has."""
        return max((fill.now_bytes / fill.even_bytes for fill in self.clusters if fill.even_bytes), default=1.0)

    @property
    def cluster_ratio_after(self) -> float:
        """The same after the moves."""
        return max((fill.after_bytes / fill.even_bytes for fill in self.clusters if fill.even_bytes), default=1.0)

    @property
    def moved_bytes(self) -> float:
        """What the moves copy, of one copy."""
        return sum(move.size_bytes for move in self.moves)


def fullest(shards: Sequence[ShardSize]) -> list[ShardSize]:
    """Return the ten largest shards, the largest first; fewer where there are fewer."""
    return sorted(shards, key=lambda size: (-size.size_bytes, size.shard))[:_MOST_FULLEST]


def skew(
    shards: Sequence[ShardSize],
    clusters: Mapping[str, float],
    disks: Mapping[str, float | None] | None = None,
    *,
    shard_count: int | None = None,
) -> Skew:
    """Return how even it is, and what would even it out.

    The fullest cluster gives to the emptiest one, by their shares, the shard that makes the two most alike, until no
    shard betters it or all are within 2 % of their share.

    Args:
        shards: of the clusters that were measured; none where these were measured as a whole, and no move is named.
        clusters: bytes by name, of those without shards too.
        disks: sizes in bytes, by cluster.
        shard_count: how many shards there are, where some hold nothing and are not among ``shards``.

    Raises:
        InvalidInput: a shard is in a cluster that is not named.
    """
    for size in shards:
        if size.cluster not in clusters:
            raise InvalidInput(f"shard {size.shard} is in {size.cluster!r}, which is none of {', '.join(clusters)}")
    weights = {name: (disks or {}).get(name) or 0.0 for name in clusters}
    by_disk = bool(weights) and all(weights.values())
    if not by_disk:
        weights = dict.fromkeys(clusters, 1.0)
    total, weight = sum(clusters.values()), sum(weights.values())
    even = {name: total * weights[name] / weight for name in clusters}
    now = dict(clusters)
    after = dict(now)
    moves: list[Move] = []
    where = {size.shard: size.cluster for size in shards}
    while total and len(clusters) > 1:
        fullest = max(clusters, key=lambda name: after[name] / even[name])
        emptiest = min(clusters, key=lambda name: after[name] / even[name])
        if after[fullest] <= even[fullest] * (1 + TOLERANCE) and after[emptiest] >= even[emptiest] * (1 - TOLERANCE):
            break

        def uneven(size: float, fullest: str = fullest, emptiest: str = emptiest) -> float:
            return max(
                abs(after[fullest] - size - even[fullest]) / even[fullest],
                abs(after[emptiest] + size - even[emptiest]) / even[emptiest],
            )

        movable = [size for size in shards if where[size.shard] == fullest and size.size_bytes > 0]
        best = min(movable, key=lambda size: (uneven(size.size_bytes), size.shard), default=None)
        if best is None or uneven(best.size_bytes) >= uneven(0.0) - 1e-9:
            break
        moves.append(Move(best.shard, fullest, emptiest, best.size_bytes))
        where[best.shard] = emptiest
        after[fullest] -= best.size_bytes
        after[emptiest] += best.size_bytes
    fills = tuple(Fill(name, now[name], even[name], after[name]) for name in sorted(clusters))
    return Skew(tuple(shards), fills, _merged(moves), by_disk, shard_count or len(shards))


def skew_of(measurement: Measurement) -> Skew:
    """Return how even a datastore is by a measurement; clusters that were not measured are left out."""
    measured = [space for space in measurement.clusters if space.problem is None]
    sizes: dict[tuple[str, int], float] = {}
    clusters = {space.cluster: 0.0 for space in measured}
    for group in measurement.groups:
        clusters[group.cluster] = clusters.get(group.cluster, 0.0) + group.allocated_bytes.mid
        if group.shard is not None:
            key = group.cluster, group.shard
            sizes[key] = sizes.get(key, 0.0) + group.allocated_bytes.mid
    shards = [ShardSize(shard, cluster, size) for (cluster, shard), size in sorted(sizes.items())]
    disks = {space.cluster: None if space.disk_bytes is None else float(space.disk_bytes) for space in measured}
    return skew(shards, clusters, disks, shard_count=sum(space.shards for space in measured))


def _merged(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Return one move for each shard, from where it is to where it ends."""
    ends: dict[int, Move] = {}
    for move in moves:
        first = ends.get(move.shard)
        ends[move.shard] = (
            move if first is None else Move(move.shard, first.from_cluster, move.to_cluster, move.size_bytes)
        )
    return tuple(move for move in ends.values() if move.from_cluster != move.to_cluster)
