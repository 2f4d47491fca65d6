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

from schemaless.admin.failover import Adoption, adopt_node
from schemaless.admin.nodes import add_node
from schemaless.cluster.topology import Cluster, Node, Topology
from schemaless.errors import SchemalessError, ServerTimeout, ServerUnavailable
from schemaless.mysql.configuration import datastore_url
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.group import GroupView, Member, group_view
from schemaless.mysql.heartbeat import make_tables, remove_token, write_token
from schemaless.mysql.parallel import on_servers
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.pools import Pools
from schemaless.mysql.replication import is_read_only
from schemaless.mysql.secret import Secret
from schemaless.mysql.takeover import held_claim
from schemaless.store.catalog import find_catalog, read_ready

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
            self._find_catalog()
            self._topology = read_ready(self._pools.pool_for(self._url.node), self._name).topology
        except _Undecided as nobody:
            return self._new(self._home, [(nobody.what, str(nobody), None)])
        except SchemalessError as problem:
            if self._topology is None:
                raise
            return self._new(None, [("failed", f"the catalog cannot be read: {_said(problem)}", None)])
        news = self._new(None, [])
        for cluster in self._topology.clusters:
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
        now = datetime.now(UTC)
        return [
            Finding(now, cluster, what, message, adoption)
            for what, message, adoption in findings
            if (what, message) not in before
        ]

    def _find_catalog(self) -> None:
        """Go to the catalog of the primary that the catalog's own group has; else to the first that the URL names.

        Raises:
            _Undecided: it is a group, and has none.
            SchemalessError: no server that the URL names has the catalog.
        """
        if self._topology is not None:
            for cluster in self._topology.clusters:
                if cluster.name == self._home or self._url.node in [node.having("primary") for node in cluster.nodes]:
                    self._home = cluster.name
                    try:
                        node, _ = self._decided(cluster)
                    except _Undecided as nobody:
                        if nobody.what != "no group":
                            raise
                    else:
                        self._url = replace(self._url, node=node, others=())
                        return
        self._url = find_catalog(self._given, self._name, self._pools.pool_for)

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
        self._prove_quorum(pool, cluster.name)
        done = adopt_node(self._url, self._name, cluster.name, node)
        for removed in done.removed:
            server = self._servers.get(removed.having("primary"))
            if server is not None:
                self._gone[cluster.name, server] = removed
        if not done.changed:  # another watch was first
            return _agrees(done.cluster)
        return ("adopted", f"{node} is the primary of its group: adopted, with claim {done.cluster.epoch}", done)

    def _prove_quorum(self, pool: NodePool, cluster: str) -> None:
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
            add_node(self._url, self._name, cluster.name, back)
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
        views: dict[Node, GroupView] = {}
        doubted: dict[Node, str] = {}
        for node, answer in on_servers([(node, node) for node in nodes], self._ask):
            if isinstance(answer, GroupView):
                self._servers[node] = answer.server
                if answer.fault is None:
                    views[node] = answer
                else:
                    doubted[node] = f"{node}: {answer.fault}"
            elif answer is not None:
                doubted[node] = _said(answer)
        if not views and not doubted:
            raise _Undecided("no group", f"{cluster.primary} is in no group, so nobody decides there: left as it is")
        if not views:
            listed = "; ".join(doubted[node] for node in nodes if node in doubted)
            raise _Undecided("undecided", f"no member of its group can be believed: {listed}")
        if any(len(view.primaries) > 1 for view in views.values()):
            raise _Undecided("failed", "its group has several primaries; a cluster has one (single-primary mode)")
        primaries = {primary.server: primary for view in views.values() for primary in view.primaries}
        if len(primaries) != 1:
            what = "is about to choose a primary" if not primaries else "is in the middle of a change of its primary"
            raise _Undecided("undecided", f"its group {what}")
        ((server, member),) = primaries.items()
        chosen = next((node for node in nodes if self._servers.get(node) == server), None)
        if chosen is None:
            raise _Undecided("stranger", _stranger(member, cluster))
        if chosen not in views:
            why = doubted.get(chosen, f"{chosen}: it is in no group")
            raise _Undecided("undecided", f"its group names a primary that does not confirm it: {why}")
        return chosen, views[chosen]

    def _ask(self, node: Node) -> tuple[Node, GroupView | SchemalessError | None]:
        pool = self._pools.pool_for(node)
        try:
            pool.heed()
            return node, group_view(pool)
        except SchemalessError as problem:
            return node, problem


_Found = tuple[What, str, Adoption | None]


class _Undecided(Exception):
    """No primary of a group can be named."""

    def __init__(self, what: What, message: str) -> None:
        super().__init__(message)
        self.what: What = what


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
