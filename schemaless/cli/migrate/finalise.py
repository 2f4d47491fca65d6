"""``schemaless migrate finalise``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from schemaless.cli.faults import FaultOutput, verify_workers
from schemaless.cli.jobs import chosen_job, job_option
from schemaless.cli.migrate.archive import SHOWN, archive_option, note_torn, proof_options, show_left, verify_json
from schemaless.cli.options import open_store, url_option
from schemaless.jobs.job import Job
from schemaless.jobs.job_store import JobStore
from schemaless.migrate.archive_files import ArchiveFile
from schemaless.migrate.finalise import finalise as finalise_job
from schemaless.terminal.output import EXIT_FAILED, bytes_text, json_option, note, out, print_json, print_table


@click.command()
@url_option
@job_option("The migration to finalise.  [default: the last that replaced a body]")
@archive_option("Folder of the archive; may be repeated.  [default: the folder that the job wrote to]")
@click.option(
    "--accept-left",
    is_flag=True,
    help="Accept cells that the job left as they are and recorded, and archived cells that were erased since.",
)
@proof_options
@json_option
def finalise(
    url: str,
    job_id: int | None,
    folders: tuple[Path, ...],
    accept_left: bool,
    replicas: bool,
    lag_timeout_s: float,
    workers: int,
    dask: str | None,
    as_json: bool,
) -> int:
    """Verify a migration, then list the archive files that may be deleted.

    The command performs the checks of 'migrate verify' on all cells, and counts the originals in the archive. It
    refuses if the job is not done, if there is a fault, or if a body is left that the job should have replaced, such as
    one that an application has written in the old form since. In that case, run the migration again.

    On success it marks the job as finalised and lists the files of the archive. It deletes nothing. Delete the files
    when the exact original bytes are no longer needed: 'migrate run --to legacy' can still turn the bodies back into
    JSON text.

    \b
    Examples:
      schemaless migrate finalise
      schemaless migrate finalise --job 3 --accept-left
      schemaless migrate finalise --json | jq -r '.files[].path' | xargs rm

    Exit status: 0 finalised, 1 refused.
    """
    faults = FaultOutput(as_json)
    with open_store(url) as store:
        job_store = JobStore(store)
        job = chosen_job(job_store, job_id)
        shards = job_store.numbers(job.job_id)
        with verify_workers("verifying", store, shards, workers, dask, faults) as (pool, listener):
            result = finalise_job(
                store,
                job,
                folders,
                accept_left=accept_left,
                replicas=replicas,
                lag_timeout_s=lag_timeout_s,
                workers=pool,
                listener=listener,
            )
        _note_others(job_store, job)
    if as_json:
        print_json(
            {
                "job": job.job_id,
                "state": result.job.state,
                "refused": result.refused,
                "files": [{"path": str(file.path), "bytes": file.size_bytes} for file in result.files],
                "freed_bytes": result.freed_bytes,
                **verify_json(result.verified, result.missing, faults.kept),
            }
        )
        return EXIT_FAILED if result.refused else 0
    show_left(result.verified.left)
    note_torn(result.verified.torn)
    if result.refused:
        out().print(f"job {job.job_id} is not finalised: {'; '.join(result.refused)}", markup=False)
        for gap in result.missing[:SHOWN]:
            out().print(f"  {gap}", markup=False)
        return EXIT_FAILED
    out().print(f"job {job.job_id} is finalised: {result.job.message}", markup=False)
    _show_files(result.files, result.freed_bytes)
    return 0


def _note_others(job_store: JobStore, job: Job) -> None:
    """Note other migrations that are done but not finalised."""
    replaced = job_store.with_replacements() - {job.job_id}
    others = [other.job_id for other in job_store.jobs("migrate") if other.state == "done" and other.job_id in replaced]
    if others:
        note(f"other jobs that are done but not finalised (choose one with --job): {', '.join(map(str, others))}")


def _show_files(files: list[ArchiveFile], freed_bytes: int) -> None:
    if not files:
        out().print("the job kept no originals, so there is nothing to delete")
        return
    out().print(
        f"{len(files):,} archive files with originals may be deleted now ({bytes_text(freed_bytes)}); this command "
        "deleted nothing"
    )
    if len(files) <= SHOWN:
        print_table(None, ["file", "bytes"], [[str(file.path), f"{file.size_bytes:,}"] for file in files])
        return
    by_folder: Counter[Path] = Counter()
    for file in files:
        by_folder[file.path.parent] += file.size_bytes
    counts = Counter(file.path.parent for file in files)
    print_table(
        None,
        ["folder", "files", "bytes"],
        [[str(folder), f"{counts[folder]:,}", f"{size:,}"] for folder, size in sorted(by_folder.items())],
    )
    note("--json lists each file")
