"""The way to a shard: its database, its server's pool, the proof that it is the right one, and where it went."""

from __future__ import annotations

import itertools
import logging
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, TypeVar

from schemaless.errors import (
    InvalidInput,
    PrimaryNotClaimed,
    SchemalessError,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    ShardIdentityMismatch,
    ShardMoving,
    TopologyError,
)
from schemaless.keys import shard_database
from schemaless.schema.databases import SHARD_TABLES, Identity, verify_identity
from schemaless.topology.model import Topology
from schemaless.topology.routing import CatalogReader, Routing, Spot
from schemaless.wire.connection import Check, Connection, Rows
from schemaless.wire.driver import Reply
from schemaless.wire.errors import READ_ONLY, DatabaseMissing, Elsewhere
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.route import outcome_unknown

log = logging.getLogger("schemaless")

T = TypeVar("T")

FeedFrom = Literal["primary", "replica"]
"""What follows a shard reads from one of these; whether a replica has got all that is settled, the primary says."""

ReadFrom = Literal["primary", "replica", "available"]
"""Cells are read from one of these; ``available`` is the primary, and a replica while that one does not answer."""

LOOK_S: Final = 30.0
"""A process that meets no error goes by one routing for so long, give or take ``_JITTER``."""

_JITTER: Final = (0.75, 1.25)

LATEST_LOOK_S: Final = LOOK_S * _JITTER[1]
"""A process that is used reads the catalog again after this time at the latest."""

MOVE_WAIT_S: Final = 5.0
"""A call waits for so long for a shard that is on its way to another cluster."""

_MOVE_POLL_S: Final = (0.002, 0.010)
_SLOWER_AFTER_S: Final = 0.5
"""A cut that takes longer is slow for want of a processor or a disk: a hundred callers that keep asking hold it up."""
_SLOW_POLL_S: Final = (0.02, 0.1)
_MOST_CHANGES: Final = 20
_REFUSED_ASK_S: Final = 0.1
_MISSING_TABLE: Final = re.compile(r"\.(\w+)' doesn't exist")


class Shards:
    """Every shard of a datastore, opened on first use, and followed where it goes.

    Attributes:
        pools: the connections to every server.
        routing: where each shard is, as far as is known; swapped whole.
        move_wait_s: how long a call waits for a shard that is on its way to another cluster.
        look_at_s: when the catalog is read again though nothing is amiss, by ``time.monotonic``.
        known_tables: for tables that not every shard has, such as indexes: says whether one that is missing should be
            there, so that the shard may be elsewhere; raises what else it means.
    """

    def __init__(
        self, topology: Topology, pools: Pools, *, token: bytes | None = None, catalog: CatalogReader | None = None
    ) -> None:
        """Make it; no server is asked.

        Args:
            topology: as the catalog has it.
            pools: the connections.
            token: the catalog's at that moment.
            catalog: asked where the shards are by now; None where they stay as they are.
        """
        self.pools = pools
        self.routing = Routing(topology, token, self._judge, self._confirm)
        self._ask_for_claims(self.routing)
        self.move_wait_s = MOVE_WAIT_S
        self.known_tables: Callable[[int, str], bool] | None = None
        self._name = topology.name
        self._catalog = catalog
        self._turn = itertools.count()
        self.look_at_s = self._next_look_s()
        self._read_at_s = self._read_end_s = -math.inf
        self._unread = False
        self._awaited_at_s = -math.inf
        # By process: a lock that a fork leaves taken is nobody's in the child. A signal's handler may call as well.
        self._turns: dict[int, AbstractContextManager[Any]] = {}

    @property
    def topology(self) -> Topology:
        """The shards and their servers, as far as is known."""
        return self.routing.topology

    def database(self, shard: int) -> str:
        """Return the name of a shard's database."""
        return shard_database(self._name, shard)

    def pool_for(self, node: Node) -> NodePool:
        """Return the one pool for a node."""
        return self.pools.pool_for(node)

    def new_pool(self, node: Node, options: PoolOptions) -> NodePool:
        """Return a pool of its own for a node, which the caller closes; ``options`` hold whatever the URL says."""
        return self.pools.new_pool(node, options)

    def node_of(self, shard: int, read_from: ReadFrom = "primary") -> Node:
        """Return the node that serves a shard; replicas take turns, and a cluster without one uses its primary."""
        return self.spot(shard, read_from).node

    def spot(self, shard: int, read_from: ReadFrom = "primary") -> Spot:
        """Return where a shard is served from, by the routing that holds now."""
        if read_from not in ("primary", "replica"):
            raise InvalidInput(
                f"read_from must be 'primary' or 'replica', or for cells by their keys 'available', got {read_from!r}"
            )
        routing = self.routing
        cluster = routing.clusters[shard]
        if read_from == "replica" and cluster.replicas:
            return Spot(routing, shard, cluster.replicas[next(self._turn) % len(cluster.replicas)])
        return Spot(routing, shard, cluster.primary)

    # Calls

    def run(
        self,
        shard: int,
        operation: Callable[[Connection], T],
        *,
        read_from: ReadFrom = "primary",
        writes: bool = False,
    ) -> T:
        """Run ``operation`` on a connection to a shard's server, after proving the shard on its first use.

        Where the shard has gone to another server meanwhile, ``operation`` is run there.

        Args:
            shard: a checked shard number.
            operation: must be safe to repeat; see ``NodePool.run``.
            read_from: which kind of node.
            writes: whether a lost connection leaves the outcome open.

        Raises:
            ShardIdentityMismatch: the database is not that shard of this datastore.
            ShardMoving: it is on its way to another cluster for longer than ``move_wait_s``.
            ServerError: the server refused or failed.
        """
        if time.monotonic() >= self.look_at_s:
            self.look_now_and_then()
        left: Elsewhere | None = None
        routing = self.routing
        pool = routing.proven[shard]
        if pool is not None and read_from == "primary":
            try:
                return pool.run(operation, shard=shard, writes=writes, route=routing)
            except Elsewhere as error:
                left = error
        return self.follow(
            shard, read_from, lambda spot, doubt: self.run_at(spot, operation, writes=writes, doubt=doubt), left=left
        )

    def run_on(self, node: Node, shard: int, operation: Callable[[Connection], T], *, writes: bool = False) -> T:
        """Run ``operation`` on this node of the shard's cluster, and nowhere else.

        Raises:
            ServerUnavailable: the shard is not there any more, besides what ``run`` raises.
        """
        try:
            return self.run_at(Spot(self.routing, shard, node), operation, writes=writes)
        except Elsewhere as left:
            if left.missing is not None:
                raise left.missing from left
            raise ServerUnavailable(left.message, node=left.node, shard=shard) from left

    def run_at(
        self,
        spot: Spot,
        operation: Callable[[Connection], T],
        *,
        writes: bool = False,
        doubt: ServerError | None = None,
    ) -> T:
        """Run ``operation`` at a spot, after proving the shard there; for what ``follow`` is given.

        Raises:
            Elsewhere: the shard is not there any more, besides what ``run`` raises.
        """
        if (spot.shard, spot.node) not in spot.routing.verified:
            try:
                self._prove(spot)
            except Elsewhere:
                raise
            except (ServerError, ShardIdentityMismatch) as error:
                if doubt is None:
                    raise
                raise outcome_unknown(doubt, str(error), doubt) from error
        pool = self.pool_for(spot.node)
        return pool.run(operation, shard=spot.shard, writes=writes, route=spot.routing, doubt=doubt)

    def follow(
        self,
        shard: int,
        read_from: ReadFrom,
        work: Callable[[Spot, ServerError | None], T],
        *,
        left: Elsewhere | None = None,
    ) -> T:
        """Return what ``work`` gives at the server that serves a shard; where it went elsewhere meanwhile, there.

        Args:
            shard: its number.
            read_from: which kind of node; the primary where a replica has not got the shard yet.
            work: given the spot, and the loss that leaves open whether an attempt of before happened, if any; goes by
                ``run_at``.
            left: what an attempt has met already.

        Raises:
            ShardMoving, OutcomeUnknown: the shard did not turn up in time.
        """
        doubt: ServerError | None = None
        give_up_s: float | None = None
        changes = 0
        while True:
            if left is not None:
                doubt = left.lost or doubt
                changes += left.missing is None
                if left.missing is not None and left.node != str(self.routing.clusters[shard].primary):
                    log.warning("%s has not got shard %d yet, its primary is read: %s", left.node, shard, left.missing)
                    read_from = "primary"
                elif left.missing is not None:
                    if give_up_s is None:
                        self._expect_a_shard(shard, left, doubt)
                        give_up_s = time.monotonic() + self.move_wait_s
                    self._await(left, doubt, give_up_s)
                elif changes > _MOST_CHANGES:
                    raise self._nowhere(left, doubt, f"the catalog named another server {changes} times in this call")
            try:
                return work(self.spot(shard, read_from), doubt)
            except Elsewhere as error:
                left = error

    def rows(self, shard: int, sql: bytes, *, read_from: ReadFrom = "primary", check: Check | None = None) -> Rows:
        """Send a query to a shard and return its rows; raises what ``run`` and ``Connection.rows`` raise."""
        return self.run(shard, lambda connection: connection.rows(sql, check), read_from=read_from)

    def execute(self, shard: int, sql: bytes) -> Reply:
        """Send a statement that is safe to repeat to a shard's primary; raises what ``run`` raises."""
        return self.run(shard, lambda connection: connection.execute(sql), writes=True)

    def verify(self, shard: int, node: Node) -> None:
        """Check a shard's identity on one node.

        Raises:
            ShardIdentityMismatch: it is not the one that the catalog takes it for.
        """
        self._verify(Spot(self.routing, shard, node))

    def close(self) -> None:
        """Close every idle connection."""
        self.pools.close()
        if self._catalog is not None:
            self._catalog.close()

    # Where shards are

    @property
    def catalog(self) -> Node | None:
        """The catalog's server, as far as is known; None where nothing is followed."""
        return None if self._catalog is None else self._catalog.home

    def look_now_and_then(self) -> None:
        """Read the catalog again where that was not done for a while; others go on meanwhile.

        For what runs for long without ``run``; that one does so by itself.
        """
        if time.monotonic() < self.look_at_s:
            return
        # First, so that others go on with what is known meanwhile.
        self.look_at_s = self._next_look_s()
        with self._turn_to_read():
            self._read(thorough=False)

    def again(self, seen: Routing) -> Routing:
        """Return the routing that holds now, from the catalog: asked once, for all that ask at the same time.

        Where the catalog does not answer, that is what was known before.

        Args:
            seen: what the caller went by.
        """
        if self._catalog is None:
            return self.routing
        asked_s = time.monotonic()
        with self._turn_to_read():
            # What another caller has read is good where he began after this one had its error.
            if self.routing is seen and self._read_at_s < asked_s:
                self._read()
        return self.routing

    def _turn_to_read(self) -> AbstractContextManager[Any]:
        return self._turns.setdefault(os.getpid(), threading.RLock())

    def _next_look_s(self) -> float:
        if self._catalog is None:
            return math.inf
        return time.monotonic() + LOOK_S * random.uniform(*_JITTER)  # noqa: S311 - jitter

    def _ask_for_claims(self, routing: Routing) -> None:
        replicas = [node.having("primary") for cluster in routing.topology.clusters for node in cluster.replicas]
        self.pools.ask_for(routing.claims(), replicas)

    def _confirm(self, node: Node, shard: int) -> None:
        """Check that the catalog was read when it was last asked.

        Raises:
            ServerUnavailable: it was not.
        """
        if self._unread:
            raise ServerUnavailable(
                "its connections were lost, and the catalog, which says whether it is still the primary, cannot be "
                "read; nothing was sent. Is the catalog's server running?",
                node=str(node),
                shard=shard,
            )

    def _read(self, *, thorough: bool = True) -> None:
        """Read the catalog; by one caller at a time."""
        assert self._catalog is not None
        began_s, before = time.monotonic(), self.routing
        try:
            entry = self._catalog.changed_since(before, thorough=thorough)
            if entry is not None:
                if (entry.topology.name, entry.topology.shard_count) != (self._name, before.topology.shard_count):
                    raise TopologyError(f"the catalog is one of {entry.topology.shard_count} shards by now")
                after = Routing(entry.topology, entry.token, self._judge, self._confirm, before)
                # First: nobody goes by it before it is asked for.
                self._ask_for_claims(after)
                self.routing = after
                moved = sum(old != new for old, new in zip(before.changes, after.changes, strict=True))
                others = [c.name for c in after.topology.clusters if c not in before.topology.clusters]
                if moved:
                    # A move says so of each shard, a failover once of all of a cluster's.
                    level = logging.WARNING if others else logging.INFO
                    log.log(level, "the topology of %r has changed; %d shards have another server", self._name, moved)
                elif others:
                    log.warning("the topology of %r has changed: the servers of %s", self._name, ", ".join(others))
            self._unread = False
        except SchemalessError as error:
            # Once: it is asked at every error that a move or a failover could explain.
            level, self._unread = logging.DEBUG if self._unread else logging.WARNING, True
            log.log(level, "whether the topology of %r has changed cannot be read: %s", self._name, error)
        finally:
            self._read_at_s = began_s
            self._read_end_s = time.monotonic()
            # Whoever waits for a shard asks again and again.
            if time.monotonic() - self._awaited_at_s > 1:
                self._catalog.close()

    def _judge(
        self, routing: Routing, error: ServerError, node: Node, shard: int, lost: ServerError | None
    ) -> Elsewhere | None:
        """Return what an error means for where a shard is; None where that is not what it is about."""
        missing = error if isinstance(error, DatabaseMissing) else None
        if missing is not None:
            named = _MISSING_TABLE.search(missing.message)
            if (
                named is not None
                and named[1] not in SHARD_TABLES
                and (self.known_tables is None or not self.known_tables(shard, named[1]))
            ):
                return None
        elif not isinstance(error, ServerUnavailable) and error.code not in READ_ONLY:
            return None
        refused = (
            isinstance(error, ServerUnavailable)
            and error.retry_after_s is not None
            and not isinstance(error, PrimaryNotClaimed)
        )
        # Calls that are refused at once come in great numbers: they ask ten times a second together.
        asks = not refused or time.monotonic() - self._read_end_s > _REFUSED_ASK_S
        now = self.again(routing) if asks else self.routing
        if now.changes[shard] != routing.changes[shard] or not now.has_on(shard, node):
            message = f"the catalog names {now.clusters[shard].primary} for it now; make the same call again"
            return Elsewhere(message, node=str(node), shard=shard, lost=lost)
        if missing is None:
            return None
        return Elsewhere(missing.message, node=str(node), shard=shard, lost=lost, missing=missing)

    def _expect_a_shard(self, shard: int, left: Elsewhere, doubt: ServerError | None) -> None:
        """Raise what the server said unless the shard's database is there, with its identity: a move leaves these."""
        assert left.missing is not None
        spot = self.spot(shard)
        try:
            self._verify(spot)
        except (ServerError, ShardIdentityMismatch) as error:
            # What does not answer says nothing about the shard; the call itself finds out whether it stays so.
            if str(spot.node) != left.node or isinstance(error, (ServerUnavailable, ServerTimeout)):
                return
            if doubt is not None:
                raise outcome_unknown(doubt, str(error), left) from error
            raise left.missing from error

    def _await(self, left: Elsewhere, doubt: ServerError | None, give_up_s: float) -> None:
        """Wait a moment for a shard whose table is away.

        Raises:
            ShardMoving, OutcomeUnknown: it is away for too long.
        """
        if time.monotonic() >= give_up_s:
            assert left.missing is not None
            raise self._nowhere(left, doubt, f"{left.missing.message}, and no other server is named") from left
        self._awaited_at_s = time.monotonic()
        waited_s = self.move_wait_s - (give_up_s - self._awaited_at_s)
        poll_s = _MOVE_POLL_S if waited_s < _SLOWER_AFTER_S else _SLOW_POLL_S
        time.sleep(random.uniform(*poll_s))  # noqa: S311 - jitter

    def _nowhere(self, left: Elsewhere, doubt: ServerError | None, what: str) -> ServerError:
        if doubt is not None:
            return outcome_unknown(doubt, what, left)
        return ShardMoving(
            f"{what}, for {self.move_wait_s:g} s; is the shard being moved, and its mover gone? Look for its table "
            "on that server, and at 'schemaless topology show'. Nothing was written",
            node=left.node,
            shard=left.shard,
            code=left.code,
        )

    # Proof

    def _prove(self, spot: Spot) -> None:
        """Check a shard's identity at a spot.

        Raises:
            Elsewhere: the shard is elsewhere by now, or has not arrived at this replica.
            ShardIdentityMismatch: it is another one, or not there.
        """
        try:
            self._verify(spot)
        except ServerError as error:
            left = spot.routing.left(error, spot.node.having("primary"), spot.shard, None)
            if left is None:
                raise
            raise left from error
        except ShardIdentityMismatch as error:
            now = self.again(spot.routing)
            missing = None
            if now.changes[spot.shard] == spot.routing.changes[spot.shard]:
                if not error.absent or spot.node == spot.primary:
                    raise
                missing = DatabaseMissing(str(error), node=str(spot.node), shard=spot.shard)
            raise Elsewhere(str(error), node=str(spot.node), shard=spot.shard, lost=None, missing=missing) from error

    def _verify(self, spot: Spot) -> None:
        topology = spot.routing.topology
        identity = Identity(topology.name, spot.shard, topology.shard_count, topology.placement)
        pool = self.pool_for(spot.node)
        verify_identity(pool, self.database(spot.shard), identity)
        spot.routing.verified.add((spot.shard, spot.node))
        if spot.node == spot.primary:
            spot.routing.proven[spot.shard] = pool
