"""What a primary waits for before it acknowledges a commit; MySQL and MariaDB have it under two sets of names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemaless.failover.sql import SHOW_GROUP, SHOW_SEMI_SYNC_STATUS
from schemaless.topology.sql.replicas import SHOW_SEMI_SYNC
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

LEAST_TIMEOUT_S: Final = 3600.0
"""A primary that waits for its replicas less long falls back before anybody can have mended them."""


@dataclass(frozen=True, slots=True)
class SemiSync:
    """How a primary waits for its replicas.

    Attributes:
        wanted: whether it is told to wait.
        waits: whether it does now; it stops after ``timeout_s`` without an answer.
        timeout_s: how long it waits.
        before_visible: whether it waits before others see what is committed (``AFTER_SYNC``).
        group: whether it is told to be of a group (Group Replication), whose quorum it waits for instead.
    """

    wanted: bool
    waits: bool
    timeout_s: float
    before_visible: bool
    group: bool

    @property
    def fault(self) -> str | None:
        """What is wrong now, or None."""
        if self.group or not self.wanted or self.waits:
            return None
        return (
            "semi-synchronous replication is on and has fallen back to asynchronous, since no replica answered in "
            "time: what is acknowledged now may be lost by a failover; look at the replicas"
        )

    @property
    def warnings(self) -> list[str]:
        """What a failover would make of it."""
        if self.group:
            return []
        if not self.wanted:
            return ["replication is asynchronous: a failover loses what was acknowledged and not sent yet"]
        states = []
        if self.timeout_s < LEAST_TIMEOUT_S:
            states.append(
                f"semi-synchronous replication falls back to asynchronous after {self.timeout_s:g} s without an "
                "answer; a day (86400000 ms) leaves time to mend replicas"
            )
        if not self.before_visible:
            states.append(
                "semi-synchronous replication waits after the commit, so that readers see cells which a failover "
                "loses; set its wait point to AFTER_SYNC"
            )
        return states


def semi_sync(pool: NodePool) -> SemiSync:
    """Return how a server waits for its replicas, as its settings and its status say."""

    def ask(connection: Connection) -> SemiSync:
        rows = [*connection.rows(SHOW_SEMI_SYNC), *connection.rows(SHOW_SEMI_SYNC_STATUS)]
        values = {str(name).lower().replace("master", "source"): str(value) for name, value in rows}
        group = connection.rows(SHOW_GROUP)
        source = "rpl_semi_sync_source_"
        return SemiSync(
            wanted=values.get(f"{source}enabled", "OFF") == "ON",
            waits=values.get(f"{source}status", "OFF") == "ON",
            timeout_s=int(values.get(f"{source}timeout", "0")) / 1000,
            before_visible=values.get(f"{source}wait_point", "AFTER_SYNC") == "AFTER_SYNC",
            group=bool(group and group[0][1]),
        )

    return pool.run(ask)
