"""``schemaless migrate pause``, ``resume``, ``abort`` and ``throttle``: steer a job from anywhere."""

from __future__ import annotations

from typing import Any

import click

from schemaless.cli.jobs import change_thresholds, job_option, steer, throttle_changes
from schemaless.cli.options import url_option


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished one]")
def pause(url: str, job_id: int | None) -> None:
    """Pause a job.

    All its runners stop working within two seconds, on every machine, and keep their shards. 'schemaless migrate
    resume' lets them continue.

    \b
    Example:
      schemaless migrate pause
    """
    steer(url, job_id, ("running",), "paused")


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished one]")
def resume(url: str, job_id: int | None) -> None:
    """Let a paused job continue.

    If none of its runners is left, start one: 'schemaless migrate run --execute --job N' works on the job.

    \b
    Example:
      schemaless migrate resume
    """
    steer(url, job_id, ("paused",), "running")


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished one]")
def abort(url: str, job_id: int | None) -> None:
    """End a job for good.

    Bodies that the job has re-encoded stay as they are now, and are read as before. A new job can re-encode the rest,
    or turn everything back.

    \b
    Example:
      schemaless migrate abort --job 3
    """
    steer(url, job_id, ("running", "paused"), "aborted")


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished one]")
@throttle_changes
def throttle(url: str, job_id: int | None, changes: dict[str, Any]) -> None:
    """Change the thresholds at which a running job waits.

    The command changes the thresholds that you name and leaves the others as they are; without any, it prints them all.
    The job's runners use the new values within two seconds, on every machine.

    \b
    Examples:
      schemaless migrate throttle
      schemaless migrate throttle --max-lag 1 --max-mb-per-s 20
      schemaless migrate throttle --max-mb-per-s off --job 3
    """
    change_thresholds(url, job_id, changes)
