"""Skew of shards and clusters, and the shard moves that would even it out; nothing is moved.

A cluster's fair share is proportional to its disk size if all disk sizes are known; otherwise, all shares are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.base.parts import grouped
from schemaless.errors import InvalidInput
from schemaless.planning.capacity import history
from schemaless.planning.capacity.measurement import Measurement
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

TOLERANCE: Final = 0.02
"""Largest deviation from the fair share, relative to it, for which no move is proposed."""

_MOST_FULLEST: Final = 10
_MEASURE: Final = "run 'schemaless capacity measure' first"


@dataclass(frozen=True, slots=True)
class ShardSize:
    """Bytes on disk of one copy of a shard."""

    shard: int
    cluster: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Move:
    """Proposed move of a shard to another cluster."""

    shard: int
    from_cluster: str
    to_cluster: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Fill:
    """Bytes of a cluster's shards.

    Attributes:
        cluster: Name of the cluster.
        now_bytes: Bytes now.
        even_bytes: Fair share of the total.
        after_bytes: Bytes after the moves.
    """

    cluster: str
    now_bytes: float
    even_bytes: float
    after_bytes: float


@dataclass(frozen=True, slots=True)
class Skew:
    """Distribution of bytes over shards and clusters.

    Attributes:
        shards: The measured shards, in the given order.
        clusters: Ordered by name.
        moves: The proposed moves, most effective first; empty if the distribution is even or no move improves it.
        by_disk: True if fair shares are proportional to the disks.
        shard_count: Number of shards of these clusters, including empty ones.
    """

    shards: tuple[ShardSize, ...]
    clusters: tuple[Fill, ...]
    moves: tuple[Move, ...]
    by_disk: bool
    shard_count: int

    @property
    def shard_ratio(self) -> float | None:
        """Largest shard size relative to the average; None if shards were not measured one by one, or are all empty."""
        total = sum(size.size_bytes for size in self.shards)
        return max(size.size_bytes for size in self.shards) * self.shard_count / total if total else None

    @property
    def cluster_ratio(self) -> float:
        """Bytes of the fullest cluster relative to its fair share."""
        return max((fill.now_bytes / fill.even_bytes for fill in self.clusters if fill.even_bytes), default=1.0)

    @property
    def cluster_ratio_after(self) -> float:
        """Bytes of the fullest cluster after the moves, relative to its fair share."""
        return max((fill.after_bytes / fill.even_bytes for fill in self.clusters if fill.even_bytes), default=1.0)

    @property
    def moved_bytes(self) -> float:
        """Bytes that the moves copy, counting one copy of each shard."""
        return sum(move.size_bytes for move in self.moves)


def fullest(shards: Sequence[ShardSize]) -> list[ShardSize]:
    """Return up to ten of the largest shards, largest first."""
    return sorted(shards, key=lambda size: (-size.size_bytes, size.shard))[:_MOST_FULLEST]


def skew(
    shards: Sequence[ShardSize],
    clusters: Mapping[str, float],
    disks: Mapping[str, float | None] | None = None,
    *,
    shard_count: int | None = None,
) -> Skew:
    """Calculate the skew and the moves that even it out.

    Greedy: move the shard that best balances the fullest and the emptiest cluster, until no move improves the balance
    or all clusters are within 2 % of their fair share.

    Args:
        shards: Shards of the measured clusters; empty if clusters were measured as a whole; then no moves are proposed.
        clusters: Bytes by cluster name, including clusters without shards.
        disks: Size of each cluster's disk in bytes.
        shard_count: Number of shards, if empty ones are missing from ``shards``.

    Raises:
        InvalidInput: A shard is in a cluster that is not in ``clusters``.
    """
    for size in shards:
        if size.cluster not in clusters:
            raise InvalidInput(
                f"shard {size.shard} is in cluster {size.cluster!r}, which is not one of {', '.join(clusters)}"
            )
    weights = {name: (disks or {}).get(name) or 0.0 for name in clusters}
    by_disk = bool(weights) and all(weights.values())
    if not by_disk:
        weights = dict.fromkeys(clusters, 1.0)
    total, weight = sum(clusters.values()), sum(weights.values())
    even = {name: total * weights[name] / weight for name in clusters}
    after = dict(clusters)
    moved: dict[int, ShardSize] = {}
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
        moved[best.shard] = best
        where[best.shard] = emptiest
        after[fullest] -= best.size_bytes
        after[emptiest] += best.size_bytes
    moves = (Move(shard, size.cluster, where[shard], size.size_bytes) for shard, size in moved.items())
    return Skew(
        tuple(shards),
        tuple(Fill(name, clusters[name], even[name], after[name]) for name in sorted(clusters)),
        tuple(move for move in moves if move.from_cluster != move.to_cluster),
        by_disk,
        shard_count or len(shards),
    )


def skew_of(measurement: Measurement) -> Skew:
    """Calculate the skew within each measured datastore; clusters that could not be measured are left out."""
    # Shards cannot move between datastores.
    parts = [_skew_of(measurement, name) for name in measurement.datastores]
    return Skew(
        tuple(size for part in parts for size in part.shards),
        tuple(fill for part in parts for fill in part.clusters),
        tuple(move for part in parts for move in part.moves),
        all(part.by_disk for part in parts),
        sum(part.shard_count for part in parts),
    )


def file_sizes(measurement: Measurement) -> list[ShardSize]:
    """Return the file length of each shard."""
    return [
        ShardSize(shard, space.cluster, size) for space in measurement.clusters for shard, size in space.shard_files
    ]


def _skew_of(measurement: Measurement, datastore: str) -> Skew:
    of, spaces = measurement.datastore_of, [space for space in measurement.clusters if space.problem is None]
    measured = [space for space in spaces if of(space.cluster) == datastore]
    sizes: dict[tuple[str, int], float] = {}
    clusters = {space.cluster: 0.0 for space in measured}
    for group in (group for group in measurement.groups if of(group.cluster) == datastore):
        clusters[group.cluster] = clusters.get(group.cluster, 0.0) + group.allocated_bytes.mid
        if group.shard is not None:
            key = group.cluster, group.shard
            sizes[key] = sizes.get(key, 0.0) + group.allocated_bytes.mid
    shards = [ShardSize(shard, cluster, size) for (cluster, shard), size in sorted(sizes.items())]
    disks = {space.cluster: space.disk_bytes for space in measured}
    return skew(shards, clusters, disks, shard_count=sum(space.shards for space in measured))


def shards_to_balance(store: Datastore) -> tuple[Skew, dict[str, list[int]]]:
    """Return the skew between clusters in the newest measurement, and the shards to move to each target cluster.

    Raises:
        InvalidInput: there is no measurement, or the topology has changed since the last one.
        ServerError: a server cannot be reached.
    """
    measurement = history.latest(store)
    if measurement is None:
        raise InvalidInput(f"there is no measurement yet; {_MEASURE}")
    topology, taken = internals_of(store).topology, f"{measurement.taken_at:%Y-%m-%d %H:%M} UTC"
    spaces = [space for space in measurement.clusters if space.problem is None]
    measured = [space.cluster for space in spaces]
    if lacking := sorted({cluster.name for cluster in topology.clusters} - {*measured}):
        raise InvalidInput(f"the measurement of {taken} does not include {', '.join(lacking)}; {_MEASURE}")
    uneven = skew_of(measurement)
    if not uneven.shards:
        # With many shards, a measurement covers whole clusters; per shard only file sizes are available.
        shards = file_sizes(measurement)
        clusters = {name: float(sum(size.size_bytes for size in shards if size.cluster == name)) for name in measured}
        disks = {space.cluster: space.disk_bytes for space in spaces}
        uneven = skew(shards, clusters, disks, shard_count=store.shard_count)
    targets = {move.shard: move.to_cluster for move in uneven.moves}
    for size in uneven.shards:
        # Check every shard, not only those to be moved: other moves may have filled a cluster.
        if topology.cluster_of(size.shard).name not in (size.cluster, targets.get(size.shard)):
            raise InvalidInput(f"shard {size.shard} has been moved since the measurement of {taken}; {_MEASURE}")
    parts = grouped((target, shard) for shard, target in sorted(targets.items()))
    return uneven, dict(sorted(parts.items()))
