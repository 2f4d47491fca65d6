"""``schemaless migrate pause``, ``resume``, ``abort`` and ``throttle``: steer a job from anywhere."""

from __future__ import annotations

from typing import Any

import click

from schemaless.cli.jobs import chosen_job, job_option, steer, thresholds_text, throttle_changes
from schemaless.cli.options import open_store, url_option
from schemaless.errors import JobConflict
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.throttle import Thresholds
from schemaless.terminal.output import out


@click.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
def pause(url: str, job_id: int | None) -> None:
    """Have a job wait.

    All its runners, wherever they are, stand still within a second or two, and keep their shards.

    \b
    Example:
      schemaless migrate pause
    """
    steer(url, job_id, ("running",), "paused")


@click.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
def resume(url: str, job_id: int | None) -> None:
    """Let a paused job continue.

    Where its runners are gone, 'schemaless migrate run --execute --job N' works on it.

    \b
    Example:
      schemaless migrate resume
    """
    steer(url, job_id, ("paused",), "running")


@click.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
def abort(url: str, job_id: int | None) -> None:
    """End a job for good.

    What it has re-encoded stays so, and is read as before; a new job does the rest, or the way back.

    \b
    Example:
      schemaless migrate abort --job 3
    """
    steer(url, job_id, ("running", "paused"), "aborted")


@click.command()
@url_option
@job_option("The job.  [default: the unfinished one]")
@throttle_changes
def throttle(url: str, job_id: int | None, changes: dict[str, Any]) -> None:
    """Change when a running job waits.

    The thresholds that are named are changed, the others stay as they are; without any, they are shown. Its runners,
    wherever they are, take them within a second or two.

    \b
    Examples:
      schemaless migrate throttle --max-lag 1 --max-mb-per-s 20
      schemaless migrate throttle --max-mb-per-s off --job 3
    """
    Thresholds(**changes)  # refuses what is none
    with open_store(url) as store:
        ledger = Ledger(store)
        job = chosen_job(ledger, job_id, unfinished=True)
        if not job.unfinished:
            raise JobConflict(f"job {job.job_id} is {job.state}; only one that is running or paused waits", job.job_id)
        now = ledger.change_thresholds(job.job_id, changes) if changes else job.thresholds.asdict()
    out().print(f"job {job.job_id} waits by: {thresholds_text(now)}", markup=False)
