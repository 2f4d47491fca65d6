"""``--balance``: which shards go where, so that clusters are filled evenly, by the newest measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.internals import internals_of
from schemaless.move.run import sizes_of
from schemaless.terminal.output import bytes_text, out
from schemaless.topology.model import Topology

if TYPE_CHECKING:
    from schemaless.capacity.skew import Skew

_MEASURE = "'schemaless capacity measure' takes a measurement"


def balance(store: Datastore) -> tuple[Skew, dict[str, list[int]]]:
    """Return how uneven clusters are, and which shards go to which cluster so that they are even.

    By the figures and the function of 'capacity report'.

    Raises:
        InvalidInput: nothing was measured, or before clusters or shards were changed.
    """
    from schemaless.capacity import history
    from schemaless.capacity.skew import ShardSize, skew, skew_of

    measurement = history.latest(store)
    if measurement is None:
        raise InvalidInput(f"nothing was measured yet; {_MEASURE}")
    topology, taken = internals_of(store).topology, f"{measurement.taken_at:%Y-%m-%d %H:%M} UTC"
    spaces = [space for space in measurement.clusters if space.problem is None]
    measured = [space.cluster for space in spaces]
    if lacking := sorted({cluster.name for cluster in topology.clusters} - {*measured}):
        raise InvalidInput(f"{', '.join(lacking)} is not in the measurement of {taken}; {_MEASURE}")
    uneven = skew_of(measurement)
    if not uneven.shards:
        # With so many shards, clusters are measured as a whole; what is known of each shard is the size of its file.
        every = range(store.shard_count)
        sizes = {shard: size.file_bytes for shard, size in sizes_of(store, every).items()}
        shards = [ShardSize(shard, topology.cluster_of(shard).name, size) for shard, size in sizes.items()]
        clusters = {name: float(sum(size.size_bytes for size in shards if size.cluster == name)) for name in measured}
        disks = {space.cluster: None if space.disk_bytes is None else float(space.disk_bytes) for space in spaces}
        uneven = skew(shards, clusters, disks, shard_count=store.shard_count)
    parts: dict[str, list[int]] = {}
    for move in uneven.moves:
        parts.setdefault(move.to_cluster, []).append(move.shard)
    goes = {move.shard: move.to_cluster for move in uneven.moves}
    for size in uneven.shards:
        # Each of them counts, and not only those that would be moved: a cluster may be full by now.
        if topology.cluster_of(size.shard).name not in (size.cluster, goes.get(size.shard)):
            raise InvalidInput(f"shard {size.shard} has been moved since it was measured at {taken}; {_MEASURE}")
    return uneven, {target: sorted(shards) for target, shards in sorted(parts.items())}


def still_to_move(topology: Topology, target: str, shards: list[int]) -> list[int]:
    """Return those shards that are not on their cluster yet."""
    return [shard for shard in shards if topology.cluster_of(shard).name != target]


def show_skew(uneven: Skew) -> None:
    """Say how uneven clusters are, and would be."""
    if not uneven.moves:
        out().print(
            f"nothing to move: the fullest cluster has {uneven.cluster_ratio:.2f} times its share", markup=False
        )
        return
    out().print(
        f"the fullest cluster has {uneven.cluster_ratio:.2f} times its share; moving {len(uneven.moves)} shards with "
        f"{bytes_text(uneven.moved_bytes)} leaves {uneven.cluster_ratio_after:.2f}",
        markup=False,
    )


def skew_data(uneven: Skew) -> dict[str, Any]:
    """Return it for ``--json``."""
    return {
        "cluster_ratio": round(uneven.cluster_ratio, 4),
        "cluster_ratio_after": round(uneven.cluster_ratio_after, 4),
        "moved_bytes": round(uneven.moved_bytes),
        "by_disk": uneven.by_disk,
    }
