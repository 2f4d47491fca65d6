"""Purges the files of all servers of a datastore, if all of them are on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.events import Listener, ignore_events
from schemaless.internals import internals_of
from schemaless.keys import heartbeat_database
from schemaless.purge.files import folders_of
from schemaless.purge.overwrite import Table, purge_files
from schemaless.schema.databases import tables_of
from schemaless.schema.sql import SHOW_DATABASES
from schemaless.topology.model import Cluster

_CLUSTERS_AT_ONCE: Final = 4


def purge_datastore(
    store: Datastore, *, listener: Listener = ignore_events, shards: Sequence[int] | None = None
) -> list[Path]:
    """Make the servers of a datastore overwrite what is left of replaced rows in their files; see ``purge_files``.

    Args:
        store: the datastore, opened as root of local servers.
        listener: receives a ``Step`` for each step.
        shards: shards whose tables are rebuilt, on every server that has any; all by default. The tables of the catalog
            and of dictionaries are always rebuilt.

    Returns:
        The folders that the servers write to, for ``search_files``.

    Raises:
        InvalidInput: a server is on another machine, or its files cannot be read. Nothing was purged.
        ServerError: as for ``purge_files``.
    """
    internals = internals_of(store)
    databases = {internals.shards.database(shard) for shard in internals.chosen_shards(shards)}
    databases |= {store.name, heartbeat_database(store.name)}
    folders: list[Path] = []
    for cluster in internals.topology.clusters:
        for node in (cluster.primary, *cluster.replicas):
            found = folders_of(internals.shards.pool_for(node))
            if found is None:
                raise InvalidInput(
                    f"the files of {node} cannot be purged: they are on another machine, or this account cannot read "
                    "them. Nothing was purged"
                )
            folders += found

    def purge(cluster: Cluster) -> None:
        primary = internals.shards.pool_for(cluster.primary)
        # Also shards that have moved elsewhere, and left tables behind.
        here = {str(name) for (name,) in primary.run(lambda connection: connection.rows(SHOW_DATABASES))}
        tables = [Table(name, table) for name in sorted(databases & here) for table in sorted(tables_of(primary, name))]
        purge_files(primary, tables, list(map(internals.shards.pool_for, cluster.replicas)), listener=listener)

    # Servers wait for their logs and buffers most of the time.
    with ThreadPoolExecutor(_CLUSTERS_AT_ONCE) as threads:
        for purged in [threads.submit(purge, cluster) for cluster in internals.topology.clusters]:
            purged.result()
    return sorted(set(folders))
