"""Metrics of a datastore for Prometheus: the status that ``monitoring/status`` collects, as samples.

A scrape returns the latest readings and never waits for a server of the datastore. Labels name parts of a datastore,
such as a cluster, server, shard, column or job. They never contain row keys, documents, statements or messages, and the
number of their values is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Self

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector as RegistryCollector

from schemaless.base.logger import log
from schemaless.errors import InvalidInput
from schemaless.monitoring.status.collector import Collector
from schemaless.monitoring.status.model import (
    DEFAULT_OPTIONS,
    CapacityView,
    ClusterView,
    FollowerView,
    JobView,
    ManifestView,
    MonitorOptions,
    Status,
    used_share,
)
from schemaless.store.datastore import Datastore
from schemaless.store.followers.states import PAUSED, QUARANTINED, RUNNING, STOPPED
from schemaless.store.indexes.registry import BACKFILLING, DECLARED, DROPPING, READY

PREFIX: Final = "schemaless_"
_STOP_WAIT_S: Final = 5.0


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: its name, as used in queries after ``schemaless_``; that of a counter ends in ``_total``.
        labels: label names; ``datastore`` is added to every metric.
        text: help text, one sentence.
    """

    name: str
    labels: tuple[str, ...]
    text: str


def _metrics_of(kind: str, labels: str, behind: str, states: str) -> Iterator[tuple[str, str, str]]:
    """Yield the metrics that triggers, indexes and exports share."""
    ids_behind = f"Number of added_ids between the {kind}'s locations and the ends of the shards."
    yield f"{kind}_ids_behind", labels, ids_behind
    yield f"{kind}_behind_seconds", labels, behind
    yield (
        f"{kind}_shards",
        f"{labels} state",
        f"Shards by state: running, {states}or missing (no progress row, or unreachable).",
    )
    yield f"{kind}_workers", labels, f"Live workers of the {kind}."


_WAITING: Final = "waiting for the next attempt at a {0}, quarantined (a {0} killed its worker), stopped, "

METRICS: Final = {
    name: Metric(name, tuple(labels.split()), text)
    for name, labels, text in (
        ("shards", "", "Number of shards of the datastore."),
        ("collector_up", "collector", "1 if the last reading of this part succeeded, else 0."),
        ("collector_seconds", "collector", "Duration of the last reading of this part, in seconds."),
        ("job_state", "kind job state", "1 for the job's current state."),
        ("job_fraction", "kind job", "Completed fraction of the job, by bytes, from 0 to 1."),
        ("job_shards", "kind job state", "Shards by state: waiting, held by a runner, abandoned by one, or done."),
        ("job_cells_total", "kind job", "Bodies that the job has replaced."),
        ("job_bytes_before_total", "kind job", "Bytes of the replaced bodies before the job."),
        ("job_bytes_after_total", "kind job", "Bytes of the replaced bodies after the job."),
        ("job_left_cells", "kind job", "Bodies that the job left unchanged in this pass."),
        ("job_lease_left_seconds", "kind job", "Seconds until the first lease expires, unless renewed."),
        ("job_eta_seconds", "kind job bound", "Estimated seconds until it is done, and the 95 % interval's bounds."),
        ("job_waits", "kind job cluster", "1 if the job is paused, or is waiting for the cluster, else 0."),
        ("job_waited_seconds_total", "kind job cluster reason", "Seconds that the job has waited, by reason."),
        ("server_up", "cluster role server", "1 if the server answers, else 0."),
        ("breaker_open", "cluster role server", "1 if the exporter's own circuit breaker is open, else 0."),
        ("replica_lag_seconds", "cluster server", "Seconds by which the replica lags behind its primary's commits."),
        ("writes_blocked", "cluster server", "1 if commits wait for a replica that is missing or silent, else 0."),
        ("replica_running", "cluster server", "1 if its replication threads run, else 0; absent if unreadable."),
        ("missing_replicas", "cluster", "How many fewer replicas the cluster has than expected."),
        ("exposed", "cluster server", "1 if the cluster lost all replicas or semi-synchronous replication, else 0."),
        ("write_seconds", "cluster server", "Duration of the exporter's last test write."),
        ("write_age_seconds", "cluster server", "Age of the last test write of any monitor."),
        ("write_failed", "cluster server", "1 if the last test write failed or hangs, else 0; absent without one."),
        (
            "old_transaction_seconds",
            "cluster server",
            "Age of the oldest transaction above the threshold, but not a backup, else 0.",
        ),
        ("server_disk_used", "cluster role server", "Used share of its disk, 0 to 1; of servers on this machine only."),
        ("feed_end_location", "cluster shard", "Highest added_id, the end of the change feed; never decreases."),
        *_metrics_of(
            "trigger",
            "trigger",
            "Age of the oldest cell that the trigger has not processed; 0 if there is none.",
            _WAITING.format("cell"),
        ),
        ("trigger_parked_cells", "trigger", "Cells that the trigger has parked."),
        ("trigger_paused", "trigger", "1 if the trigger is paused, else 0."),
        ("index_state", "index number state", "1 for the current state: declared, backfilling, ready or dropping."),
        *_metrics_of(
            "index",
            "index number",
            "Age of the oldest cell that is missing from the index; 0 if none is.",
            "quarantined (a page killed its worker), ",
        ),
        *_metrics_of(
            "export",
            "export",
            "Age of the oldest cell not yet exported; 0 if there is none.",
            _WAITING.format("file"),
        ),
        ("export_target_up", "export", "1 if the metrics process can read the target's manifest, else 0."),
        ("export_files", "export", "Files of cells that the manifest lists."),
        ("export_rows", "export", "Rows in these files."),
        ("export_bytes", "export", "Size of these files in bytes."),
        ("cold_files", "cluster", "Live files of cold cells."),
        ("cold_bytes", "cluster", "Size of these files in bytes."),
        ("cold_waiting_files", "cluster", "Cold files that may have erased documents until an erasure rewrites them."),
        ("measured_timestamp_seconds", "", "Time of the latest measurement, in seconds since 1970."),
        (
            "stored_cells",
            "cluster column codec",
            "Stored cells in the latest measurement; +delta is for differences.",
        ),
        ("stored_body_bytes", "cluster column codec", "Bytes of stored bodies in the latest measurement."),
        ("file_bytes", "cluster", "Bytes of all cell tables' files, counting one copy of the data."),
        ("disk_bytes", "disk", "Size of the disk in the latest measurement."),
        ("disk_free_bytes", "disk", "Free bytes of the disk in the latest measurement."),
        ("disk_days_left", "disk bound", "Whole days until it is full, by bound; +Inf if beyond the forecast."),
    )
}
"""All metrics, by name."""

Values = Iterator[tuple[str, float | None, tuple[object, ...]]]
"""Name of a metric, its value or None if unknown, and the values of its labels."""


def values(status: Status) -> Values:
    """Yield the values of a status; parts that could not be read have none."""
    yield "shards", status.shards, ()
    for part in status.parts:
        if part.read_at is not None:
            yield "collector_up", part.problem is None, (part.name,)
            yield "collector_seconds", part.took_s, (part.name,)
    for cluster in status.clusters or ():
        yield from _of_cluster(cluster)
    newest = {job.kind: job.job_id for job in sorted(status.jobs or (), key=lambda job: job.job_id)}
    for job in status.jobs or ():
        if job.unfinished or newest[job.kind] == job.job_id:
            yield from _of_job(job)
    for place, end in status.ends.items():
        yield "feed_end_location", end, place
    for follower in status.followers or ():
        yield from _of_follower(follower)
    for name, manifest in (status.exports or {}).items():
        yield from _of_export(name, manifest)
    for cold in status.cold or ():
        yield "cold_files", cold.files, (cold.cluster,)
        yield "cold_bytes", cold.bytes, (cold.cluster,)
        yield "cold_waiting_files", cold.waiting, (cold.cluster,)
    if status.capacity is not None:
        yield from _of_capacity(status.capacity)


def _of_cluster(cluster: ClusterView) -> Values:
    yield "missing_replicas", cluster.missing_replicas, (cluster.name,)
    for node in cluster.nodes:
        if node.role == "primary" and node.up:
            yield "exposed", node.exposed is not None, (cluster.name, node.address)
        yield "server_up", node.up, (cluster.name, node.role, node.address)
        yield "server_disk_used", used_share(node), (cluster.name, node.role, node.address)
        yield "breaker_open", node.breaker_open, (cluster.name, node.role, node.address)
        yield "writes_blocked", node.writes_blocked, (cluster.name, node.address)
        yield "replica_running", node.replica_running, (cluster.name, node.address)
        yield "replica_lag_seconds", node.lag_s, (cluster.name, node.address)
        yield "write_seconds", node.write_s, (cluster.name, node.address)
        yield "write_age_seconds", node.write_age_s, (cluster.name, node.address)
        if node.write_problem is not None or node.write_s is not None:
            yield "write_failed", node.write_problem is not None, (cluster.name, node.address)
        if node.transactions is not None:
            oldest_s = max((each.age_s for each in node.transactions if not each.is_backup), default=0.0)
            yield "old_transaction_seconds", oldest_s, (cluster.name, node.address)


def _of_job(job: JobView) -> Values:
    of_job = job.kind, job.job_id
    yield "job_state", 1, (*of_job, job.state)
    yield "job_fraction", job.fraction, of_job
    for state, shards in job.shard_states.items():
        yield "job_shards", shards, (*of_job, state)
    yield "job_cells_total", job.cells, of_job
    yield "job_bytes_before_total", job.bytes_before, of_job
    yield "job_bytes_after_total", job.bytes_after, of_job
    yield "job_left_cells", job.left_cells, of_job
    yield "job_lease_left_seconds", job.lease_left_s, of_job
    for bound, seconds in (("low", job.eta_low_s), ("mid", job.eta_s), ("high", job.eta_high_s)):
        yield "job_eta_seconds", seconds, (*of_job, bound)
    waiting = {wait.cluster for wait in job.waits}
    for cluster, waited_s in job.clusters.items():
        yield "job_waits", job.state == PAUSED or cluster in waiting, (*of_job, cluster)
        for reason, seconds in waited_s.items():
            yield "job_waited_seconds_total", seconds, (*of_job, cluster, reason)


def _of_follower(follower: FollowerView) -> Values:
    kind = follower.kind
    labels: tuple[object, ...] = (follower.name,)
    if kind == "index":
        labels = follower.name, follower.number
        for state in (DECLARED, BACKFILLING, READY, DROPPING):
            yield "index_state", follower.state == state, (*labels, state)
        if not follower.has_rows:
            return
    yield f"{kind}_ids_behind", follower.ids_behind, labels
    yield f"{kind}_behind_seconds", follower.behind_s, labels
    for state in (RUNNING, *(() if kind == "index" else ("waiting", STOPPED)), QUARANTINED, "missing"):
        yield f"{kind}_shards", follower.shards.get(state, 0), (*labels, state)
    yield f"{kind}_workers", follower.workers, labels
    if kind == "trigger":
        yield "trigger_parked_cells", follower.parked, labels
        yield "trigger_paused", follower.state == PAUSED, labels


def _of_export(name: str, manifest: ManifestView | None) -> Values:
    yield "export_target_up", manifest is not None, (name,)
    if manifest is not None:
        yield "export_files", manifest.files, (name,)
        yield "export_rows", manifest.rows, (name,)
        yield "export_bytes", manifest.bytes, (name,)


def _of_capacity(capacity: CapacityView) -> Values:
    yield "measured_timestamp_seconds", capacity.measured_at.timestamp(), ()
    for stored in capacity.stored:
        place = stored.cluster, stored.column, stored.codec
        yield "stored_cells", stored.cells, place
        yield "stored_body_bytes", stored.body_bytes, place
    for cluster, size in capacity.file_bytes.items():
        yield "file_bytes", size, (cluster,)
    for disk in capacity.disks:
        yield "disk_bytes", disk.disk_bytes, (disk.name,)
        yield "disk_free_bytes", disk.free_bytes, (disk.name,)
        for bound, days in disk.bounds.items():
            yield "disk_days_left", math.inf if days is None else days, (disk.name, bound)


class Exporter(RegistryCollector):
    """Answers scrapes with the latest readings of a collector; the collector reads during the ``with`` block.

    Attributes:
        collector: collects the status.
        registry: Prometheus's registry, for an application that serves scrapes itself.

    Args:
        store: the datastore. Give it short timeouts, so that a hanging server is reported quickly.
        options: what is written, and what is reported.
    """

    def __init__(self, store: Datastore, options: MonitorOptions = DEFAULT_OPTIONS) -> None:
        self.collector: Collector = Collector(store, for_metrics=True, options=options)
        self.registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
        self._problems: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self.registry.register(self)
        self.collector.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.collector.__exit__()

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[int]:
        """Serve scrapes on an address for the duration of a ``with`` block, and yield the port; 0 picks a free one.

        Raises:
            InvalidInput: the exporter cannot listen on the address.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as problem:
            raise InvalidInput(f"cannot listen on {host}:{port}: {problem.strerror}") from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join(_STOP_WAIT_S)

    def collect(self) -> Iterable[Family]:
        """Return the latest values, for the registry."""
        status = self.collector.status()
        for part in status.parts:
            if part.problem not in (None, self._problems.get(part.name)):
                log.warning("metrics of %s: %s", part.name, part.problem)
            self._problems[part.name] = part.problem
        families: dict[str, Family] = {}
        for name, value, labels in values(status):
            if name not in families:
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                metric = METRICS[name]
                families[name] = family(PREFIX + name, metric.text, labels=("datastore", *metric.labels))
            if value is not None:
                families[name].add_metric((status.datastore, *map(str, labels)), value)  # type: ignore[attr-defined]
        return families.values()
