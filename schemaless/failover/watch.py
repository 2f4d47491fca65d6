"""``Watch``: adopts what Group Replication's quorum has decided. It elects nobody, and asks nobody to be the primary.

The members of a cluster's group are asked for its members. One that is ONLINE and sees a majority is believed; one that
was cut off still takes itself for the primary, and is not. Before a new primary is adopted, something is committed on
it, which a server without its group's majority cannot do.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from schemaless.errors import SchemalessError, ServerTimeout, ServerUnavailable
from schemaless.failover.adopt import TIMEOUT_S, Adoption, adopt_node
from schemaless.failover.group_replication import GroupView, Member, group_view
from schemaless.failover.nodes import add_node
from schemaless.failover.promotion import held_claim
from schemaless.topology.catalog import find_catalog, read_ready
from schemaless.topology.configuration import datastore_url
from schemaless.topology.heartbeat import make_tables, remove_token, write_token
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.replication import is_read_only
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.secret import Secret

_OPTIONS: Final = PoolOptions(connect_timeout_s=2, read_timeout_s=5, write_timeout_s=5, pool_size=2)
"""Whoever does not answer is asked again at the next look."""

_PROOF: Final = "quorum"

What = Literal["agrees", "adopted", "added", "undecided", "failed", "stranger", "no group"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a cluster, where that is not what was found before.

    Attributes:
        at: when, UTC.
        cluster: its name; None where the catalog cannot be read.
        what: "agrees" (the group's primary is the catalog's, with its claim), "adopted", "added" (a member that is back
            is a replica again), "undecided" (nobody who is to be believed names a primary), "failed", "stranger" (a
            member that the catalog does not name), or "no group".
        message: the same for people.
        adoption: what became of it, with "adopted".
    """

    at: datetime
    cluster: str | None
    what: What
    message: str
    adoption: Adoption | None = None

    @property
    def well(self) -> bool:
        """Whether nobody has to look into it."""
        return self.what in ("agrees", "adopted", "added")


class Watch:
    """Looks at the groups of a datastore, as often as it is asked to; for one thread.

    Any number of them may look at the same datastore.
    """

    def __init__(self, url: str) -> None:
        """Make it; no server is asked.

        Args:
            url: the datastore's; its account has the role ``admin``.

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
        self._gone: dict[tuple[str, str], Node] = {}
        self._before: dict[str | None, set[tuple[What, str]]] = {}

    def close(self) -> None:
        """Close the connections."""
        self._pools.close()

    def look(self) -> list[Finding]:
        """Look once at every cluster, adopt what was decided there, and return what is new.

        Raises:
            SchemalessError: the first look cannot read the catalog; later ones say so.
        """
        try:
            undecided = self._find_catalog()
            if undecided is None or undecided.witness is not None:
                self._topology = read_ready(self._pools.pool_for(self._url.node), self._name).topology
        except SchemalessError as problem:
            if self._topology is None:
                raise
            return self._new(None, [("failed", f"the catalog cannot be read: {_said(problem)}", None)])
        news = self._new(None, [])
        clusters = self._topology.clusters if self._topology is not None else ()
        if undecided is not None:
            # Nothing can be written into the catalog, whatever the other clusters say.
            return news + self._new(self._home, [(undecided.what, str(undecided), None)])
        for cluster in clusters:
            try:
                findings = self._look_at(cluster)
            except SchemalessError as problem:
                findings = [("failed", _said(problem), None)]
            news += self._new(cluster.name, findings)
        return news

    def _new(self, cluster: str | None, findings: list[_Found]) -> list[Finding]:
        """Return what was not found at the last look as well."""
        before = self._before.get(cluster, set())
        self._before[cluster] = {(what, message) for what, message, _ in findings}
        # Whoever was told of an adoption need not be told that it is so.
        agreed = [_agrees(adoption.cluster) for _, _, adoption in findings if adoption is not None]
        self._before[cluster] |= {(what, message) for what, message, _ in agreed}
        now = datetime.now(UTC)
        return [
            Finding(now, cluster, what, message, adoption)
            for what, message, adoption in findings
            if (what, message) not in before
        ]

    def _find_catalog(self) -> _Undecided | None:
        """Go to the catalog of the primary that the catalog's own group has; else to the first that the URL names.

        Where that group has no primary, or none that the catalog names, return that: then it is the catalog of a member
        that is believed, if there is any, which says what somebody has done about it.

        Raises:
            SchemalessError: no server that the URL names has the catalog.
        """
        home = self._own_cluster()
        if home is not None:
            self._home = home.name
            try:
                node, _ = self._decided(home)
            except _Undecided as nobody:
                if nobody.in_group:
                    if nobody.witness is not None:
                        self._url = replace(self._url, node=nobody.witness, others=())
                    return nobody
            else:
                self._url = replace(self._url, node=node, others=())
                return None
        self._url = find_catalog(self._given, self._name, self._pools.pool_for)
        if self._url.node not in self._servers:
            self._ask(self._url.node)  # the catalog may have it by another address
        return None

    def _own_cluster(self) -> Cluster | None:
        """Return the cluster that the catalog is on; None before the first look, or if it has no server of a group."""
        server = self._servers.get(self._url.node)
        for cluster in () if self._topology is None else self._topology.clusters:
            nodes = [node.having("primary") for node in cluster.nodes]
            if cluster.name == self._home or self._url.node in nodes:
                return cluster
            if server is not None and server in [self._servers.get(node) for node in nodes]:
                return cluster
        return None

    def _look_at(self, cluster: Cluster) -> list[_Found]:
        try:
            node, view = self._decided(cluster)
        except _Undecided as nobody:
            return [(nobody.what, str(nobody), None)]
        pool = self._pools.pool_for(node)
        findings: list[_Found] = []
        if node == cluster.primary and cluster.epoch and held_claim(pool, self._name, cluster.name) == cluster.epoch:
            findings.append(_agrees(cluster))
            findings += self._strangers(cluster, view)
        elif is_read_only(pool):
            message = f"{node} was chosen as the primary, and takes no writes yet: it applies what it has received"
            findings.append(("undecided", message, None))
        else:
            findings.append(self._adopt(cluster, node, pool))
        return findings

    def _adopt(self, cluster: Cluster, node: Node, pool: NodePool) -> _Found:
        self.prove_quorum(pool, cluster.name)
        done = adopt_node(self._url, self._name, cluster.name, node)
        for removed in done.removed:
            server = self._servers.get(removed.having("primary"))
            if server is not None:
                self._gone[cluster.name, server] = removed
        if not done.changed:  # another watch was first
            return _agrees(done.cluster)
        return ("adopted", f"{node} is the primary of its group: adopted, with claim {done.cluster.epoch}", done)

    def prove_quorum(self, pool: NodePool, cluster: str) -> None:
        """Commit something, which a group's member does with the majority only; else it waits, and this fails."""
        writer = f"{_PROOF} {secrets.token_hex(16)}"
        try:
            pool.run(lambda connection: write_token(connection, self._name, cluster, writer, secrets.token_bytes(16)))
        except DatabaseMissing:
            make_tables(pool, self._name)
        else:
            pool.run(lambda connection: remove_token(connection, self._name, cluster, writer))

    def _strangers(self, cluster: Cluster, view: GroupView) -> list[_Found]:
        """Put members back that went with an adoption of this watch; name those that the catalog does not name."""
        findings: list[_Found] = []
        named = {self._servers.get(node.having("primary")) for node in cluster.nodes}
        for member in view.members:
            if member.server in named or member.state != "ONLINE":
                continue
            back = self._gone.get((cluster.name, member.server))
            if back is None:
                findings.append(("stranger", _stranger(member, cluster), None))
                continue
            try:
                add_node(self._url, self._name, cluster.name, back, timeout_s=TIMEOUT_S)
            except SchemalessError as problem:
                message = f"{back} is in its group again, and cannot be added: {_said(problem)}"
                findings.append(("failed", message, None))
                continue
            del self._gone[cluster.name, member.server]
            findings.append(("added", f"{back} is in its group again: added as a replica", None))
        return findings

    def _decided(self, cluster: Cluster) -> tuple[Node, GroupView]:
        """Return the primary that a cluster's group has, and the group as that one sees it.

        Raises:
            _Undecided: nobody who is to be believed names one that the catalog does.
        """
        nodes = [node.having("primary") for node in cluster.nodes]
        nodes += [node for (name, _), node in self._gone.items() if name == cluster.name and node not in nodes]
        answers = dict(on_servers([(node, node) for node in nodes], self._ask))
        groups = {node: answer for node, answer in answers.items() if isinstance(answer, GroupView)}
        views = {node: view for node, view in groups.items() if view.fault is None}
        doubted = {node: _said(answer) for node, answer in answers.items() if isinstance(answer, SchemalessError)}
        doubted |= {node: f"{node}: {view.fault}" for node, view in groups.items() if view.fault is not None}
        listed = "; ".join(doubted[node] for node in nodes if node in doubted)
        if not groups:
            for node in nodes:
                if answers[node] is None:
                    message = f"{node} is in no group, so nobody decides there: left as it is"
                    raise _Undecided("no group", message, in_group=False)
            raise _Undecided("undecided", f"no server says whether it is in a group: {listed}", in_group=False)
        if not views:
            raise _Undecided("undecided", f"no member of its group can be believed: {listed}")
        witness = next(iter(views))
        if any(len(view.primaries) > 1 or not view.single_primary for view in views.values()):
            message = "its group is in multi-primary mode; a cluster has one primary (single-primary mode)"
            raise _Undecided("failed", message, witness)
        primaries = {primary.server: primary for view in views.values() for primary in view.primaries}
        if len(primaries) != 1:
            what = "is about to choose a primary" if not primaries else "is in the middle of a change of its primary"
            raise _Undecided("undecided", f"its group {what}", witness)
        ((server, member),) = primaries.items()
        chosen = next((node for node in nodes if self._servers.get(node) == server), None)
        if chosen is None:
            unknown = "; ".join(doubted[node] for node in nodes if node in doubted and node not in self._servers)
            if unknown:
                raise _Undecided("undecided", f"its group's primary, {member}, may be one of these: {unknown}", witness)
            raise _Undecided("stranger", _stranger(member, cluster), witness)
        if chosen not in views:
            why = doubted.get(chosen, f"{chosen}: it is in no group")
            message = f"its group names a primary that does not confirm it: {why}"
            raise _Undecided("undecided", message, witness)
        return chosen, views[chosen]

    def _ask(self, node: Node) -> tuple[Node, GroupView | SchemalessError | None]:
        pool = self._pools.pool_for(node)
        try:
            pool.heed()
            view = group_view(pool)
            if view is not None:
                self._servers[node] = view.server
            return node, view
        except SchemalessError as problem:
            return node, problem


_Found = tuple[What, str, Adoption | None]


class _Undecided(Exception):
    """No primary of a group can be named.

    Attributes:
        what: see ``Finding``.
        witness: a member that is believed, if any.
        in_group: whether any server says that it is of a group.
    """

    def __init__(self, what: What, message: str, witness: Node | None = None, *, in_group: bool = True) -> None:
        super().__init__(message)
        self.what: What = what
        self.witness = witness
        self.in_group = in_group


def _agrees(cluster: Cluster) -> _Found:
    return ("agrees", f"{cluster.primary} is the primary of its group, with claim {cluster.epoch}", None)


def _said(problem: SchemalessError) -> str:
    """Return what a problem says, in words that are the same as long as it is: each look may meet it."""
    if isinstance(problem, ServerUnavailable | ServerTimeout):
        return f"{problem.node} does not answer"
    return str(problem)


def _stranger(member: Member, cluster: Cluster) -> str:
    command = "adopt" if member.role == "PRIMARY" else "add-replica"
    return (
        f"{member}, a {member.role} of the group, is none of the catalog's servers that have answered; 'schemaless "
        f"topology {command} --cluster {cluster.name} URL' names it"
    )
