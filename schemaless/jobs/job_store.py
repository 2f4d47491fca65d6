"""Store of jobs in the catalog: jobs, leases on shards, checkpoints and counters.

A shard belongs to one runner at a time, by a lease on the catalog server's clock. Every update of a shard's state is
guarded by the runner and the epoch of its lease, so a runner presumed dead cannot overwrite its successor's state. The
bodies do not depend on leases: each replacement is guarded by a digest of the body that was read.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, JobConflict, LeaseLost, ServerError
from schemaless.internals import internals_of
from schemaless.jobs import sql
from schemaless.jobs.job import (
    ClusterState,
    Failure,
    Job,
    JobState,
    Kind,
    ShardState,
    Signal,
    abort_command,
    continue_command,
)
from schemaless.runner_names import who
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import Value
from schemaless.wire.sql.sessions import release_lock, take_lock

T = TypeVar("T")

LEASE_S: Final = 30
"""Duration of a lease on a shard, in seconds."""

FAILURES_KEPT: Final = 1_000
"""Maximum number of failures stored per shard; counters count all."""

RENEWED_WITHIN_S: Final = 5
"""Age from which a lease is renewed, in seconds. A runner in contact with the catalog has at least the rest left."""

INTERRUPTED: Final = "interrupted"
"""Message of a shard whose last runner died without releasing it."""

_PROGRESS: Final = (
    *("pass_number", "first_id", "top_id", "checkpoint", "cells", "bytes_before", "bytes_after", "left_cells"),
)
_TURN_WAIT_S: Final = 10
_WATCH_LEASE_S: Final = 5
"""Duration of a lease on a watch, in seconds. Each poll renews it; another runner takes over soon after the last."""


class JobStore:
    """The jobs of a datastore.

    Attributes:
        reads: approximate number of SELECTs sent.
    """

    def __init__(self, store: Datastore) -> None:
        self.reads = 0
        self._internals = internals_of(store)
        self._name = store.name

    # Jobs

    def create(
        self,
        kind: Kind,
        spec: Mapping[str, Any],
        shards: Mapping[int, int],
        clusters: Iterable[str],
        versions: Mapping[str, Any],
    ) -> Job:
        """Create a job.

        Args:
            kind: kind of the job.
            spec: parameters as JSON values.
            shards: weight in bytes by shard number.
            clusters: clusters of the shards.
            versions: versions of libraries and servers as JSON values.

        Returns:
            The job.

        Raises:
            JobConflict: an unfinished job includes one of these shards.
            InvalidInput: there is no shard.
        """
        if not shards:
            raise InvalidInput("a job needs at least one shard")
        lock = f"schemaless-jobs-{self._name}"[:64]
        token = secrets.token_hex(8)

        def insert(connection: Connection) -> int:
            texts = json.dumps(spec), json.dumps({**versions, "token": token})
            job_id = connection.execute(sql.insert_job(self._name, kind, *texts, who())).last_id
            weights = sorted(shards.items())
            for start in range(0, len(weights), 1_000):
                connection.execute(sql.insert_shards(self._name, job_id, weights[start : start + 1_000]))
            connection.execute(sql.insert_clusters(self._name, job_id, sorted(set(clusters))))
            connection.execute(sql.insert_event(self._name, job_id, who(), f"created, {len(weights)} shards"))
            return job_id

        def operation(connection: Connection) -> int:
            with connection.whole():
                if connection.rows(take_lock(lock, _TURN_WAIT_S))[0][0] != 1:
                    raise JobConflict(f"another process is creating a job of {self._name!r}; try again")
                # If an exception is raised before the release, closing the connection releases the lock.
                # The job exists already if this operation is repeated after its reply was lost.
                created = connection.rows(sql.select_by_token(self._name, token))
                if created:
                    job_id = int(created[0][0])
                else:
                    self._refuse_conflict(connection, shards)
                    with connection.transaction():
                        job_id = insert(connection)
                connection.rows(release_lock(lock))
            return job_id

        return self.job(self._run(operation))

    def _refuse_conflict(self, connection: Connection, shards: Mapping[int, int]) -> None:
        for job_id, kind, state, shard in connection.rows(sql.select_waiting(self._name)):
            if shard in shards:
                raise JobConflict(
                    f"{kind} job {job_id} is {state} and has not finished shard {shard}; join it with "
                    f"'{continue_command(kind, job_id)}', or abort it with '{abort_command(kind, job_id)}'",
                    job_id,
                )

    def jobs(self, kind: Kind | None = None) -> list[Job]:
        """Return all jobs, or those of a kind, newest last."""
        return [_job(row) for row in self._rows(sql.select_jobs(self._name, kind=kind))]

    def job(self, job_id: int) -> Job:
        """Return one job.

        Raises:
            InvalidInput: the job does not exist.
        """
        rows = self._rows(sql.select_jobs(self._name, job_id=job_id))
        if not rows:
            raise InvalidInput(f"{self._name!r} has no job {job_id}; 'schemaless migrate status --all' lists its jobs")
        return _job(rows[0])

    def latest(self, kind: Kind) -> Job | None:
        """Return the default job of a kind, or None if there is no job.

        That is the newest unfinished job; else the newest that replaced a body, since a run that finds nothing to do
        is a job, too; else the newest.
        """
        jobs = self.jobs(kind)
        unfinished = [job for job in jobs if job.unfinished]
        if unfinished or not jobs:
            return unfinished[-1] if unfinished else None
        replaced = self.with_replacements()
        return next((job for job in reversed(jobs) if job.job_id in replaced), jobs[-1])

    def with_replacements(self) -> set[int]:
        """Return the ids of the jobs that replaced at least one body."""
        rows = self._rows(sql.select_that_replaced(self._name))
        return {int(job_id) for (job_id,) in rows}

    def change_state(self, job_id: int, before: Sequence[JobState], after: JobState, why: str | None = None) -> bool:
        """Change the state of a job that is in one of the states ``before``; return False if it is in none of them."""
        ended = after in ("done", "aborted", "finalised")
        changed = self._execute(sql.update_state(self._name, job_id, before, after, why, ended=ended))
        if changed:
            self.record_event(job_id, after if why is None else f"{after}: {why}")
        return bool(changed)

    def change_thresholds(self, job_id: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change some thresholds of a job; its runners receive the change when they renew their leases.

        Returns:
            All thresholds of the job.
        """

        def operation(connection: Connection) -> dict[str, Any]:
            with connection.transaction():
                row = connection.rows(sql.lock_spec(self._name, job_id))[0]
                before = json.loads(row[0])
                spec = {**before, "thresholds": {**before.get("thresholds", {}), **changes}}
                connection.execute(sql.update_spec(self._name, job_id, json.dumps(spec)))
            return dict(spec["thresholds"])

        thresholds = self._run(operation)
        self.record_event(job_id, f"thresholds: {json.dumps(thresholds)}")
        return thresholds

    def complete(self, job_id: int) -> bool:
        """Mark an unfinished job as done if no shard is waiting; return whether it was."""
        changed = self._execute(sql.complete(self._name, job_id))
        if changed:
            self.record_event(job_id, "done")
        return bool(changed)

    def record_event(self, job_id: int, what: str) -> None:
        """Add an event to the job, with the current user and machine."""
        self._execute(sql.insert_event(self._name, job_id, who(), what))

    def events(self, job_id: int) -> list[tuple[datetime, str, str]]:
        """Return the events of a job: time, actor, description."""
        rows = self._rows(sql.select_events(self._name, job_id))
        return [(_time(at), str(name), str(what)) for at, name, what in rows]

    # Shards

    def shards(self, job_id: int, *, counters: bool = True) -> list[ShardState]:
        """Return the state of each shard of a job, in shard order."""
        return [_shard(row) for row in self._rows(sql.select_shards(self._name, job_id, counters=counters))]

    def numbers(self, job_id: int) -> list[int]:
        """Return the shard numbers of a job in order."""
        return [state.shard for state in self.shards(job_id, counters=False)]

    def claim(self, job_id: int, shard: int, runner: str) -> ShardState | None:
        """Claim a shard for a runner.

        Returns:
            State of the shard, with ``INTERRUPTED`` as its message if the previous runner died without releasing it;
            None if another runner holds the shard, it is done, or the job has ended.
        """
        interrupted = self._rows(sql.select_interrupted(self._name, job_id, shard, runner, INTERRUPTED))
        if not self._execute(sql.claim_shard(self._name, job_id, shard, runner, LEASE_S)):
            return None
        rows = self._rows(sql.select_shards(self._name, job_id, shard=shard, runner=runner))
        if not rows:
            return None
        state = _shard(rows[0])
        state.message = INTERRUPTED if interrupted and interrupted[0][0] else None
        return state

    def renew(self, job_id: int, state: ShardState, cluster: str) -> Signal:
        """Renew the lease on a shard if due, and return the signal for its runner.

        Raises:
            LeaseLost: another runner has taken over the shard.
        """
        runner = state.runner or ""
        rows = self._rows(sql.select_signal(self._name, job_id, state.shard, runner, state.epoch, cluster))
        if not rows:
            raise self._lost(job_id, state)
        job_state, stop, reason, ago, watches, unwatched, left, spec, yields = rows[0]
        # Each commit may cost a disk sync of the catalog server, so the lease is renewed only when due.
        if left is None or int(left) < LEASE_S - RENEWED_WITHIN_S:
            self._guarded(job_id, state, {}, LEASE_S)
        if unwatched:
            watches = self._execute(sql.claim_watch(self._name, job_id, cluster, runner, _WATCH_LEASE_S))
        ago_s = None if ago is None else float(ago)
        return Signal(job_state, bool(stop), reason, ago_s, bool(watches), str(yields) == "true", str(spec))

    def runners(self, job_id: int) -> int:
        """Return the number of runners that hold a lease on a shard of a job."""
        return int(self._rows(sql.count_runners(self._name, job_id))[0][0])

    def checkpoint(self, job_id: int, state: ShardState) -> None:
        """Store the state of a shard and renew the lease.

        Raises:
            LeaseLost: another runner has taken over the shard.
        """
        self._guarded(job_id, state, self._progress(state), LEASE_S)

    def release(self, job_id: int, state: ShardState, *, after: str = "waiting", message: str | None = None) -> None:
        """Store the state of a shard and release it; ``after`` is its new state, "waiting", "done" or "failed".

        Raises:
            LeaseLost: another runner has taken over the shard.
        """
        changes = {**self._progress(state), "state": after, "message": message, "stop": 0}
        self._guarded(job_id, state, changes, None, ended=after != "waiting")
        state.state = after

    def release_dead(self, job_id: int, runner_prefix: str) -> int:
        """Release the watches and shards of dead runners; return the number of shards."""
        self._execute(sql.free_watches(self._name, job_id, runner_prefix))
        return self._execute(sql.free_shards(self._name, job_id, runner_prefix, INTERRUPTED))

    def ask_to_stop(self, job_id: int, runner_prefix: str) -> None:
        """Ask runners to stop at their next checkpoint."""
        self._execute(sql.ask_to_stop(self._name, job_id, runner_prefix))

    def record_on_shards(self, job_id: int, measures: Mapping[int, Mapping[str, Any]], at_once: int = 500) -> None:
        """Merge values into the measures of shards, by shard number."""
        numbers = sorted(measures)

        def operation(connection: Connection, part: Sequence[int]) -> None:
            with connection.transaction():
                rows = connection.rows(sql.lock_shard_measures(self._name, job_id, part))
                merged = {int(shard): _merged(before, measures[int(shard)]) for shard, before in rows}
                if merged:
                    connection.execute(sql.update_shard_measures(self._name, job_id, merged))

        for start in range(0, len(numbers), at_once):
            part = numbers[start : start + at_once]
            self._run(lambda connection, part=part: operation(connection, part), writes=False)  # type: ignore[misc]

    def _guarded(
        self, job_id: int, state: ShardState, changes: Mapping[str, Value], lease_s: int | None, *, ended: bool = False
    ) -> None:
        runner = state.runner or ""
        updated = self._execute(
            sql.update_shard(
                self._name, job_id, state.shard, runner, state.epoch, changes, lease_s=lease_s, ended=ended
            )
        )
        if not updated:
            raise self._lost(job_id, state)

    @staticmethod
    def _lost(job_id: int, state: ShardState) -> LeaseLost:
        return LeaseLost(
            f"another runner took over shard {state.shard} of job {job_id}, because this one did not renew its lease "
            f"for {LEASE_S} s; nothing is lost, the other runner continues"
        )

    @staticmethod
    def _progress(state: ShardState) -> dict[str, Value]:
        numbers = {name: getattr(state, name) for name in _PROGRESS}
        return {**numbers, "counters": json.dumps(state.counters), "busy_s": float(state.busy_s)}

    # Clusters

    def clusters(self, job_id: int) -> list[ClusterState]:
        """Return the state of each cluster of a job."""
        rows = self._rows(sql.select_clusters(self._name, job_id))
        return [
            ClusterState(
                str(cluster),
                runner,
                None if left is None else float(left),
                None if ago is None else float(ago),
                reason,
                _from_json(figures),
                _from_json(waits),
                _from_json(measures),
            )
            for cluster, runner, left, ago, reason, figures, waits, measures in rows
        ]

    def record_poll(
        self,
        job_id: int,
        cluster: str,
        runner: str,
        reason: str | None,
        figures: Mapping[str, Any],
        waits: Mapping[str, float],
    ) -> None:
        """Store the result of polling a cluster, provided the runner still holds the watch."""
        self._execute(
            sql.update_look(
                self._name, job_id, cluster, runner, reason, json.dumps(figures), json.dumps(waits), _WATCH_LEASE_S
            )
        )

    def record_on_cluster(self, job_id: int, cluster: str, measures: Mapping[str, Any]) -> None:
        """Merge values into the measures of a cluster."""

        def operation(connection: Connection) -> None:
            with connection.transaction():
                rows = connection.rows(sql.lock_cluster_measures(self._name, job_id, cluster))
                if rows:
                    merged = _merged(rows[0][0], measures)
                    connection.execute(sql.update_cluster_measures(self._name, job_id, cluster, merged))

        self._run(operation, writes=False)

    # Budget and failures

    def spend(self, job_id: int, amount: int, per_s: float) -> float:
        """Take bytes from the rate limit shared by a job's runners; return the seconds to wait before using them."""
        cost_us = int(amount / per_s * 1e6)

        def operation(connection: Connection) -> float:
            connection.execute(sql.spend(self._name, job_id, cost_us))
            until_us, now_us = connection.rows(sql.SELECT_SPENT)[0]
            return max(0.0, (int(until_us) - cost_us - int(now_us)) / 1e6)

        return self._run(operation, writes=False)

    def record_failures(self, job_id: int, failures: Sequence[Failure]) -> None:
        """Store cells left unchanged; a cell that is stored already gets the new reason."""
        for start in range(0, len(failures), 100):
            rows = [
                (
                    failure.shard,
                    failure.added_id,
                    failure.row_key,
                    failure.column_name,
                    failure.ref_key,
                    failure.reason[:64],
                    failure.message.encode("ascii", "backslashreplace").decode(),
                )
                for failure in failures[start : start + 100]
            ]
            self._execute(sql.insert_failures(self._name, job_id, rows))

    def failures(self, job_id: int, limit: int = FAILURES_KEPT, shards: Iterable[int] | None = None) -> list[Failure]:
        """Return the first ``limit`` cells left unchanged, optionally only of some shards."""
        rows = self._rows(sql.select_failures(self._name, job_id, limit, shards))
        return [
            Failure(int(shard), int(added_id), bytes(row_key), str(column), int(ref_key), str(reason), str(message))
            for shard, added_id, row_key, column, ref_key, reason, message in rows
        ]

    def _rows(self, statement: bytes) -> tuple[tuple[Any, ...], ...]:
        self.reads += 1
        return self._run(lambda connection: connection.rows(statement), writes=False)

    def _execute(self, statement: bytes) -> int:
        return self._run(lambda connection: connection.execute(statement).affected)

    def _run(self, operation: Callable[[Connection], T], *, writes: bool = True) -> T:
        try:
            return self._internals.catalog.run(operation, writes=writes)
        except ServerError:
            # Refresh the routing, so that a retry reaches the catalog's current server after a failover.
            self._internals.shards.again(self._internals.shards.routing)
            raise


def _job(row: tuple[Any, ...]) -> Job:
    job_id, kind, state, spec, versions, created_by, created_at, ended_at, message = row
    texts = (json.loads(spec), json.loads(versions), str(created_by))
    return Job(int(job_id), kind, state, *texts, _time(created_at), ended_at and _time(ended_at), message)


def _shard(row: tuple[Any, ...]) -> ShardState:
    counters, busy_s, data_bytes, runner, epoch, left_s, stop, message, started_at, ended_at, measures = row[10:]
    return ShardState(
        int(row[0]),
        str(row[1]),
        **{name: int(value) for name, value in zip(_PROGRESS, row[2:10], strict=True)},
        counters=_from_json(counters),
        busy_s=float(busy_s),
        data_bytes=int(data_bytes),
        runner=runner,
        epoch=int(epoch),
        lease_left_s=None if left_s is None else float(left_s),
        stop=bool(stop),
        message=message,
        started_at=started_at and _time(started_at),
        ended_at=ended_at and _time(ended_at),
        measures=_from_json(measures),
    )


def _from_json(value: str | None) -> dict[str, Any]:
    return {} if value is None else dict(json.loads(value))


def _merged(before: str | None, more: Mapping[str, Any]) -> str:
    return json.dumps({**_from_json(before), **more})


def _time(value: str) -> datetime:
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
