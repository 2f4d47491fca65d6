"""Statements about jobs in the catalog. All times are its server's clock, UTC; JSON comes and goes as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from schemaless.wire.sql.parts import (
    NOW,
    Term,
    Value,
    blob_hex,
    insert,
    later,
    matching,
    numbers,
    table,
    text,
    texts,
    update,
)

_NOW_US: Final = b"CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)"
_UNFINISHED: Final = b"('running','paused')"

FailureRow = tuple[int, int, bytes, str, int, str, str]
"""A cell that was left is its shard, added_id, row_key, column_name, ref_key, reason and message."""


def insert_job(catalog: str, kind: str, spec: str, versions: str, created_by: str) -> bytes:
    """Insert a job that is running."""
    row = (kind, "running", spec, versions, created_by)
    return insert(table(catalog, b"job"), "kind, state, spec, versions, created_by", [row])


def insert_shards(catalog: str, job_id: int, data_bytes: Iterable[tuple[int, int]]) -> bytes:
    """Insert a job's shards, each with its weight, as waiting."""
    rows = ((job_id, shard, "waiting", weight) for shard, weight in data_bytes)
    return insert(table(catalog, b"job_shard"), "job_id, shard, state, data_bytes", rows)


def insert_clusters(catalog: str, job_id: int, clusters: Iterable[str]) -> bytes:
    """Insert the clusters that a job is on."""
    return insert(table(catalog, b"job_cluster"), "job_id, cluster", ((job_id, cluster) for cluster in clusters))


def insert_event(catalog: str, job_id: int, who: str, what: str) -> bytes:
    """Insert what happened to a job, and by whom."""
    return insert(table(catalog, b"job_event"), "job_id, who, what", [(job_id, who, what)])


def select_made_with(catalog: str, token: str) -> bytes:
    """Select the job whose versions hold a token."""
    return b"SELECT job_id FROM %b WHERE versions LIKE '%%\"%b\"%%' ORDER BY job_id DESC LIMIT 1" % (
        table(catalog, b"job"),
        token.encode(),
    )


def select_waiting(catalog: str) -> bytes:
    """Select job_id, kind, state and shard of every shard that an unfinished job is not through with."""
    return (
        b"SELECT j.job_id, j.kind, j.state, s.shard FROM %b AS j JOIN %b AS s ON s.job_id=j.job_id "
        b"WHERE j.state IN %b AND s.state='waiting'"
        % (table(catalog, b"job"), table(catalog, b"job_shard"), _UNFINISHED)
    )


# Jobs


def select_jobs(catalog: str, *, kind: str | None = None, job_id: int | None = None) -> bytes:
    """Select whole jobs, the newest last: all, of one kind, or one."""
    return (
        b"SELECT job_id, kind, state, spec, versions, created_by, CONCAT(created_at,''), CONCAT(ended_at,''), "
        b"message FROM %b WHERE %b ORDER BY job_id" % (table(catalog, b"job"), matching(kind=kind, job_id=job_id))
    )


def select_that_replaced(catalog: str) -> bytes:
    """Select the numbers of the jobs that replaced a body."""
    return b"SELECT DISTINCT job_id FROM %b WHERE cells>0" % table(catalog, b"job_shard")


def update_state(
    catalog: str, job_id: int, before: Sequence[str], after: str, message: str | None, *, ended: bool
) -> bytes:
    """Take a job from one of some states to another."""
    changes: dict[str, Term] = {"state": after, "message": message, **({"ended_at": NOW} if ended else {})}
    return update(table(catalog, b"job"), changes, job_id=job_id) + b" AND state IN (%b)" % texts(before)


def complete(catalog: str, job_id: int) -> bytes:
    """Call an unfinished job done, where none of its shards waits any more."""
    return (
        b"UPDATE %b SET state='done', ended_at=%b, message=NULL WHERE job_id=%d AND state IN %b "
        b"AND NOT EXISTS (SELECT * FROM %b WHERE job_id=%d AND state='waiting')"
        % (table(catalog, b"job"), NOW, job_id, _UNFINISHED, table(catalog, b"job_shard"), job_id)
    )


def lock_spec(catalog: str, job_id: int) -> bytes:
    """Select a job's spec, and hold others off it until the transaction ends."""
    return b"SELECT spec FROM %b WHERE job_id=%d FOR UPDATE" % (table(catalog, b"job"), job_id)


def update_spec(catalog: str, job_id: int, spec: str) -> bytes:
    """Give a job another spec."""
    return update(table(catalog, b"job"), {"spec": spec}, job_id=job_id)


def select_events(catalog: str, job_id: int) -> bytes:
    """Select what happened to a job: when, by whom, what."""
    return b"SELECT CONCAT(at,''), who, what FROM %b WHERE job_id=%d ORDER BY event_id" % (
        table(catalog, b"job_event"),
        job_id,
    )


# Shards


def select_shards(
    catalog: str, job_id: int, *, counters: bool = True, shard: int | None = None, runner: str | None = None
) -> bytes:
    """Select where a job is on its shards, in their order: all, or one, or only a runner's.

    Args:
        counters: whether to fetch what may be long, counters and measures.
        shard: only this one.
        runner: only this runner's.
    """
    test = matching(job_id=job_id, shard=shard, runner=runner)
    long = (b"counters", b"measures") if counters else (b"NULL", b"NULL")
    return (
        b"SELECT shard, state, pass_number, first_id, top_id, checkpoint, cells, bytes_before, bytes_after, "
        b"left_cells, %b, busy_s, data_bytes, runner, epoch, TIMESTAMPDIFF(MICROSECOND, %b, lease_until)/1e6, "
        b"stop, message, CONCAT(started_at,''), CONCAT(ended_at,''), %b FROM %b WHERE %b ORDER BY shard"
        % (long[0], NOW, long[1], table(catalog, b"job_shard"), test)
    )


def select_broken_off(catalog: str, job_id: int, shard: int, runner: str, message: str) -> bytes:
    """Select whether another runner than this one left a shard without a word, or this message stands there."""
    left = b"lease_until IS NOT NULL AND runner<>%b OR message=%b" % (text(runner), text(message))
    return b"SELECT %b FROM %b WHERE %b" % (left, table(catalog, b"job_shard"), matching(job_id=job_id, shard=shard))


def claim_shard(catalog: str, job_id: int, shard: int, runner: str, lease_s: int) -> bytes:
    """Take a waiting shard of an unfinished job for a runner, unless it is another's."""
    return (
        b"UPDATE %b AS s JOIN %b AS j ON j.job_id=s.job_id SET s.runner=%b, s.epoch=s.epoch+1, "
        b"s.lease_until=%b, s.stop=0, s.message=NULL, s.started_at=COALESCE(s.started_at, %b) "
        b"WHERE s.job_id=%d AND s.shard=%d AND s.state='waiting' AND j.state IN %b "
        b"AND (s.lease_until IS NULL OR s.lease_until<%b OR s.runner=%b)"
        % (
            table(catalog, b"job_shard"),
            table(catalog, b"job"),
            text(runner),
            later(lease_s),
            NOW,
            job_id,
            shard,
            _UNFINISHED,
            NOW,
            text(runner),
        )
    )


def select_signal(catalog: str, job_id: int, shard: int, runner: str, epoch: int, cluster: str) -> bytes:
    """Select what the runner of a shard should know, if the shard is still its in that epoch.

    Returns:
        A statement whose one row is the job's state, whether it was asked to stop, why it has to wait, how long ago
        that was seen in seconds, whether it keeps the watch of the cluster, whether nobody does, how many seconds are
        left of its lease, the job's spec, and whether the job yields there.
    """
    return (
        b"SELECT j.state, s.stop, c.reason, TIMESTAMPDIFF(MICROSECOND, c.looked_at, %b)/1e6, c.runner=%b, "
        b"c.lease_until IS NULL OR c.lease_until<%b, TIMESTAMPDIFF(SECOND, %b, s.lease_until), j.spec, "
        b"JSON_EXTRACT(c.figures, '$.yields') "
        b"FROM %b AS j JOIN %b AS s ON s.job_id=j.job_id AND s.shard=%d "
        b"JOIN %b AS c ON c.job_id=j.job_id AND c.cluster=%b "
        b"WHERE j.job_id=%d AND s.runner=%b AND s.epoch=%d"
        % (
            NOW,
            text(runner),
            NOW,
            NOW,
            table(catalog, b"job"),
            table(catalog, b"job_shard"),
            shard,
            table(catalog, b"job_cluster"),
            text(cluster),
            job_id,
            text(runner),
            epoch,
        )
    )


def update_shard(
    catalog: str,
    job_id: int,
    shard: int,
    runner: str,
    epoch: int,
    changes: Mapping[str, Value],
    *,
    lease_s: int | None,
    ended: bool = False,
) -> bytes:
    """Change what is noted of a shard, if it is still this runner's in that epoch.

    Args:
        epoch: of which lease.
        changes: new values by column.
        lease_s: how long it stays the runner's from now on; None gives it back.
        ended: whether the job is through with it now.
    """
    all_changes: dict[str, Term] = {**changes, "lease_until": None if lease_s is None else later(lease_s)}
    if ended:
        all_changes["ended_at"] = NOW
    return update(table(catalog, b"job_shard"), all_changes, job_id=job_id, shard=shard, runner=runner, epoch=epoch)


def count_runners(catalog: str, job_id: int) -> bytes:
    """Count the runners that have a shard of a job in their hands."""
    return b"SELECT COUNT(DISTINCT runner) FROM %b WHERE job_id=%d AND lease_until>%b" % (
        table(catalog, b"job_shard"),
        job_id,
        NOW,
    )


def free_shards(catalog: str, job_id: int, runner_prefix: str, message: str) -> bytes:
    """Give back the shards of all runners whose names begin so."""
    return b"UPDATE %b SET lease_until=NULL, message=%b WHERE %b" % (
        table(catalog, b"job_shard"),
        text(message),
        _held_by(job_id, runner_prefix),
    )


def ask_to_stop(catalog: str, job_id: int, runner_prefix: str) -> bytes:
    """Ask all runners whose names begin so to stop at their next checkpoint."""
    return b"UPDATE %b SET stop=1 WHERE %b" % (table(catalog, b"job_shard"), _held_by(job_id, runner_prefix))


def lock_shard_measures(catalog: str, job_id: int, shards: Iterable[int]) -> bytes:
    """Select shard and measures of some shards, and hold others off them until the transaction ends."""
    some = (table(catalog, b"job_shard"), job_id, numbers(shards))
    return b"SELECT shard, measures FROM %b WHERE job_id=%d AND shard IN (%b) FOR UPDATE" % some


def update_shard_measures(catalog: str, job_id: int, measures: Mapping[int, str]) -> bytes:
    """Write the measures of some shards, by their numbers."""
    return b"UPDATE %b SET measures=CASE shard %b ELSE measures END WHERE job_id=%d AND shard IN (%b)" % (
        table(catalog, b"job_shard"),
        b" ".join(b"WHEN %d THEN %b" % (shard, text(measure)) for shard, measure in measures.items()),
        job_id,
        numbers(measures),
    )


# Clusters


def select_clusters(catalog: str, job_id: int) -> bytes:
    """Select what was seen of each cluster."""
    return (
        b"SELECT cluster, runner, TIMESTAMPDIFF(MICROSECOND, %b, lease_until)/1e6, "
        b"TIMESTAMPDIFF(MICROSECOND, looked_at, %b)/1e6, reason, figures, waits, measures "
        b"FROM %b WHERE job_id=%d ORDER BY cluster" % (NOW, NOW, table(catalog, b"job_cluster"), job_id)
    )


def claim_watch(catalog: str, job_id: int, cluster: str, runner: str, lease_s: int) -> bytes:
    """Take the watch of a cluster for a runner, unless somebody keeps it."""
    return (
        b"UPDATE %b SET runner=%b, lease_until=%b WHERE job_id=%d AND cluster=%b "
        b"AND (lease_until IS NULL OR lease_until<%b)"
        % (table(catalog, b"job_cluster"), text(runner), later(lease_s), job_id, text(cluster), NOW)
    )


def free_watches(catalog: str, job_id: int, runner_prefix: str) -> bytes:
    """Give back the watches of all runners whose names begin so."""
    theirs = (table(catalog, b"job_cluster"), job_id, _beginning(runner_prefix))
    return b"UPDATE %b SET lease_until=NULL WHERE job_id=%d AND runner LIKE %b" % theirs


def update_look(
    catalog: str, job_id: int, cluster: str, runner: str, reason: str | None, figures: str, waits: str, lease_s: int
) -> bytes:
    """Write down what was seen of a cluster, if the watch is still this runner's."""
    seen: dict[str, Term] = {"reason": reason, "figures": figures, "waits": waits}
    changes = {"looked_at": NOW, "lease_until": later(lease_s), **seen}
    return update(table(catalog, b"job_cluster"), changes, job_id=job_id, cluster=cluster, runner=runner)


def lock_cluster_measures(catalog: str, job_id: int, cluster: str) -> bytes:
    """Select the measures of a cluster, and hold others off them until the transaction ends."""
    where = matching(job_id=job_id, cluster=cluster)
    return b"SELECT measures FROM %b WHERE %b FOR UPDATE" % (table(catalog, b"job_cluster"), where)


def update_cluster_measures(catalog: str, job_id: int, cluster: str, measures: str) -> bytes:
    """Write the measures of a cluster."""
    return update(table(catalog, b"job_cluster"), {"measures": measures}, job_id=job_id, cluster=cluster)


# Budget and failures


def spend(catalog: str, job_id: int, cost_us: int) -> bytes:
    """Move the end of a job's budget; GREATEST, since what was not used is not saved up."""
    end = b"LAST_INSERT_ID(GREATEST(budget_us, %b) + %d)" % (_NOW_US, cost_us)
    return update(table(catalog, b"job"), {"budget_us": end}, job_id=job_id)


SELECT_SPENT: Final = b"SELECT LAST_INSERT_ID(), " + _NOW_US
"""Its row is the end of the budget as this connection has just moved it, and the time, in microseconds."""


def insert_failures(catalog: str, job_id: int, failures: Iterable[FailureRow]) -> bytes:
    """Insert cells that were left as they are; one that is there already gets its newest reason."""
    names = "job_id, shard, added_id, row_key, column_name, ref_key, reason, message"
    rows = (
        (job_id, shard, added_id, blob_hex(row_key), column, ref_key, reason, message)
        for shard, added_id, row_key, column, ref_key, reason, message in failures
    )
    newest = b" ON DUPLICATE KEY UPDATE reason=VALUES(reason), message=VALUES(message)"
    return insert(table(catalog, b"job_failure"), names, rows) + newest


def select_failures(catalog: str, job_id: int, limit: int, shards: Iterable[int] | None = None) -> bytes:
    """Select the first ``limit`` of the cells that were left as they are; only of some shards where they are given."""
    where = b"" if shards is None else b" AND shard IN (%b)" % numbers([-1, *shards])
    return (
        b"SELECT shard, added_id, row_key, column_name, ref_key, reason, message FROM %b "
        b"WHERE job_id=%d%b ORDER BY shard, added_id LIMIT %d" % (table(catalog, b"job_failure"), job_id, where, limit)
    )


def _held_by(job_id: int, runner_prefix: str) -> bytes:
    return b"job_id=%d AND state='waiting' AND lease_until IS NOT NULL AND runner LIKE %b" % (
        job_id,
        _beginning(runner_prefix),
    )


def _beginning(prefix: str) -> bytes:
    """Return a pattern for LIKE."""
    return text(prefix.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_") + "%")


SHOW_ACTIVITY: Final = (
    b"SHOW GLOBAL STATUS WHERE Variable_name IN "
    b"('Threads_running', 'Innodb_history_list_length', 'Com_select', 'Com_insert', 'Com_update_multi', 'Com_do')"
)


SELECT_HISTORY_LENGTH: Final = (
    b"SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME='trx_rseg_history_len' AND STATUS='enabled'"
)
