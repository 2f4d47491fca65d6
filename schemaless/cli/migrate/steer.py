"""``schemaless migrate pause``, ``resume``, ``abort`` and ``throttle``: steer a job from anywhere."""

from __future__ import annotations

from typing import Any

import click

from schemaless.cli.jobs import change_thresholds, job_option, steer, throttle_changes
from schemaless.cli.options import url_option


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
    change_thresholds(url, job_id, changes)
