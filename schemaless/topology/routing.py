"""``Routing``, an immutable snapshot of where each shard is, and ``CatalogReader``, which detects topology changes.

A datastore has one routing at a time and replaces it as a whole, so each call sees one consistent snapshot. Proofs that
a server holds a shard are stored in the routing under which they were made; a late result about a server that a shard
has left ends up in a routing that is no longer in use.

A random token in the catalog shows whether the topology has changed. Tokens are compared for equality only: a counter
could repeat a value if a catalog failover lost one change and another followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from schemaless.base.keys import heartbeat_database, shard_database
from schemaless.errors import CatalogCopied, ServerError, ServerUnavailable
from schemaless.schema.databases import identity_on
from schemaless.topology.catalog import CatalogEntry, reread
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.sql.catalog import select_token
from schemaless.wire.claims import NEVER, Claim
from schemaless.wire.connection import Connection
from schemaless.wire.errors import Elsewhere
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools

_CATALOG_POOL: Final = PoolOptions(1.0, 2.0, 2.0, 2)
"""Short timeouts, because a call waits for the catalog after an error, or because a routing refresh was due."""


class Refresher(Protocol):
    """What reads the catalog after an error under a routing: the ``Router``."""

    def moved(self, routing: Routing, error: ServerError, node: Node, shard: int) -> Elsewhere | None:
        """Find out whether a shard has moved; see ``wire.attempts.Route``."""

    def confirm(self, node: Node, shard: int) -> None:
        """Check that the catalog could be read; see ``wire.attempts.Route``."""


class Routing:
    """Snapshot of where each shard is.

    Attributes:
        topology: the topology that was read.
        token: the catalog's token at that time; None if unknown, or if the topology has never changed.
        clusters: the cluster of each shard.
        changes: per shard, how often its cluster, primary or epoch has changed, or its primary's address has moved,
            since the datastore was opened.
        proven: per shard, the primary's pool once the shard's identity is verified there; most calls use it directly.
        verified: pairs of a shard and a node on which its identity is verified.
    """

    __slots__ = ("_replaced", "_router", "changes", "clusters", "proven", "token", "topology", "verified")

    def __init__(
        self,
        topology: Topology,
        token: bytes | None,
        router: Refresher,
        before: Routing | None = None,
        replaced: Node | None = None,
    ) -> None:
        """Create a routing.

        Args:
            topology: the topology, as read from the catalog.
            token: the catalog's token.
            router: reads the catalog after errors under this routing.
            before: the previous routing; its proofs stay valid for shards that have not moved.
            replaced: an address that leads to another server than under the previous routing, if any.
        """
        self.topology: Topology = topology
        self.token: bytes | None = token
        self._router = router
        self._replaced: dict[Node, Claim] = {}
        clusters: list[Cluster] = []
        for part in topology.ranges:
            clusters += [topology.cluster_of(part.first)] * (part.last - part.first + 1)
        self.clusters: Sequence[Cluster] = tuple(clusters)
        self.proven: list[NodePool | None] = [None] * topology.shard_count
        self.verified: set[tuple[int, Node]] = set()
        if before is None:
            self.changes: Sequence[int] = (0,) * topology.shard_count
            return
        for old in before.topology.clusters:
            new = next((cluster for cluster in topology.clusters if cluster.name == old.name), old)
            if new.epoch and new.primary != old.primary:
                self._replaced[old.primary] = replace(claim_of(topology.name, new), epoch=NEVER)
        stayed = [
            _location(old) == _location(new) and new.primary != replaced
            for old, new in zip(before.clusters, clusters, strict=True)
        ]
        self.changes = tuple(count if stays else count + 1 for count, stays in zip(before.changes, stayed, strict=True))
        self.proven = [pool if stays else None for pool, stays in zip(before.proven, stayed, strict=True)]
        self.verified = {
            (shard, node)
            for shard, node in before.verified.copy()
            if stayed[shard] and node in clusters[shard].nodes and node.having("primary") != replaced
        }

    def has_on(self, shard: int, address: Node) -> bool:
        """Return True if a server is a node of the shard's cluster, in any role."""
        return self.clusters[shard].has(address)

    def moved(self, error: ServerError, node: Node, shard: int) -> Elsewhere | None:
        """Find out whether a shard has moved; see ``wire.attempts.Route``."""
        return self._router.moved(self, error, node, shard)

    def confirm(self, node: Node, shard: int) -> None:
        """Check that the catalog could be read; see ``wire.attempts.Route``."""
        if self.clusters[shard].epoch:
            self._router.confirm(node, shard)

    def verify(self, connection: Connection, shard: int) -> None:
        """Verify a shard's identity on a connection; see ``wire.attempts.Route``."""
        topology = self.topology
        identity = topology.identity(shard)
        identity_on(connection, shard_database(topology.name, shard), identity)

    def claims(self) -> dict[Node, Claim]:
        """Return the claims that primaries must hold, by address; former primaries get a claim that no server holds."""
        claims = {cluster.primary: claim_of(self.topology.name, cluster) for cluster in self.topology.clusters}
        return {**self._replaced, **{node: claim for node, claim in claims.items() if claim.epoch}}


def _location(cluster: Cluster) -> tuple[str, Node, int]:
    return cluster.name, cluster.primary, cluster.epoch


class Spot(NamedTuple):
    """A shard and one of its servers, under one routing."""

    routing: Routing
    shard: int
    node: Node

    @property
    def primary(self) -> Node:
        """The primary of the shard's cluster."""
        return self.routing.clusters[self.shard].primary

    @property
    def place(self) -> tuple[int, int]:
        """Key for state that is valid until the shard's primary changes: the shard, and the number of such changes."""
        return self.shard, self.routing.changes[self.shard]


class _Answer(NamedTuple):
    """Answer from one of the catalog's servers; ``entry`` is None if the topology has not changed."""

    node: Node
    epoch: int
    takes_writes: bool
    entry: CatalogEntry | None


class CatalogReader:
    """Reads the catalog to find out whether the topology has changed.

    It keeps using the server that answered last, and follows that server's cluster: after a promotion, the catalog is
    on the new primary. If the server does not answer or is read-only, the other nodes of the cluster are queried, and
    one is trusted if it is writable. A replica is not trusted, because its catalog may be outdated.

    A replaced server that comes back has an outdated but writable catalog. So after an error, all nodes of the cluster
    are queried, and the one with the latest claim on the cluster is trusted.

    Attributes:
        home: last known server of the catalog.
    """

    def __init__(self, pools: Pools, named: Sequence[Node], name: str) -> None:
        """Create a reader without contacting a server.

        Args:
            pools: connection pools of the datastore.
            named: servers named in the URL, starting with the one that holds the catalog.
            name: the datastore's name.
        """
        self.home: Node = named[0]
        self._named = named
        self._pools = pools
        self._name = name
        self._own: dict[Node, NodePool] = {}

    def changed_since(self, routing: Routing, *, thorough: bool = True) -> CatalogEntry | None:
        """Return the catalog entry if the topology has changed, else None.

        Args:
            routing: the current routing.
            thorough: query all nodes of the catalog's cluster instead of stopping at the first writable one. If the
                cluster uses claims, all are queried in any case, because a writable node may have been replaced.

        Raises:
            SchemalessError: the catalog does not answer, or cannot be used.
        """
        cluster = self._cluster(routing.topology)
        failure: ServerError | CatalogCopied | None = None
        answers: list[_Answer] = []
        for node in self._candidates(cluster):
            try:
                answer = self._query(node, routing, cluster)
            except (ServerError, CatalogCopied) as error:
                failure = failure or error
                continue
            # Ignore servers that have been replaced.
            if answer is not None and (cluster is None or answer.epoch >= cluster.epoch):
                answers.append(answer)
                if answer.takes_writes and not thorough and (cluster is None or not cluster.epoch):
                    break
        latest = max((answer.epoch for answer in answers), default=0)
        answers = [answer for answer in answers if answer.epoch == latest]
        best = next((answer for answer in answers if answer.takes_writes), None)
        if best is None and cluster is not None and latest > cluster.epoch:
            best = answers[0]
        if best is None:
            best = next((answer for answer in answers if answer.node == self.home), None)
            if best is None:
                raise failure or ServerUnavailable("none of the catalog's servers is writable", node=str(self.home))
            return best.entry
        self.home = best.node
        if best.entry is not None and (home := self._cluster(best.entry.topology)) is not None:
            self.home = home.primary
        return best.entry

    def _query(self, node: Node, routing: Routing, cluster: Cluster | None) -> _Answer | None:
        """Query one server; None if it has no catalog. There are no retries, because the caller has already waited."""
        pool = self._pool(node)
        pool.fail_fast_or_probe()
        with pool.connection() as connection:
            rows = connection.rows(select_token(self._name, "" if cluster is None else cluster.name))
            if not rows:
                return None
            stored_token, read_only, epoch = rows[0]
            token = None if stored_token is None else bytes(stored_token)
            entry = None
            if token is None or token != routing.token:
                entry = reread(connection, node, self._name)
                if (entry.token, entry.topology) == (routing.token, routing.topology):
                    entry = None
        return _Answer(node, int(epoch or 0), not read_only, entry)

    def close(self) -> None:
        """Close the connections to the catalog; the next query opens a new one."""
        for pool in list(self._own.values()):
            pool.close()

    def _pool(self, node: Node) -> NodePool:
        pool = self._own.get(node)
        if pool is None:
            # Separate from the datastore's pools, whose timeouts are longer and whose connections may all be in use.
            pool = self._own.setdefault(node, self._pools.new_pool(node, _CATALOG_POOL, unclaimed=True))
        return pool

    def _cluster(self, topology: Topology) -> Cluster | None:
        """Return the cluster that hosts the catalog; None if its server is in no cluster."""
        return next((cluster for cluster in topology.clusters if cluster.has(self.home)), None)

    def _candidates(self, cluster: Cluster | None) -> list[Node]:
        """Return the servers to query: the current one, the other nodes of its cluster, then the URL's."""
        others = () if cluster is None else cluster.nodes
        return list(dict.fromkeys([self.home, *(node.having("primary") for node in others), *self._named]))


def claim_of(datastore: str, cluster: Cluster) -> Claim:
    """Return the claim that a cluster's primary must hold."""
    return Claim(heartbeat_database(datastore), cluster.name, cluster.epoch)
