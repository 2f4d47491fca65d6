"""Findings of a status: what counts as one, and commands that exist."""

from __future__ import annotations

import shlex
from dataclasses import replace

import click
import pytest

from schemaless.cli.main import cli
from schemaless.monitoring.status.model import ColdView, Finding, TransactionView, status_json
from schemaless.monitoring.status.tables import tables_of
from tests.monitoring.status.statuses import (
    CAPACITY,
    DISK,
    INDEX,
    JOB,
    NOW,
    PARTS,
    PRIMARY,
    REPLICA,
    cluster,
    everything,
    status,
)

pytestmark = pytest.mark.once

FULL = replace(CAPACITY, disks=(replace(DISK, free_bytes=2 * 10**11, clusters=("cluster-1",)),))


def test_a_healthy_datastore_has_no_findings():
    """A running job, followers that keep up, and disks with room."""
    assert status().findings == ()


def test_parts_that_were_not_read_yet_are_no_findings():
    """They are unknown, not wrong; once it was read, a missing measurement is a notice."""
    unread = tuple(replace(part, read_at=None) for part in PARTS)

    assert status(clusters=None, jobs=None, followers=None, capacity=None, parts=unread).findings == ()
    assert [each.command for each in status(capacity=None).findings] == ["schemaless capacity measure"]


def test_the_end_of_a_job_is_a_forecast_or_a_time():
    """On a narrow page, the name of the column stands before either."""
    ended = replace(JOB, job_id=2, state="done", unfinished=False, ended_at=NOW)
    jobs = tables_of(status(jobs=(JOB, ended)))["jobs"]

    assert jobs.columns[-1] == jobs.key == "end"
    assert [row.values[-1] for row in jobs.rows] == ["in 60 s (50 s to 70 s)", "2026-03-01 12:00"]


def test_tables_mark_the_rows_of_faults():
    """A job or follower with a fault has a marked row, which says what is wrong; others have none."""
    found = everything()
    tables = tables_of(found)
    marked = {
        name: {row.values[:3] for row in table.rows if row.faulty}
        for name, table in tables.items()
        if name in ("jobs", "followers")
    }

    faults = {each.where for each in found.findings if each.severity == "fault"}
    assert {job for job, *_ in marked["jobs"]} == {f"{job.name} {job.job_id}" for job in found.jobs or ()} & faults
    assert {f"{kind} {name}" for name, kind, _ in marked["followers"]} == {
        f"{each.kind} {each.name}" for each in found.followers or ()
    } & faults
    states = {row.values[0]: row.values[1] for row in tables["jobs"].rows}
    assert (states["move 4"], states["rebuild 5"], states["restore 6"]) == ("runner silent", "no runner", "paused")
    assert ("idle", "trigger", "running, no worker") in marked["followers"]
    assert "Migration 3 has waited 12 s for lagging replicas." in tables["jobs"].note


def checked(command: str) -> None:
    """Fail unless the command line accepts a command; those of the server's own client are not parsed."""
    words = shlex.split(command)
    if words[0] in ("mysqladmin", "mariadb-admin"):
        return
    assert words.pop(0) == "schemaless"
    found: click.Command = cli
    context = click.Context(cli)
    while isinstance(found, click.Group):
        below = found.get_command(context, words.pop(0))
        assert below is not None, command
        found = below
    with found.make_context(found.name, [*words, "--url", "mysql://u@nowhere.invalid/trips"], parent=context):
        pass


def test_every_finding_has_a_command_that_parses():
    """Of every kind of finding; faults come first."""
    found = everything().findings
    for finding in found:
        checked(finding.command)

    assert len({finding.command for finding in found}) >= 16
    severities = [finding.severity for finding in found]
    assert severities == sorted(severities)
    assert everything().faults == severities.count("fault") > 8


@pytest.mark.parametrize("node", [PRIMARY, REPLICA])
def test_a_server_that_does_not_answer_has_a_reason(node):
    """One without a free connection is not down: nothing is to be promoted or removed then."""
    fault = f"{node.address}: Too many connections (error 1040); raise max_connections"
    (found,) = status(clusters=(cluster(replace(node, up=False, fault=fault)),)).findings

    assert found.text.startswith("does not answer; if it is down, start it, or ")
    assert found.text.endswith(". The error: Too many connections (error 1040); raise max_connections")


@pytest.mark.parametrize(
    ("parts", "severity", "where", "command"),
    [
        (
            {"clusters": (cluster(replace(REPLICA, up=False, fault="no answer")),)},
            "fault",
            "cluster-1, replica db-1b:3306",
            "schemaless topology remove-replica --cluster cluster-1 mysql://db-1b:3306/",
        ),
        (
            {"clusters": (cluster(replace(PRIMARY, write_problem="a test write failed")),)},
            "fault",
            "cluster-1, primary db-1:3306",
            "mysqladmin --host=db-1 --port=3306 --verbose processlist",
        ),
        (
            {"clusters": (cluster(replace(PRIMARY, transactions=(TransactionView(7, "app@db-9", 660.0),))),)},
            "fault",
            "cluster-1, primary db-1:3306",
            "mysqladmin --host=db-1 --port=3306 kill 7",
        ),
        (
            {"clusters": (cluster(replace(PRIMARY, transactions=(TransactionView(7, "backup@db-9", 660.0, True),))),)},
            "notice",
            "cluster-1, primary db-1:3306",
            "mysqladmin --host=db-1 --port=3306 kill 7",
        ),
        ({"capacity": FULL}, "fault", "cluster-1", "schemaless capacity advise"),
        (
            {"capacity": FULL, "clusters": (cluster(replace(PRIMARY, disk_bytes=10**12, free_bytes=10**11)),)},
            "fault",
            "cluster-1, primary db-1:3306",
            "schemaless capacity advise",
        ),
        ({"jobs": (replace(JOB, runners=0),)}, "fault", "migration 3", "schemaless migrate run --execute --job 3"),
        (
            {"jobs": (replace(JOB, kind="move", name="move", state="paused"),)},
            "notice",
            "move 3",
            "schemaless job resume 3",
        ),
        (
            {"followers": (replace(INDEX, kind="export", name="lake", shards={"running": 3, "waiting": 1}),)},
            "fault",
            "export lake",
            "schemaless export status lake",
        ),
        (
            {"cold": (ColdView("cluster-1", 40, 10**9, 2, 12),)},
            "notice",
            "cluster-1",
            "schemaless erase run --execute --erasure 12",
        ),
        (
            {"cold": (ColdView("cluster-1", 40, 10**9, 1, 13, by_policy=True), ColdView("cluster-2", 9, 10**8))},
            "notice",
            "cluster-1",
            "schemaless retention run --execute",
        ),
        ({"capacity": replace(CAPACITY, warnings=("odd",))}, "notice", "capacity", "schemaless capacity report"),
        ({"capacity": replace(CAPACITY, changes=("move 2",))}, "notice", "capacity", "schemaless capacity measure"),
    ],
)
def test_finding_of_one_change(parts, severity, where, command):
    """Exactly one, at the right object."""
    (found,) = status(**parts).findings

    assert (found.severity, found.where, found.command) == (severity, where, command)


def test_findings_with_the_same_text_are_one():
    """A setting of a hundred clusters is one line that names a few of them."""
    warned = [
        replace(cluster(replace(REPLICA, warnings=("it is asynchronous",))), name=f"cluster-{number}")
        for number in range(100)
    ]

    (found,) = status(clusters=tuple(warned)).findings

    assert found == Finding(
        "notice",
        "cluster-0, cluster-1, cluster-2, cluster-3 and 96 more",
        "it is asynchronous",
        "schemaless topology show",
    )


def test_json_has_times_in_iso_8601():
    """Plain values only, under the names of the fields."""
    found = status_json(everything())

    assert found["taken_at"] == "2026-03-01T12:00:00+00:00"
    assert found["jobs"][0]["waits"][0] == {
        "cluster": "cluster-9",
        "reason": "replica db-9 lags by 5.0 s (limit 2 s)",
    }
    assert found["clusters"][0]["nodes"][0]["up"] is False
