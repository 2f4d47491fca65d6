"""Values of a status, as last read by the collector. Pure data, without any document, key or password.

Field names are those of ``schemaless status --json``. Times are UTC; durations are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from schemaless.store.followers.states import PAUSED
from schemaless.store.indexes.registry import DECLARED, DROPPING

Severity = Literal["fault", "notice"]


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """What a monitor does, and what it reports.

    Attributes:
        probe: whether it writes a heartbeat on each primary with each reading of the servers.
        transactions_older_than_s: minimum age of the transactions that it reports, in seconds.
        backup_account: name of the account that makes backups; its old transactions are notices instead of faults.
        disk_full_from: used share of a disk from which it is a fault, 0 to 1.
    """

    probe: bool = True
    transactions_older_than_s: float = 600.0
    backup_account: str = "backup"
    disk_full_from: float = 0.8


DEFAULT_OPTIONS: Final = MonitorOptions()


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction that has been open for long: its connection's id, its account and host, and its age in seconds.

    Attributes:
        is_backup: whether the account is the one of backups, whose snapshots are open as long as a dump takes.
    """

    thread: int
    account: str
    age_s: float
    is_backup: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """A server.

    Attributes:
        address: host and port, or the path of the socket.
        role: "primary" or "replica", according to the catalog.
        up: whether the server answers.
        version: version of the server; None if it does not answer.
        read_only: whether it is read-only; None if it does not answer.
        claim: "held", "missing" or "none required"; None for a replica or a server that does not answer.
        lag_s: replication lag; None if unknown, or for a primary.
        lag_is_minimum: whether ``lag_s`` is only a lower bound, because the replica was already behind at the first
            reading.
        breaker_open: whether this process's circuit breaker blocks calls to the server.
        fault: why the server needs attention, or None.
        warnings: settings that could make a failover lose acknowledged cells.
        writes_blocked: whether commits on a semi-synchronous primary wait for a replica that is missing or silent; None
            for a replica or a server that does not answer.
        replica_running: whether a replica's replication threads run; None if unknown, or for a primary.
        exposed: what the cluster has lost of what would let it survive the loss of this primary, or None.
        write_s: duration of this process's last test write on a primary; None before the first.
        write_age_s: age of the last test write of any process; None if unknown, or for a replica.
        write_problem: why the test write failed, or None.
        transactions: a primary's oldest transactions above the threshold; None if unknown, or for a replica.
        disk_bytes: used and free space of its disk, if the server is on this machine and reached by its socket; None
            if unknown.
        free_bytes: free space on that disk.
    """

    address: str
    role: str
    up: bool
    version: str | None
    read_only: bool | None
    claim: str | None
    lag_s: float | None
    lag_is_minimum: bool
    breaker_open: bool
    fault: str | None
    warnings: tuple[str, ...]
    writes_blocked: bool | None = None
    replica_running: bool | None = None
    exposed: str | None = None
    write_s: float | None = None
    write_age_s: float | None = None
    write_problem: str | None = None
    transactions: tuple[TransactionView, ...] | None = None
    disk_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A primary and its replicas; ``missing_replicas`` is how many fewer they are than expected."""

    name: str
    epoch: int
    shards: int
    nodes: tuple[NodeView, ...]
    missing_replicas: int = 0


@dataclass(frozen=True, slots=True)
class WaitView:
    """Why a job is waiting for a cluster."""

    cluster: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobView:
    """A job: an unfinished one, the newest of its kind, or one that ended recently.

    Attributes:
        fraction: completed share by bytes, 0 to 1.
        shards_failed: unfinished shards whose last attempt failed.
        runners: number of shards that a runner is working on.
        runners_silent: number of those shards whose lease was not renewed in time; their runners may have died.
        abandoned: unfinished shards whose runner's lease has expired.
        mb_per_s: rate at which table bytes are processed, in MB per second; None if unknown.
        eta_s: estimated time left; None if unknown.
        eta_low_s: lower end of its 95 % interval.
        eta_high_s: upper end of its 95 % interval.
        waits: why work is waiting now, by cluster.
        waited_s: time spent waiting, by kind of reason, summed over the clusters.
        clusters: time spent waiting, by cluster and kind of reason.
        shard_states: number of shards by state: waiting, held by a runner, abandoned by a runner, or done.
        cells: number of bodies that the job has replaced.
        bytes_before: size of these bodies before the job.
        bytes_after: size of these bodies after the job.
        left_cells: number of bodies left unchanged in this pass.
        lease_left_s: time until the first lease expires unless renewed; None without runners.
    """

    job_id: int
    kind: str
    name: str
    state: str
    unfinished: bool
    fraction: float
    bytes_total: float
    shards: int
    shards_done: int
    shards_failed: int
    runners: int
    runners_silent: int
    abandoned: int
    mb_per_s: float | None
    eta_s: float | None
    eta_low_s: float | None
    eta_high_s: float | None
    waits: tuple[WaitView, ...]
    waited_s: Mapping[str, float]
    created_at: datetime
    ended_at: datetime | None
    clusters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    shard_states: Mapping[str, int] = field(default_factory=dict)
    cells: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left_cells: int = 0
    lease_left_s: float | None = None

    @property
    def lacks_runners(self) -> bool:
        """Whether a runner has to be started to finish the job."""
        return self.unfinished and self.state != "paused" and not self.runners


@dataclass(frozen=True, slots=True)
class FollowerView:
    """A trigger, an index or an export.

    Attributes:
        kind: "trigger", "index" or "export".
        state: "running", "paused" or "new" for a trigger or an export; for an index, "declared", "backfilling", "ready"
            or "dropping".
        ids_behind: added_ids between the locations and the ends of all shards.
        behind_s: age, in seconds, of the oldest cell not yet handled; only the shards furthest behind are queried.
        parked: cells that the trigger has parked.
        shards: number of shards by state, such as running, waiting, quarantined, stopped and missing; empty for an
            index that is declared or being dropped.
        workers: number of live workers.
        number: number of an index, which distinguishes it from its replacement; None for others.
    """

    kind: str
    name: str
    state: str
    ids_behind: int = 0
    behind_s: float = 0.0
    parked: int = 0
    shards: Mapping[str, int] = field(default_factory=dict)
    workers: int = 0
    number: int | None = None

    @property
    def has_rows(self) -> bool:
        """Whether it has a row in each shard; an index that is declared or being dropped has none."""
        return self.state not in (DECLARED, DROPPING)

    @property
    def lacks_workers(self) -> bool:
        """Whether cells are waiting and no worker is running; always False for exports, which may run from cron."""
        return self.kind != "export" and self.state != PAUSED and not self.workers and self.ids_behind > 0


@dataclass(frozen=True, slots=True)
class DiskView:
    """A disk in the newest measurement and its forecast.

    Attributes:
        name: names of the clusters on it.
        body_bytes: size of the stored bodies, without replicas.
        file_bytes: size of the cell tables' files, without replicas; None if unknown.
        days_text: days until it is full, in words.
        days: days until it is full; None if unknown, or beyond the forecast.
        days_low: lower end of the 80 % interval.
        days_high: upper end of the 80 % interval.
        bounds: whole days until it is full, by bound of the bands; None beyond the forecast. Empty if unknown.
        clusters: names of the clusters on it.
    """

    name: str
    body_bytes: float
    file_bytes: int | None
    disk_bytes: int | None
    free_bytes: int | None
    days_text: str
    days: float | None
    days_low: float | None
    days_high: float | None
    bounds: Mapping[str, float | None] = field(default_factory=dict)
    clusters: tuple[str, ...] = ()


def used_share(disk: NodeView | DiskView) -> float | None:
    """Return the used share of a disk, 0 to 1; None if unknown."""
    return None if not disk.disk_bytes or disk.free_bytes is None else 1 - disk.free_bytes / disk.disk_bytes


@dataclass(frozen=True, slots=True)
class StoredView:
    """Cells and bytes of bodies in the newest measurement, by cluster, column and codec."""

    cluster: str
    column: str
    codec: str
    cells: int
    body_bytes: int


class Point(NamedTuple):
    """A value at a time."""

    at: datetime
    value: float


@dataclass(frozen=True, slots=True)
class HotShard:
    """A shard with many puts: how many per second, and their share of the puts to all shards, 0 to 1."""

    shard: int
    cluster: str
    puts_per_s: float
    share: float


@dataclass(frozen=True, slots=True)
class CapacityView:
    """The newest measurement, and what a capacity report forecasts from all of them.

    Attributes:
        measured_at: time of the newest measurement.
        measurements: number of measurements.
        answer: when the first disk will be full, in a word or two.
        detail: date and intervals, as sentences.
        disks: one for each disk.
        warnings: reasons not to rely on the forecast.
        changes: jobs that have changed sizes since the measurement, as clauses.
        problem: why there is no forecast, or None.
        stored: what is stored, by cluster, column and codec.
        file_bytes: size of the cell tables' files, without replicas, by cluster.
        sizes: size of these files in each measurement that was read, oldest first.
    """

    measured_at: datetime
    measurements: int
    answer: str
    detail: str
    disks: tuple[DiskView, ...]
    warnings: tuple[str, ...]
    changes: tuple[str, ...] = ()
    problem: str | None = None
    stored: tuple[StoredView, ...] = ()
    file_bytes: Mapping[str, int] = field(default_factory=dict)
    sizes: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestView:
    """Contents of an export according to its manifest: number and size of its files, and number of rows in them."""

    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ColdView:
    """Cold files of a cluster's shards.

    Attributes:
        files: number of live files.
        bytes: size of the live files.
        waiting: number of files that may have documents of cells that were erased.
        erasure: number of the first of these erasures; 0 if there is none.
        by_policy: whether that is a retention run.
    """

    cluster: str
    files: int
    bytes: int
    waiting: int = 0
    erasure: int = 0
    by_policy: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs attention, and the command that fixes it or shows more.

    Attributes:
        severity: "fault" if something is broken or has stopped, else "notice".
        where: the object, such as "cluster-1" or "job 3".
        text: what is wrong, as a clause.
        command: a command line; words in upper case are placeholders.
    """

    severity: Severity
    where: str
    text: str
    command: str


@dataclass(frozen=True, slots=True)
class PartView:
    """When a part of the status was read.

    Attributes:
        name: servers, jobs, followers, shards (of followers), capacity, cold or exports.
        read_at: time of the last reading; None before the first.
        every_s: rest before the next reading, in seconds.
        problem: why the last reading failed, or None.
        took_s: duration of the last reading, in seconds.
    """

    name: str
    read_at: datetime | None
    every_s: float
    problem: str | None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a datastore. A part that has not been read yet, or could not be read, is None.

    Attributes:
        ends: highest added_id of each shard, by cluster and shard; set for metrics only, not in JSON.
        exports: the manifests of the exports, None for one that cannot be read; read for metrics only, not in JSON.
        cold: cold files by cluster; empty without a cold store.
        hottest: shards with the most puts between the last two readings of all shards.
        history: points that the collector remembers of "lag" (s), "puts" (per s), "bytes" and "days left"; not in JSON.
    """

    datastore: str
    taken_at: datetime
    shards: int
    findings: tuple[Finding, ...]
    clusters: tuple[ClusterView, ...] | None
    jobs: tuple[JobView, ...] | None
    followers: tuple[FollowerView, ...] | None
    capacity: CapacityView | None
    parts: tuple[PartView, ...]
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    exports: Mapping[str, ManifestView | None] | None = None
    cold: tuple[ColdView, ...] | None = None
    hottest: tuple[HotShard, ...] = ()
    history: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        """Addresses of all servers."""
        return [node.address for cluster in self.clusters or () for node in cluster.nodes]

    @property
    def faults(self) -> int:
        """Number of findings that are faults."""
        return sum(finding.severity == "fault" for finding in self.findings)


def status_json(status: Status) -> dict[str, Any]:
    """Return the status as JSON values, with times in ISO 8601."""
    left_out = ("ends", "exports", "history")
    return {name: _plain(value) for name, value in asdict(status).items() if name not in left_out}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value
