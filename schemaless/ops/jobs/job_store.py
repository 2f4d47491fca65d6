"""Store of jobs in the catalog: jobs, their shards and clusters, events, and failures."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import Any, Final

from schemaless.base.numbers import counted
from schemaless.base.parts import parts
from schemaless.base.runner_names import who
from schemaless.errors import InvalidInput, JobConflict
from schemaless.ops.jobs import sql
from schemaless.ops.jobs.job import (
    NOT_EXCLUSIVE,
    ClusterState,
    Failure,
    Job,
    JobState,
    Kind,
    ShardState,
    continue_command,
    end_command,
)
from schemaless.ops.jobs.leases import (
    WATCH_LEASE_S,
    JobCatalog,
    Leases,
    from_json,
    parse_time,
    seconds,
    seconds_left,
    shard_state,
)
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.sql.sessions import release_lock, take_lock

FAILURES_KEPT: Final = 1_000
"""Maximum number of failures stored per shard; the counters include all failures."""

_TURN_WAIT_S: Final = 10


class JobStore:
    """The jobs of a datastore.

    Attributes:
        catalog: access to the job tables.
        leases: leases on the shards of the jobs.
    """

    def __init__(self, store: Datastore) -> None:
        self.catalog: JobCatalog = JobCatalog(internals_of(store))
        self.leases: Leases = Leases(self.catalog, store.name)
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
            InvalidInput: ``shards`` is empty.
        """
        if not shards:
            raise InvalidInput("a job needs at least one shard")
        lock = f"schemaless-jobs-{self._name}"[:64]
        token = secrets.token_hex(8)

        def insert(connection: Connection) -> int:
            texts = json.dumps(spec), json.dumps({**versions, "token": token})
            job_id = connection.execute(sql.insert_job(self._name, kind, *texts, who())).last_id
            for weights in parts(sorted(shards.items()), 1_000):
                connection.execute(sql.insert_shards(self._name, job_id, weights))
            connection.execute(sql.insert_clusters(self._name, job_id, sorted(set(clusters))))
            connection.execute(sql.insert_event(self._name, job_id, who(), f"created, {counted(len(shards), 'shard')}"))
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
                    if kind not in NOT_EXCLUSIVE:
                        self._refuse_conflict(connection.rows(sql.select_waiting(self._name)), shards)
                    with connection.transaction():
                        job_id = insert(connection)
                connection.rows(release_lock(lock))
            return job_id

        return self.job(self.catalog.run(operation))

    def exclusive(self) -> dict[int, int]:
        """Return the unfinished job that prevents others from working on a shard, by shard number."""
        rows = self.catalog.rows(sql.select_waiting(self._name))
        return {int(shard): int(job_id) for job_id, kind, _, shard in rows if kind not in NOT_EXCLUSIVE}

    @staticmethod
    def _refuse_conflict(waiting: Rows, shards: Mapping[int, int]) -> None:
        for job_id, kind, state, shard in waiting:
            if shard in shards and kind not in NOT_EXCLUSIVE:
                raise JobConflict(
                    f"{kind} job {job_id} is {state} and has not finished shard {shard}; join it with "
                    f"'{continue_command(kind, job_id)}', or end it with '{end_command(kind, job_id)}'",
                    job_id,
                )

    def jobs(self, kind: Kind | None = None) -> list[Job]:
        """Return all jobs, or only those of one kind, newest last."""
        return [_job(row) for row in self.catalog.rows(sql.select_jobs(self._name, kind=kind))]

    def job(self, job_id: int) -> Job:
        """Return one job.

        Raises:
            InvalidInput: the job does not exist.
        """
        rows = self.catalog.rows(sql.select_jobs(self._name, job_id=job_id))
        if not rows:
            raise InvalidInput(f"{self._name!r} has no job {job_id}; 'schemaless job list' lists its jobs")
        return _job(rows[0])

    def latest(self, kind: Kind) -> Job | None:
        """Return the default job of a kind, or None if there is no job.

        That is the newest unfinished job; failing that, the newest that replaced a body, since even a run with nothing
        to do creates a job; failing that, the newest of all.
        """
        jobs = self.jobs(kind)
        unfinished = [job for job in jobs if job.unfinished]
        if unfinished or not jobs:
            return unfinished[-1] if unfinished else None
        replaced = self.with_replacements()
        return next((job for job in reversed(jobs) if job.job_id in replaced), jobs[-1])

    def with_replacements(self) -> set[int]:
        """Return the ids of the jobs that replaced at least one body."""
        rows = self.catalog.rows(sql.select_that_replaced(self._name))
        return {int(job_id) for (job_id,) in rows}

    def change_state(self, job_id: int, before: Sequence[JobState], after: JobState, why: str | None = None) -> bool:
        """Change the state of a job that is in one of the states ``before``; return False if it is in none of them."""
        ended = after in ("done", "cancelled", "finalised")
        changed = self.catalog.execute(sql.update_state(self._name, job_id, before, after, why, ended=ended))
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

        thresholds = self.catalog.run(operation)
        self.record_event(job_id, f"thresholds: {json.dumps(thresholds)}")
        return thresholds

    def complete(self, job_id: int) -> bool:
        """Mark a job as done if it is unfinished and no shard has the state "waiting"; return whether it was marked."""
        changed = self.catalog.execute(sql.complete(self._name, job_id))
        if changed:
            self.record_event(job_id, "done")
        return bool(changed)

    def record_event(self, job_id: int, what: str) -> None:
        """Add an event to the job, with the current user and machine."""
        self.catalog.execute(sql.insert_event(self._name, job_id, who(), what))

    def events(self, job_id: int) -> list[tuple[datetime, str, str]]:
        """Return the events of a job: time, actor, description."""
        rows = self.catalog.rows(sql.select_events(self._name, job_id))
        return [(parse_time(at), str(name), str(what)) for at, name, what in rows]

    # Shards

    def shards(self, job_id: int, *, counters: bool = True) -> list[ShardState]:
        """Return the state of each shard of a job, in shard order."""
        return [shard_state(row) for row in self.catalog.rows(sql.select_shards(self._name, job_id, counters=counters))]

    def numbers(self, job_id: int) -> list[int]:
        """Return the shard numbers of a job in order."""
        return [state.shard for state in self.shards(job_id, counters=False)]

    def record_on_shards(self, job_id: int, measures: Mapping[int, Mapping[str, Any]], at_once: int = 500) -> None:
        """Merge values into the measures of shards, by shard number."""
        for part in parts(sorted(measures.items()), at_once):
            self._record(job_id, "shard", dict(part))

    def record_on_cluster(self, job_id: int, cluster: str, measures: Mapping[str, Any]) -> None:
        """Merge values into the measures of a cluster."""
        self._record(job_id, "cluster", {cluster: measures})

    def _record(self, job_id: int, part: sql.Part, measures: Mapping[int | str, Mapping[str, Any]]) -> None:
        def operation(connection: Connection) -> None:
            with connection.transaction():
                rows = connection.rows(sql.lock_measures(self._name, job_id, part, measures))
                merged = {key: json.dumps({**from_json(before), **measures[key]}) for key, before in rows}
                if merged:
                    connection.execute(sql.update_measures(self._name, job_id, part, merged))

        self.catalog.run(operation, writes=False)

    # Clusters

    def clusters(self, job_id: int) -> list[ClusterState]:
        """Return the state of each cluster of a job."""
        rows = self.catalog.rows(sql.select_clusters(self._name, job_id))
        return [
            ClusterState(
                cluster, runner, seconds_left(left_s, WATCH_LEASE_S), seconds(ago_s), reason, *map(from_json, values)
            )
            for cluster, runner, left_s, ago_s, reason, *values in rows
        ]

    # Budget and failures

    def spend(self, job_id: int, amount: int, per_s: float) -> float:
        """Reserve ``amount`` bytes of a job's shared rate limit; return the seconds to wait before using them."""
        cost_us = int(amount / per_s * 1e6)

        def operation(connection: Connection) -> float:
            connection.execute(sql.spend(self._name, job_id, cost_us))
            until_us, now_us = connection.rows(sql.SELECT_SPENT)[0]
            return max(0.0, (int(until_us) - cost_us - int(now_us)) / 1e6)

        return self.catalog.run(operation, writes=False)

    def record_failures(self, job_id: int, failures: Sequence[Failure]) -> None:
        """Store cells left unchanged; a cell that is already stored gets the new reason."""
        for part in parts(failures, 100):
            self.catalog.execute(sql.insert_failures(self._name, job_id, map(astuple, part)))

    def failures(self, job_id: int, limit: int = FAILURES_KEPT, shards: Iterable[int] | None = None) -> list[Failure]:
        """Return the first ``limit`` cells left unchanged, optionally only those in some shards."""
        rows = self.catalog.rows(sql.select_failures(self._name, job_id, limit, shards))
        return [Failure(*row) for row in rows]


def _job(row: tuple[Any, ...]) -> Job:
    job_id, kind, state, spec, versions, created_by, created_at, ended_at, message = row
    texts = (json.loads(spec), json.loads(versions), str(created_by))
    return Job(int(job_id), kind, state, *texts, parse_time(created_at), ended_at and parse_time(ended_at), message)
