"""``schemaless migrate verify``: the proof."""

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
from schemaless.terminal.output import EXIT_FAILED, bytes_text, json_option, note, out, print_json


@click.command()
@url_option
@job_option("The migration to verify.  [default: the last that replaced a body]")
@click.option(
    "--shards", "shards_text", metavar="LIST", help="Only these shards, such as 0-3,8.  [default: all of the job]"
)
@click.option(
    "--sample", metavar="SHARE", help="Verify only a share of the cells, such as 1%, in blocks of neighbours."
)
@click.option("--seed", type=int, metavar="N", help="The seed of the sample; the same seed draws the same sample.")
@archive_option("The folder of the originals; may be repeated.  [default: where the job wrote them]")
@click.option("--no-archive", is_flag=True, help="Verify without the originals.")
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
    """Prove that a migration's result is sound.

    The proof reads all cells, or a sample, and changes nothing.

    \b
    - Each cell decodes, is what a writer of this store would write, and is in the codec that the job was to give it;
      cells that the job left and named are counted.
    - Each replica that the topology names holds the same bytes, keys and times; a replica that lags is given time.
    - Each original in the archive still has its cell, under the same key, added_id and created_at, with the same
      document.

    Each fault is one line that names the cell. Applications may read and write meanwhile. After a proof without faults,
    'schemaless migrate finalise' ends the migration.

    \b
    Examples:
      schemaless migrate verify
      schemaless migrate verify --sample 1% --workers 4
      schemaless migrate verify --sample 1% --seed 3141592653 --no-replicas --json
      schemaless migrate verify --job 3 --archive /mnt/db-1/originals --archive /mnt/db-2/originals

    Exit status: 0 sound, 1 faults found.
    """
    if no_archive and folders:
        raise InvalidInput("--archive and --no-archive contradict each other; give one of them")
    share = None if sample is None else _share(sample)
    faults = FaultOutput(as_json)
    with open_store(url) as store:
        job_store = JobStore(store)
        job = job_store.latest("migrate") if job_id is None else job_store.job(job_id)
        shards = _shards_to_verify(store, job_store, job, shards_text)
        wanted = None
        if job is not None and job.unfinished:
            note(f"job {job.job_id} is {job.state}: cells that it has yet to re-encode are no fault")
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
        with verify_workers("verifying", store, shards, workers, dask, faults) as (hands, listener):
            report = verify_cells(store, shards, options, workers=hands, listener=listener)
    # After it was finalised, its files may be deleted.
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
    """Return the shards that are asked for, or those of the job; of others it has promised nothing."""
    if job is None:
        return shards_of(shards_text, store.shard_count)
    job.check_kind("migrate")
    own = job_store.numbers(job.job_id)
    if shards_text is None:
        return own
    shards = shards_of(shards_text, store.shard_count)
    others = sorted(set(shards) - set(own))
    if others:
        raise InvalidInput(f"job {job.job_id} is not about shard {others[0]}; name the job that is by --job")
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
        parts.append(f"{report.archived:,} originals of {len(archive.files):,} files looked up")
    if report.seed is not None:
        parts.append(f"a sample of {report.blocks:,} of {report.blocks_of:,} blocks, --seed {report.seed}")
    return "; ".join(parts)
