"""Status of a follower: its shards, the workers that serve it, and servers whose table caches are too small for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemaless.errors import SchemalessError
from schemaless.store.followers import sql
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.membership import QUARANTINE
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.states import QUARANTINED, RUNNING, STOPPED
from schemaless.topology.shards import Shards

_KILLED: Final = "one of its cells killed a worker; until the shard proves healthy, its cells are handled one at a time"
_TABLES: Final = 3
"""Number of tables per shard that followers read: cell, follower and parked."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Status of a follower in a shard.

    Attributes:
        row: the follower's row; None if there is none or it cannot be read.
        behind_s: age of the first cell that has not been handled yet, in seconds; 0 if there is none.
        fault: why the row or the age is unknown.
    """

    shard: int
    row: FollowerRow | None
    behind_s: float = 0.0
    fault: str | None = None

    @property
    def state(self) -> str:
        """Stopped, quarantined, waiting (for the next attempt), running, or missing."""
        if self.row is None:
            return "missing"
        if self.row.state != STOPPED and self.row.quarantined:
            return QUARANTINED
        if self.row.state == RUNNING and self.row.retry_s is not None:
            return "waiting"
        return self.row.state

    @property
    def cause(self) -> str | None:
        """Why the shard is in its state; None if there is no reason to report."""
        if self.row is None or self.row.message is None:
            return _KILLED if self.state == QUARANTINED else self.fault
        return self.row.message.partition("\n")[0]

    @property
    def ids_behind(self) -> int:
        """Number of added_ids between the location and the end of the shard, in all columns."""
        return 0 if self.row is None else max(0, self.row.top - self.row.location)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A live worker.

    Attributes:
        lease_s: remaining time of its lease, in seconds.
        reported: the status it publishes: "dealt", the number of cells handled; "owned", the number of leases; "heard"
            and "found", how often the binary log and polling found new cells in a shard; "finds_by", how it finds them
            on each server; "waits", the shards that wait, and why; "erasures", the shards whose erased cells could not
            be handled, with the number of failures and, for the first 20, the last error; "unhealthy", the shards that
            have stopped, are quarantined or have parked cells; "in_hand", the call in progress; and "role".
    """

    worker: str
    followers: tuple[str, ...]
    lease_s: float
    reported: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the status for ``--json``, whose keys are stable."""
        return {
            "worker": self.worker,
            "followers": self.followers,
            "lease_s": self.lease_s,
            "told": dict(self.reported),
        }

    @property
    def for_quarantine(self) -> bool:
        """True if it serves quarantined shards only."""
        return bool(self.reported.get("role") == QUARANTINE)


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """Status of a follower.

    Attributes:
        shards: its status in each shard.
        workers: its live workers.
        small_caches: advice for each server whose table cache is too small.
    """

    shards: tuple[ShardStatus, ...]
    workers: tuple[WorkerStatus, ...]
    small_caches: Mapping[str, str]

    @property
    def ids_behind(self) -> int:
        """Number of added_ids between the locations and the ends of the shards, in all columns."""
        return sum(shard.ids_behind for shard in self.shards)

    @property
    def behind_s(self) -> float:
        """Age of the first cell that has not been handled yet, in seconds; 0 if there is none."""
        return max((shard.behind_s for shard in self.shards), default=0.0)

    @property
    def parked(self) -> int:
        """Number of parked cells."""
        return sum(shard.row.parked for shard in self.shards if shard.row is not None)


def follower_status(access: DatastoreAccess, follower: str, missing: str) -> FollowerStatus:
    """Read the status of a follower; ``missing`` is the fault of a shard without a row."""
    shards = tuple(shard_statuses(access, follower, missing))
    return FollowerStatus(shards, tuple(workers_of(access, follower)), small_table_caches(access.shards))


def shard_statuses(access: DatastoreAccess, follower: str, missing: str) -> Iterable[ShardStatus]:
    """Yield the status of a follower in each shard; ``missing`` is the fault of a shard without a row."""
    shards = access.shards
    looked = FollowerRows(shards).look((follower, shard) for shard in range(access.shard_count))
    for shard in range(access.shard_count):
        row = looked.rows.get((follower, shard))
        if row is None:
            yield ShardStatus(shard, None, fault=str(looked.failed.get(shard) or missing))
        elif row.location >= row.top:
            yield ShardStatus(shard, row)
        else:
            try:
                ages = shards.rows(shard, sql.select_age(shards.database(shard), row.location))
            except SchemalessError as error:
                yield ShardStatus(shard, row, fault=str(error))
            else:
                yield ShardStatus(shard, row, max(0.0, float(ages[0][0])) if ages else 0.0)


def workers_of(access: DatastoreAccess, follower: str) -> Iterable[WorkerStatus]:
    """Yield the live workers that serve a follower."""
    rows = access.catalog().rows(sql.select_workers(access.name))
    for worker, followers, lease_s, figures in rows:
        served = tuple(json.loads(followers))
        if follower in served:
            yield WorkerStatus(str(worker), served, float(lease_s), json.loads(figures))


def small_table_caches(shards: Shards) -> dict[str, str]:
    """Return advice for each primary whose table cache is too small for its shards, by server.

    A poll would open and close hundreds of tables there. Servers that cannot be reached are left out; the status of
    their shards reports them.
    """
    advice = {}
    counts = Counter(shards.node_of(shard) for shard in range(shards.topology.shard_count))
    for node, count in counts.items():
        try:
            with shards.pool_for(node).connection() as connection:
                mariadb = connection.is_mariadb
                ((tables, instances, definitions),) = connection.rows(sql.SELECT_TABLE_CACHE)
        except SchemalessError:
            continue
        needed = _TABLES * count
        # A connection uses one cache instance. MySQL divides the size among the instances; MariaDB does not.
        kept = int(tables) if mariadb else int(tables) // int(instances)
        if min(kept, int(definitions)) < needed:
            advice[str(node)] = (
                f"it keeps at most {kept:,} tables open per connection and {int(definitions):,} table "
                f"definitions cached; followers in "
                f"its {count:,} shards read {needed:,} tables, so they fall behind. Set table_open_cache"
                f"{'' if mariadb else ' (divided by table_open_cache_instances)'} and "
                f"table_definition_cache to {needed:,} or more"
            )
    return advice
