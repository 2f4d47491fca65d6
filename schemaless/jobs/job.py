"""Jobs: what they are to do, where they are on each shard and cluster, and what they met. Values only.

``job_store`` keeps them in the catalog.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from schemaless.cell import CellKey
from schemaless.errors import InvalidInput, JobConflict
from schemaless.events import Event
from schemaless.jobs.throttle import Thresholds

Kind = Literal["migrate", "move", "rebuild", "restore"]
_COMMANDS: Final[dict[str, str]] = {
    "migrate": "migrate run",
    "move": "shards move",
    "rebuild": "rebuild",
    "restore": "migrate restore",
}
_NAMES: Final[dict[str, str]] = {"migrate": "migration", "move": "move", "rebuild": "rebuild", "restore": "restore"}
JobState = Literal["running", "paused", "done", "aborted", "finalised"]


@dataclass(frozen=True, slots=True)
class Job:
    """A job.

    Attributes:
        job_id: 1, 2, ...
        state: "running" (with or without a runner), "paused", "done", "aborted" or "finalised".
        spec: what was asked for.
        versions: of the libraries that it was begun with.
        created_by: user and machine.
        created_at: UTC.
        ended_at: UTC, or None.
        message: why it is in its state, where somebody said so.
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
        """When it waits; as this was read, since they may be changed at any moment."""
        return thresholds_of(self.spec)

    @property
    def unfinished(self) -> bool:
        """Whether there may be work left."""
        return self.state in ("running", "paused")

    def check_kind(self, kind: Kind) -> None:
        """Refuse a job of another kind.

        Raises:
            InvalidInput: it is one; the message has the command that works on it, while there is work.
        """
        if self.kind != kind:
            goes_on = f"; '{go_on_command(self.kind, self.job_id)}' continues it" if self.unfinished else ""
            raise InvalidInput(f"job {self.job_id} is a {_NAMES[self.kind]}, not a {_NAMES[kind]}{goes_on}")


@dataclass(frozen=True, slots=True)
class RunBegan(Event):
    """A run of a job begins: the first one, where the job is new, or one that goes on with it."""

    job: Job
    new: bool


@dataclass(frozen=True, slots=True)
class RunGoesOn(Event):
    """A run goes on; told about twice a second, with the job as it was last seen.

    A listener may ask the catalog then: a ``ServerError`` that it raises is taken for one that the run itself has met.
    """

    job: Job


def thresholds_of(spec: Mapping[str, Any]) -> Thresholds:
    """Return the thresholds that stand in the spec of a job of any kind."""
    return Thresholds.of(spec.get("thresholds", {}))


def check_goes_on(job: Job, kind: Kind) -> None:
    """Refuse a job that a run of this kind cannot go on with.

    Raises:
        InvalidInput: it is of another kind.
        JobConflict: it has ended.
    """
    job.check_kind(kind)
    if not job.unfinished:
        raise JobConflict(
            f"job {job.job_id} is {job.state}; run 'schemaless {_COMMANDS[kind]} --execute' for a new one", job.job_id
        )


def job_name(kind: Kind) -> str:
    """Return what a job of a kind is called."""
    return _NAMES[kind]


def begin_command(kind: Kind) -> str:
    """Return the command that begins a job of a kind."""
    return f"schemaless {_COMMANDS[kind]} --execute"


def go_on_command(kind: str, job_id: int) -> str:
    """Return the command that works on a job."""
    return f"schemaless {_COMMANDS[kind]} --execute --job {job_id}"


def abort_command(kind: str, job_id: int) -> str:
    """Return the command that ends a job for good."""
    return steer_command("abort", kind, job_id)


def steer_command(verb: str, kind: str, job_id: int) -> str:
    """Return the command that does something to a job, such as ``throttle``."""
    return f"schemaless {'shards' if kind == 'move' else 'migrate'} {verb} --job {job_id}"


@dataclass(slots=True)
class ShardState:
    """Where a job is on one shard.

    Attributes:
        state: "waiting" (not through yet, whether somebody works on it or not) or "done".
        pass_number: from 1; how often it has begun at the shard's first cell.
        first_id: the lowest added_id at the pass's beginning.
        top_id: the highest one.
        checkpoint: this pass is through up to and with this added_id.
        cells: bodies replaced.
        bytes_before: what those took.
        bytes_after: what they take now.
        left_cells: bodies that were left as they are, in this pass.
        counters: the same in detail; the job's own business.
        busy_s: how long runners have had it: waits for servers and for the budget count, since they will go on; being
            paused, and the time between passes, do not.
        data_bytes: what its table took when the job was made, as InnoDB estimates: a weight.
        runner: who has it, or had it last.
        epoch: how often it was taken.
        lease_left_s: how long it is the runner's, by the server's clock; negative when that is over, None without one.
        stop: whether its runner was asked to stop.
        message: what went wrong.
        measures: sizes before and after; the job's own business.
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

    @property
    def held(self) -> bool:
        """Whether a runner has it now."""
        return self.state == "waiting" and self.lease_left_s is not None and self.lease_left_s > 0

    @property
    def fraction(self) -> float:
        """How much of the pass is through, by added_ids: 0 to 1."""
        if self.state != "waiting":
            return 1.0
        if not self.top_id:
            return 0.0
        span = self.top_id - self.first_id + 1
        return min(1.0, max(0.0, (self.checkpoint - self.first_id + 1) / span))


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the runner that watches a cluster for the others has seen.

    Attributes:
        runner: who watches.
        lease_left_s: as in ``ShardState``.
        looked_ago_s: how long ago it looked, or None where nobody did.
        reason: why work on this cluster waits, or None.
        figures: what it saw.
        waits: seconds waited, by kind of reason.
        measures: binary log and the like; the job's own business.
    """

    cluster: str
    runner: str | None
    lease_left_s: float | None
    looked_ago_s: float | None
    reason: str | None
    figures: dict[str, Any]
    waits: dict[str, float]
    measures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that was left as it is."""

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
    """What a runner hears when it renews its lease.

    Attributes:
        state: the job's.
        stop: whether this runner is to stop.
        reason: why work on its cluster waits, or None.
        looked_ago_s: how old that is; None where nobody has looked yet.
        watches: whether it is this runner that looks.
        yields: whether to take small steps, since applications use the cluster's primary.
        spec: what the job is to do, as JSON text: thresholds may have been changed.
    """

    state: JobState
    stop: bool
    reason: str | None
    looked_ago_s: float | None
    watches: bool
    yields: bool
    spec: str
