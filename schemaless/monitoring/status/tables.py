"""The tables of a status, for both the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from schemaless.base.numbers import bytes_text, counted
from schemaless.monitoring.status.findings import lag_text
from schemaless.monitoring.status.model import CapacityView, FollowerView, JobView, NodeView, Status
from schemaless.ui.terminal.output import size_text, speed_text
from schemaless.ui.terminal.progress import duration, waited_text


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        values: its values.
        faulty: whether it needs attention.
    """

    values: tuple[str, ...]
    faulty: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: heading.
        columns: headings of the columns; the columns after the first ``text_columns`` contain figures.
        rows: the rows.
        text_columns: number of leading columns that contain text.
        empty: what to say if there are no rows.
        note: a line below the table.
        key: the column that comes first, after the name, where each row is a card.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    text_columns: int
    empty: str
    note: str = ""
    key: str = ""


def tables_of(status: Status) -> dict[str, Table]:
    """Return the table of each part that has been read, by the part's name."""
    tables = {}
    if status.clusters is not None:
        on_servers = ("cluster", "role", "state", "server", "claim", "shards", "last write", "lag")
        tables["servers"] = Table("Servers", on_servers, tuple(_servers(status)), 5, "no servers", key="lag")
    if status.jobs is not None:
        columns = ("job", "state", "waits on", "done", "shards", "rate", "end")
        note = " ".join(filter(None, (_waited(job) for job in status.jobs if job.unfinished)))
        tables["jobs"] = Table("Jobs", columns, tuple(map(_job, status.jobs)), 3, "no jobs yet", note, "end")
    if status.followers is not None:
        columns = ("name", "kind", "state", "workers", "behind", "oldest", "parked")
        rows = tuple(map(_follower, status.followers))
        empty = "no triggers, indexes or exports"
        tables["followers"] = Table("Triggers, indexes and exports", columns, rows, 3, empty, key="oldest")
    if any(part.name == "capacity" and part.read_at and not part.problem for part in status.parts):
        tables["capacity"] = _disks(status.capacity, status.taken_at)
    if status.cold:
        of_files = ("cluster", "live files", "size", "may have erased documents")
        rows = tuple(
            Row((each.cluster, f"{each.files:,}", bytes_text(each.bytes), f"{each.waiting:,}")) for each in status.cold
        )
        tables["cold"] = Table("Cold files", of_files, rows, 1, "", key="size")
    if status.hottest:
        rows = tuple(
            Row((str(each.shard), each.cluster, f"{each.puts_per_s:,.1f}", f"{each.share:.0%}"))
            for each in status.hottest
        )
        tables["hottest"] = Table("Hottest shards", ("shard", "cluster", "puts/s", "of all"), rows, 2, "", key="puts/s")
    return tables


def _servers(status: Status) -> Iterator[Row]:
    for cluster in status.clusters or ():
        for node in cluster.nodes:
            shards = f"{cluster.shards:,}" if node.role == "primary" else ""
            where = (cluster.name, node.role, _state(node), node.address)
            yield Row((*where, node.claim or "", shards, _write(node), lag_text(node)), _is_faulty(node))


def _is_faulty(node: NodeView) -> bool:
    return (
        node.fault is not None
        or node.exposed is not None
        or node.write_problem is not None
        or any(not each.is_backup for each in node.transactions or ())
    )


def _write(node: NodeView) -> str:
    """Return how long the last test write took and how long ago it was, as far as known."""
    took = "failed" if node.write_problem else "" if node.write_s is None else f"{node.write_s * 1000:,.1f} ms"
    return ", ".join(filter(None, (took, "" if node.write_age_s is None else f"{duration(node.write_age_s)} ago")))


def _state(node: NodeView) -> str:
    if not node.up:
        return "no answer, breaker open" if node.breaker_open else "no answer"
    return "read-only" if node.read_only else "writable"


def _job(job: JobView) -> Row:
    is_silent = job.runners_silent > 0 and job.state != "paused"
    values = (
        f"{job.name} {job.job_id}",
        "no runner" if job.lacks_runners else "runner silent" if is_silent else job.state,
        ", ".join(wait.cluster for wait in job.waits),
        f"{job.fraction:.0%} of {bytes_text(job.bytes_total)}",
        f"{job.shards_done:,} of {job.shards:,}",
        "" if job.mb_per_s is None else speed_text(job.mb_per_s),
        _end(job),
    )
    return Row(values, job.lacks_runners or is_silent)


def _waited(job: JobView) -> str:
    waited = waited_text({kind: seconds for kind, seconds in job.waited_s.items() if seconds >= 1})
    return f"{job.name} {job.job_id} has waited {waited}.".capitalize() if waited else ""


def _end(job: JobView) -> str:
    if not job.unfinished and job.ended_at is not None:
        return f"{job.ended_at:%Y-%m-%d %H:%M}"
    if job.eta_s is None or job.eta_low_s is None or job.eta_high_s is None:
        return ""
    return f"in {duration(job.eta_s)} ({duration(job.eta_low_s)} to {duration(job.eta_high_s)})"


def _follower(follower: FollowerView) -> Row:
    none = ["no worker"] if follower.lacks_workers else []
    odd = [f"{count:,} {state}" for state, count in sorted(follower.shards.items()) if state != "running"]
    values = (
        follower.name,
        follower.kind,
        ", ".join([follower.state, *none, *odd]),
        f"{follower.workers:,}",
        f"{follower.ids_behind:,} ids",
        duration(follower.behind_s),
        f"{follower.parked:,}",
    )
    return Row(values, follower.lacks_workers or not {"stopped", "missing"}.isdisjoint(follower.shards))


def _disks(capacity: CapacityView | None, now: datetime) -> Table:
    columns = ("disk", "bodies", "files", "free", "size", "full in", "80 % interval")
    if capacity is None:
        return Table("Space", columns, (), 1, "never measured; run 'schemaless capacity measure'")
    age = duration((now - capacity.measured_at).total_seconds())
    rows = []
    for disk in capacity.disks:
        sizes = (size_text(size, "?") for size in (disk.file_bytes, disk.free_bytes, disk.disk_bytes))
        full = disk.days_text, _interval(disk.days_low, disk.days_high)
        rows.append(Row((disk.name, bytes_text(disk.body_bytes), *sizes, *full)))
    note = f"First disk full in: {capacity.answer}. Measured {age} ago. {capacity.detail}{capacity.problem or ''}"
    return Table("Space", columns, tuple(rows), 1, "no disks", note, "full in")


def _interval(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f"{counted(int(low), 'day')} or more" if high is None else f"{int(low):,} to {counted(int(high), 'day')}"
