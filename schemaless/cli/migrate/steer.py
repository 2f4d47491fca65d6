"""``schemaless migrate pause``, ``resume``, ``abort`` and ``throttle``: control a job from any machine."""

from __future__ import annotations

from typing import Any

import click

from schemaless.cli.jobs import change_thresholds, job_option, steer, throttle_changes
from schemaless.cli.options import url_option


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished migration]")
def pause(url: str, job_id: int | None) -> None:
    """Pause a job.

    Within two seconds its runners stop working on every machine, and keep their shards. To continue, use 'schemaless
    migrate resume'.

    \b
    Example:
      schemaless migrate pause
    """
    steer(url, job_id, ("running",), "paused")


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished migration]")
def resume(url: str, job_id: int | None) -> None:
    """Continue a paused job.

    If the job has no runner left, start one with 'schemaless migrate run --execute --job N'.

    \b
    Example:
      schemaless migrate resume
    """
    steer(url, job_id, ("paused",), "running")


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished migration]")
def abort(url: str, job_id: int | None) -> None:
    """Abort a job for good.

    Bodies that the job has re-encoded stay re-encoded, and applications read them as before. A new job can re-encode
    the rest, or turn everything back.

    \b
    Example:
      schemaless migrate abort --job 3
    """
    steer(url, job_id, ("running", "paused"), "aborted")


@click.command()
@url_option
@job_option("The number of the job.  [default: the unfinished migration]")
@throttle_changes
def throttle(url: str, job_id: int | None, changes: dict[str, Any]) -> None:
    """Change the thresholds of a running job.

    The command changes the thresholds that you name and keeps the others. Without any, it prints them all. Within two
    seconds the runners on every machine use the new values.

    \b
    Examples:
      schemaless migrate throttle
      schemaless migrate throttle --max-lag 1 --max-mb-per-s 20
      schemaless migrate throttle --max-mb-per-s off --job 3
    """
    change_thresholds(url, job_id, changes)
