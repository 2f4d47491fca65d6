"""Statements on the job tables of the catalog. Times are UTC by the catalog server's clock; JSON is passed as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from schemaless.wire.sql.parts import (
    NOW,
    Term,
    Value,
    blob_hex,
    insert,
    later,
    leased,
    literal,
    matching,
    numbers,
    table,
    text,
    texts,
    update,
)

_NOW_US: Final = b"CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)"
_MOST_AHEAD_US: Final = 3_600_000_000
_UNFINISHED: Final = b"('running','paused')"

Part = Literal["shard", "cluster"]
"""What ``job_shard`` and ``job_cluster`` have rows for."""


FailureRow = tuple[int, int, bytes, str, int, str, str]
"""A cell left unchanged: shard, added_id, row_key, column_name, ref_key, reason, message."""


def insert_job(catalog: str, kind: str, spec: str, versions: str, created_by: str) -> bytes:
    """Insert a job in state "running"."""
    row = (kind, "running", spec, versions, created_by)
    return insert(table(catalog, b"job"), "kind, state, spec, versions, created_by", [row])


def insert_shards(catalog: str, job_id: int, data_bytes: Iterable[tuple[int, int]]) -> bytes:
    """Insert the shards of a job with their weights, in state "waiting"."""
    rows = ((job_id, shard, "waiting", weight) for shard, weight in data_bytes)
    return insert(table(catalog, b"job_shard"), "job_id, shard, state, data_bytes", rows)


def insert_clusters(catalog: str, job_id: int, clusters: Iterable[str]) -> bytes:
    """Insert the clusters that a job works on."""
    return insert(table(catalog, b"job_cluster"), "job_id, cluster", ((job_id, cluster) for cluster in clusters))


def insert_event(catalog: str, job_id: int, who: str, what: str) -> bytes:
    """Insert an event of a job, and who caused it."""
    return insert(table(catalog, b"job_event"), "job_id, who, what", [(job_id, who, what)])


def select_by_token(catalog: str, token: str) -> bytes:
    """Select the job that was created with a token, which is stored among the job's versions."""
    return b"SELECT job_id FROM %b WHERE versions LIKE '%%\"%b\"%%' ORDER BY job_id DESC LIMIT 1" % (
        table(catalog, b"job"),
        token.encode(),
    )


def select_waiting(catalog: str) -> bytes:
    """Select job_id, kind, state and shard of every shard that an unfinished job has not completed."""
    return (
        b"SELECT j.job_id, j.kind, j.state, s.shard FROM %b AS j JOIN %b AS s ON s.job_id=j.job_id "
        b"WHERE j.state IN %b AND s.state='waiting'"
        % (table(catalog, b"job"), table(catalog, b"job_shard"), _UNFINISHED)
    )


# Jobs


def select_jobs(catalog: str, *, kind: str | None = None, job_id: int | None = None) -> bytes:
    """Select jobs, newest last; optionally of one kind, or a single job."""
    return (
        b"SELECT job_id, kind, state, spec, versions, created_by, CONCAT(created_at,''), CONCAT(ended_at,''), "
        b"message FROM %b WHERE %b ORDER BY job_id" % (table(catalog, b"job"), matching(kind=kind, job_id=job_id))
    )


def select_that_replaced(catalog: str) -> bytes:
    """Select the ids of the jobs that replaced at least one body."""
    return b"SELECT DISTINCT job_id FROM %b WHERE cells>0" % table(catalog, b"job_shard")


def update_state(
    catalog: str, job_id: int, before: Sequence[str], after: str, message: str | None, *, ended: bool
) -> bytes:
    """Change the state of a job if it is in one of the states ``before``."""
    changes: dict[str, Term] = {"state": after, "message": message, **({"ended_at": NOW} if ended else {})}
    return update(table(catalog, b"job"), changes, job_id=job_id) + b" AND state IN (%b)" % texts(before)


def complete(catalog: str, job_id: int) -> bytes:
    """Mark an unfinished job as done if none of its shards is waiting."""
    return (
        b"UPDATE %b SET state='done', ended_at=%b, message=NULL WHERE job_id=%d AND state IN %b "
        b"AND NOT EXISTS (SELECT * FROM %b WHERE job_id=%d AND state='waiting')"
        % (table(catalog, b"job"), NOW, job_id, _UNFINISHED, table(catalog, b"job_shard"), job_id)
    )


def lock_spec(catalog: str, job_id: int) -> bytes:
    """Select the spec of a job and lock its row."""
    return b"SELECT spec FROM %b WHERE job_id=%d FOR UPDATE" % (table(catalog, b"job"), job_id)


def update_spec(catalog: str, job_id: int, spec: str) -> bytes:
    """Replace the spec of a job."""
    return update(table(catalog, b"job"), {"spec": spec}, job_id=job_id)


def select_events(catalog: str, job_id: int) -> bytes:
    """Select the events of a job: time, actor, description."""
    return b"SELECT CONCAT(at,''), who, what FROM %b WHERE job_id=%d ORDER BY event_id" % (
        table(catalog, b"job_event"),
        job_id,
    )


# Shards


def select_shards(catalog: str, job_id: int, *, counters: bool = True, shard: int | None = None) -> bytes:
    """Select the shard states of a job in shard order.

    Args:
        counters: also fetch the potentially long columns ``counters`` and ``measures``.
        shard: select only this shard.
    """
    test = matching(job_id=job_id, shard=shard)
    long = (b"counters", b"measures") if counters else (b"NULL", b"NULL")
    return (
        b"SELECT shard, state, pass_number, first_id, top_id, checkpoint, cells, bytes_before, bytes_after, "
        b"left_cells, %b, busy_s, data_bytes, runner, epoch, TIMESTAMPDIFF(MICROSECOND, %b, lease_until)/1e6, "
        b"stop, message, CONCAT(started_at,''), CONCAT(ended_at,''), %b FROM %b WHERE %b ORDER BY shard"
        % (long[0], NOW, long[1], table(catalog, b"job_shard"), test)
    )


def claim_shard(catalog: str, job_id: int, shard: int, runner: str, lease_s: int) -> bytes:
    """Lease a waiting shard of an unfinished job to a runner.

    Another runner's lease on it must not be valid, nor the runner's driver have stopped (see ``ask_to_stop``).
    """
    return (
        b"UPDATE %b AS s JOIN %b AS j ON j.job_id=s.job_id SET s.runner=%b, s.epoch=s.epoch+1, "
        b"s.lease_until=%b, s.stop=0, s.message=NULL, s.started_at=COALESCE(s.started_at, %b) "
        b"WHERE s.job_id=%d AND s.shard=%d AND s.state='waiting' AND j.state IN %b "
        b"AND (s.lease_until IS NULL OR NOT %b OR s.runner=%b) AND NOT (s.stop AND s.runner<=>%b)"
        % (
            table(catalog, b"job_shard"),
            table(catalog, b"job"),
            text(runner),
            later(lease_s),
            NOW,
            job_id,
            shard,
            _UNFINISHED,
            leased(b"s.lease_until", lease_s),
            text(runner),
            text(runner.partition("/")[0]),
        )
    )


def select_signal(catalog: str, lease: Mapping[str, Value], cluster: str, watch_s: int) -> bytes:
    """Select the ``Signal`` for the runner of a shard, provided it still holds the lease.

    The row: state of the job, whether the runner was asked to stop, the reason to wait, the age of the last poll in
    seconds, whether this runner holds the watch of the cluster, whether the watch is free, the seconds left of the
    shard's lease, the job's spec, and whether the job yields on the cluster.
    """
    tables = (table(catalog, name) for name in (b"job", b"job_shard", b"job_cluster"))
    held = matching(**{f"s.{name}": value for name, value in lease.items()})
    return (
        b"SELECT j.state, s.stop, c.reason, TIMESTAMPDIFF(MICROSECOND, c.looked_at, %b)/1e6, c.runner=s.runner, "
        b"c.lease_until IS NULL OR NOT %b, TIMESTAMPDIFF(SECOND, %b, s.lease_until), j.spec, "
        b"JSON_EXTRACT(c.figures, '$.yields') FROM %b AS j JOIN %b AS s ON s.job_id=j.job_id "
        b"JOIN %b AS c ON c.job_id=j.job_id AND c.cluster=%b WHERE %b"
        % (NOW, leased(b"c.lease_until", watch_s), NOW, *tables, text(cluster), held)
    )


def update_shard(
    catalog: str, lease: Mapping[str, Value], changes: Mapping[str, Value], *, lease_s: int | None, ended: bool = False
) -> bytes:
    """Update the state of a shard, provided the runner still holds the lease.

    Args:
        lease: what identifies the lease; see ``ShardState.lease``.
        changes: new values by column.
        lease_s: new duration of the lease from now, in seconds; None releases it.
        ended: whether the shard is completed.
    """
    all_changes: dict[str, Term] = {**changes, "lease_until": None if lease_s is None else later(lease_s)}
    if ended:
        all_changes["ended_at"] = NOW
    return update(table(catalog, b"job_shard"), all_changes, **lease)


def free_shards(catalog: str, job_id: int, runner_prefix: str, message: str) -> bytes:
    """Release the shards of all runners with this name prefix."""
    return b"UPDATE %b SET lease_until=NULL, message=%b WHERE %b" % (
        table(catalog, b"job_shard"),
        text(message),
        _held_by(job_id, runner_prefix),
    )


def ask_to_stop(catalog: str, job_id: int, driver: str, shards: Iterable[int], lease_s: int) -> bytes:
    """Ask a driver's runners to stop at their next checkpoint, and give those of its shards without a lease its name.

    ``claim_shard`` refuses such a shard to the driver's own runners.
    """
    free = b"shard IN (%b) AND (lease_until IS NULL OR NOT %b)" % (
        numbers([-1, *shards]),
        leased(b"lease_until", lease_s),
    )
    return b"UPDATE %b SET runner=IF(%b, %b, runner), stop=1 WHERE job_id=%d AND state='waiting' AND (%b OR %b)" % (
        table(catalog, b"job_shard"),
        free,
        text(driver),
        job_id,
        free,
        _held_by(job_id, driver),
    )


def lock_measures(catalog: str, job_id: int, part: Part, keys: Iterable[int | str]) -> bytes:
    """Select the key and measures of some shards or clusters, and lock their rows."""
    rows = _rows_of(job_id, part, keys)
    return b"SELECT %b, measures FROM %b WHERE %b FOR UPDATE" % (part.encode(), _table_of(catalog, part), rows)


def update_measures(catalog: str, job_id: int, part: Part, measures: Mapping[int | str, str]) -> bytes:
    """Replace the measures of shards or clusters."""
    cases = b" ".join(b"WHEN %b THEN %b" % (literal(key), text(measure)) for key, measure in measures.items())
    rows = _rows_of(job_id, part, measures)
    return b"UPDATE %b SET measures=CASE %b %b END WHERE %b" % (_table_of(catalog, part), part.encode(), cases, rows)


def _table_of(catalog: str, part: Part) -> bytes:
    return table(catalog, b"job_" + part.encode())


def _rows_of(job_id: int, part: Part, keys: Iterable[int | str]) -> bytes:
    return b"job_id=%d AND %b IN (%b)" % (job_id, part.encode(), b",".join(map(literal, keys)))


# Clusters


def select_clusters(catalog: str, job_id: int) -> bytes:
    """Select the cluster states of a job."""
    return (
        b"SELECT cluster, runner, TIMESTAMPDIFF(MICROSECOND, %b, lease_until)/1e6, "
        b"TIMESTAMPDIFF(MICROSECOND, looked_at, %b)/1e6, reason, figures, waits, measures "
        b"FROM %b WHERE job_id=%d ORDER BY cluster" % (NOW, NOW, table(catalog, b"job_cluster"), job_id)
    )


def claim_watch(catalog: str, job_id: int, cluster: str, runner: str, lease_s: int) -> bytes:
    """Lease the watch of a cluster to a runner, unless another lease on it is valid."""
    return (
        b"UPDATE %b SET runner=%b, lease_until=%b WHERE job_id=%d AND cluster=%b "
        b"AND (lease_until IS NULL OR NOT %b)"
        % (
            table(catalog, b"job_cluster"),
            text(runner),
            later(lease_s),
            job_id,
            text(cluster),
            leased(b"lease_until", lease_s),
        )
    )


def free_watches(catalog: str, job_id: int, runner_prefix: str) -> bytes:
    """Release the watches of all runners with this name prefix."""
    return b"UPDATE %b SET lease_until=NULL WHERE job_id=%d AND runner LIKE %b" % (
        table(catalog, b"job_cluster"),
        job_id,
        _prefix_pattern(runner_prefix),
    )


def update_look(
    catalog: str, job_id: int, cluster: str, runner: str, result: Mapping[str, Value], lease_s: int
) -> bytes:
    """Store the result of polling a cluster and extend the watch, provided the runner still holds it."""
    changes: dict[str, Term] = {"looked_at": NOW, "lease_until": later(lease_s), **result}
    return update(table(catalog, b"job_cluster"), changes, job_id=job_id, cluster=cluster, runner=runner)


# Budget and failures


def spend(catalog: str, job_id: int, cost_us: int) -> bytes:
    """Advance the time up to which a job's budget is spent, starting no earlier than now, so unused budget is lost.

    A time that is hours ahead is from before the server's clock was set back, because runners reserve only seconds.
    """
    spent = b"IF(budget_us BETWEEN %b AND %b + %d, budget_us, %b)" % (_NOW_US, _NOW_US, _MOST_AHEAD_US, _NOW_US)
    end = b"LAST_INSERT_ID(%b + %d)" % (spent, cost_us)
    return update(table(catalog, b"job"), {"budget_us": end}, job_id=job_id)


SELECT_SPENT: Final = b"SELECT LAST_INSERT_ID(), " + _NOW_US
"""Selects the time that ``spend`` on this connection has advanced the budget to, and the current time, in µs."""


def insert_failures(catalog: str, job_id: int, failures: Iterable[FailureRow]) -> bytes:
    """Insert cells left unchanged; a cell that is already recorded gets the new reason."""
    names = "job_id, shard, added_id, row_key, column_name, ref_key, reason, message"
    rows = (
        (
            *(job_id, shard, added_id, blob_hex(row_key), column, ref_key, reason[:64]),
            message.encode("ascii", "backslashreplace").decode(),
        )
        for shard, added_id, row_key, column, ref_key, reason, message in failures
    )
    newest = b" ON DUPLICATE KEY UPDATE reason=VALUES(reason), message=VALUES(message)"
    return insert(table(catalog, b"job_failure"), names, rows) + newest


def select_failures(catalog: str, job_id: int, limit: int, shards: Iterable[int] | None = None) -> bytes:
    """Select the first ``limit`` cells left unchanged, optionally only those in some shards."""
    where = b"" if shards is None else b" AND shard IN (%b)" % numbers([-1, *shards])
    return (
        b"SELECT shard, added_id, row_key, column_name, ref_key, reason, message FROM %b "
        b"WHERE job_id=%d%b ORDER BY shard, added_id LIMIT %d" % (table(catalog, b"job_failure"), job_id, where, limit)
    )


def _held_by(job_id: int, runner_prefix: str) -> bytes:
    return b"job_id=%d AND state='waiting' AND lease_until IS NOT NULL AND runner LIKE %b" % (
        job_id,
        _prefix_pattern(runner_prefix),
    )


def _prefix_pattern(prefix: str) -> bytes:
    return text(prefix.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_") + "%")


SHOW_ACTIVITY: Final = (
    b"SHOW GLOBAL STATUS WHERE Variable_name IN "
    b"('Threads_running', 'Innodb_history_list_length', 'Com_select', 'Com_insert', 'Com_update_multi', 'Com_do')"
)


SELECT_HISTORY_LENGTH: Final = (
    b"SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME='trx_rseg_history_len' AND STATUS='enabled'"
)
