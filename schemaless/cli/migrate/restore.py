"""``schemaless migrate restore``: the way back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from schemaless.cli.jobs import job_option, throttle_options
from schemaless.cli.migrate.archive import SHOWN, archive_option, note_torn, show_missing
from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.throttle import Thresholds
from schemaless.migrate.restore import RestoreReport
from schemaless.migrate.restore import restore as restore_cells
from schemaless.store.datastore import Datastore
from schemaless.terminal.output import EXIT_FAILED, bytes_text, json_option, note, out, print_json, progress


@click.command()
@url_option
@archive_option(required=True, help_text="The folder that 'migrate run --archive' named, or a part; may be repeated.")
@job_option("Only what this job replaced.  [default: all jobs that are in there, the newest undone first]")
@shards_option
@click.option("--execute", is_flag=True, help="Really put bodies back; without it, they are only counted.")
@throttle_options
@click.option("--full-row-images", is_flag=True, help="For readers of the binary log that need whole rows: log them.")
@json_option
def restore(
    url: str,
    folders: tuple[Path, ...],
    job_id: int | None,
    shards_text: str | None,
    execute: bool,
    thresholds: Thresholds,
    full_row_images: bool,
    as_json: bool,
) -> int:
    """Put the exact original bytes back, from an archive.

    A cell gets its original where its body is the one that the migration put there, or the same document in another
    codec; what is neither is left and named. Keys, added_id and created_at stay. Stopped at any moment, the same
    command goes on. Each shard's files are read and checked whole before its first cell is changed. What the job has
    archived and the files do not have, since one is missing or broke off, is named.

    Works in one process, and waits as a migration does: to go faster, run it several times side by side, each for other
    --shards. Where runners were on several machines, each left a part of the archive on its own: name them all.

    \b
    Examples:
      schemaless migrate restore --archive /backup/originals
      schemaless migrate restore --archive /backup/originals --execute
      schemaless migrate restore --archive /backup/originals --job 3 --shards 0-255 --execute

    Exit status: 0 done, 1 some cells were left or originals are missing, 3 stopped; the same command goes on.
    """
    with open_store(url) as store:
        shards = None if shards_text is None else shards_of(shards_text, store.shard_count)
        with progress("restoring" if execute else "counting", None, "cells") as advance:
            report = restore_cells(
                store,
                folders,
                shards,
                job_id=job_id,
                execute=execute,
                thresholds=thresholds,
                full_row_images=full_row_images,
                on_total=advance.expect,
                on_cells=advance,
                on_wait=lambda cluster, reason: note(f"waits on {cluster}: {reason}"),
            )
        if execute:
            _note_restore(store, report)
    if as_json:
        print_json(_restore_json(report, execute))
    else:
        _show_restore(report, execute)
    if not execute:
        note("nothing was changed; add --execute to do it")
    return EXIT_FAILED if report.left or report.missing else 0


def _note_restore(store: Datastore, report: RestoreReport) -> None:
    ledger = Ledger(store)
    known = {job.job_id for job in ledger.jobs("migrate")}
    for job_id in report.jobs & known:
        ledger.note_event(job_id, f"restored {report.restored:,} cells in {report.shards:,} shards")


def _show_restore(report: RestoreReport, execute: bool) -> None:
    verb = "put back" if execute else "to put back"
    out().print(
        f"{report.restored:,} originals {verb}, in {report.shards:,} shards, from {report.files:,} files "
        f"({bytes_text(report.archive_bytes)}): {report.bytes_before:,} body bytes "
        f"{'became' if execute else 'would become'} {report.bytes_after:,}"
    )
    if report.already:
        out().print(f"{report.already:,} cells have their original already")
    for reason, cells in report.left.most_common():
        out().print(f"{cells:,} left as they are: {reason}")
    for failure in report.failures[:SHOWN]:
        out().print(f"  shard {failure.shard}, cell {failure.key}: {failure.message}", markup=False)
    if report.left.total() > SHOWN:
        note(f"the first {SHOWN} are shown; --json lists the first thousand")
    show_missing(report.missing)
    for job_id in sorted(report.unknown_jobs):
        note(f"the catalog does not know what job {job_id} has archived: nobody can say whether all of it is here")
    if report.interruptions:
        note(
            f"{report.interruptions} runners ended without a word: what each archived since its last checkpoint, about "
            "a second's work, the job has not noted, so a file that lacks just that is not told"
        )
    note_torn(report.torn)


def _restore_json(report: RestoreReport, execute: bool) -> dict[str, Any]:
    return {
        "executed": execute,
        "files": report.files,
        "archive_bytes": report.archive_bytes,
        "shards": report.shards,
        "archived": report.archived,
        "restored": report.restored,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "already": report.already,
        "left": dict(report.left),
        "failures": [{**asdict(failure), "row_key": str(failure.key.row_key)} for failure in report.failures],
        "torn": {str(path): size for path, size in report.torn.items()},
        "missing_originals": [asdict(each) for each in report.missing],
        "unknown_jobs": sorted(report.unknown_jobs),
        "interruptions": report.interruptions,
    }
