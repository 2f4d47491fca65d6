"""``schemaless migrate restore``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from schemaless.cli.jobs import JobProgress, job_option, throttle_options, workers_options
from schemaless.cli.migrate.archive import SHOWN, archive_option, note_torn, show_missing
from schemaless.cli.options import note_dry, open_store, shards_of, shards_option, url_option
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.throttle import Thresholds
from schemaless.migrate.restore import RESTORE, RestoreOutcome, RestoreSpec, count
from schemaless.migrate.restore import run as run_restore
from schemaless.terminal.output import EXIT_FAILED, bytes_text, facts, json_option, note, out, print_json, progress


@click.command()
@url_option
@archive_option("Folder given to 'migrate run --archive', or a part of it; may be repeated.")
@job_option(
    "Restore only what this migration replaced; without --archive, the restore to continue.  "
    "[default: all migrations in the archive, newest first]"
)
@shards_option
@click.option("--execute", is_flag=True, help="Put originals back. Without this option, they are only counted.")
@workers_options
@throttle_options
@click.option("--full-row-images", is_flag=True, help="Write full row images to the binary log, for its consumers.")
@json_option
def restore(
    url: str,
    folders: tuple[Path, ...],
    job_id: int | None,
    shards_text: str | None,
    execute: bool,
    workers: int,
    dask: str | None,
    thresholds: Thresholds,
    full_row_images: bool,
    as_json: bool,
) -> int:
    """Put the exact original bytes back from an archive.

    A cell gets its original back if its body is the one that the migration wrote, or the same document in another
    codec. Any other body is left as it is and listed. Keys, added_id and created_at stay the same. All archive files of
    a shard are read and checked before the first cell of the shard is changed. If a file is missing or incomplete, the
    command lists the originals that it cannot restore.

    The command starts a job, or continues an unfinished one with the same options. After Ctrl-C or a kill, run the same
    command again. Run it on several machines to share the work. 'migrate status', 'pause', 'resume', 'abort' and
    'throttle' control the job; give them its number with --job.

    If the migration ran on several machines, each of them has a part of the archive. Name all parts, and make them
    available to every worker under the same path.

    \b
    Examples:
      schemaless migrate restore --archive /backup/originals
      schemaless migrate restore --archive /backup/originals --execute --workers 4
      schemaless migrate restore --archive /backup/originals --job 3 --shards 0-255 --execute

    Exit status: 0 done, 1 some cells were left as they are or originals are missing, 3 stopped; the same command
    continues.
    """
    if not folders and job_id is None:
        raise click.UsageError("give the archive with --archive, or a restore to continue with --job")
    with open_store(url) as store:
        job_store = JobStore(store)
        job = None
        if folders:
            shards = None if shards_text is None else tuple(shards_of(shards_text, store.shard_count))
            spec = RestoreSpec(tuple(map(str, folders)), shards, job_id, full_row_images, thresholds=thresholds)
        else:
            assert job_id is not None
            job, spec, _ = RESTORE.resumed(job_store, job_id)
        if execute:
            with JobProgress(job_store) as shown:
                report = run_restore(store, spec, job=job, count=workers, dask=dask, listener=shown)
        else:
            with progress("counting", None, "cells") as listener:
                report = count(store, spec, listener=listener)
    if as_json:
        print_json(_restore_json(report))
    else:
        _show_restore(report, execute)
    if not execute:
        note_dry()
    return EXIT_FAILED if report.total.left or report.missing else 0


def _show_restore(report: RestoreOutcome, execute: bool) -> None:
    total = report.total
    verb = "restored" if execute else "to restore"
    out().print(
        f"{total.restored:,} originals {verb}, in {report.shards:,} shards, from {report.files:,} files "
        f"({bytes_text(report.archive_bytes)}): {total.bytes_before:,} body bytes "
        f"{'became' if execute else 'would become'} {total.bytes_after:,}"
    )
    if total.already:
        out().print(f"{total.already:,} cells have their original already")
    for reason, cells in total.left.most_common():
        out().print(f"{cells:,} left as they are: {reason}")
    for failure in report.failures[:SHOWN]:
        out().print(f"  shard {failure.shard}, cell {failure.key}: {failure.message}", markup=False)
    if total.left.total() > SHOWN:
        note(f"only the first {SHOWN} are shown; --json lists up to 1,000")
    show_missing(report.missing)
    for job_id in sorted(report.unknown_jobs):
        note(
            f"the catalog does not record how many originals job {job_id} archived, so this command cannot tell "
            "whether any are missing"
        )
    if report.interruptions:
        note(
            f"{report.interruptions} runners were killed; the originals that each archived after its last checkpoint "
            "(about a second) are not recorded, so this command cannot tell whether any of those are missing"
        )
    note_torn(report.torn)


def _restore_json(report: RestoreOutcome) -> dict[str, Any]:
    total = report.total
    return {
        "executed": report.job_id is not None,
        "job": report.job_id,
        **facts(report, "files", "archive_bytes", "shards"),
        **facts(total, "archived", "restored", "bytes_before", "bytes_after", "already", "left"),
        "failures": [{**asdict(failure), "row_key": str(failure.key.row_key)} for failure in report.failures],
        "torn": {str(path): size for path, size in report.torn.items()},
        "missing_originals": [asdict(gap) for gap in report.missing],
        "unknown_jobs": sorted(report.unknown_jobs),
        "interruptions": report.interruptions,
    }
