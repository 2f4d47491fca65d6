"""Adoption of a failover: clients write to the server that another tool has promoted.

Nothing here promotes a server; the tool that does calls ``adopt`` afterwards. The steps, each safe to repeat, are:
checks; the number of a new block of added_ids in the catalog; that block in each shard; a new epoch in the catalog, for
which no server has a claim yet; the claim on the new primary; its address in the catalog. From the new epoch on, a
program that connects or reads the catalog does not write to the cluster until the claim exists, so little happens
between the two; a program with open connections to a running old primary writes there until it reads the catalog. If
``adopt`` is killed between two steps, writes to the cluster may fail until it is run again. Each run takes a new epoch,
so no epoch is used twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from schemaless.base.keys import shard_database
from schemaless.errors import (
    AccessDenied,
    SchemalessError,
    ServerRefused,
    ServerTimeout,
    ServerUnavailable,
    TopologyError,
)
from schemaless.ops.failover.change import Change, NodeChange, on_datastore, server_of
from schemaless.ops.failover.group_replication import has_majority
from schemaless.ops.failover.promotion import (
    begin_block,
    held_claim,
    last_block,
    last_claim,
    make_claim,
    missing_from,
    received,
)
from schemaless.ops.failover.semi_sync import promotion_warnings
from schemaless.ops.failover.sql import rename_cells
from schemaless.schema.databases import databases_like, tables_of
from schemaless.topology.catalog import TopologyChanged
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.lost_primaries import record_lost_primary
from schemaless.topology.model import Cluster
from schemaless.topology.sql.moving import select_arriving
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool
from schemaless.wire.urls import ServerURL

TIMEOUT_S: Final = 5.0
"""Timeout for a transaction to reach a replica of the new primary, in seconds. Clients can write before this check."""

_POLL_S: Final = 0.02

_ATTEMPTS: Final = 3
"""Number of attempts if another process changes the same cluster at the same time."""

_TABLE_EXISTS: Final = 1050


@on_datastore
def adopt(
    url: ServerURL, cluster: str, primary: str | Node, *, accept_loss: bool = False, timeout_s: float = TIMEOUT_S
) -> NodeChange:
    """Make clients write to a promoted server, or give the current primary its first claim.

    The server must accept writes, must not replicate from another server, and must have every shard of the cluster and
    every transaction that the cluster's replicas have received. The old primary, if it answers, must be read-only and
    must not have transactions that the new one lacks. Replicas that do not follow the new primary are removed from the
    catalog.

    If a call is interrupted, even by kill -9, repeat it to continue; after a success, it finds nothing to do.

    Args:
        url: the datastore's URL. If the catalog moves with this cluster, the URL must name the new primary.
        cluster: name of the cluster, such as "cluster-1".
        primary: URL of the promoted server. The datastore's account is used.
        accept_loss: continue even if an old primary that still answers has transactions that the new one lacks.
        timeout_s: timeout for a transaction to reach a replica, and for received transactions to be applied, in
            seconds.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: a requirement is not met; nothing was written.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    node = server_of(url, primary)
    for _ in range(_ATTEMPTS - 1):
        with suppress(TopologyChanged):
            return _adopt(url, cluster, node, accept_loss, timeout_s)
    return _adopt(url, cluster, node, accept_loss, timeout_s)


def _adopt(url: ServerURL, cluster: str, node: Node, accept_loss: bool, timeout_s: float) -> NodeChange:
    with closing(Change(url, promoted=node)) as change:
        now, pool, name = change.topology.cluster(cluster), change.pool(node), change.topology.name
        if pool.run(lambda connection: connection.is_mariadb):
            raise TopologyError(
                f"{node} is MariaDB, for which adoption is untested and not supported. Name the new primary of "
                f"{cluster} with 'schemaless topology set-primary', which needs no claim. Nothing was written"
            )
        change.check_primary(now, node, timeout_s)
        after, home, old, quorum, errant = now, None, None, False, ""
        unasked: tuple[Node, ...] = ()
        unread: tuple[str, ...] = ()
        if not (node == now.primary and now.epoch and held_claim(pool, name, cluster) == now.epoch):
            unasked = _prove_complete(change, now, node, timeout_s)
            if node == now.primary:
                home = change.home()
            else:
                old = change.old_primary(now, node, timeout_s, accept_loss=accept_loss)
                errant, unread = change.errant(now, node, old)
                home = change.home(moves=now, to=node, old=old)
            reachable = [replica for replica in now.replicas if replica not in unasked]
            if old not in (None, "unreachable"):
                reachable.append(now.primary)
            # A group loses no transactions, because it acknowledges only those that its majority has received.
            quorum = has_majority(pool, len(now.nodes))
            if old == "ahead" or (old == "unreachable" and not quorum):
                record_lost_primary(pool, name, cluster, now.primary)
            kept = [replica for replica in now.replicas if replica != node.having("replica")]
            after = take_over(change, home, replace(now, nodes=(node, *kept)), reachable)
        arrived_s, removed = _settle_replicas(change, home, after, timeout_s)
        if node != now.primary:
            removed[now.primary] = "it was the primary"
        done = replace(after, nodes=tuple(member for member in after.nodes if member not in removed))
        moved = None if home is None else change.moved_url(home, node)
        warnings = (*unread, *promotion_warnings(pool, now, done))
        return NodeChange(done, after != now, arrived_s, removed, unasked, old, moved, quorum, errant, warnings)


def take_over(change: Change, home: NodePool, after: Cluster, reachable: Collection[Node]) -> Cluster:
    """Claim a cluster for its new primary, write it into the catalog, and return the cluster afterwards.

    Args:
        change: the datastore; the caller has checked the server.
        home: the server on which the catalog is written.
        after: the cluster with its new primary and its old epoch.
        reachable: the cluster's other servers that answer.
    """
    name, pool = change.topology.name, change.pool(after.primary)
    before = change.topology.cluster(after.name)
    # A catalog that failed over may have lost the last claim; the cluster's own servers know it.
    known = [last_claim(change.pool(node), name, after.name) for node in [after.primary, *reachable]]
    epoch = max([before.epoch, *known]) + 1
    block = next_block(change, before, after.primary, reachable)
    _fence_foreign_shards(change, home, pool, after, check=True)
    # The block's number first: no later adoption may use it, even if this server and its ids are lost.
    change.write(home, replace(before, id_block=block))
    after = replace(after, epoch=epoch, id_block=block)
    begin_blocks(change, after)
    make_tables(pool, name)
    change.write(home, replace(before, epoch=epoch, id_block=block))
    _fence_foreign_shards(change, home, pool, after)
    make_claim(pool, name, after.name, epoch)
    try:
        return change.write(home, after)
    except TopologyChanged as changed:
        raise TopologyChanged(
            f"another process changed {after.name} while {after.primary} was being adopted: the catalog requires claim "
            f"{epoch} or a later one, and possibly no server of the cluster holds it; check 'schemaless topology "
            "show', and run the same command again"
        ) from changed


def begin_blocks(change: Change, cluster: Cluster) -> None:
    """Begin a cluster's block of added_ids in each of its shards, on its primary."""
    pool = change.pool(cluster.primary)
    databases = [(cluster.primary, database) for database in _databases(change, cluster)]
    for _ in on_servers(databases, lambda database: begin_block(pool, database, cluster.id_block)):
        pass


def _databases(change: Change, cluster: Cluster) -> list[str]:
    return [shard_database(change.topology.name, shard) for shard in change.topology.shards_of(cluster.name)]


def next_block(change: Change, cluster: Cluster, primary: Node, reachable: Collection[Node] = ()) -> int:
    """Return a block of added_ids above all ids ever assigned in a cluster's shards.

    The old primary may have assigned higher ids that were never replicated to the reachable servers; therefore one
    block is skipped. Block starts are not replicated either, so the catalog records the last one.

    Raises:
        TopologyError: the new primary has no cell table for a shard; nothing was written.
    """
    asked = [(node, (node, database)) for node in [primary, *reachable] for database in _databases(change, cluster)]

    def ask(at: tuple[Node, str]) -> int:
        node, database = at
        block = last_block(change.pool(node), database)
        if block is None and node == primary:
            raise TopologyError(
                f"{primary} has no cell table in {database!r}, or several that moves have renamed; find out which one "
                "has the shard's cells, and rename it to cell. Nothing was written"
            )
        return block or 0

    return max(2 + max(on_servers(asked, ask), default=0), 1 + cluster.id_block)


def _prove_complete(change: Change, cluster: Cluster, node: Node, timeout_s: float) -> tuple[Node, ...]:
    """Check that a server has every transaction of the cluster's replicas; return the replicas that do not answer."""
    pool = change.pool(node)
    own = received(pool)
    if own.replicates:
        raise TopologyError(
            f"{node} still replicates from another server, and would receive lost transactions from it when "
            f"that server returns; "
            "stop its replication first (STOP REPLICA; RESET REPLICA ALL). Nothing was written"
        )
    give_up_s = time.monotonic() + timeout_s

    def require(transactions: Iterable[str], has_received: str, next_step: str) -> None:
        # A running primary may still be committing transactions that its replica has already received.
        while missing := missing_from(pool, transactions):
            if time.monotonic() >= give_up_s:
                raise TopologyError(f"{has_received} ({_short(missing)}); {next_step}. Nothing was written")
            time.sleep(_POLL_S)

    require(
        own.transactions,
        f"{node} has received transactions that it has not applied",
        "let it apply them first (START REPLICA SQL_THREAD)",
    )
    unasked = []
    for replica in cluster.replicas:
        if replica == node.having("replica"):
            continue
        try:
            theirs = received(change.pool(replica))
        except (ServerUnavailable, ServerTimeout):
            unasked.append(replica)
            continue
        require(
            theirs.transactions,
            f"{replica} has received transactions that {node} lacks",
            f"promote that replica instead, let {node} replicate them from it, or give up the replica ('schemaless "
            "topology remove-replica')",
        )
    return tuple(unasked)


def _fence_foreign_shards(
    change: Change, home: NodePool, pool: NodePool, cluster: Cluster, *, check: bool = False
) -> None:
    """Rename the cell tables of shards that belong to other clusters, so that no program writes to them.

    The promoted server may have missed the RENAME with which a move took a shard away from its cluster. A shard that is
    being moved to this cluster is left alone: if its move is past the commit point, the table here has the shard's
    cells, and running the move again updates the catalog.

    Args:
        change: the datastore.
        home: the server that has the catalog.
        pool: pool of the promoted server.
        cluster: the cluster whose primary it becomes.
        check: only check that the account has the privileges.
    """
    topology = change.topology
    arriving = home.rows(select_arriving(topology.name, cluster.name))
    shards = {*topology.shards_of(cluster.name), *(int(shard) for (shard,) in arriving)}
    own = {topology.name, *(shard_database(topology.name, shard) for shard in shards)}
    for database in databases_like(pool, topology.name):
        if database in own or "cell" not in tables_of(pool, database):
            continue
        rename = rename_cells(database, f"cell_moved_{secrets.token_hex(4)}")
        # The server checks privileges before it refuses a rename to the same name.
        try:
            pool.execute(rename_cells(database, "cell") if check else rename)
        except DatabaseMissing:
            continue
        except AccessDenied as denied:
            raise TopologyError(
                f"{pool.node} has cells of a shard that is on another cluster ({database}), and the account cannot "
                f"rename that table; run this there, then run the same command again: {rename.decode()}"
                + (". Nothing was written" if check else "")
            ) from denied
        except ServerRefused as refused:
            if not check or refused.code != _TABLE_EXISTS:
                raise


def _settle_replicas(
    change: Change, home: NodePool | None, cluster: Cluster, timeout_s: float
) -> tuple[dict[Node, float], dict[Node, str]]:
    """Remove from the catalog the replicas that do not follow the primary.

    Returns:
        The replication delay of each remaining replica, in seconds, and the reason for each removal.
    """
    arrived_s: dict[Node, float] = {}
    removed: dict[Node, str] = {}
    for replica in cluster.replicas:
        try:
            arrived_s[replica] = change.prove_replica(cluster, cluster.primary, replica, timeout_s)
        except SchemalessError as problem:
            removed[replica] = str(problem)
    if removed:
        remaining = tuple(member for member in cluster.nodes if member not in removed)
        change.write(home or change.home(), replace(cluster, nodes=remaining))
    return arrived_s, removed


def _short(transactions: str) -> str:
    text = transactions.replace("\n", "")
    return text if len(text) <= 100 else f"{text[:100]}..."
