"""Data classes for jobs: the job, its state on each shard and cluster, and its failures. ``job_store`` stores them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from schemaless.base.events import Event
from schemaless.cell import CellKey
from schemaless.errors import InvalidInput, JobConflict
from schemaless.ops.jobs.throttle import Thresholds

Kind = Literal["erase", "migrate", "move", "rebuild", "recall", "restore", "retain", "sweep", "tier"]
_KINDS: Final[dict[str, tuple[str, str, str]]] = {
    # kind: (display name, command that runs such jobs, role that their account needs)
    "erase": ("erasure", "erase run", "erase"),
    "migrate": ("migration", "migrate run", "migrate"),
    "move": ("move", "shards move", "move"),
    "rebuild": ("rebuild", "rebuild", "move"),
    "recall": ("recall", "tier recall", "migrate"),
    "restore": ("restore", "migrate restore", "migrate"),
    "retain": ("retention run", "retention run", "erase"),
    "sweep": ("sweep", "tier sweep", "migrate"),
    "tier": ("tiering run", "tier run", "migrate"),
}

NOT_EXCLUSIVE: Final[frozenset[str]] = frozenset({"erase", "retain"})
"""Kinds of jobs that may run alongside other jobs on the same shards."""

JobState = Literal["running", "paused", "done", "cancelled", "finalised"]


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        job_id: number of the job, from 1.
        kind: kind of the job.
        state: "running" (whether or not a runner works on it), "paused", "done", "cancelled" or "finalised".
        spec: parameters of the job as JSON values.
        versions: versions of the libraries and servers when the job was created.
        created_by: user and machine.
        created_at: creation time, UTC.
        ended_at: end time, UTC; None while unfinished.
        message: reason for the state, if one was given.
    """

    job_id: int
    kind: Kind
    state: JobState
    spec: dict[str, Any]
    versions: dict[str, Any]
    created_by: str
    created_at: datetime
    ended_at: datetime | None
    message: str | None

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds as of when the job was read; they may change at any time."""
        return thresholds_of(self.spec)

    @property
    def unfinished(self) -> bool:
        """Whether the job is running or paused."""
        return self.state in ("running", "paused")

    def check_kind(self, kind: Kind) -> None:
        """Check that the job is of this kind.

        Raises:
            InvalidInput: the job is of another kind; if it is unfinished, the message says how to continue it.
        """
        if self.kind != kind:
            next_step = f"; '{continue_command(self.kind, self.job_id)}' continues it" if self.unfinished else ""
            raise InvalidInput(f"job {self.job_id} is {_article(self.kind)}, not {_article(kind)}{next_step}")


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A run of a job starts. ``new`` is True for the run that created the job."""

    job: Job
    new: bool


@dataclass(frozen=True, slots=True)
class RunProgress(Event):
    """A run is in progress; sent about twice a second with the job as last read.

    The listener may query the catalog. A ``ServerError`` that it raises is handled like one raised by the run itself.
    """

    job: Job


def thresholds_of(spec: Mapping[str, Any]) -> Thresholds:
    """Return the thresholds stored in the spec of any kind of job."""
    return Thresholds.of(spec.get("thresholds", {}))


def check_unfinished(job: Job, kind: Kind) -> None:
    """Check that a run of this kind can continue a job.

    Raises:
        InvalidInput: the job is of another kind.
        JobConflict: the job has ended.
    """
    job.check_kind(kind)
    if not job.unfinished:
        raise JobConflict(
            f"cannot continue job {job.job_id}: it is {job.state}; start a new job with '{start_command(kind)}'",
            job.job_id,
        )


def job_name(kind: Kind) -> str:
    """Return the display name of a kind of job."""
    return _KINDS[kind][0]


def _article(kind: Kind) -> str:
    return f"{'an' if kind == 'erase' else 'a'} {job_name(kind)}"


def role_of(kind: Kind) -> str:
    """Return the role that the account of a kind of job needs."""
    return _KINDS[kind][2]


def start_command(kind: Kind) -> str:
    """Return the command that starts a job of the given kind."""
    return f"schemaless {_KINDS[kind][1]} --execute"


def continue_command(kind: str, job_id: int) -> str:
    """Return the command that continues a job."""
    return f"schemaless {_KINDS[kind][1]} --execute --job {job_id}"


def end_command(kind: str, job_id: int) -> str:
    """Return the command that ends a job for good."""
    return f"schemaless shards abort --job {job_id}" if kind == "move" else f"schemaless job cancel {job_id}"


@dataclass(slots=True)
class ShardState:
    """State of a job on one shard.

    Attributes:
        shard: shard number.
        state: "waiting" (unfinished, whether or not a runner works on it), "done" or "failed".
        pass_number: number of the current pass over the shard, from 1.
        first_id: lowest added_id at the start of the pass.
        top_id: highest added_id at the start of the pass, or the checkpoint if that is higher.
        checkpoint: the pass has completed the cells up to and including this added_id.
        cells: number of bodies replaced.
        bytes_before: total size of those bodies before replacement, in bytes.
        bytes_after: total size of the bodies that replaced them, in bytes.
        left_cells: number of bodies left unchanged in this pass.
        counters: detailed counters, defined by the kind of job.
        busy_s: time that runners have spent on the shard, in seconds. Waits for servers and for the rate limit are
            included, since the remaining work will incur them, too; pauses and the time between passes are not.
        data_bytes: estimated size of the shard's ``cell`` table when the job was created, in bytes; used as a weight.
        runner: the runner that holds the shard, or held it last.
        epoch: number of times the shard was claimed.
        lease_left_s: seconds left of the lease by the server's clock; negative if it has expired, None without a lease.
        stop: whether the runner was asked to stop.
        message: error or remark.
        started_at: time of the first claim, UTC.
        ended_at: time of completion, UTC.
        measures: measurements such as file sizes, defined by the kind of job.
    """

    shard: int
    state: str = "waiting"
    pass_number: int = 1
    first_id: int = 0
    top_id: int = 0
    checkpoint: int = 0
    cells: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left_cells: int = 0
    counters: dict[str, Any] = field(default_factory=dict)
    busy_s: float = 0.0
    data_bytes: int = 0
    runner: str | None = None
    epoch: int = 0
    lease_left_s: float | None = None
    stop: bool = False
    message: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    measures: dict[str, Any] = field(default_factory=dict)

    def lease(self, job_id: int) -> dict[str, int | str]:
        """Return the values of ``job_shard`` that guard each update by the runner that claimed the shard."""
        return {"job_id": job_id, "shard": self.shard, "runner": self.runner or "", "epoch": self.epoch}

    @property
    def held(self) -> bool:
        """Whether a runner holds a valid lease."""
        return self.state == "waiting" and self.lease_left_s is not None and self.lease_left_s > 0

    @property
    def fraction(self) -> float:
        """Completed share of the pass, measured by added_id, 0 to 1."""
        if self.state != "waiting":
            return 1.0
        if not self.top_id:
            return 0.0
        span = self.top_id - self.first_id + 1
        return min(1.0, max(0.0, (self.checkpoint - self.first_id + 1) / span))


@dataclass(frozen=True, slots=True)
class ClusterState:
    """State of a job on a cluster, as stored by the runner that watches the cluster.

    Attributes:
        cluster: name of the cluster.
        runner: the runner that holds the watch, or held it last.
        lease_left_s: seconds left of the watch's lease; as in ``ShardState``.
        polled_ago_s: age of the last poll in seconds; None if there was none.
        reason: why work on this cluster waits, or None.
        figures: measurements of the last poll.
        waits: seconds waited, by kind of reason.
        measures: measurements such as binary log positions, defined by the kind of job.
    """

    cluster: str
    runner: str | None
    lease_left_s: float | None
    polled_ago_s: float | None
    reason: str | None
    figures: dict[str, Any]
    waits: dict[str, float]
    measures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that a job left unchanged, and why."""

    shard: int
    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    reason: str
    message: str

    @property
    def key(self) -> CellKey:
        """The cell's key."""
        return CellKey(uuid.UUID(bytes=self.row_key), self.column_name, self.ref_key)


@dataclass(frozen=True, slots=True)
class Signal:
    """What a runner receives when it renews its lease.

    Attributes:
        state: state of the job.
        stop: whether the runner has to stop.
        reason: why work on the cluster waits, or None.
        polled_ago_s: age of the last poll of the cluster in seconds; None if there was none.
        watches: whether this runner holds the watch of the cluster.
        yields: whether to take small steps because applications use the cluster's primary.
        spec: parameters of the job as JSON text; thresholds may have changed.
    """

    state: JobState
    stop: bool
    reason: str | None
    polled_ago_s: float | None
    watches: bool
    yields: bool
    spec: str
