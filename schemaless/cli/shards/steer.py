"""``schemaless shards pause``, ``resume``, ``throttle`` and ``abort``."""

from __future__ import annotations

from typing import Any

import click

from schemaless.cli.jobs import JobProgress, change_thresholds, chosen_job, job_option, steer, throttle_changes
from schemaless.cli.options import open_store, url_option
from schemaless.cli.shards.shown import show_records
from schemaless.jobs.job_store import JobStore
from schemaless.move import run as moves
from schemaless.terminal.output import EXIT_FAILED, json_option, note


@click.command()
@url_option
@job_option("The number of the move.  [default: the unfinished one]")
def pause(url: str, job_id: int | None) -> None:
    """Pause a move.

    If a shard is being cut over at that moment, the move completes that first.

    \b
    Example:
      schemaless shards pause
    """
    steer(url, job_id, ("running",), "paused", kind="move")


@click.command()
@url_option
@job_option("The number of the move.  [default: the unfinished one]")
def resume(url: str, job_id: int | None) -> None:
    """Let a paused move continue.

    \b
    Example:
      schemaless shards resume
    """
    steer(url, job_id, ("paused",), "running", kind="move")


@click.command()
@url_option
@job_option("The number of the move.  [default: the unfinished one]")
@throttle_changes
def throttle(url: str, job_id: int | None, changes: dict[str, Any]) -> None:
    """Change when a running move waits.

    The command changes the thresholds that you name and keeps the others. Without any, it shows them. The runners of
    the move, wherever they are, use the new thresholds within a second or two.

    \b
    Examples:
      schemaless shards throttle --max-lag 1 --max-mb-per-s 20
      schemaless shards throttle --max-mb-per-s off --job 3
    """
    change_thresholds(url, job_id, changes, kind="move")


@click.command()
@url_option
@job_option("The number of the move.  [default: the unfinished one]")
@click.option(
    "--uncompared",
    is_flag=True,
    help="Do not compare a moved shard if the server that it came from cannot be reached.",
)
@json_option
def abort(url: str, job_id: int | None, uncompared: bool, as_json: bool) -> int:
    """End a move for good.

    Shards that were not cut over stay where they are, and their copies are dropped. A shard that was cut over stays on
    its new cluster, since it may have new cells there; another move can bring it back. It is still compared with what
    it left behind. If that server is gone for good, give --uncompared. If the command is killed, the same command
    continues.

    \b
    Example:
      schemaless shards abort --job 3

    Exit status: 0 aborted, 1 if some shards had moved already, 3 stopped; the same command continues.
    """
    with open_store(url) as store:
        job_store = JobStore(store)
        job = chosen_job(job_store, job_id, unfinished=True, kind="move")
        with JobProgress(job_store) as shown:
            records = moves.abort(store, job, uncompared=uncompared, listener=shown)
    show_records(records, as_json)
    moved = [record.shard for record in records if record.phase != "aborted"]
    if moved:
        note(f"{len(moved)} shards had been cut over, and stay where they are now")
    return EXIT_FAILED if moved else 0
