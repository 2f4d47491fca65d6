"""``schemaless migrate verify``."""

from __future__ import annotations

from pathlib import Path

import click

from schemaless.cli.faults import FaultOutput, verify_workers
from schemaless.cli.jobs import job_option
from schemaless.cli.migrate.archive import (
    archive_option,
    note_torn,
    proof_options,
    show_left,
    show_missing,
    verify_json,
)
from schemaless.cli.options import open_store, shards_of, url_option
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.jobs.job import Job
from schemaless.jobs.job_store import JobStore
from schemaless.migrate.finalise import archive_of, named_failures
from schemaless.migrate.originals import Originals, missing_of
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.verify import VerifyOptions, VerifyReport
from schemaless.migrate.verify import verify as verify_cells
from schemaless.terminal.output import EXIT_FAILED, ReadOnlyCommand, bytes_text, json_option, note, out, print_json


@click.command(cls=ReadOnlyCommand)
@url_option
@job_option("The migration to verify.  [default: the last that replaced a body]")
@click.option(
    "--shards",
    "shards_text",
    metavar="LIST",
    help="Verify only these shards, such as 0-3,8.  [default: all shards of the job]",
)
@click.option(
    "--sample", metavar="SHARE", help="Verify only a share of the cells, such as 1%, in blocks of adjacent cells."
)
@click.option("--seed", type=int, metavar="N", help="Seed of the sample; the same seed draws the same sample.")
@archive_option("Folder of the archive; may be repeated.  [default: the folder that the job wrote to]")
@click.option("--no-archive", is_flag=True, help="Do not compare with the originals in the archive.")
@proof_options
@json_option
def verify(
    url: str,
    job_id: int | None,
    shards_text: str | None,
    sample: str | None,
    seed: int | None,
    folders: tuple[Path, ...],
    no_archive: bool,
    replicas: bool,
    lag_timeout_s: float,
    workers: int,
    dask: str | None,
    as_json: bool,
) -> int:
    """Verify the result of a migration. Read-only.

    The command reads all cells, or a sample, and checks:

    \b
    - Cells: each cell decodes, is in canonical form, and is in the target codec of the job. Cells that the job left as
      they are and recorded are counted separately.
    - Replicas: each replica in the topology holds the same bytes, keys and times. A replica that lags is given time to
      catch up.
    - Archive: each original still has its cell, with the same key, added_id, created_at and document.

    Each fault is one line that names the cell. Applications may read and write at the same time. When there are no
    faults, finish the migration with 'schemaless migrate finalise'.

    \b
    Examples:
      schemaless migrate verify
      schemaless migrate verify --sample 1% --workers 4
      schemaless migrate verify --sample 1% --seed 3141592653 --no-replicas --json
      schemaless migrate verify --job 3 --archive /mnt/db-1/originals --archive /mnt/db-2/originals

    Exit status: 0 sound, 1 faults found.
    """
    if no_archive and folders:
        raise InvalidInput("--archive and --no-archive contradict each other; use only one of them")
    share = None if sample is None else _share(sample)
    faults = FaultOutput(as_json)
    with open_store(url) as store:
        job_store = JobStore(store)
        job = job_store.latest("migrate") if job_id is None else job_store.job(job_id)
        shards = _shards_to_verify(store, job_store, job, shards_text)
        wanted = None
        if job is not None and job.unfinished:
            note(f"job {job.job_id} is {job.state}, so cells that it has not re-encoded yet are not reported as faults")
        elif job is not None and job.state != "aborted":
            wanted = MigrateSpec.of(job)
        states = [] if job is None else [state for state in job_store.shards(job.job_id) if state.shard in set(shards)]
        archive = None if no_archive else _archive(store, job, folders)
        options = VerifyOptions(
            wanted,
            [] if job is None else named_failures(job_store, job.job_id, states),
            share,
            seed,
            archive,
            replicas,
            lag_timeout_s,
        )
        with verify_workers("verifying", store, shards, workers, dask, faults) as (pool, listener):
            report = verify_cells(store, shards, options, workers=pool, listener=listener)
    # The files of a finalised job may have been deleted.
    compared = archive is not None and job is not None and job.state != "finalised"
    missing = missing_of(job.job_id, states, report.records) if compared and job is not None else []
    if as_json:
        print_json({"job": None if job is None else job.job_id, **verify_json(report, missing, faults.kept)})
    else:
        out().print(_verdict(report, archive))
        show_left(report.left)
        show_missing(missing)
        note_torn(report.torn)
    return EXIT_FAILED if report.faults or missing else 0


def _shards_to_verify(store: Datastore, job_store: JobStore, job: Job | None, shards_text: str | None) -> list[int]:
    """Return the shards to verify: those given, which must be shards of the job, or all of the job's."""
    if job is None:
        return shards_of(shards_text, store.shard_count)
    job.check_kind("migrate")
    own = job_store.numbers(job.job_id)
    if shards_text is None:
        return own
    shards = shards_of(shards_text, store.shard_count)
    others = sorted(set(shards) - set(own))
    if others:
        raise InvalidInput(f"job {job.job_id} does not include shard {others[0]}; use --job to name a job that does")
    return shards


def _archive(store: Datastore, job: Job | None, folders: tuple[Path, ...]) -> Originals | None:
    if job is not None:
        return archive_of(store, job, folders)
    return Originals.of(store, folders) if folders else None


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / (100 if number != text else 1)
    except ValueError:
        share = 0
    if not 0 < share < 1:
        raise InvalidInput(f"--sample takes a share over 0 and below 1, such as 1% or 0.01, got {text!r}")
    return share


def _verdict(report: VerifyReport, archive: Originals | None) -> str:
    verdict = f"{report.faults.total():,} faults" if report.faults else "sound"
    parts = [
        f"{verdict}: {report.cells:,} cells in {report.shards:,} shards, {bytes_text(report.body_bytes)} of bodies"
    ]
    parts += [f"{cells:,} compared with replica {node}" for node, cells in sorted(report.compared.items())]
    if archive is not None:
        parts.append(f"{report.archived:,} originals from {len(archive.files):,} files compared")
    if report.seed is not None:
        parts.append(f"sample of {report.blocks:,} of {report.blocks_of:,} blocks, --seed {report.seed}")
    return "; ".join(parts)
