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

from schemaless.errors import InvalidInput, JobConflict, LeaseLost
from schemaless.jobs.job import ClusterState, Failure, Job, JobState, Kind, ShardState, Signal, go_on_command
from schemaless.jobs.names import who
from schemaless.mysql.connection import Connection
from schemaless.mysql.statements import text
from schemaless.store.datastore import Datastore

T = TypeVar("T")

LEASE_S: Final = 30
"""How long a shard stays a runner's without a sign of life."""

FAILURES_KEPT: Final = 1_000
"""Of each shard; counters count all."""

RENEWED_WITHIN_S: Final = 5
"""A runner that hears from the catalog has never less than the rest of its lease before it."""

INTERRUPTED: Final = "interrupted"
"""Stands as a shard's message where its last runner ended without a word."""

_TURN_WAIT_S: Final = 10
_MEASURED_AT_ONCE: Final = 500
_NOW: Final = b"UTC_TIMESTAMP(6)"
_LEASE: Final = b"UTC_TIMESTAMP(6) + INTERVAL %d SECOND" % LEASE_S
_WATCH_LEASE: Final = b"UTC_TIMESTAMP(6) + INTERVAL 5 SECOND"
"""A watch is kept by looking: where its runner is through, another has it soon."""

_UNFINISHED: Final = b"('running','paused')"


class Ledger:
    """A datastore's jobs.

    Attributes:
        reads: how many SELECTs it has sent, about.
    """

    def __init__(self, store: Datastore) -> None:
        self.reads = 0
        self._pool = store.catalog
        self._db = b"`%b`" % store.name.encode()
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
            kind: what sort of work.
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
        lock = text(f"schemaless-jobs-{self._name}"[:64])
        token = secrets.token_hex(8)

        def operation(connection: Connection) -> int:
            with connection.whole():
                if connection.rows(b"SELECT GET_LOCK(%b, %d)" % (lock, _TURN_WAIT_S))[0][0] != 1:
                    raise JobConflict(f"somebody else is creating a job of {self._name!r} at this moment; try again")
                # Where anything here raises, the lock goes with the connection.
                job_id = self._made_with(connection, token)
                if job_id is None:
                    self._refuse_conflict(connection, shards)
                    with connection.transaction():
                        job_id = self._insert(connection, kind, spec, shards, clusters, {**versions, "token": token})
                connection.rows(b"SELECT RELEASE_LOCK(%b)" % lock)
            return job_id

        return self.job(self._run(operation))

    def _made_with(self, connection: Connection, token: str) -> int | None:
        """Return the job that an earlier attempt made, whose reply was lost."""
        rows = connection.rows(
            b"SELECT job_id FROM %b.job WHERE versions LIKE '%%\"%b\"%%' ORDER BY job_id DESC LIMIT 1"
            % (self._db, token.encode())
        )
        return int(rows[0][0]) if rows else None

    def _refuse_conflict(self, connection: Connection, shards: Mapping[int, int]) -> None:
        rows = connection.rows(
            b"SELECT j.job_id, j.kind, j.state, s.shard FROM %b.job AS j JOIN %b.job_shard AS s ON s.job_id=j.job_id "
            b"WHERE j.state IN %b AND s.state='waiting'" % (self._db, self._db, _UNFINISHED)
        )
        for job_id, kind, state, shard in rows:
            if shard in shards:
                raise JobConflict(
                    f"{kind} job {job_id} is {state} and not through with shard {shard}; join it with "
                    f"'{go_on_command(kind, job_id)}', or end it with 'schemaless migrate abort --job {job_id}'",
                    job_id,
                )

    def _insert(
        self,
        connection: Connection,
        kind: Kind,
        spec: Mapping[str, Any],
        shards: Mapping[int, int],
        clusters: Iterable[str],
        versions: Mapping[str, Any],
    ) -> int:
        job_id = connection.execute(
            b"INSERT INTO %b.job (kind, state, spec, versions, created_by) VALUES (%b, 'running', %b, %b, %b)"
            % (self._db, text(kind), _json(spec), _json(versions), text(who()))
        ).last_id
        numbers = sorted(shards)
        for start in range(0, len(numbers), 1_000):
            values = [b"(%d,%d,'waiting',%d)" % (job_id, shard, shards[shard]) for shard in numbers[start:][:1_000]]
            connection.execute(
                b"INSERT INTO %b.job_shard (job_id, shard, state, data_bytes) VALUES %b" % (self._db, b",".join(values))
            )
        connection.execute(
            b"INSERT INTO %b.job_cluster (job_id, cluster) VALUES %b"
            % (self._db, b",".join(b"(%d,%b)" % (job_id, text(cluster)) for cluster in sorted(set(clusters))))
        )
        connection.execute(self._event(job_id, f"created, {len(numbers)} shards"))
        return job_id

    def jobs(self, kind: Kind | None = None) -> list[Job]:
        """Return all jobs, the newest last."""
        where = b"" if kind is None else b" WHERE kind=%b" % text(kind)
        return [_job(row) for row in self._rows(self._select_job() + where + b" ORDER BY job_id")]

    def job(self, job_id: int) -> Job:
        """Return one job.

        Raises:
            InvalidInput: there is none of that number.
        """
        rows = self._rows(self._select_job() + b" WHERE job_id=%d" % job_id)
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
        rows = self._rows(b"SELECT DISTINCT job_id FROM %b.job_shard WHERE cells>0" % self._db)
        return {int(job_id) for (job_id,) in rows}

    def change_state(self, job_id: int, before: Sequence[JobState], after: JobState, why: str | None = None) -> bool:
        """Take a job from one of some states to another; False where it is in none of them."""
        ended = b", ended_at=%b" % _NOW if after in ("done", "aborted", "finalised") else b""
        states = b",".join(text(state) for state in before)
        changed = self._execute(
            b"UPDATE %b.job SET state=%b, message=%b%b WHERE job_id=%d AND state IN (%b)"
            % (self._db, text(after), _null(why), ended, job_id, states)
        )
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
                row = connection.rows(b"SELECT spec FROM %b.job WHERE job_id=%d FOR UPDATE" % (self._db, job_id))[0]
                before = json.loads(row[0])
                spec = {**before, "thresholds": {**before.get("thresholds", {}), **changes}}
                connection.execute(b"UPDATE %b.job SET spec=%b WHERE job_id=%d" % (self._db, _json(spec), job_id))
            return dict(spec["thresholds"])

        thresholds = self._run(operation)
        self.note_event(job_id, f"thresholds: {json.dumps(thresholds)}")
        return thresholds

    def complete(self, job_id: int) -> bool:
        """Call a job done where none of its shards waits any more; False where one does, or it has ended otherwise."""
        changed = self._execute(
            b"UPDATE %b.job SET state='done', ended_at=%b, message=NULL WHERE job_id=%d AND state IN %b "
            b"AND NOT EXISTS (SELECT * FROM %b.job_shard WHERE job_id=%d AND state='waiting')"
            % (self._db, _NOW, job_id, _UNFINISHED, self._db, job_id)
        )
        if changed:
            self.note_event(job_id, "done")
        return bool(changed)

    def note_event(self, job_id: int, what: str) -> None:
        """Write down that something happened, and by whom."""
        self._execute(self._event(job_id, what))

    def events(self, job_id: int) -> list[tuple[datetime, str, str]]:
        """Return what happened to a job: when, by whom, what."""
        rows = self._rows(
            b"SELECT CONCAT(at,''), who, what FROM %b.job_event WHERE job_id=%d ORDER BY event_id" % (self._db, job_id)
        )
        return [(_time(at), str(name), str(what)) for at, name, what in rows]

    # Shards

    def shards(self, job_id: int, *, counters: bool = True) -> list[ShardState]:
        """Return where a job is on each of its shards, in their order."""
        return [
            _shard(row)
            for row in self._rows(self._select_shard(counters) + b" WHERE job_id=%d ORDER BY shard" % job_id)
        ]

    def numbers(self, job_id: int) -> list[int]:
        """Return the numbers of the shards that a job is about, in their order."""
        return [state.shard for state in self.shards(job_id, counters=False)]

    def claim(self, job_id: int, shard: int, runner: str) -> ShardState | None:
        """Take a shard for a runner.

        Returns:
            Where the job is on it, with ``INTERRUPTED`` as its message where the runner before ended without a word;
            None where somebody else has it, or it is through, or the job has ended.
        """
        before = self._rows(
            b"SELECT lease_until IS NOT NULL AND runner<>%b OR message='%b' FROM %b.job_shard "
            b"WHERE job_id=%d AND shard=%d" % (text(runner), INTERRUPTED.encode(), self._db, job_id, shard)
        )
        taken = self._execute(
            b"UPDATE %b.job_shard AS s JOIN %b.job AS j ON j.job_id=s.job_id SET s.runner=%b, s.epoch=s.epoch+1, "
            b"s.lease_until=%b, s.stop=0, s.message=NULL, s.started_at=COALESCE(s.started_at, %b) "
            b"WHERE s.job_id=%d AND s.shard=%d AND s.state='waiting' AND j.state IN %b "
            b"AND (s.lease_until IS NULL OR s.lease_until<%b OR s.runner=%b)"
            % (self._db, self._db, text(runner), _LEASE, _NOW, job_id, shard, _UNFINISHED, _NOW, text(runner))
        )
        if not taken:
            return None
        rows = self._rows(
            self._select_shard(True) + b" WHERE job_id=%d AND shard=%d AND runner=%b" % (job_id, shard, text(runner))
        )
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
        runner = text(state.runner or "")
        rows = self._rows(
            b"SELECT j.state, s.stop, c.reason, TIMESTAMPDIFF(MICROSECOND, c.looked_at, %b)/1e6, c.runner=%b, "
            b"c.lease_until IS NULL OR c.lease_until<%b, TIMESTAMPDIFF(SECOND, %b, s.lease_until), j.spec, "
            b"JSON_EXTRACT(c.figures, '$.yields') "
            b"FROM %b.job AS j JOIN %b.job_shard AS s ON s.job_id=j.job_id AND s.shard=%d "
            b"JOIN %b.job_cluster AS c ON c.job_id=j.job_id AND c.cluster=%b "
            b"WHERE j.job_id=%d AND s.runner=%b AND s.epoch=%d"
            % (
                _NOW,
                runner,
                _NOW,
                _NOW,
                self._db,
                self._db,
                state.shard,
                self._db,
                text(cluster),
                job_id,
                runner,
                state.epoch,
            )
        )
        if not rows:
            raise self._lost(job_id, state)
        job_state, stop, reason, ago, watches, unwatched, left, spec, yields = rows[0]
        # Every commit may wait for the catalog's disk, so leases are renewed when it is time, not each time.
        if left is None or int(left) < LEASE_S - RENEWED_WITHIN_S:
            self._guarded(job_id, state, b"lease_until=%b" % _LEASE)
        if unwatched:
            # Whoever finds the watch free takes it.
            watches = self._execute(
                b"UPDATE %b.job_cluster SET runner=%b, lease_until=%b WHERE job_id=%d AND cluster=%b "
                b"AND (lease_until IS NULL OR lease_until<%b)"
                % (self._db, runner, _WATCH_LEASE, job_id, text(cluster), _NOW)
            )
        ago_s = None if ago is None else float(ago)
        return Signal(job_state, bool(stop), reason, ago_s, bool(watches), str(yields) == "true", str(spec))

    def runners(self, job_id: int) -> int:
        """Return how many runners have a shard of a job in their hands."""
        rows = self._rows(
            b"SELECT COUNT(DISTINCT runner) FROM %b.job_shard WHERE job_id=%d AND lease_until>%b"
            % (self._db, job_id, _NOW)
        )
        return int(rows[0][0])

    def checkpoint(self, job_id: int, state: ShardState) -> None:
        """Write down how far a shard is.

        Raises:
            LeaseLost: it belongs to somebody else by now.
        """
        self._guarded(job_id, state, self._progress(state) + b", lease_until=%b" % _LEASE)

    def release(self, job_id: int, state: ShardState, *, after: str = "waiting", message: str | None = None) -> None:
        """Give a shard back, with how far it is; ``after`` is "waiting" or "done".

        Raises:
            LeaseLost: it belongs to somebody else by now.
        """
        ended = b", ended_at=%b" % _NOW if after != "waiting" else b""
        self._guarded(
            job_id,
            state,
            self._progress(state)
            + b", state=%b, message=%b, lease_until=NULL, stop=0%b" % (text(after), _null(message), ended),
        )
        state.state = after

    def release_dead(self, job_id: int, runner_prefix: str) -> int:
        """Give back what runners had that are known to be dead; return how many shards."""
        like = text(_like(runner_prefix) + "%")
        self._execute(
            b"UPDATE %b.job_cluster SET lease_until=NULL WHERE job_id=%d AND runner LIKE %b" % (self._db, job_id, like)
        )
        return self._execute(
            b"UPDATE %b.job_shard SET lease_until=NULL, message='%b' "
            b"WHERE job_id=%d AND state='waiting' AND lease_until IS NOT NULL AND runner LIKE %b"
            % (self._db, INTERRUPTED.encode(), job_id, like)
        )

    def ask_to_stop(self, job_id: int, runner_prefix: str) -> None:
        """Ask runners to stop at their next checkpoint."""
        self._execute(
            b"UPDATE %b.job_shard SET stop=1 WHERE job_id=%d AND state='waiting' AND lease_until IS NOT NULL "
            b"AND runner LIKE %b" % (self._db, job_id, text(_like(runner_prefix) + "%"))
        )

    def measure_shards(self, job_id: int, measures: Mapping[int, Mapping[str, Any]]) -> None:
        """Add to what was measured of shards, by their numbers; same names are replaced."""
        numbers = sorted(measures)

        def operation(connection: Connection, part: Sequence[int]) -> None:
            where = b"job_id=%d AND shard IN (%b)" % (job_id, b",".join(b"%d" % shard for shard in part))
            with connection.transaction():
                rows = connection.rows(
                    b"SELECT shard, measures FROM %b.job_shard WHERE %b FOR UPDATE" % (self._db, where)
                )
                merged = [(int(shard), {**_loaded(before), **measures[int(shard)]}) for shard, before in rows]
                if merged:
                    cases = b" ".join(b"WHEN %d THEN %b" % (shard, _json(each)) for shard, each in merged)
                    connection.execute(
                        b"UPDATE %b.job_shard SET measures=CASE shard %b ELSE measures END WHERE %b"
                        % (self._db, cases, where)
                    )

        for start in range(0, len(numbers), _MEASURED_AT_ONCE):
            part = numbers[start : start + _MEASURED_AT_ONCE]
            self._pool.run(lambda connection, part=part: operation(connection, part))  # type: ignore[misc]

    def _guarded(self, job_id: int, state: ShardState, assignments: bytes) -> None:
        found = self._execute(
            b"UPDATE %b.job_shard SET %b WHERE job_id=%d AND shard=%d AND runner=%b AND epoch=%d"
            % (self._db, assignments, job_id, state.shard, text(state.runner or ""), state.epoch)
        )
        if not found:
            raise self._lost(job_id, state)

    @staticmethod
    def _lost(job_id: int, state: ShardState) -> LeaseLost:
        return LeaseLost(
            f"shard {state.shard} of job {job_id} was taken over by another runner: this one gave no sign of life "
            f"for {LEASE_S} s. Nothing is lost, the other goes on"
        )

    @staticmethod
    def _progress(state: ShardState) -> bytes:
        return (
            b"pass_number=%d, first_id=%d, top_id=%d, checkpoint=%d, cells=%d, bytes_before=%d, bytes_after=%d, "
            b"left_cells=%d, counters=%b, busy_s=%.3f"
            % (
                state.pass_number,
                state.first_id,
                state.top_id,
                state.checkpoint,
                state.cells,
                state.bytes_before,
                state.bytes_after,
                state.left_cells,
                _json(state.counters),
                state.busy_s,
            )
        )

    # Clusters

    def clusters(self, job_id: int) -> list[ClusterState]:
        """Return what was seen of each cluster."""
        rows = self._rows(
            b"SELECT cluster, runner, TIMESTAMPDIFF(MICROSECOND, %b, lease_until)/1e6, "
            b"TIMESTAMPDIFF(MICROSECOND, looked_at, %b)/1e6, reason, figures, waits, measures "
            b"FROM %b.job_cluster WHERE job_id=%d ORDER BY cluster" % (_NOW, _NOW, self._db, job_id)
        )
        return [
            ClusterState(
                str(cluster),
                runner,
                None if left is None else float(left),
                None if ago is None else float(ago),
                reason,
                _loaded(figures),
                _loaded(waits),
                _loaded(measures),
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
            b"UPDATE %b.job_cluster SET looked_at=%b, lease_until=%b, reason=%b, figures=%b, waits=%b "
            b"WHERE job_id=%d AND cluster=%b AND runner=%b"
            % (
                self._db,
                _NOW,
                _WATCH_LEASE,
                _null(reason),
                _json(figures),
                _json(waits),
                job_id,
                text(cluster),
                text(runner),
            )
        )

    def measure_cluster(self, job_id: int, cluster: str, measures: Mapping[str, Any]) -> None:
        """Add to what was measured of a cluster; same names are replaced."""
        self._merge(b"job_cluster", b"job_id=%d AND cluster=%b" % (job_id, text(cluster)), measures)

    # Budget and failures

    def spend(self, job_id: int, amount: int, per_s: float) -> float:
        """Take bytes from the budget that all of a job's runners share; return how many seconds to wait first."""
        cost_us = int(amount / per_s * 1e6)
        now = b"CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)"

        def operation(connection: Connection) -> float:
            # GREATEST: what was not used is not saved up.
            connection.execute(
                b"UPDATE %b.job SET budget_us=LAST_INSERT_ID(GREATEST(budget_us, %b) + %d) WHERE job_id=%d"
                % (self._db, now, cost_us, job_id)
            )
            until_us, now_us = connection.rows(b"SELECT LAST_INSERT_ID(), %b" % now)[0]
            return max(0.0, (int(until_us) - cost_us - int(now_us)) / 1e6)

        return self._pool.run(operation)

    def note_failures(self, job_id: int, failures: Sequence[Failure]) -> None:
        """Write down cells that were left as they are; one that is there already gets its newest reason."""
        for start in range(0, len(failures), 100):
            values = [
                b"(%d,%d,%d,x'%b',%b,%d,%b,%b)"
                % (
                    job_id,
                    failure.shard,
                    failure.added_id,
                    failure.row_key.hex().encode(),
                    text(failure.column_name),
                    failure.ref_key,
                    text(failure.reason[:64]),
                    text(failure.message.encode("ascii", "backslashreplace").decode()),
                )
                for failure in failures[start : start + 100]
            ]
            self._execute(
                b"INSERT INTO %b.job_failure (job_id, shard, added_id, row_key, column_name, ref_key, reason, message) "
                b"VALUES %b ON DUPLICATE KEY UPDATE reason=VALUES(reason), message=VALUES(message)"
                % (self._db, b",".join(values))
            )

    def failures(self, job_id: int, limit: int = FAILURES_KEPT, shards: Iterable[int] | None = None) -> list[Failure]:
        """Return cells that were left as they are, the first ``limit`` of them."""
        where = b"" if shards is None else b" AND shard IN (%b)" % b",".join(b"%d" % shard for shard in [-1, *shards])
        rows = self._rows(
            b"SELECT shard, added_id, row_key, column_name, ref_key, reason, message FROM %b.job_failure "
            b"WHERE job_id=%d%b ORDER BY shard, added_id LIMIT %d" % (self._db, job_id, where, limit)
        )
        return [
            Failure(int(shard), int(added_id), bytes(row_key), str(column), int(ref_key), str(reason), str(message))
            for shard, added_id, row_key, column, ref_key, reason, message in rows
        ]

    # Statements

    def _select_job(self) -> bytes:
        return (
            b"SELECT job_id, kind, state, spec, versions, created_by, CONCAT(created_at,''), CONCAT(ended_at,''), "
            b"message FROM %b.job" % self._db
        )

    def _select_shard(self, counters: bool) -> bytes:
        return (
            b"SELECT shard, state, pass_number, first_id, top_id, checkpoint, cells, bytes_before, bytes_after, "
            b"left_cells, %b, busy_s, data_bytes, runner, epoch, TIMESTAMPDIFF(MICROSECOND, %b, lease_until)/1e6, "
            b"stop, message, CONCAT(started_at,''), CONCAT(ended_at,''), %b FROM %b.job_shard"
            % (b"counters" if counters else b"NULL", _NOW, b"measures" if counters else b"NULL", self._db)
        )

    def _event(self, job_id: int, what: str) -> bytes:
        return b"INSERT INTO %b.job_event (job_id, who, what) VALUES (%d, %b, %b)" % (
            self._db,
            job_id,
            text(who()),
            text(what),
        )

    def _merge(self, table: bytes, where: bytes, measures: Mapping[str, Any]) -> None:
        def operation(connection: Connection) -> None:
            with connection.transaction():
                rows = connection.rows(b"SELECT measures FROM %b.%b WHERE %b FOR UPDATE" % (self._db, table, where))
                if rows:
                    merged = {**_loaded(rows[0][0]), **measures}
                    connection.execute(
                        b"UPDATE %b.%b SET measures=%b WHERE %b" % (self._db, table, _json(merged), where)
                    )

        self._pool.run(operation)

    def _rows(self, sql: bytes) -> tuple[tuple[Any, ...], ...]:
        self.reads += 1
        return self._pool.run(lambda connection: connection.rows(sql))

    def _execute(self, sql: bytes) -> int:
        return self._run(lambda connection: connection.execute(sql).affected)

    def _run(self, operation: Callable[[Connection], T]) -> T:
        return self._pool.run(operation, writes=True)


def _job(row: tuple[Any, ...]) -> Job:
    job_id, kind, state, spec, versions, created_by, created_at, ended_at, message = row
    return Job(
        int(job_id),
        kind,
        state,
        json.loads(spec),
        json.loads(versions),
        str(created_by),
        _time(created_at),
        None if ended_at is None else _time(ended_at),
        message,
    )


def _shard(row: tuple[Any, ...]) -> ShardState:
    pass_number, first_id, top_id, checkpoint, cells, bytes_before, bytes_after, left_cells = map(int, row[2:10])
    counters, busy_s, data_bytes, runner, epoch, left_s, stop, message, started_at, ended_at, measures = row[10:]
    return ShardState(
        int(row[0]),
        str(row[1]),
        pass_number,
        first_id,
        top_id,
        checkpoint,
        cells,
        bytes_before,
        bytes_after,
        left_cells,
        counters=_loaded(counters),
        busy_s=float(busy_s),
        data_bytes=int(data_bytes),
        runner=runner,
        epoch=int(epoch),
        lease_left_s=None if left_s is None else float(left_s),
        stop=bool(stop),
        message=message,
        started_at=None if started_at is None else _time(started_at),
        ended_at=None if ended_at is None else _time(ended_at),
        measures=_loaded(measures),
    )


def _json(value: Any) -> bytes:
    return text(json.dumps(value))


def _loaded(value: str | None) -> dict[str, Any]:
    return {} if value is None else dict(json.loads(value))


def _null(value: str | None) -> bytes:
    return b"NULL" if value is None else text(value)


def _time(value: str) -> datetime:
    return datetime.fromisoformat(value).replace(tzinfo=UTC)


def _like(prefix: str) -> str:
    return prefix.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
