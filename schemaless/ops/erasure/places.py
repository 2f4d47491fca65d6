"""Where documents may be besides the cell tables: the places that an erasure must reach, and those it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemaless.ops.erasure.copies import clusters_of, copy_tables, strays
from schemaless.ops.failover.lost import unsettled
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.datastore import Datastore
from schemaless.store.followers.settings import Settings
from schemaless.store.internals import internals_of


@dataclass(frozen=True, slots=True)
class Places:
    """Where documents of some shards may be besides the cell tables.

    Attributes:
        followers: names of the followers, which acknowledge erasures.
        indexes: names of the secondary indexes.
        tables: tables that moves have left behind or are filling, with their servers.
        strays: tables of cells on servers that should not have them.
        clusters: clusters that have or had the shards; the logs of their servers may have the documents, too.
        replicas: the replicas of these clusters.
        archives: folders in which migrations have kept originals, on the machines that ran them.
        lost_primaries: former primaries whose lost cells have been neither loaded nor given up.
        dictionaries: ids of the dictionaries that are not empty.
    """

    followers: Sequence[str]
    indexes: Sequence[str]
    tables: Sequence[str]
    strays: Sequence[str]
    clusters: Sequence[str]
    replicas: Sequence[str]
    archives: Sequence[str]
    lost_primaries: Sequence[str]
    dictionaries: Sequence[int]


def places(store: Datastore, shards: Iterable[int]) -> Places:
    """Return every place besides the cell tables that may hold documents of these shards.

    Raises:
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    chosen = sorted(set(shards))
    tables = [(shard, table) for shard in chosen for table in copy_tables(internals, shard)]
    clusters = clusters_of(store, chosen, [table for _, table in tables])
    names = Settings(internals.follower_access).all()
    rows = internals.dictionary_replicas.catalog.rows().values()
    return Places(
        followers=sorted(names),
        indexes=sorted(entry.name for entry in internals.registry.read()),
        tables=[f"{internals.shards.database(shard)}.{table.name} on {table.node}" for shard, table in tables],
        strays=strays(store, chosen),
        clusters=clusters,
        replicas=[str(node) for name in clusters for node in internals.topology.cluster(name).replicas],
        archives=archives(store),
        lost_primaries=unsettled(store),
        dictionaries=sorted(row.id for row in rows if row.content is not None),
    )


def archives(store: Datastore) -> list[str]:
    """Return the folders in which migrations have kept originals, as they were named on the machines that ran them."""
    folders = {MigrateSpec.of(job).archive for job in JobStore(store).jobs("migrate")}
    return sorted(folder for folder in folders if folder is not None)
