"""Jobs in the catalog: who works on which shard, how far it is, and who may change that.

A shard belongs to one runner at a time, by a lease on the catalog server's clock; every note about a shard is guarded
by the runner and the epoch of its lease, so one that was thought dead cannot overwrite its successor's notes. What a
runner did to bodies is safe without any of this: each replacement is guarded by what was read.
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
    go_on_command,
)
from schemaless.runner_names import who
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import Value
from schemaless.wire.sql.sessions import release_lock, take_lock

T = TypeVar("T")

LEASE_S: Final = 30
"""A shard stays a runner's so long without a sign of life."""

FAILURES_KEPT: Final = 1_000
"""So many are kept of each shard; counters count all."""

RENEWED_WITHIN_S: Final = 5
"""A runner that hears from the catalog has never less than the rest of its lease before it."""

INTERRUPTED: Final = "interrupted"
"""This is a shard's message where its last runner ended without a word."""

_PROGRESS: Final = (
    *("pass_number", "first_id", "top_id", "checkpoint", "cells", "bytes_before", "bytes_after", "left_cells"),
)
_TURN_WAIT_S: Final = 10
_WATCH_LEASE_S: Final = 5
"""A watch is kept by looking: where its runner is through, another has it soon."""


class JobStore:
    """A datastore's jobs.

    Attributes:
        reads: how many SELECTs it has sent, about.
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
        """Write down a new job.

        Args:
            spec: what is asked for; JSON.
            shards: the shards that it is about, each with a weight in bytes.
            clusters: the clusters that they are on.
            versions: of libraries and servers; JSON.

        Raises:
            JobConflict: an unfinished job is about one of these shards.
            InvalidInput: no shard.
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
                    raise JobConflict(f"somebody else is creating a job of {self._name!r} at this moment; try again")
                # Where anything here raises, the lock goes with the connection.
                # One there is already where an earlier attempt made it, whose reply was lost.
                made = connection.rows(sql.select_made_with(self._name, token))
                if made:
                    job_id = int(made[0][0])
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
                    f"'{go_on_command(kind, job_id)}', or end it with '{abort_command(kind, job_id)}'",
                    job_id,
                )

    def jobs(self, kind: Kind | None = None) -> list[Job]:
        """Return all jobs, the newest last."""
        return [_job(row) for row in self._rows(sql.select_jobs(self._name, kind=kind))]

    def job(self, job_id: int) -> Job:
        """Return one job.

        Raises:
            InvalidInput: there is none of that number.
        """
        rows = self._rows(sql.select_jobs(self._name, job_id=job_id))
        if not rows:
            raise InvalidInput(f"{self._name!r} has no job {job_id}; 'schemaless migrate status --all' lists them")
        return _job(rows[0])

    def latest(self, kind: Kind) -> Job | None:
        """Return the job of a kind that is meant where none is named; None where there is none.

        The newest unfinished one; else the newest that replaced a body, since a run that finds nothing to do is a job,
        too; else the newest.
        """
        jobs = self.jobs(kind)
        unfinished = [job for job in jobs if job.unfinished]
        if unfinished or not jobs:
            return unfinished[-1] if unfinished else None
        replaced = self.that_replaced()
        return next((job for job in reversed(jobs) if job.job_id in replaced), jobs[-1])

    def that_replaced(self) -> set[int]:
        """Return the numbers of the jobs that replaced a body."""
        rows = self._rows(sql.select_that_replaced(self._name))
        return {int(job_id) for (job_id,) in rows}

    def change_state(self, job_id: int, before: Sequence[JobState], after: JobState, why: str | None = None) -> bool:
        """Take a job from one of some states to another; False where it is in none of them."""
        ended = after in ("done", "aborted", "finalised")
        changed = self._execute(sql.update_state(self._name, job_id, before, after, why, ended=ended))
        if changed:
            self.note_event(job_id, after if why is None else f"{after}: {why}")
        return bool(changed)

    def change_thresholds(self, job_id: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change thresholds of a job, those that are named; its runners hear of it with their next sign of life.

        Returns:
            All of them as they are now.
        """

        def operation(connection: Connection) -> dict[str, Any]:
            with connection.transaction():
                row = connection.rows(sql.lock_spec(self._name, job_id))[0]
                before = json.loads(row[0])
                spec = {**before, "thresholds": {**before.get("thresholds", {}), **changes}}
                connection.execute(sql.update_spec(self._name, job_id, json.dumps(spec)))
            return dict(spec["thresholds"])

        thresholds = self._run(operation)
        self.note_event(job_id, f"thresholds: {json.dumps(thresholds)}")
        return thresholds

    def complete(self, job_id: int) -> bool:
        """Call a job done where none of its shards waits any more; False where one does, or it has ended otherwise."""
        changed = self._execute(sql.complete(self._name, job_id))
        if changed:
            self.note_event(job_id, "done")
        return bool(changed)

    def note_event(self, job_id: int, what: str) -> None:
        """Write down that something happened, and by whom."""
        self._execute(sql.insert_event(self._name, job_id, who(), what))

    def events(self, job_id: int) -> list[tuple[datetime, str, str]]:
        """Return what happened to a job: when, by whom, what."""
        rows = self._rows(sql.select_events(self._name, job_id))
        return [(_time(at), str(name), str(what)) for at, name, what in rows]

    # Shards

    def shards(self, job_id: int, *, counters: bool = True) -> list[ShardState]:
        """Return where a job is on each of its shards, in their order."""
        return [_shard(row) for row in self._rows(sql.select_shards(self._name, job_id, counters=counters))]

    def numbers(self, job_id: int) -> list[int]:
        """Return the numbers of the shards that a job is about, in their order."""
        return [state.shard for state in self.shards(job_id, counters=False)]

    def claim(self, job_id: int, shard: int, runner: str) -> ShardState | None:
        """Take a shard for a runner.

        Returns:
            Where the job is on it, with ``INTERRUPTED`` as its message where the runner before ended without a word;
            None where somebody else has it, or it is through, or the job has ended.
        """
        before = self._rows(sql.select_broken_off(self._name, job_id, shard, runner, INTERRUPTED))
        if not self._execute(sql.claim_shard(self._name, job_id, shard, runner, LEASE_S)):
            return None
        rows = self._rows(sql.select_shards(self._name, job_id, shard=shard, runner=runner))
        if not rows:
            return None
        state = _shard(rows[0])
        state.message = INTERRUPTED if before and before[0][0] else None
        return state

    def renew(self, job_id: int, state: ShardState, cluster: str) -> Signal:
        """Keep a shard for another while, and hear what its runner should know.

        Raises:
            LeaseLost: it belongs to somebody else by now.
        """
        runner = state.runner or ""
        rows = self._rows(sql.select_signal(self._name, job_id, state.shard, runner, state.epoch, cluster))
        if not rows:
            raise self._lost(job_id, state)
        job_state, stop, reason, ago, watches, unwatched, left, spec, yields = rows[0]
        # Every commit may wait for the catalog's disk, so leases are renewed when it is time, not each time.
        if left is None or int(left) < LEASE_S - RENEWED_WITHIN_S:
            self._guarded(job_id, state, {}, LEASE_S)
        if unwatched:
            # Whoever finds the watch free takes it.
            watches = self._execute(sql.claim_watch(self._name, job_id, cluster, runner, _WATCH_LEASE_S))
        ago_s = None if ago is None else float(ago)
        return Signal(job_state, bool(stop), reason, ago_s, bool(watches), str(yields) == "true", str(spec))

    def runners(self, job_id: int) -> int:
        """Return how many runners have a shard of a job in their hands."""
        return int(self._rows(sql.count_runners(self._name, job_id))[0][0])

    def checkpoint(self, job_id: int, state: ShardState) -> None:
        """Write down how far a shard is.

        Raises:
            LeaseLost: it belongs to somebody else by now.
        """
        self._guarded(job_id, state, self._progress(state), LEASE_S)

    def release(self, job_id: int, state: ShardState, *, after: str = "waiting", message: str | None = None) -> None:
        """Give a shard back, with how far it is; ``after`` is "waiting" or "done".

        Raises:
            LeaseLost: it belongs to somebody else by now.
        """
        changes = {**self._progress(state), "state": after, "message": message, "stop": 0}
        self._guarded(job_id, state, changes, None, ended=after != "waiting")
        state.state = after

    def release_dead(self, job_id: int, runner_prefix: str) -> int:
        """Give back what runners had that are known to be dead; return how many shards."""
        self._execute(sql.free_watches(self._name, job_id, runner_prefix))
        return self._execute(sql.free_shards(self._name, job_id, runner_prefix, INTERRUPTED))

    def ask_to_stop(self, job_id: int, runner_prefix: str) -> None:
        """Ask runners to stop at their next checkpoint."""
        self._execute(sql.ask_to_stop(self._name, job_id, runner_prefix))

    def note_on_shards(self, job_id: int, measures: Mapping[int, Mapping[str, Any]], at_once: int = 500) -> None:
        """Add to what was measured of shards, by their numbers; same names are replaced."""
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
            f"shard {state.shard} of job {job_id} was taken over by another runner: this one gave no sign of life "
            f"for {LEASE_S} s. Nothing is lost, and the other continues"
        )

    @staticmethod
    def _progress(state: ShardState) -> dict[str, Value]:
        numbers = {name: getattr(state, name) for name in _PROGRESS}
        return {**numbers, "counters": json.dumps(state.counters), "busy_s": float(state.busy_s)}

    # Clusters

    def clusters(self, job_id: int) -> list[ClusterState]:
        """Return what was seen of each cluster."""
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

    def note_look(
        self,
        job_id: int,
        cluster: str,
        runner: str,
        reason: str | None,
        figures: Mapping[str, Any],
        waits: Mapping[str, float],
    ) -> None:
        """Write down what was seen of a cluster, if the watch is still this runner's."""
        self._execute(
            sql.update_look(
                self._name, job_id, cluster, runner, reason, json.dumps(figures), json.dumps(waits), _WATCH_LEASE_S
            )
        )

    def note_on_cluster(self, job_id: int, cluster: str, measures: Mapping[str, Any]) -> None:
        """Add to what was measured of a cluster; same names are replaced."""

        def operation(connection: Connection) -> None:
            with connection.transaction():
                rows = connection.rows(sql.lock_cluster_measures(self._name, job_id, cluster))
                if rows:
                    merged = _merged(rows[0][0], measures)
                    connection.execute(sql.update_cluster_measures(self._name, job_id, cluster, merged))

        self._run(operation, writes=False)

    # Budget and failures

    def spend(self, job_id: int, amount: int, per_s: float) -> float:
        """Take bytes from the budget that all of a job's runners share; return how many seconds to wait first."""
        cost_us = int(amount / per_s * 1e6)

        def operation(connection: Connection) -> float:
            connection.execute(sql.spend(self._name, job_id, cost_us))
            until_us, now_us = connection.rows(sql.SELECT_SPENT)[0]
            return max(0.0, (int(until_us) - cost_us - int(now_us)) / 1e6)

        return self._run(operation, writes=False)

    def note_failures(self, job_id: int, failures: Sequence[Failure]) -> None:
        """Write down cells that were left as they are; one that is there already gets its newest reason."""
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
        """Return cells that were left as they are, the first ``limit`` of them."""
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
            # Jobs go on where the catalog is by now: whoever tries again asks the server that has it.
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
