"""Connection pools of all servers of a datastore: catalog, primaries and replicas. They share one account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from schemaless.base.events import Listener
from schemaless.wire.breaker import Breaker
from schemaless.wire.claims import NEVER, Claim
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.runtime import THREADS, Runtime
from schemaless.wire.urls import Credentials


class Pools:
    """One pool per server address, created on first use, whatever roles the server has.

    Attributes:
        options: timeouts and limits of the pools.
        runtime: how calls wait.
    """

    def __init__(self, credentials: Credentials, options: PoolOptions, runtime: Runtime = THREADS) -> None:
        self._credentials = credentials
        self.options = options
        self.runtime = runtime
        self._pools: dict[Node, NodePool] = {}
        self._breakers: dict[Node, Breaker] = {}
        self._claims: dict[Node, Claim] = {}
        self._listener: Listener | None = None
        self._on_replaced: Callable[[Node], object] | None = None

    def pool_for(self, node: Node) -> NodePool:
        """Return the pool of a node's address."""
        pool = self._pools.get(node)
        if pool is None:
            address = node.having("primary")
            # setdefault instead of a lock, which a fork could leave locked. A surplus pool opens no connection.
            new = NodePool(
                address, self._credentials, self.options, self._breaker_for(node), self._claims, self.runtime
            )
            pool = self._pools.setdefault(address, new)
            pool.listener = self._listener
            pool.on_replaced = self._on_replaced
            self._pools[node] = pool
        return pool

    def listen(self, listener: Listener) -> None:
        """Set the listener for retries and waits; it replaces the previous one."""
        self._listener = listener
        for pool in list(self._pools.values()):
            pool.listener = listener

    def when_replaced(self, callback: Callable[[Node], object]) -> None:
        """Set the function to call when an address turns out to lead to another server than before."""
        self._on_replaced = callback
        for pool in list(self._pools.values()):
            pool.on_replaced = callback

    def replace_connections(self) -> None:
        """Replace every existing connection once it is idle."""
        for pool in list(self._pools.values()):
            pool.replace_connections()

    def require_claims(self, claims: Mapping[Node, Claim], replicas: Iterable[Node]) -> None:
        """Use primaries only with their claims, and refuse servers that had a claim but are not in ``claims``.

        Args:
            claims: claims of the primaries, by address.
            replicas: addresses of the replicas, which need no claim.
        """
        required = {node: replace(claim, epoch=NEVER) for node, claim in self._claims.items()} | dict(claims)
        for node in replicas:
            required.pop(node, None)
        changed = [node for node in {*required, *self._claims} if required.get(node) != self._claims.get(node)]
        for node in changed:
            if node in required:
                self._claims[node] = required[node]
            else:
                self._claims.pop(node, None)
        for pool in list(self._pools.values()):
            if pool.node in changed:
                pool.replace_connections()

    def new_pool(
        self, node: Node, options: PoolOptions, *, unclaimed: bool = False, own_breaker: bool = False
    ) -> NodePool:
        """Create a separate pool for a node; the caller closes it.

        Args:
            node: the server's address.
            options: timeouts and limits; timeouts in the URL are ignored.
            unclaimed: use the server whatever claim it holds.
            own_breaker: neither heed nor affect the circuit breaker that the server's other pools share.
        """
        claims = None if unclaimed else self._claims
        account = self._credentials.without_timeouts()
        breaker = Breaker() if own_breaker else self._breaker_for(node)
        return NodePool(node, account, options, breaker, claims, self.runtime)

    def breakers(self) -> dict[Node, Breaker]:
        """Return the breakers of all servers used so far, by address."""
        return dict(self._breakers)

    def _breaker_for(self, node: Node) -> Breaker:
        return self._breakers.setdefault(node.having("primary"), Breaker())

    def close(self) -> None:
        """Close all idle connections, and those in use once they are returned."""
        for pool in list(self._pools.values()):
            pool.close()
