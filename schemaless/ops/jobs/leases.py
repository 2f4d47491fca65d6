"""Leases on the shards of jobs, and the checkpoints and polls of the runners that hold them.

A shard belongs to one runner at a time, which holds a lease timed by the catalog server's clock. Every update of a
shard's state is guarded by the runner and the epoch of its lease, so a runner presumed dead cannot overwrite its
successor's state. The safety of bodies does not depend on leases: each replacement is guarded by a digest of the body
that was read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from schemaless.base.type_variables import T
from schemaless.errors import LeaseLost, ServerError
from schemaless.ops.jobs import sql
from schemaless.ops.jobs.job import ShardState, Signal
from schemaless.ops.jobs.throttle import Look, discount_read
from schemaless.store.internals import Internals
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.sql.parts import Value

LEASE_S: Final = 30
"""Duration of a lease on a shard, in seconds."""

RENEWED_WITHIN_S: Final = 5
"""Age at which a lease is renewed, in seconds; about ``LEASE_S`` minus this is left while the catalog answers."""

INTERRUPTED: Final = "interrupted"
"""Message of a shard whose last runner died without releasing it."""

_PROGRESS: Final = (
    *("pass_number", "first_id", "top_id", "checkpoint", "cells", "bytes_before", "bytes_after", "left_cells"),
)
WATCH_LEASE_S: Final = 5
"""Duration of a lease on a watch, in seconds. Polls renew it; if they stop, another runner soon takes over."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock_s() -> float:
    """Return seconds of a clock for the ages of leases: it goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


class JobCatalog:
    """Runs statements on the job tables."""

    def __init__(self, internals: Internals) -> None:
        self._internals = internals

    def rows(self, statement: bytes) -> Rows:
        """Return the rows of a query, which does not count as application load."""

        def read(connection: Connection) -> Rows:
            discount_read(connection)
            return connection.rows(statement)

        return self.run(read, writes=False)

    def execute(self, statement: bytes) -> int:
        """Run a statement that is safe to repeat, and return the number of affected rows."""
        return self.run(lambda connection: connection.execute(statement).affected)

    def run(self, operation: Callable[[Connection], T], *, writes: bool = True) -> T:
        """Run an operation on the catalog's server; see ``NodePool.run``."""
        try:
            return self._internals.catalog.run(operation, writes=writes)
        except ServerError:
            # Refresh the routing, so that a retry reaches the catalog's current server after a failover.
            self._internals.shards.router.again(self._internals.shards.routing)
            raise


def from_json(value: str | None) -> dict[str, Any]:
    """Parse a JSON object; return an empty dict for NULL."""
    return {} if value is None else dict(json.loads(value))


def seconds(value: Any) -> float | None:
    """Convert a DECIMAL of seconds, which may be NULL."""
    return None if value is None else float(value)


def seconds_left(value: Any, most_s: float) -> float | None:
    """Convert the time left of a lease; one that ends much later than a new one has expired (see ``parts.leased``)."""
    left_s = seconds(value)
    return left_s if left_s is None or left_s <= 2 * most_s else 0.0


def parse_time(value: str) -> datetime:
    """Parse a DATETIME from the catalog as UTC."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


class Leases:
    """Leases of a datastore's jobs: on shards, and on the watch of each cluster."""

    def __init__(self, catalog: JobCatalog, name: str) -> None:
        self._catalog = catalog
        self._name = name

    def claim(self, job_id: int, shard: int, runner: str) -> ShardState | None:
        """Claim a shard for a runner.

        Returns:
            State of the shard, with ``INTERRUPTED`` as its message if the previous runner died without releasing it;
            None if the shard is done or held by another runner, the runner's driver has stopped, or the job has ended.
        """
        before = self._shard(job_id, shard)
        if not self._catalog.execute(sql.claim_shard(self._name, job_id, shard, runner, LEASE_S)):
            return None
        state = self._shard(job_id, shard)
        if state.runner != runner:
            return None
        died = before.lease_left_s is not None and before.runner != runner
        state.message = INTERRUPTED if died or before.message == INTERRUPTED else None
        return state

    def _shard(self, job_id: int, shard: int) -> ShardState:
        return shard_state(self._catalog.rows(sql.select_shards(self._name, job_id, shard=shard))[0])

    def renew(self, job_id: int, state: ShardState, cluster: str) -> Signal:
        """Renew the lease on a shard if due, and return the signal for its runner.

        Raises:
            LeaseLost: another runner has taken over the shard.
        """
        rows = self._catalog.rows(sql.select_signal(self._name, state.lease(job_id), cluster, WATCH_LEASE_S))
        if not rows:
            raise _lost(job_id, state)
        job_state, stop, reason, ago, watches, unwatched, left, spec, yields = rows[0]
        # Each commit may cost a disk sync of the catalog server, so the lease is renewed only when due.
        if left is None or not LEASE_S - RENEWED_WITHIN_S <= int(left) <= LEASE_S:
            self._guarded(job_id, state, {}, LEASE_S)
        if unwatched:
            watches = self.claim_watch(job_id, cluster, state.runner or "")
        return Signal(job_state, bool(stop), reason, seconds(ago), bool(watches), str(yields) == "true", str(spec))

    def claim_watch(self, job_id: int, cluster: str, runner: str) -> bool:
        """Lease the watch of a cluster, unless a runner has it; return whether it was leased."""
        return bool(self._catalog.execute(sql.claim_watch(self._name, job_id, cluster, runner, WATCH_LEASE_S)))

    def checkpoint(self, job_id: int, state: ShardState) -> None:
        """Store the state of a shard and renew the lease.

        Raises:
            LeaseLost: another runner has taken over the shard.
        """
        self._guarded(job_id, state, _progress(state), LEASE_S)

    def release(self, job_id: int, state: ShardState, *, after: str = "waiting", message: str | None = None) -> None:
        """Store the state of a shard and release it; ``after`` is its new state, "waiting", "done" or "failed".

        Raises:
            LeaseLost: another runner has taken over the shard.
        """
        changes = {**_progress(state), "state": after, "message": message, "stop": 0}
        self._guarded(job_id, state, changes, None, ended=after != "waiting")
        state.state = after

    def release_dead(self, job_id: int, runner_prefix: str) -> int:
        """Release the watches and shards of dead runners; return the number of shards."""
        self._catalog.execute(sql.free_watches(self._name, job_id, runner_prefix))
        return self._catalog.execute(sql.free_shards(self._name, job_id, runner_prefix, INTERRUPTED))

    def ask_to_stop(self, job_id: int, driver: str, shards: Iterable[int]) -> None:
        """Ask a driver's runners to stop at their next checkpoint, and keep them from claiming these shards."""
        self._catalog.execute(sql.ask_to_stop(self._name, job_id, driver, shards, LEASE_S))

    def record_poll(self, job_id: int, cluster: str, runner: str, look: Look, waits: Mapping[str, float]) -> None:
        """Store the result of polling a cluster, provided the runner still holds the watch."""
        result = {"reason": look.reason, "figures": json.dumps(look.figures), "waits": json.dumps(waits)}
        self._catalog.execute(sql.update_look(self._name, job_id, cluster, runner, result, WATCH_LEASE_S))

    def _guarded(
        self, job_id: int, state: ShardState, changes: Mapping[str, Value], lease_s: int | None, *, ended: bool = False
    ) -> None:
        statement = sql.update_shard(self._name, state.lease(job_id), changes, lease_s=lease_s, ended=ended)
        if not self._catalog.execute(statement):
            raise _lost(job_id, state)


def _lost(job_id: int, state: ShardState) -> LeaseLost:
    return LeaseLost(
        f"another runner took over shard {state.shard} of job {job_id}, because this one did not renew its lease "
        f"for {LEASE_S} s; nothing is lost, because the other runner continues"
    )


def _progress(state: ShardState) -> dict[str, Value]:
    numbers = {name: getattr(state, name) for name in _PROGRESS}
    return {**numbers, "counters": json.dumps(state.counters), "busy_s": float(state.busy_s)}


def shard_state(row: tuple[Any, ...]) -> ShardState:
    """Convert a row of ``sql.select_shards``, whose columns are in the order of the fields."""
    *progress, counters, busy_s, data_bytes, runner, epoch, left_s, stop, message, started_at, ended_at, measures = row
    lease = data_bytes, runner, epoch, seconds_left(left_s, LEASE_S), bool(stop), message
    times = (at and parse_time(at) for at in (started_at, ended_at))
    values = *progress, from_json(counters), busy_s, *lease, *times, from_json(measures)
    return ShardState(*values)
