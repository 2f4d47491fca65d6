"""``schemaless migrate``: re-encodes bodies in place; here, the group and the commands that control a job."""

from __future__ import annotations

from dataclasses import asdict

import click

from schemaless.cli.jobs import add_controls, chosen_job, job_option, show_status
from schemaless.cli.migrate_plan import plan
from schemaless.cli.migrate_report import report
from schemaless.cli.migrate_run import run
from schemaless.cli.migrate_verify import finalise, restore, verify
from schemaless.cli.options import open_store, url_option
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.status import status_of
from schemaless.ui.terminal.output import ReadOnlyCommand, json_option, print_json, print_table


@click.group(commands=[plan, run, restore, verify, finalise, report])
def migrate() -> None:
    """Re-encode bodies in place.

    A migration turns legacy bodies (bare JSON text), or bodies in any other codec, into MessagePack + zlib or another
    codec, while applications read and write. Keys, added_id and created_at stay the same. Before a new body is written,
    it is decoded and compared with the old one, and it replaces only the exact bytes that were read.

    A migration is a job in the catalog. Any number of runs, on any machine, share its work. If a run is killed, running
    the same command again continues where it stopped.

    \b
    Typical order:
      schemaless migrate plan       predicts what a run would change and cost
      schemaless migrate run --execute --archive DIR
      schemaless migrate status     shows the progress; pause, resume, abort and
                                    throttle control the job
      schemaless migrate verify     checks primaries, replicas and the archive
      schemaless migrate finalise   lists archive files that may be deleted
      schemaless rebuild            gives the freed space back to the disk
      schemaless migrate report     shows the space saved, also as an HTML page
    """


@migrate.command(cls=ReadOnlyCommand)
@url_option
@job_option("The job to show.  [default: the unfinished migration, else the last that replaced a body]")
@click.option("--all", "show_all", is_flag=True, help="List all jobs of the datastore.")
@click.option("--shards", "each_shard", is_flag=True, help="Show the state of each shard.")
@json_option
def status(url: str, job_id: int | None, show_all: bool, each_shard: bool, as_json: bool) -> None:
    """Show the progress of a migration.

    The status includes the speed of the job, the reason if it is waiting, and the estimated time to completion. That
    time is a range, because shards differ in speed. The command works on any machine, whether or not the job is
    running.

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


add_controls(
    migrate,
    "migrate",
    job_option("The number of the job.  [default: the unfinished migration]"),
    pause="""Pause a job.

    Its runners stop within two seconds, on every machine, and keep their shards. To continue, use 'schemaless
    migrate resume'.

    \b
    Example:
      schemaless migrate pause
    """,
    resume="""Continue a paused job.

    If the job has no runner left, start one with 'schemaless migrate run --execute --job N'.

    \b
    Example:
      schemaless migrate resume
    """,
    abort="""Abort a job for good.

    Bodies that the job has re-encoded stay re-encoded, and applications read them as before. A new job can
    re-encode the rest, or convert all bodies back.

    \b
    Example:
      schemaless migrate abort --job 3
    """,
    throttle="""Change the thresholds of a running job.

    The command changes the given thresholds and keeps the others; without options, it prints them all. Within two
    seconds the runners on every machine use the new values.

    \b
    Examples:
      schemaless migrate throttle
      schemaless migrate throttle --max-lag 1 --max-mb-per-s 20
      schemaless migrate throttle --max-mb-per-s off --job 3
    """,
)
