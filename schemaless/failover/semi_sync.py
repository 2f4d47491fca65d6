"""Semi-synchronous replication settings of a primary; MySQL and MariaDB use different variable names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemaless.failover.sql import SHOW_GROUP, SHOW_SEMI_SYNC_STATUS
from schemaless.topology.sql.replicas import SHOW_SEMI_SYNC
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

MIN_TIMEOUT_S: Final = 3600.0
"""Shortest timeout without a warning, in seconds; a shorter one leaves no time to repair replicas."""


@dataclass(frozen=True, slots=True)
class SemiSync:
    """Semi-synchronous replication of a primary.

    Attributes:
        enabled: whether it is switched on.
        active: whether it is in effect now; it falls back to asynchronous after ``timeout_s`` without an answer.
        timeout_s: how long a commit waits for a replica, in seconds.
        before_visible: whether the wait comes before other sessions see the commit (``AFTER_SYNC``).
        group: whether the server is configured for Group Replication, and waits for its quorum instead.
    """

    enabled: bool
    active: bool
    timeout_s: float
    before_visible: bool
    group: bool

    @property
    def fault(self) -> str | None:
        """Description of a fallback to asynchronous replication, or None."""
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
            return ["replication is asynchronous: a failover loses cells that were acknowledged but not sent yet"]
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
    """Read a server's semi-synchronous replication settings and status."""

    def ask(connection: Connection) -> SemiSync:
        rows = [*connection.rows(SHOW_SEMI_SYNC), *connection.rows(SHOW_SEMI_SYNC_STATUS)]
        values = {str(name).lower().replace("master", "source"): str(value) for name, value in rows}
        group = connection.rows(SHOW_GROUP)
        source = "rpl_semi_sync_source_"
        return SemiSync(
            enabled=values.get(f"{source}enabled", "OFF") == "ON",
            active=values.get(f"{source}status", "OFF") == "ON",
            timeout_s=int(values.get(f"{source}timeout", "0")) / 1000,
            before_visible=values.get(f"{source}wait_point", "AFTER_SYNC") == "AFTER_SYNC",
            group=bool(group and group[0][1]),
        )

    return pool.run(ask)
