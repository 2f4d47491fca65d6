"""Which server an address leads to, as its new connections show."""

from __future__ import annotations

import math
from typing import Final

from schemaless.base.logger import log
from schemaless.wire.node import Node
from schemaless.wire.session import Facts

RECHECK_S: Final = 30.0
"""Interval between checks that the address still leads to the same server, in seconds, before jitter."""

BALANCED_S: Final = 10 * RECHECK_S
"""Memory of the servers that an address has left, in seconds; long enough for pools that connect only to check."""


class Address:
    """The servers that an address has led to.

    Attributes:
        newest: what the most recently begun connection read about its server; None before the first one.
        has_moved: True if connections have reached more than one server; each shard is then verified on each of them.
        is_balanced: True while the address leads to several servers in turn; connections to all of them are used.
        fresh_since_s: connections begun earlier reached another server, by ``time.monotonic``.
        left_at_s: per server, when the address was last found to have left it.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.newest: Facts | None = None
        self.has_moved = False
        self.is_balanced = False
        self.fresh_since_s = 0.0
        self.left_at_s: dict[str, float] = {}
        self._returned_at_s = -math.inf
        self._verified: dict[str, set[int]] = {}

    def verified_on(self, server: str) -> set[int]:
        """Return the shards that were verified on a server; all connections to it share the set."""
        return self._verified.setdefault(server, set())

    def is_replaced(self, facts: Facts) -> bool:
        """Record a new connection; return True if it is the first to another server than before."""
        newest = self.newest
        if newest is None:
            self.newest = facts
            return False
        differs, is_newer = facts.server != newest.server, facts.connected_at_s >= newest.connected_at_s
        self.has_moved = self.has_moved or differs
        if (differs or self.is_balanced) and is_newer and self._leads_to_one(facts, newest):
            self.fresh_since_s = max(self.fresh_since_s, facts.connected_at_s)
            self.newest = facts
            log.warning("%s leads to another server than before: older connections are replaced", self._node)
            return True
        if differs and not self.is_balanced:
            self.fresh_since_s = max(self.fresh_since_s, newest.connected_at_s)
        self.newest = facts if is_newer else newest
        return False

    def _leads_to_one(self, facts: Facts, newest: Facts) -> bool:
        """Return True if the address has moved to a server; False if it leads to this and other servers in turn.

        One return is a failover that was undone; two are a pattern. It ends once a single server has been reached for
        some time.
        """
        now_s, left_at_s = facts.connected_at_s, self.left_at_s
        if facts.server != newest.server:
            left_at_s[newest.server] = now_s
        recent = {server: at_s for server, at_s in left_at_s.copy().items() if now_s - at_s < BALANCED_S}
        self.left_at_s = recent
        known = self._verified.copy()
        self._verified = {server: known[server] for server in known if server in recent or server == facts.server}
        if self.is_balanced:
            self.is_balanced = bool(recent.keys() - {facts.server})
            return not self.is_balanced
        if facts.server in recent:
            self.is_balanced = now_s - self._returned_at_s < BALANCED_S
            self._returned_at_s = now_s
        if self.is_balanced:
            log.warning(
                "%s leads to several servers in turn: connections to all of them are used; name each server by its "
                "own address",
                self._node,
            )
        return not self.is_balanced
