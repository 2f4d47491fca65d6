"""A cluster more for a datastore that exists: empty, so that shards can be moved to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from schemaless.cells.dictionary_replicas import DictionaryReplica, copy_dictionaries, dictionary_replicas_of
from schemaless.errors import AccessDenied, InvalidInput, ServerTimeout, ServerUnavailable, TopologyError
from schemaless.failover.change import Change, opened
from schemaless.failover.nodes import ARRIVAL_TIMEOUT_S, NodeChange
from schemaless.failover.promotion import last_claim
from schemaless.keys import heartbeat_database
from schemaless.schema.databases import databases_like
from schemaless.topology.catalog import write_new_cluster
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.model import Cluster
from schemaless.topology.replication import is_read_only, is_same_server
from schemaless.wire.accounts import own_grant
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool
from schemaless.wire.secret import Secret

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NUMBERED: Final = re.compile(r"cluster-(\d{1,9})")
_NEEDED: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE"


def add_cluster(
    url: str,
    primary: str,
    *,
    name: str | None = None,
    replicas: Sequence[str] = (),
    timeout_s: float = ARRIVAL_TIMEOUT_S,
) -> NodeChange:
    """Write a new cluster into the catalog, without shards, after proving that it can have some.

    Its primary has to take writes, to be of the kind of the others, and no server that the datastore has already; and
    it has to have nothing of a datastore of this name. It gets the database of a cluster, with a copy of every
    dictionary. Interrupted, the same call goes on; a cluster that is there already is proven again, and nothing is
    written into the catalog.

    Args:
        url: the datastore's.
        primary: the URL of its primary, such as ``mysql://db-3:3306/``. The datastore's account is used.
        name: what it is called; the next ``cluster-N`` unless given.
        replicas: URLs of its replicas, which follow it by now.
        timeout_s: how long a transaction may take to a replica.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: something of this is not so; the catalog was not changed.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    with opened(address) as change:
        node = change.node_of(primary)
        known = next((cluster for cluster in change.topology.clusters if cluster.primary == node), None)
        if known is not None and name in (None, known.name):
            return _again(change, known, replicas, timeout_s)
        name = _name_for(change, name)
        nodes = [node, *(change.node_of(replica).having("replica") for replica in replicas)]
        for new_node in nodes:
            change.require_new(new_node)
        cluster = Cluster(name, tuple(nodes))
        home, pool = change.home(), change.pool(node)
        _prove_fit(change, home, pool, name)
        _make_database(pool, change.topology.name)
        # Before it is named: whoever brings shards there copies those that were made meanwhile.
        dictionary_replicas = dictionary_replicas_of(change.topology, home, change.pool)
        copy_dictionaries(dictionary_replicas, DictionaryReplica(pool, change.topology.name, name))
        arrived_s = {replica: change.prove_replica(cluster, node, replica, timeout_s) for replica in cluster.replicas}
        write_new_cluster(home, change.topology, cluster)
        return NodeChange(cluster, True, arrived_s)


def _again(change: Change, known: Cluster, replicas: Sequence[str], timeout_s: float) -> NodeChange:
    """Prove a cluster that is there already."""
    asked = {change.node_of(replica).having("replica") for replica in replicas}
    if more := asked - {*known.replicas}:
        raise InvalidInput(
            f"{known.primary} is the primary of {known.name} already, without {', '.join(map(str, more))}: "
            f"'schemaless topology add-replica --cluster {known.name}' adds a replica. Nothing was written"
        )
    _make_database(change.pool(known.primary), change.topology.name)
    arrived_s = {replica: change.prove_replica(known, known.primary, replica, timeout_s) for replica in known.replicas}
    return NodeChange(known, False, arrived_s)


def _name_for(change: Change, name: str | None) -> str:
    """Return what a new cluster is called."""
    taken = [cluster.name for cluster in change.topology.clusters]
    if name is None:
        numbers = [int(match[1]) for taken_name in taken if (match := _NUMBERED.fullmatch(taken_name)) is not None]
        return f"cluster-{max(numbers, default=0) + 1}"
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(f"a cluster's name is 1 to 64 of [A-Za-z0-9_.-], got {name!r}; nothing was written")
    if name in taken:
        there = change.topology.cluster(name).primary
        raise InvalidInput(f"{name} is there already, with the primary {there}; choose another name")
    return name


def _prove_fit(change: Change, home: NodePool, pool: NodePool, cluster: str) -> None:
    """Check that a server can be the primary of a new cluster.

    Raises:
        TopologyError: it cannot; nothing was written.
    """
    node = pool.node
    if is_read_only(pool):
        raise TopologyError(
            f"{node} is read-only, so it cannot be a primary; is it a replica? Name its primary, or make it writable "
            "(SET GLOBAL super_read_only = OFF, read_only = OFF). Nothing was written"
        )
    if pool.run(lambda connection: connection.is_mariadb) != home.run(lambda connection: connection.is_mariadb):
        raise TopologyError(
            f"{node} and {home.node} are servers of two kinds, MySQL and MariaDB, and no shard moves from one kind to "
            "the other; nothing was written"
        )
    for known in change.topology.clusters:
        for other in known.nodes:
            if _is_same(change, pool, other):
                raise TopologyError(
                    f"{node} is the {other.role} of {known.name}, by another address; nothing was written"
                )
    name = change.topology.name
    # One that is there already is what an interrupted call has made.
    if there := [database for database in databases_like(pool, name) if database != heartbeat_database(name)]:
        raise TopologyError(
            f"{node} has databases that a datastore {name!r} would use ({', '.join(there[:3])}"
            f"{', ...' if len(there) > 3 else ''}); drop them if they are nobody's. Nothing was written"
        )
    if heartbeat_database(name) in databases_like(pool, name) and (strange := _of_another(home, pool, name, cluster)):
        raise TopologyError(
            f"{node} has a database {heartbeat_database(name)} of another datastore, with {strange}; drop it there if "
            "it is nobody's. Nothing was written"
        )


def _of_another(home: NodePool, pool: NodePool, name: str, cluster: str) -> str | None:
    """Return what in a cluster's database no interrupted call has left there; None where there is nothing of it."""
    known = DictionaryReplica(home, name).rows()
    for number, row in DictionaryReplica(pool, name, cluster).rows().items():
        if number not in known or known[number].digest != row.digest:
            return f"a dictionary {number} that is not in the catalog"
    return f"a claim on {cluster}" if last_claim(pool, name, cluster) else None


def _is_same(change: Change, pool: NodePool, other: Node) -> bool:
    """Whether a server that has another address is the same; one that does not answer is none that does."""
    try:
        return is_same_server(pool, change.pool(other.having("primary")))
    except (ServerUnavailable, ServerTimeout):
        return False


def _make_database(pool: NodePool, datastore: str) -> None:
    """Make the database that each cluster has.

    Raises:
        AccessDenied: the account may not; says which GRANT lets it.
    """
    try:
        make_tables(pool, datastore)
    except AccessDenied as denied:
        granted = pool.run(lambda connection: own_grant(connection, _NEEDED, f"`{heartbeat_database(datastore)}`.*"))
        raise AccessDenied(
            f"the account may not make the database that each cluster has; run there: {granted}",
            node=denied.node,
            code=denied.code,
        ) from denied
