"""``schemaless migrate status``."""

from __future__ import annotations

from dataclasses import asdict

import click

from schemaless.cli.jobs import chosen_job, job_option, show_status
from schemaless.cli.options import open_store, url_option
from schemaless.jobs.job import Job
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.status import status_of
from schemaless.terminal.output import ReadOnlyCommand, json_option, print_json, print_table


@click.command(cls=ReadOnlyCommand)
@url_option
@job_option("The job to show.  [default: the unfinished migration, else the last that replaced a body]")
@click.option("--all", "show_all", is_flag=True, help="List all jobs of the datastore.")
@click.option("--shards", "each_shard", is_flag=True, help="Show the state of each shard.")
@json_option
def status(url: str, job_id: int | None, show_all: bool, each_shard: bool, as_json: bool) -> None:
    """Show the progress of a migration.

    The status includes the speed of the job, the reason if it waits, and the estimated time to completion. That time
    is a range, because shards differ in speed. The command works on any machine, whether or not the job is running.

    \b
    Examples:
      schemaless migrate status
      schemaless migrate status --shards --json
      watch schemaless migrate status
    """
    with open_store(url) as store:
        job_store = JobStore(store)
        if show_all:
            _show_jobs(job_store.jobs(), as_json)
            return
        job = chosen_job(job_store, job_id)
        show_status(
            status_of(job_store, job.job_id, counters=as_json), job_store.events(job.job_id), each_shard, as_json
        )


def _show_jobs(jobs: list[Job], as_json: bool) -> None:
    if as_json:
        print_json({"jobs": [asdict(job) for job in jobs]})
        return
    print_table(
        None,
        ["job", "kind", "state", "begun", "ended", "by"],
        [
            [
                str(job.job_id),
                job.kind,
                job.state,
                f"{job.created_at:%Y-%m-%d %H:%M}",
                "" if job.ended_at is None else f"{job.ended_at:%Y-%m-%d %H:%M}",
                job.created_by,
            ]
            for job in jobs
        ],
        text_columns=6,
    )
