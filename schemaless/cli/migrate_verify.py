"""``schemaless migrate verify``, ``restore`` and ``finalise``: the commands that read a migration's archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click

from schemaless.base.numbers import bytes_text, counted
from schemaless.base.parts import grouped
from schemaless.cli.command import JSONCommand, QueryCommand
from schemaless.cli.faults import FaultOutput, verify_workers
from schemaless.cli.job_options import JobRun, chosen_job, job_option, run_options, workers_options
from schemaless.cli.option import option
from schemaless.cli.options import as_spec, execute_option, with_options
from schemaless.cli.quantities import FiniteRange, fraction_of, shards_of
from schemaless.errors import InvalidInput
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.archive_files import ArchiveFile
from schemaless.ops.migrate.finalise import archive_of, verify_migration
from schemaless.ops.migrate.finalise import finalise as finalise_job
from schemaless.ops.migrate.originals import Missing, Originals, missing_text
from schemaless.ops.migrate.restore import RESTORE, RestoreOutcome, RestoreSpec, count
from schemaless.ops.migrate.restore import run as run_restore
from schemaless.ops.migrate.verify import LAG_TIMEOUT_S, VerifyOptions, VerifyReport
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import EXIT_FAILED, facts, hint, note, out, print_result, print_rows, progress

SHOWN = 20
_FAULTS_PER_KIND = 1_000

MOST_LAG_TIMEOUT_S = 86_400


def archive_option(help_text: str) -> Callable[[Any], Any]:
    """Return the ``--archive`` option for existing archives."""
    return option(
        "--archive DIR",
        help_text,
        name="folders",
        type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
        multiple=True,
    )


proof_options: Final = with_options(
    as_spec(VerifyOptions, name="options", share="sample"),
    option("--replicas/--no-replicas", "Compare each cell with the replicas in the topology.", default=True),
    option(
        "--lag-timeout SECONDS",
        "How long to wait for a differing replica to catch up.",
        name="lag_timeout_s",
        type=FiniteRange(0, MOST_LAG_TIMEOUT_S),
        default=LAG_TIMEOUT_S,
    ),
    workers_options,
)
"""The options of a verification, passed as ``options``, and those that choose the workers."""


def note_torn(torn: dict[Path, int]) -> None:
    """Print a note for each archive file with an incomplete last frame."""
    for path, size in sorted(torn.items()):
        note(
            f"{path} ends with an incomplete frame of {size:,} bytes; if a runner was killed while writing "
            f"it, the runner had "
            "replaced none of the frame's cells; if the file is a copy, the copy is incomplete"
        )


def show_missing(missing: list[Missing]) -> None:
    """Print the gaps in the archive."""
    text = missing_text(missing)
    if text is not None:
        out().print(text)
    _show_gaps(missing)
    if len(missing) > SHOWN:
        hint(f"only the first {SHOWN} files are shown; --json lists all")


def _show_gaps(missing: list[Missing]) -> None:
    for gap in missing[:SHOWN]:
        out().print(f"  {gap}")


def show_left(left: Counter[str]) -> None:
    """Print the number of cells that the job left as they are, by reason."""
    for reason, cells in left.most_common():
        out().print(f"{counted(cells, 'cell')} left unchanged by the job: {reason}")


def verify_json(report: VerifyReport, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a verification for ``--json``."""
    return {
        **facts(report, "shards", "cells", "body_bytes", "by_codec", "left", "blocks", "blocks_of", "seed", "compared"),
        **facts(report, "archived", fault_counts="faults"),
        "torn": {str(path): size for path, size in report.torn.items()},
        "missing_originals": [asdict(gap) for gap in report.missing],
        "faults": faults,
    }


def _share(text: str) -> float:
    share = fraction_of(text)
    if not 0 < share < 1:
        raise InvalidInput(f"--sample takes a share over 0 and below 1, such as 1% or 0.01, got {text!r}")
    return share


@click.command(cls=QueryCommand)
@job_option("The migration to verify.  [default: the last that replaced a body]")
@option("--shards LIST", "Verify only these shards, such as 0-3,8.  [default: all shards of the job]", name="only")
@option(
    "--sample SHARE",
    "Verify only a share of the cells, such as 1%, in blocks of adjacent cells.",
    name="share",
    type=_share,
)
@option("--seed N", "Seed of the sample; the same seed draws the same sample.", type=int)
@archive_option("Folder of the archive; may be repeated.  [default: the folder that the job wrote to]")
@option("--no-archive", "Do not compare with the originals in the archive.", is_flag=True)
@proof_options
def verify(
    store: Datastore,
    job_id: int | None,
    only: str | None,
    folders: tuple[Path, ...],
    no_archive: bool,
    options: VerifyOptions,
    workers: int,
    dask: str | None,
) -> int:
    """Verify the result of a migration. Read-only.

    The command reads all cells, or a sample, and checks:

    \b
    - Cells: each cell decodes, is in canonical form, and is in the target
      codec of the job. Cells that the job recorded as left unchanged are
      counted separately.
    - Replicas: each replica in the topology holds the same bytes, keys and
      times. A replica that lags is given time to catch up.
    - Archive: the cell of each original exists, with the same key, added_id,
      created_at and document.

    Each fault is printed on one line that names the cell. Applications may read and write at the same time. When there
    are no faults, finish the migration with 'schemaless migrate finalise'.

    \b
    Examples:
      schemaless migrate verify
      schemaless migrate verify --sample 1% --workers 4
      schemaless migrate verify --sample 1% --seed 3141592653 --no-replicas --json
      schemaless migrate verify --job 3 --archive /mnt/db-1/originals \\
          --archive /mnt/db-2/originals

    Exit status: 0 if no fault was found, else 1.
    """
    if no_archive and folders:
        raise InvalidInput("--archive and --no-archive contradict each other; use only one of them")
    faults = FaultOutput(_FAULTS_PER_KIND)
    job_store = JobStore(store)
    job = job_store.latest("migrate") if job_id is None else job_store.job(job_id)
    shards = _shards_to_verify(store, job_store, job, only)
    if job is not None and job.unfinished:
        note(f"job {job.job_id} is {job.state}, so cells that it has not re-encoded yet are not reported as faults")
    archive = None if no_archive else archive_of(store, job, folders)
    options = replace(options, archive=archive)
    with verify_workers("verifying", store, shards, workers, dask, faults) as (pool, listener):
        report = verify_migration(store, job, options, shards, workers=pool, listener=listener)
    print_result({"job": None if job is None else job.job_id, **verify_json(report, faults.kept)})
    out().print(_verdict(report, archive))
    show_left(report.left)
    show_missing(report.missing)
    note_torn(report.torn)
    return EXIT_FAILED if report.faults or report.missing else 0


def _shards_to_verify(store: Datastore, job_store: JobStore, job: Job | None, only: str | None) -> list[int]:
    """Return the shards to verify: those given, which must be shards of the job, or all of the job's."""
    if job is None:
        return shards_of(only, store.shard_count)
    job.check_kind("migrate")
    own = job_store.numbers(job.job_id)
    if only is None:
        return own
    shards = shards_of(only, store.shard_count)
    others = sorted(set(shards) - set(own))
    if others:
        raise InvalidInput(f"job {job.job_id} does not include shard {others[0]}; use --job to name a job that does")
    return shards


def _verdict(report: VerifyReport, archive: Originals | None) -> str:
    verdict = counted(report.faults.total(), "fault") if report.faults else "sound"
    where = f"{counted(report.cells, 'cell')} in {counted(report.shards, 'shard')}"
    parts = [f"{verdict}: {where}, {bytes_text(report.body_bytes)} of bodies"]
    parts += [f"{cells:,} compared with replica {node}" for node, cells in sorted(report.compared.items())]
    if archive is not None:
        parts.append(f"{counted(report.archived, 'original')} from {counted(len(archive.files), 'file')} compared")
    if report.seed is not None:
        parts.append(f"sample of {report.blocks:,} of {report.blocks_of:,} blocks, --seed {report.seed}")
    return "; ".join(parts)


@click.command(cls=JSONCommand)
@archive_option("Folder given to 'migrate run --archive', or a part of it; may be repeated.")
@execute_option("Put originals back. Without this option, they are only counted.")
@run_options(
    "With --archive, restore only what this migration replaced; without it, continue this restore.  "
    "[default: all migrations in the archive, newest first]"
)
@option("--full-row-images", "Write full row images to the binary log, for its consumers.", is_flag=True)
def restore(
    store: Datastore,
    folders: tuple[Path, ...],
    shards: list[int],
    execute: bool,
    how: JobRun,
    full_row_images: bool,
) -> int:
    """Put the exact original bytes back from an archive.

    A cell gets its original back if its body is the one that the migration wrote, or the same document in another
    codec. Any other body is left unchanged and listed. Keys, added_id and created_at stay the same. All archive
    files of a shard are read and checked before the first cell of the shard is changed. If a file is missing or
    incomplete, the command lists the originals that it cannot restore.

    The command starts a job, or continues an unfinished one with the same options. After Ctrl-C or a kill, run the same
    command again. Run it on several machines to share the work. 'schemaless job' shows and controls the job.

    If the migration ran on several machines, each of them has a part of the archive. Name all parts, and make them
    available to every worker under the same path.

    \b
    Examples:
      schemaless migrate restore --archive /backup/originals
      schemaless migrate restore --archive /backup/originals --execute --workers 4
      schemaless migrate restore --archive /backup/originals --job 3 \\
          --shards 0-255 --execute

    Exit status: 0 if done, 1 if some cells were left as they are or originals are missing, 3 if stopped; run the same
    command again to continue.
    """
    job_store = JobStore(store)
    job = None
    if folders:
        some = tuple(shards) if len(shards) < store.shard_count else None
        spec = RestoreSpec(tuple(map(str, folders)), some, how.job_id, full_row_images, thresholds=how.thresholds)
    elif (resumed := how.resumed(RESTORE, job_store)) is not None:
        job, spec, _ = resumed
    else:
        raise click.UsageError("name the archive with --archive, or use --job to name the restore to continue")
    if execute:
        with how.options(job_store, job) as options:
            report = run_restore(store, spec, **options)
    else:
        with progress("counting", None, "cells") as listener:
            report = count(store, spec, listener=listener)
    print_result(_restore_json(report))
    _show_restore(report, execute)
    return EXIT_FAILED if report.total.left or report.missing else 0


def _show_restore(report: RestoreOutcome, execute: bool) -> None:
    total = report.total
    verb = "restored" if execute else "to restore"
    out().print(
        f"{counted(total.restored, 'original')} {verb}, in {counted(report.shards, 'shard')}, "
        f"from {counted(report.files, 'file')} ({bytes_text(report.archive_bytes)}): {total.bytes_before:,} body bytes "
        f"{'became' if execute else 'would become'} {total.bytes_after:,}"
    )
    if total.already:
        has = "has its" if total.already == 1 else "have their"
        out().print(f"{counted(total.already, 'cell')} already {has} original")
    for reason, cells in total.left.most_common():
        out().print(f"{cells:,} left as they are: {reason}")
    for failure in report.failures[:SHOWN]:
        out().print(f"  shard {failure.shard}, cell {failure.key}: {failure.message}")
    if total.left.total() > SHOWN:
        hint(f"only the first {SHOWN} are shown; --json lists up to 1,000")
    show_missing(report.missing)
    for job_id in sorted(report.unknown_jobs):
        note(
            f"the catalog does not record how many originals job {job_id} archived, so this command cannot tell "
            "whether any are missing"
        )
    if report.interruptions:
        note(
            f"killed runners: {report.interruptions}; the originals that each archived after its last checkpoint "
            "(about a second's worth) are not recorded, so this command cannot tell whether any of those are missing"
        )
    note_torn(report.torn)


def _restore_json(report: RestoreOutcome) -> dict[str, Any]:
    total = report.total
    return {
        "executed": report.job_id is not None,
        **facts(report, "files", "archive_bytes", "shards", "interruptions", job="job_id"),
        **facts(total, "archived", "restored", "bytes_before", "bytes_after", "already", "left"),
        "failures": [{**asdict(failure), "row_key": str(failure.key.row_key)} for failure in report.failures],
        "torn": {str(path): size for path, size in report.torn.items()},
        "missing_originals": [asdict(gap) for gap in report.missing],
        "unknown_jobs": sorted(report.unknown_jobs),
    }


@click.command(cls=JSONCommand)
@job_option("The migration to finalise.  [default: the last that replaced a body]")
@archive_option("Folder of the archive; may be repeated.  [default: the folder that the job wrote to]")
@option(
    "--accept-left",
    "Accept cells that the job recorded as left unchanged, and archived cells that have been erased since.",
    is_flag=True,
)
@proof_options
def finalise(
    store: Datastore,
    job_id: int | None,
    folders: tuple[Path, ...],
    accept_left: bool,
    options: VerifyOptions,
    workers: int,
    dask: str | None,
) -> int:
    """Verify a migration, then list archive files to delete.

    The command performs the checks of 'migrate verify' on all cells, and counts the originals in the archive. It
    refuses if the job is not done, if there is a fault, or if a body is left that the job should have replaced, such as
    one that an application has since written in the old form. In the last case, run the migration again.

    On success it marks the job as finalised and lists the files of the archive. It deletes nothing. Delete the files
    when the exact original bytes are no longer needed. Even without them, 'migrate run --to legacy' can turn the bodies
    back into JSON text.

    \b
    Examples:
      schemaless migrate finalise
      schemaless migrate finalise --job 3 --accept-left
      schemaless migrate finalise --json | jq -r '.files[].path' | xargs rm

    Exit status: 0 if the job is finalised, 1 if the command refused.
    """
    faults = FaultOutput(_FAULTS_PER_KIND)
    job_store = JobStore(store)
    job = chosen_job(job_store, job_id)
    shards = job_store.numbers(job.job_id)
    with verify_workers("verifying", store, shards, workers, dask, faults) as (pool, listener):
        result = finalise_job(store, job, folders, options, accept_left=accept_left, workers=pool, listener=listener)
    _note_others(job_store, job)
    print_result(
        {
            "job": job.job_id,
            "state": result.job.state,
            "refused": result.refused,
            "files": [{"path": str(file.path), "bytes": file.size_bytes} for file in result.files],
            "freed_bytes": result.freed_bytes,
            **verify_json(result.verified, faults.kept),
        }
    )
    show_left(result.verified.left)
    note_torn(result.verified.torn)
    if result.refused:
        out().print(f"job {job.job_id} is not finalised: {'; '.join(result.refused)}")
        _show_gaps(result.verified.missing)
        return EXIT_FAILED
    out().print(f"job {job.job_id} is finalised: {result.job.message}")
    _show_files(result.files, result.freed_bytes)
    return 0


def _note_others(job_store: JobStore, job: Job) -> None:
    replaced = job_store.with_replacements() - {job.job_id}
    others = [other.job_id for other in job_store.jobs("migrate") if other.state == "done" and other.job_id in replaced]
    if others:
        note(f"other jobs that are done but not finalised (choose one with --job): {', '.join(map(str, others))}")


def _show_files(files: list[ArchiveFile], freed_bytes: int) -> None:
    if not files:
        out().print("the job kept no originals, so there is nothing to delete")
        return
    out().print(
        f"{counted(len(files), 'archive file')} with originals may be deleted now ({bytes_text(freed_bytes)}); this "
        "command deleted nothing"
    )
    if len(files) <= SHOWN:
        print_rows(None, [{"file": file.path, "bytes": file.size_bytes} for file in files])
        return
    folders = grouped((file.path.parent, file.size_bytes) for file in files)
    rows = [{"folder": folder, "files": len(sizes), "bytes": sum(sizes)} for folder, sizes in sorted(folders.items())]
    print_rows(None, rows, "folders")
    hint("--json lists each file")
