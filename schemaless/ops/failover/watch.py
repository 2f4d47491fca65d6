"""``Watch``: adopts the primary that a Group Replication group has elected; it elects and promotes nothing itself.

A member's view of its group counts only if the member is ONLINE and sees a majority, because a primary that is cut off
still considers itself the primary. Before a new primary is adopted, a transaction is committed on it, which a server
without its group's majority cannot do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal

from schemaless.errors import SchemalessError, ServerTimeout, ServerUnavailable
from schemaless.ops.failover.adopt import TIMEOUT_S, adopt
from schemaless.ops.failover.change import NodeChange
from schemaless.ops.failover.group_replication import GroupView, Member, group_view
from schemaless.ops.failover.nodes import add_replica
from schemaless.ops.failover.promotion import held_claim
from schemaless.topology.catalog import find_catalog, read_ready
from schemaless.topology.configuration import datastore_url
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.replication import is_read_only, token_on
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.secret import Secret

_OPTIONS: Final = PoolOptions(connect_timeout_s=2, read_timeout_s=5, write_timeout_s=5, pool_size=2)
"""Short timeouts: a server that does not answer is queried again at the next check."""

FindingKind = Literal["agrees", "adopted", "added", "undecided", "failed", "stranger", "no group"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about a cluster, new since the last check.

    Attributes:
        cluster: name of the cluster; None if the catalog cannot be read.
        kind: "agrees" (the group's primary is also the catalog's, and has the claim), "adopted", "added" (a member that
            returned is a replica again), "undecided" (no trusted member names a primary), "failed", "stranger" (a
            member that the catalog does not have), or "no group".
        message: description of the finding.
        adoption: result of the adoption, for "adopted".
        at: time of the finding, UTC.
    """

    cluster: str | None
    kind: FindingKind
    message: str
    adoption: NodeChange | None = None
    at: datetime = field(default_factory=partial(datetime.now, UTC))

    @property
    def well(self) -> bool:
        """True if no action is needed."""
        return self.kind in ("agrees", "adopted", "added")


class Watch:
    """Checks the Group Replication groups of a datastore; not thread-safe.

    Several watches can run for the same datastore.
    """

    def __init__(self, url: str) -> None:
        """Create a watch without contacting a server.

        Args:
            url: the datastore's URL; its account needs the role ``admin``.

        Raises:
            InvalidInput: the URL cannot be used.
        """
        address = Secret(url)
        del url
        self._given, self._name = datastore_url(address)
        self._url = self._given
        self._home: str | None = None
        self._pools = Pools(self._url.credentials, _OPTIONS)
        self._topology: Topology | None = None
        self._servers: dict[Node, str] = {}
        self._removed: dict[tuple[str, str], Node] = {}
        self._previous: dict[str | None, set[tuple[FindingKind, str]]] = {}

    def close(self) -> None:
        """Close all connections."""
        self._pools.close()

    def look(self) -> list[Finding]:
        """Check every cluster once, adopt newly elected primaries, and return the new findings.

        Raises:
            SchemalessError: the catalog cannot be read at the first check; later checks return a finding instead.
        """
        try:
            undecided = self._find_catalog()
            if undecided is None or undecided.witness is not None:
                self._topology = read_ready(self._pools.pool_for(self._url.node), self._name).topology
        except SchemalessError as problem:
            if self._topology is None:
                raise
            return self._new(None, [Finding(None, "failed", f"the catalog cannot be read: {_text(problem)}")])
        new = self._new(None, [])
        clusters = self._topology.clusters if self._topology is not None else ()
        if undecided is not None:
            # Without a writable catalog, nothing can be adopted on any cluster.
            return new + self._new(self._home, [Finding(self._home, undecided.kind, str(undecided))])
        for cluster in clusters:
            try:
                findings = self._check(cluster)
            except SchemalessError as problem:
                findings = [Finding(cluster.name, "failed", _text(problem))]
            new += self._new(cluster.name, findings)
        return new

    def _new(self, cluster: str | None, findings: list[Finding]) -> list[Finding]:
        """Return the findings that the last check did not report."""
        previous = self._previous.get(cluster, set())
        # "agrees" right after "adopted" is not a new finding.
        agreed = [_agrees(found.adoption.cluster) for found in findings if found.adoption is not None]
        self._previous[cluster] = {(found.kind, found.message) for found in (*findings, *agreed)}
        return [found for found in findings if (found.kind, found.message) not in previous]

    def _find_catalog(self) -> _Undecided | None:
        """Use the catalog on the primary that its own group has elected, or else the first one found through the URL.

        Returns:
            An ``_Undecided`` if that group has no primary, or one that the catalog does not have. The catalog of a
            trusted member, if any, is then used instead: it shows changes that an operator has made in the meantime.

        Raises:
            SchemalessError: no server that the URL names has the catalog.
        """
        home = self._own_cluster()
        if home is not None:
            self._home = home.name
            try:
                node, _ = self._decided(home)
            except _Undecided as undecided:
                if undecided.in_group:
                    if undecided.witness is not None:
                        self._url = replace(self._url, node=undecided.witness, others=())
                    return undecided
            else:
                self._url = replace(self._url, node=node, others=())
                return None
        self._url = find_catalog(self._given, self._name, self._pools.pool_for)
        if self._url.node not in self._servers:
            self._ask(self._url.node)  # records its UUID: the catalog may list it under another address
        return None

    def _own_cluster(self) -> Cluster | None:
        """Return the cluster that has the catalog; None before the first check, or if its server is in no cluster."""
        server = self._servers.get(self._url.node)
        for cluster in () if self._topology is None else self._topology.clusters:
            nodes = [node.having("primary") for node in cluster.nodes]
            if cluster.name == self._home or self._url.node in nodes:
                return cluster
            if server is not None and server in [self._servers.get(node) for node in nodes]:
                return cluster
        return None

    def _check(self, cluster: Cluster) -> list[Finding]:
        try:
            node, view = self._decided(cluster)
        except _Undecided as undecided:
            return [Finding(cluster.name, undecided.kind, str(undecided))]
        pool = self._pools.pool_for(node)
        if node == cluster.primary and cluster.epoch and held_claim(pool, self._name, cluster.name) == cluster.epoch:
            return [_agrees(cluster), *self._strangers(cluster, view)]
        if is_read_only(pool):
            message = f"{node} was elected primary, but is still read-only while it applies received transactions"
            return [Finding(cluster.name, "undecided", message)]
        return [self._adopt(cluster, node, pool)]

    def _adopt(self, cluster: Cluster, node: Node, pool: NodePool) -> Finding:
        self.prove_quorum(pool, cluster.name)
        done = adopt(self._url, cluster.name, node)
        for removed in done.removed:
            server = self._servers.get(removed.having("primary"))
            if server is not None:
                self._removed[cluster.name, server] = removed
        if not done.changed:  # another watch has adopted it already
            return _agrees(done.cluster)
        message = f"{node} is the primary of its group: adopted, with claim {done.cluster.epoch}"
        return Finding(cluster.name, "adopted", message, done)

    def prove_quorum(self, pool: NodePool, cluster: str) -> None:
        """Commit a token; the commit times out on a member without its group's majority."""
        with token_on(pool, self._name, cluster):
            pass

    def _strangers(self, cluster: Cluster, view: GroupView) -> Iterator[Finding]:
        """Re-add members that an adoption by this watch removed, and report members that the catalog lacks."""
        named = {self._servers.get(node.having("primary")) for node in cluster.nodes}
        for member in view.members:
            if member.server in named or member.state != "ONLINE":
                continue
            returned = self._removed.get((cluster.name, member.server))
            if returned is None:
                yield Finding(cluster.name, "stranger", _stranger(member, cluster))
                continue
            try:
                add_replica(self._url, cluster.name, returned, timeout_s=TIMEOUT_S)
            except SchemalessError as problem:
                message = f"{returned} is in its group again, but cannot be added: {_text(problem)}"
                yield Finding(cluster.name, "failed", message)
                continue
            del self._removed[cluster.name, member.server]
            yield Finding(cluster.name, "added", f"{returned} is in its group again: added as a replica")

    def _decided(self, cluster: Cluster) -> tuple[Node, GroupView]:
        """Return the primary of a cluster's group, and its view of the group.

        Raises:
            _Undecided: no trusted member names a primary that the catalog has.
        """
        nodes = [node.having("primary") for node in cluster.nodes]
        nodes += [node for (name, _), node in self._removed.items() if name == cluster.name and node not in nodes]
        answers = dict(on_servers([(node, node) for node in nodes], self._ask))
        groups = {node: answer for node, answer in answers.items() if isinstance(answer, GroupView)}
        views = {node: view for node, view in groups.items() if view.fault is None}
        doubted = {node: _text(answer) for node, answer in answers.items() if isinstance(answer, SchemalessError)}
        doubted |= {node: f"{node}: {view.fault}" for node, view in groups.items() if view.fault is not None}
        listed = "; ".join(doubted[node] for node in nodes if node in doubted)
        if not groups:
            for node in nodes:
                if answers[node] is None:
                    message = f"{node} is in no group: this cluster is not watched"
                    raise _Undecided("no group", message, in_group=False)
            raise _Undecided("undecided", f"it is unknown whether its servers are in a group: {listed}", in_group=False)
        if not views:
            raise _Undecided("undecided", f"no member of its group can be trusted: {listed}")
        witness = next(iter(views))
        if any(len(view.primaries) > 1 or not view.single_primary for view in views.values()):
            message = "its group is in multi-primary mode; a cluster must have one primary (single-primary mode)"
            raise _Undecided("failed", message, witness)
        primaries = {primary.server: primary for view in views.values() for primary in view.primaries}
        if len(primaries) != 1:
            state = "is electing a primary" if not primaries else "is in the middle of changing its primary"
            raise _Undecided("undecided", f"its group {state}", witness)
        ((server, member),) = primaries.items()
        elected = next((node for node in nodes if self._servers.get(node) == server), None)
        if elected is None:
            unknown = "; ".join(doubted[node] for node in nodes if node in doubted and node not in self._servers)
            if unknown:
                raise _Undecided(
                    "undecided",
                    f"its group's primary, {member}, may be a server whose state is unknown: {unknown}",
                    witness,
                )
            raise _Undecided("stranger", _stranger(member, cluster), witness)
        if elected not in views:
            reason = doubted.get(elected, f"{elected}: it is in no group")
            message = f"its group names a primary that does not confirm that role: {reason}"
            raise _Undecided("undecided", message, witness)
        return elected, views[elected]

    def _ask(self, node: Node) -> tuple[Node, GroupView | SchemalessError | None]:
        pool = self._pools.pool_for(node)
        try:
            pool.fail_fast_or_probe()
            view = group_view(pool)
            if view is not None:
                self._servers[node] = view.server
            return node, view
        except SchemalessError as problem:
            return node, problem


class _Undecided(Exception):
    """The primary of a group is not known.

    Attributes:
        kind: see ``Finding``.
        witness: a trusted member, if any.
        in_group: whether any server is known to be in a group.
    """

    def __init__(self, kind: FindingKind, message: str, witness: Node | None = None, *, in_group: bool = True) -> None:
        super().__init__(message)
        self.kind: FindingKind = kind
        self.witness = witness
        self.in_group = in_group


def _agrees(cluster: Cluster) -> Finding:
    message = f"{cluster.primary} is the primary of its group, with claim {cluster.epoch}"
    return Finding(cluster.name, "agrees", message)


def _text(problem: SchemalessError) -> str:
    """Describe a problem in words that stay the same from check to check, so that it is reported once."""
    if isinstance(problem, ServerUnavailable | ServerTimeout):
        return f"{problem.node} does not answer"
    return str(problem)


def _stranger(member: Member, cluster: Cluster) -> str:
    command = "adopt" if member.role == "PRIMARY" else "add-replica"
    return (
        f"{member}, which has the role {member.role} in its group, is not one of the catalog's servers that answered; "
        f"add it with 'schemaless topology {command} --cluster {cluster.name} URL'"
    )
