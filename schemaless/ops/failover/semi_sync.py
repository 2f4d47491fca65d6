"""Semi-synchronous replication of a primary: settings, and commits that wait for a replica.

MySQL and MariaDB use different variable names.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from schemaless.errors import TopologyError
from schemaless.ops.failover.sql import SHOW_SEMI_SYNC, SHOW_SEMI_SYNC_STATUS
from schemaless.topology.model import Cluster
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

MIN_TIMEOUT_S: Final = 3600.0
"""Shortest timeout without a warning, in seconds; a shorter one leaves no time to repair replicas."""

STALLED_S: Final = 1.0
"""Time without any acknowledgement after which waiting commits count as stalled, in seconds."""

_POLL_S: Final = 0.02
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_PREFIX: Final = "rpl_semi_sync_source_"


@dataclass(frozen=True, slots=True)
class SemiSync:
    """Semi-synchronous replication of a primary.

    Attributes:
        enabled: whether it is switched on.
        active: whether it is in effect now; it falls back to asynchronous after ``timeout_s`` without an answer.
        timeout_s: how long a commit waits for a replica, in seconds.
        before_visible: whether the wait comes before other sessions see the commit (``AFTER_SYNC``).
        group: whether the server is configured for Group Replication, and waits for its quorum instead.
        needed: number of replicas that must acknowledge each commit.
        connected: number of connected semi-synchronous replicas. MySQL may count a replica that has stopped until the
            primary sends something to it.
        waiting: number of commits that wait for an acknowledgement.
        stalled: whether commits waited and none was acknowledged for a second.
    """

    enabled: bool
    active: bool
    timeout_s: float
    before_visible: bool
    group: bool
    needed: int = 1
    connected: int = 0
    waiting: int = 0
    stalled: bool = False

    @property
    def blocks_writes(self) -> bool:
        """Whether a commit now waits until a replica connects, or until ``timeout_s`` has passed."""
        return self.enabled and self.active and not self.group and (self.connected < self.needed or self.stalled)

    def fault(self, cluster: str) -> str | None:
        """Return a description of blocked writes or of a fallback to asynchronous replication, or None."""
        if self.blocks_writes:
            waiting = f"{self.waiting} waiting" if self.waiting else "none waiting now"
            return (
                f"writes on {cluster} wait for a replica: {self.connected} of {self.needed} required semi-synchronous "
                f"replicas are connected (commits: {waiting}), and a commit waits for up to {self.timeout_s:,.0f} s. "
                "Start replication on the replicas; or, if a failover may lose cells, turn semi-synchronous "
                "replication off on the primary"
            )
        if self.group or not self.enabled or self.active:
            return None
        return (
            "semi-synchronous replication has fallen back to asynchronous because no replica answered in time: a "
            "failover may lose cells that are acknowledged now; check the replicas"
        )

    @property
    def warnings(self) -> list[str]:
        """Warnings about settings with which a failover could lose acknowledged cells."""
        if self.group:
            return []
        if not self.enabled:
            return [
                "replication is not semi-synchronous: a failover loses cells that were acknowledged but not sent yet"
            ]
        warnings = []
        if self.timeout_s < MIN_TIMEOUT_S:
            warnings.append(
                f"semi-synchronous replication falls back to asynchronous after {self.timeout_s:g} s without an "
                "answer; a timeout of a day (86400000 ms) leaves time to repair replicas"
            )
        if not self.before_visible:
            warnings.append(
                "semi-synchronous replication waits after the commit, so readers may see cells that a failover then "
                "loses; set its wait point to AFTER_SYNC"
            )
        return warnings


def semi_sync(pool: NodePool) -> SemiSync:
    """Read a server's semi-synchronous replication settings and status.

    If commits wait, or would wait for replicas that are not connected, the call watches for up to a second whether that
    passes: replicas whose connection was lost connect again.
    """

    def ask(connection: Connection) -> SemiSync:
        settings = _values(connection, SHOW_SEMI_SYNC)
        found = SemiSync(
            enabled=settings.get("enabled", "OFF") == "ON",
            active=False,
            timeout_s=int(settings.get("timeout", "0")) / 1000,
            before_visible=settings.get("wait_point", "AFTER_SYNC") == "AFTER_SYNC",
            group=bool(settings.get("group_replication_group_name")),
            needed=int(settings.get("wait_for_replica_count", "1")),
        )
        if not found.enabled:
            return found
        give_up_s, acknowledged = time.monotonic() + STALLED_S, None
        while True:
            status = _values(connection, SHOW_SEMI_SYNC_STATUS)
            found = replace(
                found,
                active=status.get("status", "OFF") == "ON",
                connected=int(status.get("clients", "0")),
                waiting=int(status.get("wait_sessions", "0")),
            )
            acknowledged = acknowledged or status.get("yes_tx")
            if not found.blocks_writes and (not found.waiting or status.get("yes_tx") != acknowledged):
                return found
            if time.monotonic() >= give_up_s:
                return replace(found, stalled=found.waiting > 0)
            time.sleep(_POLL_S)

    return pool.run(ask)


def _values(connection: Connection, sql: bytes) -> Mapping[str, str]:
    """Return a primary's variables by name, without the prefix of semi-synchronous replication."""
    names = (
        (str(name).lower().replace("master", "source").replace("slave", "replica"), value)
        for name, value in connection.rows(sql)
    )
    return {name.removeprefix(_PREFIX): str(value) for name, value in names}


def require_commits(pool: NodePool, cluster: str, timeout_s: float) -> None:
    """Wait until commits on a primary no longer wait for a replica, or wait for less than half the pool's read timeout.

    A promoted server has no replica at first. With a short timeout, its first commit makes it asynchronous.

    Raises:
        TopologyError: they wait for longer, even after ``timeout_s`` seconds; nothing was written.
    """
    give_up_s = time.monotonic() + timeout_s
    while (found := semi_sync(pool)).blocks_writes and found.timeout_s > pool.options.read_timeout_s / 2:
        if time.monotonic() >= give_up_s:
            raise TopologyError(f"{pool.node}: {found.fault(cluster)}. Nothing was written")
        time.sleep(_POLL_S)


def redundancy(cluster: Cluster, found: SemiSync) -> tuple[str | None, str | None]:
    """Return what a cluster lacks to survive the loss of its primary, as a fault or as a notice; None for neither.

    It is a fault if the cluster has lost all its replicas, or its semi-synchronous replication. That it has fewer
    replicas than before, or never had one, is a notice; the latter not if its server is at a local address, as
    developers' are.
    """
    name, have, expected = cluster.name, len(cluster.replicas), cluster.expected_replicas or 0
    loss = f"if {cluster.primary} fails, its cells are unavailable or lost"
    add = f"add one with 'schemaless topology add-replica --cluster {name}'"
    accept = f"or accept that with 'schemaless topology expect --cluster {name}"
    if have < expected:
        if not have:
            return f"{name} has no replica left: {loss}; {add}, {accept} --replicas 0'", None
        return None, f"{name} has {have} of {expected} replicas; {add}, {accept} --replicas {have}'"
    if cluster.semi_sync and not found.enabled and not found.group:
        return (
            f"{name} is not semi-synchronous any more: a failover loses cells that were acknowledged but not sent yet; "
            f"turn it on on {cluster.primary}, {accept} --no-semi-sync'"
        ), None
    is_local = cluster.primary.socket is not None or cluster.primary.host in _LOOPBACK
    if not have and cluster.expected_replicas is None and not is_local:
        return None, f"{name} has no replica: {loss}; {add}, {accept} --replicas 0'"
    return None, None


def promotion_warnings(pool: NodePool, before: Cluster, after: Cluster) -> tuple[str, ...]:
    """Return what a changed primary lacks to survive its own failure; nothing for a cluster that had no replica."""
    if len(before.nodes) == 1:
        return ()
    found = semi_sync(pool)
    fault = found.fault(after.name)
    had = max(before.expected_replicas or 0, len(before.replicas))
    warnings = filter(None, (fault, *redundancy(replace(after, expected_replicas=had), found)))
    return (*warnings, *(f"{after.primary}: {warning}" for warning in found.warnings))
