"""``Routing``: on which servers shards are, as the catalog said it at one moment; and what asks the catalog again.

A routing never changes. A datastore has one at a time and swaps it whole, so a call that took it goes by one picture
from its beginning to its end. What is proven about a shard is kept with the routing under which it was proven: what is
found out late, about a server that the shard has left, is written where nobody looks any more.

A random token in the catalog says whether the topology is still the one that was read. It is compared, never ordered:
a catalog that failed over may have lost a change and got another, and a counter would then give both one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from schemaless.errors import ServerError, ServerUnavailable
from schemaless.keys import heartbeat_database
from schemaless.topology.catalog import CatalogEntry, read_again
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.sql.catalog import select_token
from schemaless.wire.claims import NEVER, Claim
from schemaless.wire.errors import Elsewhere
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools

_ASK: Final = PoolOptions(1.0, 2.0, 2.0, 2)
"""Whoever reads the catalog again has failed already, or wants to do something else: it is not waited for long."""


class Routing:
    """Where each shard is.

    Attributes:
        topology: as the catalog had it.
        token: the catalog's at that moment; None where it is not known, or nobody has changed the topology yet.
        clusters: by shard.
        changes: by shard, how often it was given another cluster or another primary since the datastore was opened.
        proven: by shard, the pool of its primary once the shard is proven there: the way that nearly every call takes.
        verified: the shards that are proven on a node.
    """

    __slots__ = ("_confirm", "_judge", "_replaced", "changes", "clusters", "proven", "token", "topology", "verified")

    def __init__(
        self,
        topology: Topology,
        token: bytes | None,
        judge: Judge,
        confirm: Callable[[Node, int], None],
        before: Routing | None = None,
    ) -> None:
        """Make it.

        Args:
            topology: as the catalog has it.
            token: the catalog's.
            judge: says what an error means that was met by going by this routing.
            confirm: raises where the catalog could not be read when it was last asked.
            before: the one that this takes the place of; what was proven of shards that stayed is still proven.
        """
        self.topology = topology
        self.token = token
        self._judge = judge
        self._confirm = confirm
        self._replaced: dict[Node, Claim] = {}
        clusters: list[Cluster] = []
        for part in sorted(topology.ranges, key=lambda part: part.first):
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
        stayed = [_place(old) == _place(new) for old, new in zip(before.clusters, clusters, strict=True)]
        self.changes = tuple(count if stays else count + 1 for count, stays in zip(before.changes, stayed, strict=True))
        self.proven = [pool if stays else None for pool, stays in zip(before.proven, stayed, strict=True)]
        self.verified = {
            (shard, node) for shard, node in before.verified.copy() if stayed[shard] and node in clusters[shard].nodes
        }

    def has_on(self, shard: int, address: Node) -> bool:
        """Whether a shard is on a server, in whatever role."""
        return any(node.having("primary") == address for node in self.clusters[shard].nodes)

    def left(self, error: ServerError, node: Node, shard: int, lost: ServerError | None) -> Elsewhere | None:
        """Return that a shard is elsewhere by now; see ``mysql.pool.Route``."""
        return self._judge(self, error, node, shard, lost)

    def confirm(self, node: Node, shard: int) -> None:
        """Check that the catalog was read; see ``mysql.pool.Route``."""
        if self.clusters[shard].epoch:
            self._confirm(node, shard)

    def claims(self) -> dict[Node, Claim]:
        """Return what primaries have to have before they are used, by address; those of before are used no more."""
        claims = {cluster.primary: claim_of(self.topology.name, cluster) for cluster in self.topology.clusters}
        return {**self._replaced, **{node: claim for node, claim in claims.items() if claim.epoch}}


def _place(cluster: Cluster) -> tuple[str, Node, int]:
    return cluster.name, cluster.primary, cluster.epoch


Judge = Callable[[Routing, ServerError, Node, int, ServerError | None], Elsewhere | None]


class Spot(NamedTuple):
    """A shard, and the server that is asked for it, by one routing."""

    routing: Routing
    shard: int
    node: Node

    @property
    def primary(self) -> Node:
        """The primary of the shard's cluster."""
        return self.routing.clusters[self.shard].primary

    @property
    def place(self) -> tuple[int, int]:
        """The shard, and how often it has changed its place: what is known of it in one place goes under this."""
        return self.shard, self.routing.changes[self.shard]


class _Answer(NamedTuple):
    """What one server says of the catalog; the entry is None where that is what is known."""

    node: Node
    epoch: int
    takes_writes: bool
    entry: CatalogEntry | None


class CatalogReader:
    """Asks the catalog whether the topology is still the one that was read.

    It stays with the server that answered last, and with that one's cluster: where the primary of the cluster that the
    catalog is on is another one now, the catalog is there. Where it does not answer, or takes no writes, the cluster's
    other servers are asked, and believed where they do: a replica has what the catalog was, which may be long ago.

    A server that was replaced and is back has its catalog of then, writable as it was. So after an alarm all of the
    cluster's servers are asked, and the one that knows of the latest claim on their own cluster is believed.

    Attributes:
        home: the catalog's server, as it is known now.
    """

    def __init__(self, pools: Pools, named: Sequence[Node], name: str) -> None:
        """Make it; no server is asked.

        Args:
            pools: the connections.
            named: the servers that the URL names, the one that has the catalog first.
            name: the datastore's.
        """
        self.home = named[0]
        self._named = named
        self._pools = pools
        self._name = name
        self._own: dict[Node, NodePool] = {}

    def changed_since(self, routing: Routing, *, thorough: bool = True) -> CatalogEntry | None:
        """Return what the catalog says now; None where it says what it said.

        Args:
            routing: what is known.
            thorough: whether all of the cluster's servers are asked, and not only until one takes writes; where the
                cluster has a claim, they always are, since that one may have been replaced.

        Raises:
            SchemalessError: it does not answer, or cannot be used.
        """
        cluster = self._cluster(routing.topology)
        failure: ServerError | None = None
        answers: list[_Answer] = []
        for node in self._candidates(cluster):
            try:
                answer = self._ask(node, routing, cluster)
            except ServerError as error:
                failure = failure or error
                continue
            # What a server says that was replaced counts for nothing.
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
                raise failure or ServerUnavailable("none of the catalog's servers takes writes", node=str(self.home))
            return best.entry
        self.home = best.node if best.entry is None else self._home_by(best.entry.topology, best.node)
        return best.entry

    def _ask(self, node: Node, routing: Routing, cluster: Cluster | None) -> _Answer | None:
        """Return what a server says; None where it says nothing. Once: whoever asks has waited for a server already."""
        pool = self._pool(node)
        pool.heed()
        with pool.connection() as connection:
            rows = connection.rows(select_token(self._name, "" if cluster is None else cluster.name))
            if not rows:
                return None
            stored_token, read_only, epoch = rows[0]
            token = None if stored_token is None else bytes(stored_token)
            entry = None
            if token is None or token != routing.token:
                entry = read_again(connection, node, self._name)
                if (entry.token, entry.topology) == (routing.token, routing.topology):
                    entry = None
        return _Answer(node, int(epoch or 0), not read_only, entry)

    def close(self) -> None:
        """Close the connections to the catalog; the next question opens one."""
        for pool in list(self._own.values()):
            pool.close()

    def _pool(self, node: Node) -> NodePool:
        pool = self._own.get(node)
        if pool is None:
            # Not the datastore's own, whose timeouts are those of calls, and which may all be in use.
            pool = self._own.setdefault(node, self._pools.new_pool(node, _ASK, unclaimed=True))
        return pool

    def _cluster(self, topology: Topology) -> Cluster | None:
        """Return the cluster that the catalog is on; None where none has a server by its address."""
        for cluster in topology.clusters:
            if any(node.having("primary") == self.home for node in cluster.nodes):
                return cluster
        return None

    def _candidates(self, cluster: Cluster | None) -> list[Node]:
        """Return the catalog's server, then the others of its cluster, then what else the URL names."""
        others = () if cluster is None else cluster.nodes
        return list(dict.fromkeys([self.home, *(node.having("primary") for node in others), *self._named]))

    def _home_by(self, topology: Topology, node: Node) -> Node:
        """Return where the catalog is by what one of its servers says."""
        for cluster in topology.clusters:
            if any(member.having("primary") == node for member in cluster.nodes):
                return cluster.primary
        return node


def claim_of(datastore: str, cluster: Cluster) -> Claim:
    """Return the claim that a cluster's primary has to have."""
    return Claim(heartbeat_database(datastore), cluster.name, cluster.epoch)
