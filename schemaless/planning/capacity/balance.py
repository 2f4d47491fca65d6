"""Which shards to move where, so that the clusters of a datastore are evenly full."""

from __future__ import annotations

from typing import Final

from schemaless.errors import InvalidInput
from schemaless.planning.capacity import history
from schemaless.planning.capacity.skew import ShardSize, Skew, skew, skew_of
from schemaless.planning.sampling.table_sizes import shard_table_sizes
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

_MEASURE: Final = "run 'schemaless capacity measure' first"


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
        sizes = {shard: size.file_bytes for shard, size in shard_table_sizes(store, range(store.shard_count)).items()}
        shards = [ShardSize(shard, topology.cluster_of(shard).name, size) for shard, size in sizes.items()]
        clusters = {name: float(sum(size.size_bytes for size in shards if size.cluster == name)) for name in measured}
        disks = {space.cluster: None if space.disk_bytes is None else float(space.disk_bytes) for space in spaces}
        uneven = skew(shards, clusters, disks, shard_count=store.shard_count)
    targets = {move.shard: move.to_cluster for move in uneven.moves}
    for size in uneven.shards:
        # Check every shard, not only those to be moved: other moves may have filled a cluster.
        if topology.cluster_of(size.shard).name not in (size.cluster, targets.get(size.shard)):
            raise InvalidInput(f"shard {size.shard} has been moved since the measurement of {taken}; {_MEASURE}")
    parts: dict[str, list[int]] = {}
    for shard, target in sorted(targets.items()):
        parts.setdefault(target, []).append(shard)
    return uneven, dict(sorted(parts.items()))
