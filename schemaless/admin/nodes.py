"""Changes to the nodes of a datastore's clusters: replicas, and which server is the primary.

Nothing is written down before it is proven, and what cannot be proven is refused. The catalog is on one of the clusters
itself, so it moves with that one's primary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from schemaless.cluster.topology import Cluster, Node, Topology, check_datastore_name, shard_database
from schemaless.errors import (
    InvalidInput,
    SchemalessError,
    ServerTimeout,
    ServerUnavailable,
    TopologyError,
)
from schemaless.mysql.parallel import AT_ONCE, on_servers
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.pools import Pools
from schemaless.mysql.replication import follows, has_everything_of, is_read_only, is_same_server
from schemaless.mysql.schema import Identity, verify_identity
from schemaless.mysql.secret import Secret
from schemaless.mysql.urls import Credentials, ServerURL, parse_url
from schemaless.store.catalog import read_catalog, read_ready, write_nodes

ARRIVAL_TIMEOUT_S: Final = 30.0
"""How long a transaction may take from a primary to its replica."""

_OPTIONS: Final = PoolOptions(connect_timeout_s=5, pool_size=AT_ONCE)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What became of a change.

    Attributes:
        cluster: as it is now.
        changed: False where it was so already.
        arrived_s: how long a transaction took from the primary to each replica that was tried, in seconds.
        removed: nodes that the catalog no longer names.
        old_primary: None, or what was found of the one before: "read-only", "unreachable", or "the same server".
        url: the datastore's URL from now on, where the catalog moved; else None.
    """

    cluster: Cluster
    changed: bool
    arrived_s: dict[Node, float]
    removed: tuple[Node, ...] = ()
    old_primary: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node says of itself.

    Attributes:
        version: such as "9.7.4"; None where it does not answer.
        read_only: whether it takes no writes; None where it does not answer.
        error: why it does not answer, or None.
    """

    cluster: str
    node: Node
    version: str | None
    read_only: bool | None
    error: str | None

    @property
    def fault(self) -> str | None:
        """What is wrong with it, or None."""
        if self.error is not None:
            return self.error
        if self.node.role == "primary" and self.read_only:
            return "the primary is read-only; has another server taken its place?"
        if self.node.role == "replica" and not self.read_only:
            return "the replica takes writes, which no other server gets; set it read-only"
        return None


def node_states(url: str) -> tuple[Topology, list[NodeState]]:
    """Return a datastore's topology, and what each of its nodes says.

    Raises:
        InvalidInput: the URL cannot be used.
        TopologyError: there is no such datastore.
        ServerError: the catalog's server cannot be reached.
    """
    address = Secret(url)
    del url
    with _opened(address) as change:
        states = [_state(change, cluster.name, node) for cluster in change.topology.clusters for node in cluster.nodes]
        return change.topology, states


def add_replica(url: str, cluster: str, replica: str, *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> NodeChange:
    """Write a replica into the catalog, after proving that it is one.

    It has to be another server than the primary, a transaction that is committed on the primary has to arrive there,
    and every shard of the cluster has to be there under its own identity. Adding one that is there already proves it
    again, and writes nothing.

    Args:
        url: the datastore.
        cluster: whose replica it is, such as "cluster-1".
        replica: its server's URL, such as ``mysql://db-1b:3306/``. The datastore's account is used.
        timeout_s: how long the transaction may take.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: it is no replica of that cluster; nothing was written.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    with _opened(address) as change:
        now = change.topology.cluster(cluster)
        node = change.node_of(replica).having("replica")
        known = node in now.replicas
        if not known:
            change.require_new(node)
        home = change.home()
        arrived_s = change.prove_replica(now, now.primary, node, timeout_s)
        if known:
            return NodeChange(now, False, {node: arrived_s})
        return NodeChange(change.write(home, now, [*now.nodes, node]), True, {node: arrived_s})


def remove_replica(url: str, cluster: str, replica: str) -> NodeChange:
    """Take a replica out of the catalog; it need not answer.

    Raises:
        InvalidInput: an argument cannot be used, or the cluster has no such replica.
        TopologyError: the datastore's URL is not that of the catalog's primary.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    with _opened(address) as change:
        now = change.topology.cluster(cluster)
        node = change.node_of(replica).having("replica")
        if node not in now.replicas:
            names = ", ".join(map(str, now.replicas)) or "none"
            raise InvalidInput(f"{node} is no replica of {cluster}; its replicas are: {names}")
        rest = [each for each in now.nodes if each != node]
        return NodeChange(change.write(change.home(), now, rest), True, {}, removed=(node,))


def set_primary(
    url: str,
    cluster: str,
    primary: str,
    *,
    keep_old: bool = False,
    drop_replicas: bool = False,
    timeout_s: float = ARRIVAL_TIMEOUT_S,
) -> NodeChange:
    """Write down which server is a cluster's primary, after a failover, a switchover or a change of address.

    The new one has to take writes and to have every shard of the cluster under its own identity. The old one, if it
    answers, has to be read-only, and the new one to have all that was committed there. Replicas have to follow the new
    one.

    Args:
        url: the datastore, by a server that has its catalog: where the catalog moves with this cluster, the new one.
        cluster: such as "cluster-1".
        primary: the new one's URL. The datastore's account is used.
        keep_old: write the old one down as a replica, which has to follow the new one by now.
        drop_replicas: take replicas that do not follow the new one out of the catalog, instead of refusing.
        timeout_s: how long a transaction may take to a replica.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: something of this is not so; nothing was written.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    with _opened(address) as change:
        now = change.topology.cluster(cluster)
        node = change.node_of(primary)
        if node == now.primary:
            change.verify(now, node)
            return NodeChange(now, False, {})
        if node.having("replica") not in now.replicas:
            change.require_new(node)
        if is_read_only(change.pool(node)):
            raise TopologyError(
                f"{node} is read-only, so it cannot be the primary of {cluster}; stop its replication and make it "
                "writable first (STOP REPLICA; SET GLOBAL super_read_only = OFF, read_only = OFF). Nothing was written"
            )
        change.verify(now, node)
        old = change.old_primary(now, node, timeout_s)
        home = change.home(moves=now, to=node, old=old)
        if keep_old and old != "read-only":
            raise TopologyError(f"{now.primary} cannot stay as a replica, it is {old}; nothing was written")
        replicas = [each for each in now.replicas if each != node.having("replica")]
        arrived_s: dict[Node, float] = {}
        dropped: list[Node] = []
        for replica in [*replicas, *([now.primary.having("replica")] if keep_old else [])]:
            try:
                arrived_s[replica] = change.prove_replica(now, node, replica, timeout_s)
            except SchemalessError as problem:
                if drop_replicas and replica in replicas:
                    dropped.append(replica)
                    continue
                raise TopologyError(
                    f"{replica} does not follow the new primary {node} ({problem}); point it there, or "
                    + ("leave --keep-old-as-replica out" if replica not in replicas else "take it out: --drop-replicas")
                    + ". Nothing was written"
                ) from problem
        result = change.write(home, now, [node, *arrived_s])
        moved = change.url.node != node and (home.node == node or is_same_server(home, change.pool(node)))
        return NodeChange(
            result,
            True,
            arrived_s,
            removed=(*([] if keep_old else [now.primary]), *dropped),
            old_primary=old,
            url=replace(change.url, node=node).for_database(change.topology.name) if moved else None,
        )


class _Change:
    """A datastore's topology, and the servers that a change of it has to do with."""

    def __init__(self, url: ServerURL, name: str) -> None:
        self.url = url
        self._pools = Pools(url.credentials, _OPTIONS)
        self._verified: set[tuple[str, Node]] = set()
        self.topology = read_ready(self.pool(url.node), name).topology

    def pool(self, node: Node) -> NodePool:
        """Return the one pool for a server, whatever its role."""
        return self._pools.pool_for(node)

    def close(self) -> None:
        self._pools.close()

    def node_of(self, text: str) -> Node:
        """Return the server that an argument names; the account, if it names one, has to be the datastore's."""
        parsed = parse_url(text)
        if parsed.database is not None:
            raise InvalidInput(f"expected the URL of a server, not of a database: {parsed}; leave the name out")
        own, given = self.url.credentials, parsed.credentials
        if given.username is not None and not _same_account(own, given):
            raise InvalidInput(
                f"all servers of a datastore share one account, {parsed} names another than {self.url}; leave it out"
            )
        return parsed.node

    def require_new(self, node: Node) -> None:
        """Raise unless no cluster has a server by that address."""
        for cluster in self.topology.clusters:
            for each in cluster.nodes:
                if each.having("primary") == node.having("primary"):
                    raise InvalidInput(f"{node} is the {each.role} of {cluster.name} already; nothing was written")

    def verify(self, cluster: Cluster, node: Node) -> None:
        """Check every shard of a cluster on one server.

        Raises:
            ShardIdentityMismatch: one is missing, or another one.
        """
        if (cluster.name, node.having("primary")) in self._verified:
            return
        pool, topology = self.pool(node), self.topology

        def check(shard: int) -> None:
            identity = Identity(topology.name, shard, topology.shard_count, topology.placement)
            verify_identity(pool, shard_database(topology.name, shard), identity)

        for _ in on_servers([(node, shard) for shard in topology.shards_of(cluster.name)], check):
            pass
        self._verified.add((cluster.name, node.having("primary")))

    def prove_replica(self, cluster: Cluster, primary: Node, replica: Node, timeout_s: float) -> float:
        """Check that one server is a replica of another; return how long a transaction took to it, in seconds."""
        source, target = self.pool(primary), self.pool(replica)
        if is_same_server(source, target):
            raise TopologyError(
                f"{replica} is the server of the primary {primary} itself, by another address; nothing was written"
            )
        if is_read_only(source):
            raise TopologyError(
                f"the primary {primary} of {cluster.name} is read-only, so nothing can be sent from there to prove a "
                "replica by; if another server has taken its place, name it with 'schemaless topology set-primary'"
            )
        # It is written to next.
        self.verify(cluster, primary)
        arrived_s = follows(target, source, self.topology.name, cluster.name, timeout_s)
        if arrived_s is None:
            raise TopologyError(
                f"a transaction that was committed on {primary} did not arrive on {replica} within {timeout_s:g} s: "
                f"either it is no replica of that server, or its replication has stopped or lags; see SHOW REPLICA "
                "STATUS there (MariaDB: SHOW SLAVE STATUS). Nothing was written to the catalog"
            )
        self.verify(cluster, replica)
        return arrived_s

    def old_primary(self, cluster: Cluster, new: Node, timeout_s: float) -> str:
        """Return what is left of a cluster's primary, after checking that nothing of it gets lost."""
        old = cluster.primary
        try:
            if is_same_server(self.pool(old), self.pool(new)):
                return "the same server"
        except (ServerUnavailable, ServerTimeout) as problem:
            if problem.node == str(new):
                raise
            return "unreachable"
        if not is_read_only(self.pool(old)):
            raise TopologyError(
                f"the old primary {old} still takes writes, which {new} would not get; make it read-only first "
                "(SET GLOBAL super_read_only = ON; MariaDB: read_only). Nothing was written"
            )
        if not has_everything_of(self.pool(new), self.pool(old), timeout_s):
            raise TopologyError(
                f"{new} lacks transactions that were committed on the old primary {old}, which still answers; let "
                "it catch up first. Nothing was written"
            )
        return "read-only"

    def home(self, *, moves: Cluster | None = None, to: Node | None = None, old: str | None = None) -> NodePool:
        """Return the server that the catalog is written on: a primary, which its own replicas get it from.

        Args:
            moves: the cluster whose primary is being changed, if any.
            to: its new primary.
            old: what is left of its old one.
        """
        here = self.pool(self.url.node)
        if to is not None and self._is(here, to):
            return here
        others = [cluster.primary for cluster in self.topology.clusters if cluster != moves]
        # The same address first: asking the others may mean to wait for one that is down.
        others.sort(key=lambda primary: primary != here.node)
        if any(self._is(here, primary) for primary in others):
            if not is_read_only(here):
                return here
        elif moves is not None and to is not None and old is not None and old != "unreachable":
            there = self.pool(to)
            if self._is(here, moves.primary) and read_catalog(there, self.topology.name).topology == self.topology:
                return there
        raise TopologyError(
            f"{here.node} is not a primary that takes writes, so the catalog cannot be changed there; name the "
            "datastore by the primary of the cluster that its catalog is on"
            + (f", which may be {to} now" if to is not None else "")
            + " (--url). Nothing was written"
        )

    def _is(self, here: NodePool, node: Node) -> bool:
        if here.node == node.having("primary"):
            return True
        try:
            return is_same_server(here, self.pool(node))
        except (ServerUnavailable, ServerTimeout):
            return False

    def write(self, home: NodePool, cluster: Cluster, nodes: Sequence[Node]) -> Cluster:
        """Write a cluster's nodes, and return it with them."""
        after = self.topology.with_nodes(cluster.name, nodes).cluster(cluster.name)
        write_nodes(home, self.topology, after)
        return after


@contextmanager
def _opened(url: Secret) -> Iterator[_Change]:
    parsed = parse_url(url)
    if parsed.database is None:
        raise InvalidInput(f"the URL names no datastore: {parsed}; put its name behind the server, as in .../mezzanine")
    change = _Change(parsed, check_datastore_name(parsed.database))
    try:
        yield change
    finally:
        change.close()


def _state(change: _Change, cluster: str, node: Node) -> NodeState:
    pool = change.pool(node)
    try:
        version = pool.run(lambda connection: connection.version)
        return NodeState(cluster, node, version, is_read_only(pool), None)
    except SchemalessError as problem:
        return NodeState(cluster, node, None, None, str(problem))


def _same_account(own: Credentials, given: Credentials) -> bool:
    return own.username == given.username and given.password in (None, own.password)
