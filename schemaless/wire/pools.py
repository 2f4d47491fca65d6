"""The pools of a datastore's servers, which share one account: its catalog's, its shards', its replicas'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from schemaless.events import Listener
from schemaless.wire.breaker import Breaker
from schemaless.wire.claims import NEVER, Claim
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import Credentials


class Pools:
    """One pool for each server, made on first use: the same one whatever the server is to the datastore.

    Attributes:
        options: how connections behave.
    """

    def __init__(self, credentials: Credentials, options: PoolOptions) -> None:
        self._credentials = credentials
        self.options = options
        self._pools: dict[Node, NodePool] = {}
        self._breakers: dict[Node, Breaker] = {}
        self._claims: dict[Node, Claim] = {}
        self._listener: Listener | None = None

    def pool_for(self, node: Node) -> NodePool:
        """Return the pool for a node's address."""
        pool = self._pools.get(node)
        if pool is None:
            address = node.having("primary")
            # Operations of dict, so no lock that a fork could leave taken; a pool made for nothing opens nothing.
            pool = self._pools.setdefault(
                address, NodePool(address, self._credentials, self.options, self._breaker_for(node), self._claims)
            )
            pool.listener = self._listener
            self._pools[node] = pool
        return pool

    def listen(self, listener: Listener) -> None:
        """Tell a listener what calls meet that have to wait or are repeated; it replaces the one before."""
        self._listener = listener
        for pool in list(self._pools.values()):
            pool.listener = listener

    def ask_for(self, claims: Mapping[Node, Claim], replicas: Iterable[Node]) -> None:
        """Have servers be used only if they have their claims; what had another one, or one before, is not used at all.

        Args:
            claims: of the primaries, by address.
            replicas: the addresses of those that need none.
        """
        wanted = {node: replace(claim, epoch=NEVER) for node, claim in self._claims.items()} | dict(claims)
        for node in replicas:
            wanted.pop(node, None)
        changed = [node for node in {*wanted, *self._claims} if wanted.get(node) != self._claims.get(node)]
        for node in changed:
            if node in wanted:
                self._claims[node] = wanted[node]
            else:
                self._claims.pop(node, None)
        for pool in list(self._pools.values()):
            if pool.node in changed:
                pool.claim_changed()

    def new_pool(self, node: Node, options: PoolOptions, *, unclaimed: bool = False) -> NodePool:
        """Return a pool of its own for a node, which the caller closes; ``options`` hold whatever the URL says.

        Args:
            node: its address.
            options: how its connections behave.
            unclaimed: whether the server is asked whatever its claim is.
        """
        claims = None if unclaimed else self._claims
        return NodePool(node, self._credentials.without_timeouts(), options, self._breaker_for(node), claims)

    def breakers(self) -> dict[Node, Breaker]:
        """Return the breaker of each server that was called, by the server's address."""
        return dict(self._breakers)

    def _breaker_for(self, node: Node) -> Breaker:
        return self._breakers.setdefault(node.having("primary"), Breaker())

    def close(self) -> None:
        """Close every idle connection, and each one in use when it is given back."""
        for pool in list(self._pools.values()):
            pool.close()
