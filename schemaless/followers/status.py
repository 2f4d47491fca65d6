"""Status of a follower: its shards, and the workers that serve it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemaless.datastore import Datastore
from schemaless.errors import SchemalessError
from schemaless.followers import sql
from schemaless.followers.membership import QUARANTINE
from schemaless.followers.rows import FollowerRow, FollowerRows
from schemaless.followers.states import QUARANTINED, RUNNING, STOPPED
from schemaless.internals import internals_of


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Where a trigger is in a shard.

    Attributes:
        row: what the shard says; None where there is none, or it cannot be asked.
        behind_s: how long ago the first cell that is still to come was stored; 0 where there is none.
        fault: why there is nothing to be said.
    """

    shard: int
    row: FollowerRow | None
    behind_s: float = 0.0
    fault: str | None = None

    @property
    def state(self) -> str:
        """In a word: stopped, quarantined, waiting (for the next attempt), running, or missing."""
        if self.row is None:
            return "missing"
        if self.row.state != STOPPED and self.row.quarantined:
            return QUARANTINED
        if self.row.state == RUNNING and self.row.retry_s is not None:
            return "waiting"
        return self.row.state

    @property
    def cause(self) -> str | None:
        """Why the shard is in its state; None if there is nothing to be said."""
        if self.row is None or self.row.message is None:
            return _KILLED if self.state == QUARANTINED else self.fault
        return self.row.message.partition("\n")[0]

    @property
    def ids_behind(self) -> int:
        """How many added_ids are between its location and the end: cells of its column, and others."""
        return 0 if self.row is None else max(0, self.row.top - self.row.location)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that lives.

    Attributes:
        lease_s: seconds left of its lease.
        told: what it says of itself: "dealt"; "owned"; "heard" and "found", in how many shards it heard of new cells,
            and found some by looking; "finds_by", how it finds them on each server; "waits"; and "in_hand" where it is
            in a call; "role", which shards it serves.
    """

    worker: str
    followers: tuple[str, ...]
    lease_s: float
    told: Mapping[str, Any]

    @property
    def for_quarantine(self) -> bool:
        """Whether it serves quarantined shards only."""
        return bool(self.told.get("role") == QUARANTINE)


def shard_statuses(store: Datastore, follower: str, missing: str) -> Iterable[ShardStatus]:
    """Yield where a follower is, shard by shard; ``missing`` is said of those that have no row for it."""
    shards = internals_of(store).shards
    looked = FollowerRows(shards).look((follower, shard) for shard in range(store.shard_count))
    for shard in range(store.shard_count):
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


def workers_of(store: Datastore, follower: str) -> Iterable[WorkerStatus]:
    """Yield the workers that live and serve a follower."""
    rows = internals_of(store).catalog.run(lambda connection: connection.rows(sql.select_workers(store.name)))
    for worker, followers, lease_s, figures in rows:
        served = tuple(json.loads(followers))
        if follower in served:
            yield WorkerStatus(str(worker), served, float(lease_s), json.loads(figures))


_KILLED: Final = "one of its cells killed a worker; until it proves healthy, its cells are called one at a time"
