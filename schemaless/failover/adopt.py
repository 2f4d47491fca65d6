"""A failover is taken over: what something else has promoted becomes the primary that clients write to.

Nothing here promotes a server. What does is asked to call ``adopt`` behind it. In this order, each step safe to repeat:
proofs; another epoch in the catalog, so that no server has the claim that it asks for; a new block of added_ids in each
shard; the claim on the new primary; its address in the catalog. From the new epoch on, no program writes to the cluster
that connects, or reads the catalog again: those that have connections to an old primary which nobody has stopped write
there until then. Killed between any two steps, the cluster waits until ``adopt`` is run again, which takes the next
epoch: no two runs ever give out one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from schemaless.errors import (
    AccessDenied,
    SchemalessError,
    ServerRefused,
    ServerTimeout,
    ServerUnavailable,
    TopologyError,
)
from schemaless.failover.change import Change, server_of
from schemaless.failover.group_replication import has_majority
from schemaless.failover.promotion import (
    Received,
    begin_block,
    held_claim,
    lacking,
    last_block,
    last_claim,
    make_claim,
    received,
)
from schemaless.failover.sql import rename_cells
from schemaless.keys import shard_database
from schemaless.schema.databases import databases_like, tables_of
from schemaless.topology.catalog import TopologyChanged
from schemaless.topology.configuration import datastore_url
from schemaless.topology.lost_primaries import note_lost
from schemaless.topology.model import Cluster
from schemaless.topology.replication import is_read_only, is_same_server
from schemaless.topology.shards import LATEST_LOOK_S
from schemaless.topology.sql.moving import select_arriving
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool
from schemaless.wire.secret import Secret
from schemaless.wire.urls import ServerURL

TIMEOUT_S: Final = 5.0
"""A transaction may take so long from a new primary to its replica: clients wait for what is done before that only."""

_POLL_S: Final = 0.02

_TRIES: Final = 3
"""A takeover is begun so often where somebody else changes the same cluster meanwhile."""

_TABLE_EXISTS: Final = 1050


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of a takeover.

    Attributes:
        cluster: as it is now, with its epoch.
        changed: False where the server had the cluster's claim already.
        arrived_s: how long a transaction took from the new primary to each replica that follows it, in seconds.
        removed: nodes that the catalog no longer names, and why.
        unasked: replicas that did not answer, so that nobody knows what they have.
        old_primary: None, or what was found of the one before: "read-only", "ahead" (it has what the new one lacks),
            "unreachable", or "the same server".
        url: the datastore's URL from now on, where the catalog moved; else None.
        quorum: whether the new primary is of a group whose majority has all that was acknowledged, so that the old one
            can commit nothing more.
    """

    cluster: Cluster
    changed: bool
    arrived_s: dict[Node, float]
    removed: dict[Node, str]
    unasked: tuple[Node, ...] = ()
    old_primary: str | None = None
    url: str | None = None
    quorum: bool = False

    @property
    def old_written_s(self) -> float | None:
        """How long connected programs that reach the old primary may still write there, in seconds; None: they do not.

        Longer, where they reach no server that knows of the takeover.
        """
        return LATEST_LOOK_S if self.old_primary == "unreachable" and not self.quorum else None


def adopt(url: str, cluster: str, primary: str, *, accept_loss: bool = False, timeout_s: float = TIMEOUT_S) -> Adoption:
    """Have clients write to the server that was promoted, or that is the primary and has no claim yet.

    It has to take writes, to replicate from no other, to have every shard of the cluster under its own identity, and
    every transaction that the cluster's replicas have received. The old one, if it answers, has to be read-only, and
    the new one to have all that was committed there. Replicas that do not follow it are taken out of the catalog.

    Interrupted, even by kill -9, the same call goes on; called again, it finds that nothing is to be done.

    Args:
        url: the datastore, by a server that has its catalog: where the catalog moves with this cluster, the new one.
        cluster: such as "cluster-1".
        primary: the promoted server's URL. The datastore's account is used.
        accept_loss: go on where an old primary that still answers has transactions that the new one lacks.
        timeout_s: how long a transaction may take to a replica, and what was received may take to be applied.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: something of this is not so; nothing was written.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    at, name = datastore_url(address)
    return adopt_node(at, name, cluster, server_of(at, primary), accept_loss=accept_loss, timeout_s=timeout_s)


def adopt_node(
    url: ServerURL, name: str, cluster: str, node: Node, *, accept_loss: bool = False, timeout_s: float = TIMEOUT_S
) -> Adoption:
    """Do what ``adopt`` does, for callers that have parsed what they were given."""
    for _ in range(_TRIES - 1):
        try:
            return _adopt(url, name, cluster, node, accept_loss=accept_loss, timeout_s=timeout_s)
        except TopologyChanged:
            continue
    return _adopt(url, name, cluster, node, accept_loss=accept_loss, timeout_s=timeout_s)


def _adopt(url: ServerURL, name: str, cluster: str, node: Node, *, accept_loss: bool, timeout_s: float) -> Adoption:
    """Do what ``adopt`` says once, by the catalog as it is now."""
    with closing(Change(url, name)) as change:
        now = change.topology.cluster(cluster)
        if node != now.primary and node.having("replica") not in now.replicas:
            change.require_new(node)
        pool = change.pool(node)
        _require_able(pool, now)
        change.verify(now, node)
        unasked: tuple[Node, ...] = ()
        old, home, quorum = None, None, False
        if node == now.primary and now.epoch and held_claim(pool, change.topology.name, cluster) == now.epoch:
            after = now
        else:
            unasked = _prove_complete(change, now, node, timeout_s)
            if node != now.primary:
                old = change.old_primary(now, node, timeout_s, accept_loss=accept_loss)
                home = change.home(moves=now, to=node, old=old)
            else:
                home = change.home()
            kept = tuple(replica for replica in now.replicas if replica != node.having("replica"))
            heard = [replica for replica in now.replicas if replica not in unasked]
            if old not in (None, "unreachable"):
                heard.append(now.primary)
            # A group has lost nothing: it acknowledges what its majority has.
            quorum = has_majority(pool, len(now.nodes))
            if old == "ahead" or (old == "unreachable" and not quorum):
                note_lost(pool, change.topology.name, cluster, now.primary)
            after = take_over(change, home, replace(now, nodes=(node, *kept)), heard)
        arrived_s, removed = _settle_replicas(change, home, after, timeout_s)
        if node != now.primary:
            removed[now.primary] = "it was the primary"
        left = [member for member in after.nodes if member not in removed]
        moved = home is not None and change.url.node != node and _is(home, change, node)
        return Adoption(
            replace(after, nodes=tuple(left)),
            after != now,
            arrived_s,
            removed,
            unasked,
            old,
            replace(change.url, node=node).for_database(change.topology.name) if moved else None,
            quorum,
        )


def take_over(change: Change, home: NodePool, after: Cluster, heard: Collection[Node]) -> Cluster:
    """Have a server be the primary that a cluster's clients write to, and return the cluster as it is then.

    Args:
        change: the datastore; everything about the server is proven.
        home: where the catalog is written.
        after: the cluster, with the server as its primary, and with the epoch of before.
        heard: the cluster's other servers that answer.
    """
    name, pool = change.topology.name, change.pool(after.primary)
    before = change.topology.cluster(after.name)
    # A catalog that failed over may know nothing of the last claim; the cluster's own servers do.
    known = [last_claim(change.pool(node), name, after.name) for node in [after.primary, *heard]]
    epoch = max([before.epoch, *known]) + 1
    databases = [shard_database(name, shard) for shard in change.topology.shards_of(after.name)]
    block = _next_block(change, before, databases, after.primary, heard)
    _fence_strangers(change, home, pool, after, check=True)
    change.write(home, replace(before, epoch=epoch, id_block=block))
    _fence_strangers(change, home, pool, after)
    for _ in on_servers(
        [(after.primary, database) for database in databases], lambda database: begin_block(pool, database, block)
    ):
        pass
    make_claim(pool, name, after.name, epoch)
    try:
        return change.write(home, replace(after, epoch=epoch, id_block=block))
    except TopologyChanged as changed:
        raise TopologyChanged(
            f"{after.name} was changed by somebody else while {after.primary} took it over: the catalog asks for claim "
            f"{epoch} or a later one, which no server that it names may have; look at 'schemaless topology show', and "
            "run the same command again"
        ) from changed


def _next_block(
    change: Change, cluster: Cluster, databases: Sequence[str], primary: Node, heard: Collection[Node]
) -> int:
    """Return a block of added_ids above all that were given in a cluster's shards, also above what nobody here knows.

    The highest id that a server has is not the highest that was given: the former primary may have given more, which
    did not arrive, so one block is left out. Nor is it replicated which block a claim began, so the catalog has it.

    Raises:
        TopologyError: the new primary has no table of a shard's cells; nothing was written.
    """
    asked = [(node, (node, database)) for node in [primary, *heard] for database in databases]

    def ask(at: tuple[Node, str]) -> int:
        node, database = at
        block = last_block(change.pool(node), database)
        if block is None and node == primary:
            raise TopologyError(
                f"{primary} has no table of cells in {database!r}, or several that moves have put aside; find "
                "out which of them has the cells, and rename that one to cell. Nothing was written"
            )
        return block or 0

    return max(2 + max(on_servers(asked, ask), default=0), 1 + cluster.id_block)


def _require_able(pool: NodePool, cluster: Cluster) -> None:
    """Raise unless a server may be a primary."""
    if pool.run(lambda connection: connection.is_mariadb):
        raise TopologyError(
            f"{pool.node} is MariaDB, where taking over was not tried: no claim is made there. Name the new primary of "
            f"{cluster.name} with 'schemaless topology set-primary', which asks for none. Nothing was written"
        )
    if is_read_only(pool):
        raise TopologyError(
            f"{pool.node} is read-only, so it cannot be the primary of {cluster.name}; stop its replication and make "
            "it writable first (STOP REPLICA; SET GLOBAL super_read_only = OFF, read_only = OFF). Nothing was written"
        )


def _prove_complete(change: Change, cluster: Cluster, node: Node, timeout_s: float) -> tuple[Node, ...]:
    """Check that a server has what any replica of the cluster has; return those that do not answer."""
    pool = change.pool(node)
    own = received(pool)
    if own.replicates:
        raise TopologyError(
            f"{node} still replicates from another server, from which it would get what was lost once that is back; "
            "end it first (STOP REPLICA; RESET REPLICA ALL). Nothing was written"
        )
    give_up_s = time.monotonic() + timeout_s
    while rest := lacking(pool, own.transactions):
        if time.monotonic() >= give_up_s:
            raise TopologyError(
                f"{node} has received transactions that it has not applied ({_short(rest)}); let it apply them first "
                "(START REPLICA SQL_THREAD). Nothing was written"
            )
        time.sleep(_POLL_S)
    unasked = []
    for replica in cluster.replicas:
        if replica == node.having("replica"):
            continue
        try:
            theirs: Received = received(change.pool(replica))
        except (ServerUnavailable, ServerTimeout):
            unasked.append(replica)
            continue
        # A primary that takes writes is still committing what its replica has got.
        while rest := lacking(pool, theirs.transactions):
            if time.monotonic() < give_up_s:
                time.sleep(_POLL_S)
                continue
            raise TopologyError(
                f"{replica} has received transactions that {node} lacks ({_short(rest)}); promote that one instead, or "
                f"have {node} fetch them from there, or give the replica up ('schemaless topology remove-replica'). "
                "Nothing was written"
            )
    return tuple(unasked)


def _fence_strangers(change: Change, home: NodePool, pool: NodePool, cluster: Cluster, *, check: bool = False) -> None:
    """Let nobody write to the server's cells of shards that are on other clusters: it may have missed their leaving.

    A shard that is on its way here is left as it is: where its move is past the commit point, these cells are the
    shard, and the move, when it is run again, has the catalog say so.

    Args:
        change: the datastore.
        home: where the catalog is.
        pool: the server.
        cluster: which it becomes the primary of.
        check: change nothing, and only see whether the account may.
    """
    topology = change.topology
    arriving = home.run(lambda connection: connection.rows(select_arriving(topology.name, cluster.name)))
    shards = {*topology.shards_of(cluster.name), *(int(shard) for (shard,) in arriving)}
    left = {topology.name, *(shard_database(topology.name, shard) for shard in shards)}
    for database in databases_like(pool, topology.name):
        if database in left or "cell" not in tables_of(pool, database):
            continue
        aside = rename_cells(database, f"cell_moved_{secrets.token_hex(4)}")
        # To the name that it has: refused for this, behind the look at privileges.
        sql = rename_cells(database, "cell") if check else aside

        def fence(connection: Connection, sql: bytes = sql) -> None:
            connection.execute(sql)

        try:
            pool.run(fence)
        except DatabaseMissing:
            continue
        except AccessDenied as denied:
            raise TopologyError(
                f"{pool.node} has cells of a shard that is on another cluster ({database}), and the account may not "
                f"put them aside; run this there, and the same command again: {aside.decode()}"
                + (". Nothing was written" if check else "")
            ) from denied
        except ServerRefused as refused:
            if not check or refused.code != _TABLE_EXISTS:
                raise


def _settle_replicas(
    change: Change, home: NodePool | None, cluster: Cluster, timeout_s: float
) -> tuple[dict[Node, float], dict[Node, str]]:
    """Take replicas out of the catalog that do not follow the primary; return the others' times, and why these went."""
    arrived_s: dict[Node, float] = {}
    removed: dict[Node, str] = {}
    for replica in cluster.replicas:
        try:
            arrived_s[replica] = change.prove_replica(cluster, cluster.primary, replica, timeout_s)
        except SchemalessError as problem:
            removed[replica] = str(problem)
    if removed:
        left = tuple(member for member in cluster.nodes if member not in removed)
        change.write(home or change.home(), replace(cluster, nodes=left))
    return arrived_s, removed


def _is(home: NodePool, change: Change, node: Node) -> bool:
    return home.node == node or is_same_server(home, change.pool(node))


def _short(transactions: str) -> str:
    text = transactions.replace("\n", "")
    return text if len(text) <= 100 else f"{text[:100]}..."
