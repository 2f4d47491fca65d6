"""The tables of a status, for both the terminal and the page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from schemaless.monitoring.status.findings import lag_text
from schemaless.monitoring.status.model import CapacityView, ClusterView, FollowerView, JobView, NodeView, Status
from schemaless.ui.terminal.output import bytes_text, counted, size_text, speed_text
from schemaless.ui.terminal.progress import duration, waited_text


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: heading.
        columns: headings of the columns.
        rows: values of each row; the columns after the first ``text_columns`` contain figures.
        text_columns: number of leading columns that contain text.
        empty: what to say if there are no rows.
        note: a line below the table.
        faulty: numbers of the rows that need attention.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int
    empty: str
    note: str = ""
    faulty: frozenset[int] = frozenset()


def tables_of(status: Status) -> dict[str, Table]:
    """Return the table of each part that has been read, by the part's name."""
    tables = {}
    if status.clusters is not None:
        tables["servers"] = _servers(status.clusters)
    if status.jobs is not None:
        tables["jobs"] = _jobs(status.jobs)
    if status.followers is not None:
        tables["followers"] = _followers(status.followers)
    if any(part.name == "capacity" and part.read_at and not part.problem for part in status.parts):
        tables["capacity"] = _disks(status.capacity, status.taken_at)
    return tables


def _servers(clusters: tuple[ClusterView, ...]) -> Table:
    nodes = [(cluster, node) for cluster in clusters for node in cluster.nodes]
    return Table(
        "Servers",
        ("cluster", "role", "state", "server", "claim", "shards", "lag"),
        tuple(
            (
                cluster.name,
                node.role,
                _state(node),
                node.address,
                node.claim or "",
                f"{cluster.shards:,}" if node.role == "primary" else "",
                lag_text(node),
            )
            for cluster, node in nodes
        ),
        5,
        "no servers",
        faulty=frozenset(number for number, (_, node) in enumerate(nodes) if node.fault is not None),
    )


def _state(node: NodeView) -> str:
    if not node.up:
        return "no answer, breaker open" if node.breaker_open else "no answer"
    return "read-only" if node.read_only else "writable"


def _jobs(jobs: tuple[JobView, ...]) -> Table:
    return Table(
        "Jobs",
        ("job", "state", "waits on", "done", "shards", "rate", "time left"),
        tuple(
            (
                f"{job.name} {job.job_id}",
                "no runner" if job.lacks_runners else "runner silent" if _is_silent(job) else job.state,
                ", ".join(wait.cluster for wait in job.waits),
                f"{job.fraction:.0%} of {bytes_text(job.bytes_total)}",
                f"{job.shards_done:,} of {job.shards:,}",
                "" if job.mb_per_s is None else speed_text(job.mb_per_s),
                _eta(job),
            )
            for job in jobs
        ),
        3,
        "no jobs yet",
        note=" ".join(filter(None, (_waited(job) for job in jobs if job.unfinished))),
        faulty=frozenset(number for number, job in enumerate(jobs) if job.lacks_runners or _is_silent(job)),
    )


def _is_silent(job: JobView) -> bool:
    return job.runners_silent > 0 and job.state != "paused"


def _waited(job: JobView) -> str:
    waited = waited_text({kind: seconds for kind, seconds in job.waited_s.items() if seconds >= 1})
    return f"{job.name} {job.job_id} has waited {waited}.".capitalize() if waited else ""


def _eta(job: JobView) -> str:
    if not job.unfinished and job.ended_at is not None:
        return f"ended {job.ended_at:%Y-%m-%d %H:%M}"
    if job.eta_s is None or job.eta_low_s is None or job.eta_high_s is None:
        return ""
    return f"{duration(job.eta_s)} ({duration(job.eta_low_s)} to {duration(job.eta_high_s)})"


def _followers(followers: tuple[FollowerView, ...]) -> Table:
    return Table(
        "Triggers, indexes and exports",
        ("name", "kind", "state", "workers", "behind", "oldest", "parked"),
        tuple(
            (
                follower.name,
                follower.kind,
                _follower_state(follower),
                f"{follower.workers:,}",
                f"{follower.ids_behind:,} ids",
                duration(follower.behind_s),
                f"{follower.parked:,}",
            )
            for follower in followers
        ),
        3,
        "no triggers, indexes or exports",
        faulty=frozenset(
            number
            for number, follower in enumerate(followers)
            if follower.lacks_workers or {"stopped", "missing"} & follower.shards.keys()
        ),
    )


def _follower_state(follower: FollowerView) -> str:
    none = ["no worker"] if follower.lacks_workers else []
    odd = [f"{count:,} {state}" for state, count in sorted(follower.shards.items()) if state != "running"]
    return ", ".join([follower.state, *none, *odd])


def _disks(capacity: CapacityView | None, now: datetime) -> Table:
    columns = ("disk", "bodies", "files", "free", "size", "full in", "80 % interval")
    if capacity is None:
        return Table("Space", columns, (), 1, "never measured; run 'schemaless capacity measure'")
    age = duration((now - capacity.measured_at).total_seconds())
    return Table(
        "Space",
        columns,
        tuple(
            (
                disk.name,
                bytes_text(disk.body_bytes),
                size_text(disk.file_bytes, "?"),
                size_text(disk.free_bytes, "?"),
                size_text(disk.disk_bytes, "?"),
                disk.days_text,
                _interval(disk.days_low, disk.days_high),
            )
            for disk in capacity.disks
        ),
        1,
        "no disks",
        note=f"First disk full in: {capacity.answer}. Measured {age} ago. {capacity.detail}{capacity.problem or ''}",
    )


def _interval(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f"{counted(int(low), 'day')} or more" if high is None else f"{int(low):,} to {counted(int(high), 'day')}"
