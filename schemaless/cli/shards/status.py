"""``schemaless shards status``: how far a move is."""

from __future__ import annotations

from dataclasses import asdict

import click

from schemaless.cli.jobs import chosen_job, job_option, progress_json, show_status
from schemaless.cli.options import open_store, url_option
from schemaless.cli.shards.shown import show_records
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.status import status_of
from schemaless.move.record import Records
from schemaless.terminal.output import json_option, print_json


@click.command()
@url_option
@job_option("The move to show.  [default: the unfinished one, or the last]")
@click.option("--all", "show_all", is_flag=True, help="Show the shards of all moves.")
@json_option
def status(url: str, job_id: int | None, show_all: bool, as_json: bool) -> None:
    """Show how far a move is, and the state of each of its shards.

    A shard is copying, then cutting over for a moment, then moved. It is verified once it was compared with what it
    left behind, and dropped once that is removed. The column "paused for" says how long its readers and writers were
    held.

    \b
    Examples:
      schemaless shards status
      schemaless shards status --all --json
    """
    with open_store(url) as store:
        job_store = JobStore(store)
        if show_all:
            show_records(Records(store).all(), as_json)
            return
        job = chosen_job(job_store, job_id, kind="move")
        job.check_kind("move")
        job_status = status_of(job_store, job.job_id, counters=as_json)
        records = Records(store).all(job.job_id)
        if as_json:
            print_json(
                {
                    **progress_json(job_status),
                    "shards": [asdict(record) for record in records],
                }
            )
            return
        show_status(job_status, job_store.events(job.job_id), each_shard=False, as_json=False)
        show_records(records, as_json=False)
