"""Statuses for tests that need no server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from schemaless.monitoring.status.findings import findings_of
from schemaless.monitoring.status.model import (
    CapacityView,
    ClusterView,
    ColdView,
    DiskView,
    FollowerView,
    HotShard,
    JobView,
    NodeView,
    PartView,
    Point,
    Status,
    WaitView,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PRIMARY = NodeView("db-1:3306", "primary", True, "9.7.4", False, "held", None, False, False, None, ())
REPLICA = NodeView("db-1b:3306", "replica", True, "9.7.4", True, None, 0.0, False, False, None, ())
JOB = JobView(
    3, "migrate", "migration", "running", True, 0.4, 1e9, 4, 1, 0, 2, 0, 0, 12.5, 60.0, 50.0, 70.0, (), {}, NOW, None
)
TRIGGER = FollowerView("trigger", "billing", "running", 0, 0.0, 0, {"running": 4}, 1)
INDEX = FollowerView("index", "by_client", "ready", 0, 0.0, 0, {"running": 4}, 1)
DISK = DiskView("cluster-1", 1e9, 2_000_000_000, 10**12, 5 * 10**11, "400 days", 400.0, 380.0, 420.0)
CAPACITY = CapacityView(NOW - timedelta(hours=3), 40, "400 days", "Full on 2027-04-05.", (DISK,), ())
PARTS = tuple(PartView(name, NOW, 2.0, None) for name in ("servers", "jobs", "followers", "capacity"))


def cluster(*nodes: NodeView) -> ClusterView:
    """Return a cluster of four shards."""
    return ClusterView("cluster-1", 1, 4, nodes)


def status(**parts: Any) -> Status:
    """Return a status of which the given parts differ from one that needs no attention."""
    whole: dict[str, Any] = {
        "clusters": (cluster(PRIMARY, REPLICA),),
        "jobs": (JOB,),
        "followers": (TRIGGER, INDEX),
        "capacity": CAPACITY,
        "parts": PARTS,
    } | parts
    clusters, jobs, followers, cold = (whole.get(name) or () for name in ("clusters", "jobs", "followers", "cold"))
    found = findings_of(clusters, jobs, followers, whole["capacity"], cold, whole["parts"], NOW)
    return Status("trips", NOW, 4, found, **whole)


def everything() -> Status:
    """Return a status with every kind of finding."""
    down = {"up": False, "version": None, "read_only": None, "claim": None, "lag_s": None, "fault": "no answer"}
    nodes = [
        replace(PRIMARY, **down, breaker_open=True),
        replace(REPLICA, **down),
        replace(PRIMARY, claim="missing", fault="the primary has no claim", warnings=("replication is asynchronous",)),
        replace(PRIMARY, read_only=True, fault="the primary is read-only", disk_bytes=10**12, free_bytes=10**11),
        replace(REPLICA, lag_s=75.0, lag_is_minimum=True),
        replace(REPLICA, address="/run/replica.sock", **down),
    ]
    waits = (WaitView("cluster-9", "replica db-9 lags by 5.0 s (limit 2 s)"), WaitView("cluster-1", "no answer"))
    jobs = [
        replace(JOB, waits=waits, shards_failed=2, waited_s={"lag": 12.0}),
        replace(JOB, job_id=4, kind="move", name="move", runners_silent=1),
        replace(JOB, job_id=5, kind="rebuild", name="rebuild", runners=0),
        replace(JOB, job_id=6, kind="restore", name="restore", state="paused"),
        replace(JOB, job_id=7, kind="erase", name="erasure", waits=waits, shards_failed=1),
        replace(JOB, job_id=8, kind="erase", name="erasure", state="paused"),
        replace(JOB, job_id=9, kind="retain", name="retention run", runners=0, shards_failed=1),
        replace(JOB, job_id=2, state="done", unfinished=False, fraction=1.0, ended_at=NOW),
    ]
    odd = {"running": 1, "stopped": 1, "missing": 1, "quarantined": 1}
    followers = [
        replace(TRIGGER, shards=odd, parked=3, ids_behind=7, behind_s=90.0),
        replace(TRIGGER, name="idle", workers=0, ids_behind=7, behind_s=90.0),
        replace(TRIGGER, name="held", state="paused"),
        replace(INDEX, shards=odd),
        replace(INDEX, name="by_day", state="backfilling", workers=0, ids_behind=1, shards={"running": 4}),
    ]
    disks = tuple(replace(DISK, days_text=f"{days} days", days=days, days_low=days) for days in (9.0, 60.0, 400.0))
    capacity = replace(CAPACITY, measured_at=NOW - timedelta(days=3), disks=disks, warnings=("growth has changed",))
    parts = (replace(PARTS[0], problem="db-1: <it is down>"), *PARTS[1:])
    shown = status(
        clusters=(cluster(*nodes),),
        jobs=tuple(jobs),
        followers=tuple(followers),
        capacity=capacity,
        parts=parts,
        cold=(ColdView("cluster-1", 40, 10**9, 2, 12), ColdView("cluster-2", 9, 10**8, 1, 13, by_policy=True)),
    )
    names = "lag", "puts", "bytes", "days left"
    points = tuple(Point(NOW - timedelta(minutes=10 - number), number**3 / 7) for number in range(10))
    hottest = tuple(HotShard(number, "cluster-1", 40.0 - number, 0.2) for number in range(5))
    return replace(shown, history=dict.fromkeys(names, points), hottest=hottest)
