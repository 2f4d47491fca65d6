"""``schemaless job``: shows and controls jobs of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import click

from schemaless.base.numbers import bytes_text, counted, shards_text
from schemaless.base.runner_names import process_of, who
from schemaless.cli.command import Command, QueryCommand
from schemaless.cli.job_options import throttle_changes
from schemaless.cli.option import option
from schemaless.cli.quantities import CatalogId
from schemaless.errors import InvalidInput, JobConflict
from schemaless.ops.jobs.job import Job, JobState, ShardState, continue_command, end_command, job_name
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.status import JobStatus, status_of, waits_of
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.job_progress import progress_text, thresholds_text
from schemaless.ui.terminal.output import as_json, facts, note, out, print_result, print_table
from schemaless.ui.terminal.progress import waited_text

_SHARDS_SHOWN: Final = 16
_COLUMNS: Final = ("shard", "state", "pass", "through", "cells", "before", "after", "left", "runner")


_job_argument = click.argument("job_id", type=CatalogId(), metavar="[N]", required=False)


@click.group()
def job() -> None:
    """Show and control long-running jobs.

    Migrations, restores, rebuilds, moves of shards, erasures and retention runs are jobs in the catalog. Several runs,
    on any machines, can share one job, and running the same command again continues a run that was killed. The commands
    below work from any machine. N is the number of a job; without it, they act on the only unfinished one.

    \b
    Examples:
      schemaless job list
      schemaless job show 3
      schemaless job set 3 --max-lag 1 --max-mb-per-s 20
      schemaless job pause 3
      schemaless job resume 3
      schemaless job cancel 3
    """


@job.command("list", cls=QueryCommand)
def list_(store: Datastore) -> None:
    """List all jobs, newest last, and what they wait for.

    \b
    Examples:
      schemaless job list
      schemaless job list --json
    """
    job_store = JobStore(store)
    jobs = [(job, waits_of(job, job_store.clusters(job.job_id)) if job.unfinished else []) for job in job_store.jobs()]
    print_result({"jobs": [{**asdict(job), "waits": _waits_json(waits)} for job, waits in jobs]})
    print_table(
        None,
        ["job", "kind", "state", "begun", "ended", "by"],
        [[job.job_id, job.kind, job.state, job.created_at, job.ended_at, job.created_by] for job, _ in jobs],
        text_columns=6,
    )
    for job, waits in jobs:
        for cluster, reason in waits:
            note(f"job {job.job_id} waits on {cluster}: {reason}")


@job.command(cls=QueryCommand)
@_job_argument
@option("--shards", "Show the state of each shard.", name="each_shard", is_flag=True)
def show(store: Datastore, job_id: int | None, each_shard: bool) -> None:
    """Show the progress of a job.

    The output includes the speed of the job, the reason if it is waiting, and the estimated time to completion. That
    time is a range, because shards differ in speed. Without N, the command shows the only unfinished job or, if there
    is none, the last one.

    \b
    Examples:
      schemaless job show
      schemaless job show 3 --shards --json
      watch schemaless job show
    """
    job_store = JobStore(store)
    job_id = _chosen(job_store, job_id, or_last=True).job_id
    status, events = status_of(job_store, job_id, counters=as_json()), job_store.events(job_id)
    print_result(_status_json(status, events))
    _show_status(status, each_shard)


@job.command(cls=Command)
@_job_argument
def pause(store: Datastore, job_id: int | None) -> None:
    """Pause a job.

    Its runners stop within two seconds, on every machine, and keep their shards; a cutover of a shard that is in
    progress completes first. To continue, use 'schemaless job resume'.

    \b
    Example:
      schemaless job pause 3
    """
    _set_state(store, job_id, ("running",), "paused")


@job.command(cls=Command)
@_job_argument
def resume(store: Datastore, job_id: int | None) -> None:
    """Continue a paused job.

    If the job has no runner left, the command prints the command that starts one.

    \b
    Example:
      schemaless job resume 3
    """
    _set_state(store, job_id, ("paused",), "running")


@job.command(cls=Command)
@_job_argument
def cancel(store: Datastore, job_id: int | None) -> None:
    """End a job for good.

    Completed work is kept: bodies that were re-encoded or restored stay so, and erased cells stay erased. A new job can
    do the rest. To end a move, use 'schemaless shards abort', which drops the copies.

    \b
    Example:
      schemaless job cancel 3
    """
    _set_state(store, job_id, ("running", "paused"), "cancelled")


@job.command("set", cls=Command)
@_job_argument
@throttle_changes
def set_(store: Datastore, job_id: int | None, changes: dict[str, Any]) -> None:
    """Change the thresholds of a job while it runs.

    The command changes the given thresholds and keeps the others; without options, it prints them all. Within two
    seconds the runners on every machine use the new values.

    \b
    Examples:
      schemaless job set 3
      schemaless job set 3 --max-lag 1 --max-mb-per-s 20
      schemaless job set --max-mb-per-s off
    """
    Thresholds(**changes)  # validates the values
    job_store = JobStore(store)
    job = _chosen(job_store, job_id)
    if not job.unfinished:
        raise JobConflict(f"job {job.job_id} is {job.state}; only running and paused jobs have thresholds", job.job_id)
    now = job_store.change_thresholds(job.job_id, changes) if changes else job.thresholds.asdict()
    out().print(f"thresholds of job {job.job_id}: {thresholds_text(now)}")


def _chosen(job_store: JobStore, job_id: int | None, *, or_last: bool = False) -> Job:
    if job_id is not None:
        return job_store.job(job_id)
    jobs = job_store.jobs()
    unfinished = [job for job in jobs if job.unfinished]
    if len(unfinished) > 1:
        named = ", ".join(f"{job.job_id} ({job_name(job.kind)})" for job in unfinished)
        raise InvalidInput(f"several jobs are unfinished, so name one of them: {named}")
    if not unfinished and not (or_last and jobs):
        raise InvalidInput("there is no unfinished job; 'schemaless job list' lists all jobs")
    return unfinished[0] if unfinished else jobs[-1]


def _set_state(store: Datastore, job_id: int | None, before: Sequence[JobState], after: JobState) -> None:
    """Change the state of a job, and report the change."""
    job_store = JobStore(store)
    job = _chosen(job_store, job_id)
    if job.kind == "move" and after == "cancelled":
        # Its copies must be dropped, and its fences released.
        raise JobConflict(f"job {job.job_id} is a move; '{end_command(job.kind, job.job_id)}' ends it", job.job_id)
    if not job_store.change_state(job.job_id, before, after, f"by {who()}"):
        now = job_store.job(job.job_id)
        if now.state == after:
            note(f"job {job.job_id} is {after} already")
            return
        raise JobConflict(f"job {job.job_id} is {now.state}; only one that is {' or '.join(before)} can be {after}")
    runners = sum(state.held for state in job_store.shards(job.job_id, counters=False))
    reach = f"; {counted(runners, 'runner')} will notice within two seconds" if runners else ""
    out().print(f"job {job.job_id} is {after}{reach}")
    if after == "running" and not runners:
        note(f"no runner works on it now; start one with '{continue_command(job.kind, job.job_id)}'")


def _show_status(status: JobStatus, each_shard: bool) -> None:
    job = status.job
    message = "" if job.message is None else f" ({job.message})"
    out().print(f"job {job.job_id}, {job.kind}: [bold]{job.state}[/]{message}", markup=True)
    out().print(f"begun {job.created_at:%Y-%m-%d %H:%M} UTC by {job.created_by}: {_asked(job)}")
    if job.unfinished:
        out().print(f"thresholds: {thresholds_text(job.thresholds.asdict())}")
    out().print(progress_text(status))
    if job.unfinished and not status.runners:
        out().print(f"no runner works on it now; start one with '{continue_command(job.kind, job.job_id)}'")
    for cluster in status.clusters:
        if waited := waited_text(cluster.waits):
            out().print(f"{cluster.cluster} has waited {waited}")
    failed = [state for state in status.shards if state.message is not None and state.state == "waiting"]
    for state in failed[:_SHARDS_SHOWN]:
        note(f"shard {state.shard}: {state.message}")
    if each_shard or len(status.shards) <= _SHARDS_SHOWN:
        # A move makes one pass over a shard and replaces nothing.
        columns = [name for name in _COLUMNS if job.kind != "move" or name not in ("pass", "after", "left")]
        headings = ["copied" if job.kind == "move" and name == "before" else name for name in columns]
        rows = map(_shard_row, status.shards)
        print_table(None, headings, [[row[column] for column in columns] for row in rows], text_columns=2)
    else:
        note(f"{counted(len(status.shards), 'shard')}: --shards lists them")


def _asked(job: Job) -> str:
    asked = (
        (name, shards_text(value) if name == "shards" else ", ".join(value) if isinstance(value, list) else value)
        for name, value in job.spec.items()
        if value not in (None, [], {}, False) and name != "thresholds"
    )
    return ", ".join(f"{name} {value}" for name, value in asked)


def _shard_row(state: ShardState) -> dict[str, Any]:
    return {
        "shard": state.shard,
        "state": "running" if state.held else state.state,
        "pass": state.pass_number,
        "through": f"{state.fraction:.0%}",
        "cells": state.cells,
        "before": bytes_text(state.bytes_before),
        "after": bytes_text(state.bytes_after),
        "left": state.left_cells,
        "runner": process_of(state.runner) if state.runner is not None and state.held else "",
    }


def _waits_json(waits: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"cluster": cluster, "reason": reason} for cluster, reason in waits]


def _status_json(status: JobStatus, events: list[tuple[datetime, str, str]]) -> dict[str, Any]:
    return {
        "job": asdict(status.job),
        **facts(status, "fraction", "runners", "mb_per_s", "bytes_total", "bytes_through"),
        "eta": status.eta and asdict(status.eta),
        "waits": _waits_json(status.waits),
        "clusters": [asdict(cluster) for cluster in status.clusters],
        "shards": [{**asdict(state), "held": state.held, "fraction": state.fraction} for state in status.shards],
        "events": [{"at": at, "who": name, "what": what} for at, name, what in events],
    }
