"""Access to shards: routing to the right server, verification of identity, and following shards that move."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

from schemaless.base.keys import shard_database
from schemaless.errors import (
    InvalidInput,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    ShardIdentityMismatch,
    ShardMoving,
)
from schemaless.schema.databases import Identity, verify_identity
from schemaless.topology.model import Topology
from schemaless.topology.router import Router
from schemaless.topology.routing import CatalogReader, Routing, Spot
from schemaless.wire.connection import Check, Connection, Rows
from schemaless.wire.driver import Reply
from schemaless.wire.errors import DatabaseMissing, Elsewhere
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool
from schemaless.wire.pools import Pools
from schemaless.wire.route import outcome_unknown
from schemaless.wire.runtime import Runtime

log: Final = logging.getLogger("schemaless")

T = TypeVar("T")

FeedFrom = Literal["primary", "replica"]
"""Node type that the change feed reads from. Even if that is a replica, the primary decides which cells are settled."""

ReadFrom = Literal["primary", "replica", "available"]
"""Node type that cells are read from; ``available`` is the primary, or a replica while the primary is down."""

MOVE_WAIT_S: Final = 5.0
"""How long a call waits for a shard that is being moved, in seconds."""

_MOVE_POLL_S: Final = (0.002, 0.010)
_SLOWER_AFTER_S: Final = 0.5
"""Seconds of waiting after which polling slows down; fast polling would delay a cutover when CPU or I/O is scarce."""
_SLOW_POLL_S: Final = (0.02, 0.1)
_MAX_CHANGES: Final = 20


class Shards:
    """All shards of a datastore: verified on first use, and followed when they move.

    Attributes:
        pools: connection pools of all servers.
        router: the current routing, and its refreshes.
        move_wait_s: how long a call waits for a shard that is being moved, in seconds.
    """

    def __init__(
        self, topology: Topology, pools: Pools, *, token: bytes | None = None, catalog: CatalogReader | None = None
    ) -> None:
        """Create the object without contacting a server.

        Args:
            topology: the topology, as read from the catalog.
            pools: connection pools of the datastore.
            token: the catalog's token at that time.
            catalog: reader that detects changes; None for a fixed topology.
        """
        self.pools = pools
        self.router: Router = Router(topology, pools, token, catalog)
        self.move_wait_s = MOVE_WAIT_S
        self._name = topology.name
        self._replica_turn = itertools.count()

    @property
    def routing(self) -> Routing:
        """The current routing."""
        return self.router.routing

    @property
    def topology(self) -> Topology:
        """The topology under the current routing."""
        return self.router.routing.topology

    @property
    def runtime(self) -> Runtime:
        """The datastore's runtime, which determines how calls wait."""
        return self.pools.runtime

    def database(self, shard: int) -> str:
        """Return the name of a shard's database."""
        return shard_database(self._name, shard)

    def pool_for(self, node: Node) -> NodePool:
        """Return the shared pool of a node."""
        return self.pools.pool_for(node)

    def node_of(self, shard: int, read_from: ReadFrom = "primary") -> Node:
        """Return the node that serves a shard: the primary or, for ``replica``, each replica in turn, if any exist."""
        return self.spot(shard, read_from).node

    def spot(self, shard: int, read_from: ReadFrom = "primary") -> Spot:
        """Return the spot that serves a shard under the current routing."""
        if read_from not in ("primary", "replica"):
            raise InvalidInput(
                f"read_from must be 'primary' or 'replica' (or 'available' for reads by key), got {read_from!r}"
            )
        routing = self.routing
        cluster = routing.clusters[shard]
        if read_from == "replica" and cluster.replicas:
            return Spot(routing, shard, cluster.replicas[next(self._replica_turn) % len(cluster.replicas)])
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
        """Run an operation on a connection to a shard's server, verifying the shard's identity on first use.

        If the shard has moved, the operation is run on its new server.

        Args:
            shard: a valid shard number.
            operation: must be safe to repeat; see ``NodePool.run``.
            read_from: node type to use.
            writes: True if a lost connection leaves the outcome open.

        Raises:
            ShardIdentityMismatch: the database is not this shard of this datastore.
            ShardMoving: the shard is being moved and did not reappear within ``move_wait_s``.
            ServerError: the server cannot be reached, or rejects a statement.
        """
        router = self.router
        if time.monotonic() >= router.look_at_s:
            router.refresh_if_due()
        moved: Elsewhere | None = None
        routing = router.routing
        pool = routing.proven[shard]
        if pool is not None and read_from == "primary":
            try:
                return pool.run(operation, shard=shard, writes=writes, route=routing)
            except Elsewhere as error:
                moved = error
        return self.follow(
            shard, read_from, lambda spot, doubt: self.run_at(spot, operation, writes=writes, doubt=doubt), moved=moved
        )

    def run_on(self, node: Node, shard: int, operation: Callable[[Connection], T], *, writes: bool = False) -> T:
        """Run an operation on one particular node of the shard's cluster; raises what ``run`` raises.

        Raises:
            ServerUnavailable: the shard is no longer on that node.
        """
        try:
            try:
                return self.run_at(Spot(self.routing, shard, node), operation, writes=writes)
            except Elsewhere as moved:
                # The node may be the same: its address leads to another server, or another node was promoted.
                if moved.missing is not None or node not in self.routing.clusters[shard].nodes:
                    raise
                return self.run_at(Spot(self.routing, shard, node), operation, writes=writes, doubt=moved.lost)
        except Elsewhere as moved:
            if moved.missing is not None:
                raise moved.missing from moved
            raise ServerUnavailable(moved.message, node=moved.node, shard=shard) from moved

    def run_at(
        self,
        spot: Spot,
        operation: Callable[[Connection], T],
        *,
        writes: bool = False,
        doubt: ServerError | None = None,
    ) -> T:
        """Run an operation at a spot, verifying the shard's identity first; for use inside ``follow``.

        Raises:
            Elsewhere: the shard is no longer there.
        """
        if (spot.shard, spot.node) not in spot.routing.verified:
            try:
                self._verify_spot(spot)
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
        moved: Elsewhere | None = None,
    ) -> T:
        """Call ``work`` with the spot that serves a shard, and again with the new spot whenever the shard has moved.

        Args:
            shard: the shard's number.
            read_from: node type to use; the primary is used if the replica does not have the shard yet.
            work: receives the spot, and the error of an earlier attempt whose outcome is open, if any; it calls
                ``run_at``.
            moved: error of an earlier attempt by the caller, if any.

        Raises:
            ShardMoving, OutcomeUnknown: the shard did not reappear in time.
        """
        doubt: ServerError | None = None
        give_up_s: float | None = None
        changes = 0
        while True:
            if moved is not None:
                doubt = moved.lost or doubt
                changes += moved.missing is None
                if moved.missing is not None and moved.node != str(self.routing.clusters[shard].primary):
                    log.warning(
                        "%s does not have shard %d yet; reading from its primary instead: %s",
                        moved.node,
                        shard,
                        moved.missing,
                    )
                    read_from = "primary"
                elif moved.missing is not None:
                    if give_up_s is None:
                        self._check_identity(shard, moved, doubt)
                        give_up_s = time.monotonic() + self.move_wait_s
                    self._wait_for_move(moved, doubt, give_up_s)
                elif changes > _MAX_CHANGES:
                    problem = f"the catalog named another server {changes} times during this call"
                    raise _moving(moved, doubt, problem, self.move_wait_s)
            try:
                return work(self.spot(shard, read_from), doubt)
            except Elsewhere as error:
                moved = error

    def rows(self, shard: int, sql: bytes, *, read_from: ReadFrom = "primary", check: Check | None = None) -> Rows:
        """Query a shard; raises what ``run`` and ``Connection.rows`` raise."""
        return self.run(shard, lambda connection: connection.rows(sql, check), read_from=read_from)

    def execute(self, shard: int, sql: bytes) -> Reply:
        """Run a statement that is safe to repeat on a shard's primary; raises what ``run`` raises."""
        return self.run(shard, lambda connection: connection.execute(sql), writes=True)

    def verify(self, shard: int, node: Node) -> None:
        """Check a shard's identity on one node.

        Raises:
            ShardIdentityMismatch: the database there is missing or is not this shard.
        """
        self._verify(Spot(self.routing, shard, node))

    def close(self) -> None:
        """Close all idle connections."""
        self.pools.close()
        self.router.close()

    def _check_identity(self, shard: int, moved: Elsewhere, doubt: ServerError | None) -> None:
        """Raise the server's error unless the shard's database and identity exist, which a move leaves in place."""
        assert moved.missing is not None
        spot = self.spot(shard)
        try:
            self._verify(spot)
        except (ServerError, ShardIdentityMismatch) as error:
            # A server that does not answer proves nothing; the call itself will find out.
            if str(spot.node) != moved.node or isinstance(error, (ServerUnavailable, ServerTimeout)):
                return
            if doubt is not None:
                raise outcome_unknown(doubt, str(error), moved) from error
            raise moved.missing from error

    def _wait_for_move(self, moved: Elsewhere, doubt: ServerError | None, give_up_s: float) -> None:
        """Pause before the next attempt on a shard whose table is missing.

        Raises:
            ShardMoving, OutcomeUnknown: the time is up.
        """
        if time.monotonic() >= give_up_s:
            assert moved.missing is not None
            problem = f"{moved.missing.message}, and the catalog names no other server"
            raise _moving(moved, doubt, problem, self.move_wait_s) from moved
        self.router.awaited_at_s = time.monotonic()
        waited_s = self.move_wait_s - (give_up_s - self.router.awaited_at_s)
        poll_s = _MOVE_POLL_S if waited_s < _SLOWER_AFTER_S else _SLOW_POLL_S
        self.runtime.sleep(random.uniform(*poll_s))  # noqa: S311 - jitter

    # Verification

    def _verify_spot(self, spot: Spot) -> None:
        """Check a shard's identity at a spot.

        Raises:
            Elsewhere: the shard has moved, or has not reached this replica yet.
            ShardIdentityMismatch: the database is missing or is not this shard.
        """
        try:
            self._verify(spot)
        except ServerError as error:
            moved = spot.routing.moved(error, spot.node.having("primary"), spot.shard, None)
            if moved is None:
                raise
            raise moved from error
        except ShardIdentityMismatch as error:
            now = self.router.again(spot.routing)
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
        found, recorded = verify_identity(pool, self.database(spot.shard), identity), spot.routing.clusters[spot.shard]
        if found not in (None, recorded.engine):
            log.warning(
                "the cells of shard %d on %s use the storage engine %s, but the catalog records %s for %s; move the "
                "shard to a cluster of that engine, or convert its table",
                spot.shard,
                spot.node,
                found,
                recorded.engine,
                recorded.name,
            )
        spot.routing.verified.add((spot.shard, spot.node))
        if spot.node == spot.primary:
            spot.routing.proven[spot.shard] = pool


def _moving(moved: Elsewhere, doubt: ServerError | None, problem: str, wait_s: float) -> ServerError:
    if doubt is not None:
        return outcome_unknown(doubt, problem, moved)
    return ShardMoving(
        f"{problem} (waited up to {wait_s:g} s). The shard may be in a move that has stopped: look for its table "
        "on that server, and check 'schemaless topology show'. Nothing was written",
        node=moved.node,
        shard=moved.shard,
        code=moved.code,
    )
