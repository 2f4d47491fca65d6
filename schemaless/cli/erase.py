"""``schemaless erase``: erases documents and proves it."""

from __future__ import annotations

from typing import IO, Any

import click

from schemaless.cli.erase_run import run, target_options, targets_of
from schemaless.cli.erase_shown import entry_json, plan_json, show_plan, show_status, status_json
from schemaless.cli.jobs import change_thresholds, job_option, steer, throttle_changes
from schemaless.cli.options import open_store, url_option
from schemaless.erase.plan import plan as plan_erasure
from schemaless.erase.status import status as status_of
from schemaless.internals import internals_of
from schemaless.terminal.output import ReadOnlyCommand, json_option, note, print_json, print_table, progress

_job = job_option("The job.  [default: the unfinished erasure]")


@click.group(commands=[run])
def erase() -> None:
    """Erase documents, prove it, and repeat it after a restore.

    An erased cell keeps its key, added_id and created_at; its body becomes a tombstone with the number of the erasure.
    Every erasure is in the ledger before anything is changed, and the ledger holds no documents.

    \b
    Examples:
      schemaless erase plan uuid5:N14228
      schemaless erase run uuid5:N14228 --reason gdpr-art-17 --execute
      schemaless erase status 12
    """


@erase.command(cls=ReadOnlyCommand)
@target_options
@url_option
@json_option
def plan(
    row_key: str | None, column: str | None, ref_key: int | None, keys: IO[str] | None, url: str, as_json: bool
) -> int:
    """Show what an erasure would erase, and where else documents may be.

    Without COLUMN, all columns of the row are erased; without REF_KEY, all versions.

    \b
    Examples:
      schemaless erase plan 71f0c4d2-2918-44cc-a2df-000000000001
      schemaless erase plan uuid5:N14228 LOG
      schemaless erase plan --keys subject.txt --json
    """
    targets = targets_of(row_key, column, ref_key, keys)
    with open_store(url) as store, progress("counting", len(targets), "targets") as listener:
        planned = plan_erasure(store, targets, listener=listener)
    if as_json:
        print_json(plan_json(planned))
    else:
        show_plan(planned)
    return 0


@erase.command(cls=ReadOnlyCommand)
@click.argument("number", type=click.IntRange(1), required=False)
@url_option
@json_option
def status(number: int | None, url: str, as_json: bool) -> int:
    """Show erasures and who has not acknowledged them.

    Without NUMBER, the command lists the ledger.

    \b
    Examples:
      schemaless erase status
      schemaless erase status 12
    """
    with open_store(url) as store:
        if number is not None:
            found = status_of(store, number)
            if as_json:
                print_json(status_json(found))
            else:
                show_status(found)
            return 0
        entries = internals_of(store).erasures.ledger.entries()
    if as_json:
        print_json([entry_json(entry) for entry in entries])
    elif not entries:
        note("nothing was ever erased")
    else:
        print_table(
            None,
            ["reason", "kind", "asked for by", "intended", "executed", "acknowledged", "verified", "erasure"],
            [
                [
                    entry.reason,
                    entry.kind,
                    entry.requested_by,
                    *(
                        "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
                        for at in (entry.intended_at, entry.executed_at, entry.acknowledged_at, entry.verified_at)
                    ),
                    str(entry.number),
                ]
                for entry in entries
            ],
            text_columns=7,
        )
    return 0


@erase.command()
@url_option
@_job
def pause(url: str, job_id: int | None) -> None:
    """Pause an erase job; its runners wait."""
    steer(url, job_id, ("running",), "paused", kind="erase")


@erase.command()
@url_option
@_job
def resume(url: str, job_id: int | None) -> None:
    """Let a paused erase job continue."""
    steer(url, job_id, ("paused",), "running", kind="erase")


@erase.command()
@url_option
@_job
def abort(url: str, job_id: int | None) -> None:
    """Abort an erase job. What was erased stays erased, and the ledger shows what was not."""
    steer(url, job_id, ("running", "paused"), "aborted", kind="erase")


@erase.command()
@url_option
@_job
@throttle_changes
def throttle(url: str, job_id: int | None, changes: dict[str, Any]) -> None:
    """Show or change what an erase job waits for, while it runs."""
    change_thresholds(url, job_id, changes, kind="erase")
