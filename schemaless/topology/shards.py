"""Access to shards: routing to the right server, verification of identity, and following shards that move."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from typing import Final, Literal

from schemaless.base.keys import shard_database
from schemaless.base.logger import log
from schemaless.base.type_variables import T
from schemaless.errors import (
    InvalidInput,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    ShardIdentityMismatch,
    ShardMoving,
)
from schemaless.schema.databases import verify_identity
from schemaless.topology.model import Topology
from schemaless.topology.router import Router
from schemaless.topology.routing import CatalogReader, Routing, Spot
from schemaless.wire.attempts import Attempt, Step, may_have_moved, next_step
from schemaless.wire.connection import Check, Connection, Rows
from schemaless.wire.driver import Reply
from schemaless.wire.errors import DatabaseMissing, Elsewhere
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool
from schemaless.wire.pools import Pools
from schemaless.wire.runtime import Runtime

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
        attempt = Attempt(shard, writes, routing)
        pool = routing.proven[shard]
        if pool is not None and read_from == "primary":
            try:
                return pool.run_attempts(operation, attempt)
            except Elsewhere as error:
                moved = error
        return self._follow(attempt, shard, read_from, lambda spot: self.run_at(spot, operation, attempt), moved)

    def run_on(self, node: Node, shard: int, operation: Callable[[Connection], T]) -> T:
        """Run a read on one particular node of the shard's cluster; raises what ``run`` raises.

        Raises:
            ServerUnavailable: the shard is no longer on that node.
        """
        attempt = Attempt(shard)
        while True:
            try:
                return self.run_at(Spot(self.routing, shard, node), operation, attempt)
            except Elsewhere as moved:
                if moved.missing is not None:
                    raise moved.missing from moved
                # The node may be the same: its address leads to another server, or another node was promoted.
                if attempt.changes or node not in self.routing.clusters[shard].nodes:
                    raise ServerUnavailable(moved.message, node=moved.node, shard=shard) from moved
                attempt.leave(moved)

    def run_at(self, spot: Spot, operation: Callable[[Connection], T], attempt: Attempt | None = None) -> T:
        """Run an operation at a spot, verifying the shard's identity first; for use inside ``follow``.

        Args:
            spot: the shard's server.
            operation: must be safe to repeat; see ``NodePool.run``.
            attempt: describes the call, and what attempts on other servers left; by default, a read.

        Raises:
            Elsewhere: the shard is no longer there.
        """
        attempt = Attempt(spot.shard) if attempt is None else attempt
        attempt.route = spot.routing
        if (spot.shard, spot.node) not in spot.routing.verified:
            try:
                self._verify_spot(spot)
            except Elsewhere:
                raise
            except (ServerError, ShardIdentityMismatch) as error:
                attempt.give_up(error)
        return self.pool_for(spot.node).run_attempts(operation, attempt)

    def follow(self, shard: int, read_from: ReadFrom, work: Callable[[Spot], T]) -> T:
        """Call ``work`` with the spot that serves a shard, and again with the new spot whenever the shard has moved.

        Args:
            shard: the shard's number.
            read_from: node type to use; the primary is used if the replica does not have the shard yet.
            work: receives the spot, reads, and calls ``run_at``.

        Raises:
            ShardMoving: the shard did not reappear in time.
        """
        return self._follow(Attempt(shard), shard, read_from, work, None)

    def _follow(
        self, attempt: Attempt, shard: int, read_from: ReadFrom, work: Callable[[Spot], T], moved: Elsewhere | None
    ) -> T:
        while True:
            if moved is not None:
                read_from = self._prepare_next(attempt, shard, read_from, moved)
            try:
                return work(self.spot(shard, read_from))
            except Elsewhere as error:
                moved = error

    def _prepare_next(self, attempt: Attempt, shard: int, read_from: ReadFrom, moved: Elsewhere) -> ReadFrom:
        """Return the node type for the next attempt, once it is due.

        Raises:
            ShardMoving, OutcomeUnknown: the shard did not reappear in time.
        """
        attempt.leave(moved)
        missing, at_primary = moved.missing, moved.node == str(self.routing.clusters[shard].primary)
        if missing is not None and at_primary and attempt.wait_until_s == math.inf:
            self._check_identity(attempt, shard, moved.node, missing)
            attempt.wait_until_s = time.monotonic() + self.move_wait_s
        step = next_step(attempt, moved, time.monotonic(), at_primary=at_primary)
        if step is Step.RAISE:
            problem = f"the catalog named another server {attempt.changes} times during this call"
            if missing is not None:
                problem = f"{missing.message}, and the catalog names no other server"
            moving = ShardMoving(
                f"{problem} (waited up to {self.move_wait_s:g} s). The shard may be in a move that has stopped: look "
                "for its table on that server, and check 'schemaless topology show'. Nothing was written",
                node=moved.node,
                shard=shard,
                code=moved.code,
            )
            moving.__cause__ = moved
            attempt.give_up(moving, problem)
        if step is Step.WAIT:
            self.router.awaited_at_s = time.monotonic()
            waited_s = self.move_wait_s - (attempt.wait_until_s - self.router.awaited_at_s)
            poll_s = _MOVE_POLL_S
            if waited_s >= _SLOWER_AFTER_S:
                # Longer than a cutover takes.
                poll_s = _SLOW_POLL_S
                self.pool_for(self.routing.clusters[shard].primary).suspect()
            self.runtime.sleep(random.uniform(*poll_s))  # noqa: S311 - jitter
        if step is Step.PRIMARY:
            log.warning(
                "%s does not have shard %d yet; reading from its primary instead: %s", moved.node, shard, missing
            )
            return "primary"
        return read_from

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

    def _check_identity(self, attempt: Attempt, shard: int, node: str, missing: DatabaseMissing) -> None:
        """Raise the server's error unless the shard's database and identity exist, which a move leaves in place."""
        spot = self.spot(shard)
        try:
            self._verify(spot)
        except (ServerError, ShardIdentityMismatch) as error:
            # A server that does not answer proves nothing; the call itself will find out.
            if str(spot.node) != node or isinstance(error, (ServerUnavailable, ServerTimeout)):
                return
            if attempt.open_write is not None:
                attempt.give_up(error)
            raise missing from error

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
            if may_have_moved(error) and (moved := spot.routing.moved(error, spot.node.having("primary"), spot.shard)):
                raise moved from error
            raise
        except ShardIdentityMismatch as error:
            now = self.router.again(spot.routing)
            missing = None
            if now.changes[spot.shard] == spot.routing.changes[spot.shard]:
                if not error.absent or spot.node == spot.primary:
                    raise
                missing = DatabaseMissing(str(error), node=str(spot.node), shard=spot.shard)
            raise Elsewhere(str(error), node=str(spot.node), shard=spot.shard, missing=missing) from error

    def _verify(self, spot: Spot) -> None:
        topology = spot.routing.topology
        pool, recorded = self.pool_for(spot.node), spot.routing.clusters[spot.shard]
        found = verify_identity(pool, self.database(spot.shard), topology.identity(spot.shard))
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
