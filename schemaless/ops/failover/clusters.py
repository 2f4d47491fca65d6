"""Adds an empty cluster to an existing datastore, so that shards can be moved there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from schemaless.base.keys import heartbeat_database
from schemaless.errors import AccessDenied, InvalidInput, TopologyError
from schemaless.ops.failover.change import (
    Change,
    NodeChange,
    on_datastore,
    require_same_system,
    require_writable,
    server_of,
)
from schemaless.ops.failover.nodes import ARRIVAL_TIMEOUT_S
from schemaless.ops.failover.promotion import last_claim
from schemaless.ops.failover.sql import DATABASE_PRIVILEGES, select_accounts
from schemaless.schema.databases import databases_like
from schemaless.schema.engines import check_server, engine_named
from schemaless.store.cells.dictionary_replicas import DictionaryReplica, DictionaryReplicas
from schemaless.topology.catalog import write_clusters
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.model import Cluster
from schemaless.wire.accounts import granting
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import grant
from schemaless.wire.urls import ServerURL

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NUMBERED: Final = re.compile(r"cluster-(\d{1,9})")
_NEEDED: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE"


@on_datastore
def add_cluster(
    url: ServerURL,
    primary: str,
    *,
    name: str | None = None,
    engine: str = "innodb",
    replicas: Sequence[str] = (),
    timeout_s: float = ARRIVAL_TIMEOUT_S,
) -> NodeChange:
    """Add a cluster without shards to the catalog, after checking that its servers can hold shards.

    The primary must accept writes, run the same database system (MySQL or MariaDB) as the other clusters, not be one of
    the datastore's servers already, and have no databases that the datastore would use. The call creates the cluster's
    heartbeat database there, with a copy of every dictionary. After an interruption, repeat the call to continue. A
    cluster that already exists is checked again, and the catalog is left unchanged.

    Args:
        url: the datastore's URL.
        primary: URL of the cluster's primary, such as ``mysql://db-3:3306/``. The datastore's account is used.
        name: name of the cluster; by default the next ``cluster-N``.
        engine: storage engine of the cells, "innodb", or "rocksdb" for MyRocks on MariaDB.
        replicas: URLs of its replicas, which must already replicate from it.
        timeout_s: timeout for a transaction to reach a replica, in seconds.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: a requirement is not met; the catalog was not changed.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    with closing(Change(url)) as change:
        node = server_of(url, primary)
        known = next((cluster for cluster in change.topology.clusters if cluster.primary == node), None)
        if known is not None and name in (None, known.name):
            check_server(change.pool(known.primary), known.engine)
            return _check_existing(change, known, replicas, timeout_s)
        name = _name_for(change, name)
        nodes = [node, *(server_of(url, replica).having("replica") for replica in replicas)]
        for new_node in nodes:
            change.require_new(new_node)
        cluster = Cluster(name, tuple(nodes), engine=engine_named(engine).name)
        home, pool = change.home(), change.pool(node)
        _check_primary(change, home, pool, name)
        for new_node in nodes:
            check_server(change.pool(new_node), engine)
        _create_database(pool, change.topology.name)
        # Before the catalog names the cluster; a move copies dictionaries that are created after this.
        dictionary_replicas = DictionaryReplicas.of(change.topology, home, change.pool)
        dictionary_replicas.copy_all(DictionaryReplica(pool, change.topology.name, name))
        arrived_s = {replica: change.prove_replica(cluster, node, replica, timeout_s) for replica in cluster.replicas}
        write_clusters(home, change.topology, [cluster], change.identities([cluster, *change.topology.clusters]))
        return NodeChange(cluster, True, arrived_s, warnings=tuple(_lacking_accounts(change, home, pool)))


def _check_existing(change: Change, known: Cluster, replicas: Sequence[str], timeout_s: float) -> NodeChange:
    """Check a cluster that is already in the catalog."""
    requested = {server_of(change.url, replica).having("replica") for replica in replicas}
    if new := requested - {*known.replicas}:
        raise InvalidInput(
            f"{known.primary} is already the primary of {known.name}, whose replicas do not include "
            f"{', '.join(map(str, new))}; to add a replica, run 'schemaless topology add-replica --cluster "
            f"{known.name}'. Nothing was written"
        )
    _create_database(change.pool(known.primary), change.topology.name)
    arrived_s = {replica: change.prove_replica(known, known.primary, replica, timeout_s) for replica in known.replicas}
    lacking = _lacking_accounts(change, change.home(), change.pool(known.primary))
    return NodeChange(known, False, arrived_s, warnings=tuple(lacking))


def _lacking_accounts(change: Change, home: NodePool, pool: NodePool) -> list[str]:
    """Return, for each account of the datastore that a new cluster's primary does not know, the GRANT that it needs.

    The database of the heartbeat shows who they are: every role has privileges on it, on each server.
    """
    database = heartbeat_database(change.topology.name)
    try:
        there, here = (_accounts(each, database) for each in (home, pool))
    except AccessDenied as denied:
        return [f"the accounts on {pool.node} were not checked: {denied}; 'schemaless grants --role admin' allows it"]
    warnings = []
    for account, privileges in sorted(there.items()):
        missing = [name for name in privileges if name not in here.get(account, ())]
        if missing:
            statement = grant(", ".join(missing), f"`{database}`.*", account)
            warnings.append(
                f"{account} lacks privileges on {pool.node}; create it there if necessary, and run {statement}"
            )
    return warnings


def _accounts(pool: NodePool, database: str) -> dict[str, list[str]]:
    """Return the privileges on a whole database, by account."""
    rows = pool.run(lambda connection: connection.rows(select_accounts(database)))
    return {
        f"'{user}'@'{host}'": [name for name, given in zip(DATABASE_PRIVILEGES, flags, strict=True) if given == "Y"]
        for user, host, *flags in rows
    }


def _name_for(change: Change, name: str | None) -> str:
    """Check the given name of a new cluster, or choose the next ``cluster-N``."""
    taken = [cluster.name for cluster in change.topology.clusters]
    if name is None:
        numbers = [int(match[1]) for taken_name in taken if (match := _NUMBERED.fullmatch(taken_name)) is not None]
        return f"cluster-{max(numbers, default=0) + 1}"
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"a cluster's name must be 1 to 64 characters of [A-Za-z0-9_.-], got {name!r}; nothing was written"
        )
    if name in taken:
        primary = change.topology.cluster(name).primary
        raise InvalidInput(f"{name} already exists, with the primary {primary}; choose another name")
    return name


def _check_primary(change: Change, home: NodePool, pool: NodePool, cluster: str) -> None:
    """Check that a server can be the primary of a new cluster.

    Raises:
        TopologyError: it cannot; nothing was written.
    """
    node = pool.node
    require_writable(pool, cluster)
    require_same_system(pool, home)
    for known in change.topology.clusters:
        for other in known.nodes:
            if change.is_server(pool, other):
                raise TopologyError(
                    f"{node} is already in {known.name} under another address, with the role {other.role}; "
                    f"nothing was written"
                )
    name = change.topology.name
    # The heartbeat database may come from an interrupted call.
    if existing := [database for database in databases_like(pool, name) if database != heartbeat_database(name)]:
        raise TopologyError(
            f"{node} already has databases that the datastore {name!r} would use ({', '.join(existing[:3])}"
            f"{', ...' if len(existing) > 3 else ''}); drop them if they are not needed. Nothing was written"
        )
    if heartbeat_database(name) in databases_like(pool, name) and (content := _foreign(home, pool, name, cluster)):
        raise TopologyError(
            f"{node} has a database {heartbeat_database(name)} of another datastore, with {content}; drop the database "
            "if it is not needed. Nothing was written"
        )


def _foreign(home: NodePool, pool: NodePool, name: str, cluster: str) -> str | None:
    """Describe contents of a heartbeat database that an interrupted ``add_cluster`` cannot have left, if any."""
    known = DictionaryReplica(home, name).rows()
    for number, row in DictionaryReplica(pool, name, cluster).rows().items():
        if number not in known or known[number].digest != row.digest:
            return f"dictionary {number}, which is not in the catalog"
    return f"a claim on {cluster}" if last_claim(pool, name, cluster) else None


def _create_database(pool: NodePool, datastore: str) -> None:
    """Create a cluster's heartbeat database.

    Raises:
        AccessDenied: the account lacks privileges; the message has the GRANT statement.
    """
    database = heartbeat_database(datastore)
    with (
        pool.connection() as connection,
        granting(connection, f"create the cluster's database {database}", _NEEDED, f"`{database}`.*"),
    ):
        make_tables(pool, datastore)
