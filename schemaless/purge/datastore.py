"""Purges the files of all servers of a datastore, if all of them are on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.events import Listener, ignore_events
from schemaless.internals import internals_of
from schemaless.purge.files import folders_of
from schemaless.purge.overwrite import Table, purge_files
from schemaless.schema.databases import tables_of


def purge_datastore(
    store: Datastore, *, listener: Listener = ignore_events, shards: Sequence[int] | None = None
) -> list[Path]:
    """Make the servers of a datastore overwrite what their files hold of replaced rows; see ``purge_files``.

    Args:
        store: the datastore, opened as root of local servers.
        listener: receives a ``Step`` for each step.
        shards: shards whose tables are rebuilt; all by default.

    Returns:
        The folders that the servers write to, for ``search_files``.

    Raises:
        InvalidInput: a server is on another machine, its files cannot be read, or they are not InnoDB's. Nothing was
            purged.
        ServerError: as for ``purge_files``.
    """
    internals = internals_of(store)
    chosen = internals.chosen_shards(shards)
    folders: list[Path] = []
    for cluster in internals.topology.clusters:
        if cluster.engine != "innodb":
            raise InvalidInput(
                f"{cluster.name} stores cells in {cluster.engine}, and only InnoDB's files can be purged"
            )
        for node in (cluster.primary, *cluster.replicas):
            found = folders_of(internals.shards.pool_for(node))
            if found is None:
                raise InvalidInput(
                    f"the files of {node} cannot be purged: they are on another machine, or this account cannot read "
                    "them. Nothing was purged"
                )
            folders += found
    for cluster in internals.topology.clusters:
        primary = internals.shards.pool_for(cluster.primary)
        numbers = [shard for shard in internals.topology.shards_of(cluster.name) if shard in chosen]
        databases = [internals.shards.database(shard) for shard in numbers]
        tables = [Table(name, table) for name in databases for table in sorted(tables_of(primary, name))]
        purge_files(primary, tables, list(map(internals.shards.pool_for, cluster.replicas)), listener=listener)
    return sorted(set(folders))
