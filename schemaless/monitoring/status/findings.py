"""What needs attention in a status, each with the command that fixes it or shows more. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from schemaless.base.numbers import bytes_text, counted
from schemaless.base.parts import grouped
from schemaless.monitoring.status.model import (
    DEFAULT_OPTIONS,
    CapacityView,
    ClusterView,
    ColdView,
    DiskView,
    Finding,
    FollowerView,
    JobView,
    NodeView,
    PartView,
    used_share,
)
from schemaless.ops.jobs.job import continue_command
from schemaless.store.followers.states import PAUSED, QUARANTINED, STOPPED
from schemaless.ui.terminal.progress import duration

_OBJECTS: Final = 4
"""Maximum number of objects that a finding names."""
_LAG_S: Final = 10.0
_BEHIND_S: Final = 60.0
_OLD: Final = timedelta(days=2)
_DAYS_NOTICE: Final = 90
_DAYS_FAULT: Final = 14


def findings_of(
    clusters: Sequence[ClusterView],
    jobs: Sequence[JobView],
    followers: Sequence[FollowerView],
    capacity: CapacityView | None,
    cold: Sequence[ColdView],
    parts: Sequence[PartView],
    now: datetime,
    disk_full_from: float = DEFAULT_OPTIONS.disk_full_from,
) -> tuple[Finding, ...]:
    """Return all findings, faults first."""
    clusters_down = {cluster.name for cluster in clusters if not all(node.up for node in cluster.nodes)}
    found = [
        *(_part(part) for part in parts if part.problem is not None),
        *(finding for cluster in clusters for node in cluster.nodes for finding in _node(cluster, node)),
        *(finding for job in jobs if job.unfinished for finding in _job(job, clusters_down)),
        *(finding for follower in followers for finding in _follower(follower)),
        *(_cold(view) for view in cold if view.waiting),
    ]
    if any(part.name == "capacity" and part.read_at is not None and part.problem is None for part in parts):
        found += _capacity(capacity, now)
    found += _full_disks(clusters, () if capacity is None else capacity.disks, disk_full_from)
    return tuple(sorted(_merged(found), key=lambda finding: finding.severity != "fault"))


def _merged(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Merge findings with the same severity, text and command into one that names their objects."""
    by_text = grouped(((finding.severity, finding.text, finding.command), finding.where) for finding in findings)
    for (severity, text, command), objects in by_text.items():
        more = len(objects) - _OBJECTS
        where = ", ".join(objects[:_OBJECTS]) + (f" and {more:,} more" if more > 0 else "")
        yield Finding(severity, where, text, command)


def _part(part: PartView) -> Finding:
    return Finding("fault", part.name, f"cannot be read: {part.problem}", "schemaless topology show")


def _node(cluster: ClusterView, node: NodeView) -> Iterator[Finding]:
    where = f"{cluster.name}, {node.role} {node.address}"
    reason = (node.fault or "").removeprefix(f"{node.address}: ")
    if not node.up and node.role == "replica":
        command = f"schemaless topology remove-replica --cluster {cluster.name} {_url(node)}"
        text = f"does not answer; if it is down, start it, or remove it from the catalog. The error: {reason}"
        yield Finding("fault", where, text, command)
    elif not node.up:
        command = f"schemaless topology adopt --cluster {cluster.name} NEW_PRIMARY_URL"
        text = f"does not answer; if it is down, start it, or promote a replica and adopt it. The error: {reason}"
        yield Finding("fault", where, text, command)
    elif node.fault is not None:
        adopts = node.claim == "missing"
        command = f"schemaless topology adopt --cluster {cluster.name} NEW_PRIMARY_URL"
        yield Finding("fault", where, node.fault, command if adopts else "schemaless topology show")
    elif node.write_problem is not None:
        yield Finding("fault", where, node.write_problem, _admin(node, "--verbose processlist"))
    if node.exposed is not None:
        command = f"schemaless topology add-replica --cluster {cluster.name} REPLICA_URL"
        yield Finding("fault", where, node.exposed, command if cluster.missing_replicas else "schemaless topology show")
    for each in node.transactions or ():
        text = (
            f"{each.account} has had a transaction open for {duration(each.age_s)}; moves, rebuilds, schema upgrades "
            "and the change feed may wait for it, and the server cannot purge"
        )
        yield Finding("notice" if each.is_backup else "fault", where, text, _admin(node, f"kill {each.thread}"))
    if node.lag_s is not None and node.lag_s > _LAG_S:
        yield Finding("notice", where, f"lags by {lag_text(node)}", "schemaless topology show")
    for warning in node.warnings:
        yield Finding("notice", cluster.name, warning, "schemaless topology show")


def lag_text(node: NodeView) -> str:
    """Return a replica's lag in words; the empty string if it is unknown."""
    if node.lag_s is None:
        return ""
    return f"{'at least ' if node.lag_is_minimum else ''}{duration(node.lag_s)}"


def _admin(node: NodeView, command: str) -> str:
    host, _, port = node.address.rpartition(":")
    where = f"--socket={node.address}" if "/" in node.address else f"--host={host.strip('[]')} --port={port}"
    program = "mariadb-admin" if "MariaDB" in (node.version or "") else "mysqladmin"
    return f"{program} {where} {command}"


def _url(node: NodeView) -> str:
    return f"'mysql:///?unix_socket={node.address}'" if "/" in node.address else f"mysql://{node.address}/"


def _job(job: JobView, clusters_down: Container[str]) -> Iterator[Finding]:
    where = f"{job.name} {job.job_id}"
    if job.state == "paused":
        yield Finding("notice", where, "is paused", f"schemaless job resume {job.job_id}")
    elif job.lacks_runners:
        command = continue_command(job.kind, job.job_id)
        yield Finding("fault", where, "is not finished, and no runner is working on it", command)
    elif job.runners_silent:
        text = f"{counted(job.runners_silent, 'shard')}: the lease was not renewed in time; the runner may have died"
        yield Finding("fault", where, text, continue_command(job.kind, job.job_id))
    for wait in job.waits if job.state != "paused" else ():
        # Its servers have findings of their own; thresholds do not bring one back.
        down = wait.cluster in clusters_down
        command = "schemaless topology show" if down else f"schemaless job set {job.job_id}"
        yield Finding("notice", where, f"waits on {wait.cluster}: {wait.reason}", command)
    if job.shards_failed:
        text = f"the last attempt at {counted(job.shards_failed, 'shard')} failed or was interrupted"
        yield Finding("notice", where, text, f"schemaless job show {job.job_id}")


def _follower(follower: FollowerView) -> Iterator[Finding]:
    where, name = f"{follower.kind} {follower.name}", follower.name
    status = f"schemaless {follower.kind} status {name}"
    is_trigger, is_export = follower.kind == "trigger", follower.kind == "export"
    if stopped := follower.shards.get(STOPPED):
        command = f"schemaless trigger resume {name}" if is_trigger else "schemaless index run"
        command = status if is_export else command
        yield Finding("fault", where, f"has stopped in {counted(stopped, 'shard')}", command)
    if missing := follower.shards.get("missing"):
        yield Finding("fault", where, f"has no readable progress row in {counted(missing, 'shard')}", status)
    if quarantined := follower.shards.get(QUARANTINED):
        yield Finding("notice", where, f"{counted(quarantined, 'shard')} quarantined: a cell killed a worker", status)
    if follower.parked:
        text = f"has parked {counted(follower.parked, 'cell')}"
        yield Finding("notice", where, text, f"schemaless trigger parked {name}")
    if is_export:
        if waiting := follower.shards.get("waiting"):
            yield Finding("fault", where, f"cannot continue in {counted(waiting, 'shard')}", status)
        # An export that runs from cron lags between its runs and has no worker.
        return
    if follower.state == PAUSED:
        yield Finding("notice", where, "is paused", f"schemaless trigger resume {name}" if is_trigger else status)
    elif follower.lacks_workers:
        command = "schemaless trigger run MODULE:FUNCTION" if is_trigger else "schemaless index run"
        yield Finding("fault", where, f"no worker is running, and the oldest cell has waited {_age(follower)}", command)
    elif follower.behind_s > _BEHIND_S:
        yield Finding("notice", where, f"is {_age(follower)} behind", status)


def _cold(view: ColdView) -> Finding:
    command = f"schemaless erase run --execute --erasure {view.erasure}"
    command = "schemaless retention run --execute" if view.by_policy else command
    text = f"{counted(view.waiting, 'cold file')} may have erased documents"
    return Finding("notice", view.cluster, text, command)


def _age(follower: FollowerView) -> str:
    return duration(follower.behind_s)


def _full_disks(clusters: Sequence[ClusterView], disks: Sequence[DiskView], full_from: float) -> Iterator[Finding]:
    """Yield the disks that are full to a share or more, as seen now or, where none can be seen, in the measurement."""
    seen = {cluster.name for cluster in clusters for node in cluster.nodes if node.disk_bytes}
    found: list[tuple[str, NodeView | DiskView]] = [
        (f"{cluster.name}, {node.role} {node.address}", node) for cluster in clusters for node in cluster.nodes
    ]
    found += [(disk.name, disk) for disk in disks if seen.isdisjoint(disk.clusters)]
    for where, disk in found:
        if (used := used_share(disk)) is not None and used >= full_from:
            when = "is" if isinstance(disk, NodeView) else "was, when it was last measured,"
            text = f"the disk {when} {math.floor(100 * used)} % full ({bytes_text(disk.free_bytes or 0)} free)"
            yield Finding("fault", where, text, "schemaless capacity advise")


def _capacity(capacity: CapacityView | None, now: datetime) -> Iterator[Finding]:
    if capacity is None:
        yield Finding("notice", "capacity", "was never measured", "schemaless capacity measure")
        return
    if now - capacity.measured_at > _OLD:
        age = duration((now - capacity.measured_at).total_seconds())
        yield Finding("notice", "capacity", f"was last measured {age} ago", "schemaless capacity measure")
    for disk in capacity.disks:
        if disk.days_low is not None and disk.days_low < _DAYS_NOTICE:
            text = f"time until the disk is full: {disk.days_text}"
            soon = disk.days_low < _DAYS_FAULT
            yield Finding("fault" if soon else "notice", disk.name, text, "schemaless capacity report")
    for change in capacity.changes:
        yield Finding("notice", "capacity", f"{change} since the measurement", "schemaless capacity measure")
    for warning in capacity.warnings:
        yield Finding("notice", "capacity", warning, "schemaless capacity report")
