"""``schemaless migrate verify`` and ``finalise``: the proof, and the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from schemaless.cli.jobs import chosen_job, job_option, workers_options
from schemaless.cli.options import id_total, open_store, shards_of, url_option
from schemaless.errors import InvalidInput
from schemaless.jobs.job import Job
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.workers import Workers
from schemaless.jobs.workers import workers as some_workers
from schemaless.migrate.archive_files import ArchiveFile
from schemaless.migrate.check import Fault
from schemaless.migrate.finalise import archive_of, named_failures
from schemaless.migrate.finalise import finalise as finalise_job
from schemaless.migrate.originals import Missing, Originals, missing_of, missing_text
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.verify import LAG_TIMEOUT_S, VerifyReport, verify_with_workers
from schemaless.migrate.verify import verify as verify_cells
from schemaless.store.datastore import Datastore
from schemaless.terminal.output import (
    EXIT_FAILED,
    bytes_text,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
)

SHOWN = 20


def archive_option(*, required: bool, help_text: str) -> Callable[[Any], Any]:
    """Return the option that names archives."""
    return click.option(
        "--archive",
        "folders",
        type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
        multiple=True,
        required=required,
        metavar="DIR",
        help=help_text,
    )


_replicas_option = click.option(
    "--replicas/--no-replicas",
    default=True,
    show_default=True,
    help="Compare with the replicas that the topology names.",
)
_lag_option = click.option(
    "--lag-timeout",
    "lag_timeout_s",
    type=click.FloatRange(min=0),
    default=LAG_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a replica that differs may take to catch up.",
)


def note_torn(torn: dict[Path, int]) -> None:
    """Name files whose last frame is not whole."""
    for path, size in sorted(torn.items()):
        note(
            f"{path} ends in {size:,} bytes that are no whole frame: a runner that ended there had replaced none of "
            "their cells, but of a copy that broke off the rest is missing"
        )


def show_missing(missing: list[Missing]) -> None:
    """Print which originals are missing."""
    text = missing_text(missing)
    if text is not None:
        out().print(text, markup=False)
    for each in missing[:SHOWN]:
        out().print(f"  {each}", markup=False)
    if len(missing) > SHOWN:
        note(f"the first {SHOWN} files are shown; --json lists all")


@click.command()
@url_option
@job_option("The migration whose work this is.  [default: the last that replaced a body]")
@click.option(
    "--shards", "shards_text", metavar="LIST", help="Only these shards, such as 0-3,8.  [default: all of the job]"
)
@click.option("--sample", metavar="SHARE", help="Only a share of the cells, such as 1%, in blocks of neighbours.")
@click.option("--seed", type=int, metavar="N", help="Draw the sample that this seed gives.")
@archive_option(required=False, help_text="The originals.  [default: where the job wrote them]")
@click.option("--no-archive", is_flag=True, help="Do without the originals.")
@_replicas_option
@_lag_option
@workers_options
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
    """Prove what a migration left behind, whole or in a sample. Changes nothing.

    \b
    - Each cell decodes, is what a writer of this store would write, and is in the codec that the job was to give it;
      cells that the job left and named are counted.
    - Each replica that the topology names holds the same bytes, keys and times; what has not arrived is waited for.
    - Each original in the archive has its cell still, under the same key, added_id and created_at, with the same
      document.

    Each fault is one line that names the cell. Readers and writers may go on meanwhile.

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
    faults = _Faults(as_json)
    with open_store(url) as store:
        ledger = Ledger(store.catalog, store.name)
        job = ledger.latest("migrate") if job_id is None else ledger.job(job_id)
        shards = _shards_to_verify(store, ledger, job, shards_text)
        wanted = None
        if job is not None and job.unfinished:
            note(f"job {job.job_id} is {job.state}: that all is in its codec is not asked for yet")
        elif job is not None and job.state != "aborted":
            wanted = MigrateSpec.from_json(job.spec)
        states = [] if job is None else [state for state in ledger.shards(job.job_id) if state.shard in set(shards)]
        archive = None if no_archive else _archive(store, job, folders)
        options: dict[str, Any] = {
            "wanted": wanted,
            "named": [] if job is None else named_failures(ledger, job.job_id, states),
            "sample": None if sample is None else _share(sample),
            "seed": seed,
            "archive": archive,
            "replicas": replicas,
            "lag_timeout_s": lag_timeout_s,
            "on_fault": faults.add,
        }
        with _hands(store, shards, workers, dask) as (hands, advance):
            if hands is None:
                report = verify_cells(store, shards, on_ids=advance, **options)
            else:
                report = verify_with_workers(store, hands, shards, on_shard=advance, **options)
    # After it was finalised, its files may be deleted.
    compared = archive is not None and job is not None and job.state != "finalised"
    missing = missing_of(job.job_id, states, report.records) if compared and job is not None else []
    if as_json:
        print_json(
            {
                "job": None if job is None else job.job_id,
                **_verify_json(report),
                "missing_originals": [asdict(each) for each in missing],
                "faults": faults.found,
            }
        )
    else:
        out().print(_verdict(report, archive))
        _show_left(report.left)
        show_missing(missing)
        note_torn(report.torn)
    return EXIT_FAILED if report.faults or missing else 0


def _shards_to_verify(store: Datastore, ledger: Ledger, job: Job | None, shards_text: str | None) -> list[int]:
    """Return the shards that are asked for, or those of the job; of others it has promised nothing."""
    if job is None:
        return shards_of(shards_text, store.shard_count)
    job.check_kind("migrate")
    own = [state.shard for state in ledger.shards(job.job_id, counters=False)]
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


@contextmanager
def _hands(
    store: Datastore, shards: list[int], count: int, dask: str | None
) -> Iterator[tuple[Workers | None, Callable[[int], None]]]:
    """Give workers, or None for this process alone, and what takes how far they are."""
    if count == 1 and dask is None:
        with progress("verifying", id_total(store, shards), "ids") as advance:
            yield None, advance
    else:
        with some_workers(count, dask) as hands, progress("verifying", len(shards), "shards") as advance:
            yield hands, advance


def _share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        share = float(number) / (100 if number != text else 1)
    except ValueError:
        share = 0
    if not 0 < share < 1:
        raise InvalidInput(f"--sample takes a share over 0 and below 1, such as 1% or 0.01, got {text!r}")
    return share


class _Faults:
    """Prints faults as they are found, or keeps them for JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.found: list[dict[str, Any]] = []

    def add(self, fault: Fault) -> None:
        if not self._as_json:
            out().print(str(fault), markup=False)
            return
        key = fault.key
        self.found.append(
            {
                "kind": fault.kind,
                "shard": fault.shard,
                "row_key": None if key is None else str(key.row_key),
                "column_name": None if key is None else key.column_name,
                "ref_key": None if key is None else key.ref_key,
                "added_id": fault.added_id,
                "message": fault.message,
            }
        )


def _verdict(report: VerifyReport, archive: Originals | None) -> str:
    found = f"{report.faults.total():,} faults" if report.faults else "sound"
    parts = [f"{found}: {report.cells:,} cells in {report.shards:,} shards, {bytes_text(report.body_bytes)} of bodies"]
    parts += [f"{cells:,} compared with replica {node}" for node, cells in sorted(report.compared.items())]
    if archive is not None:
        parts.append(f"{report.archived:,} originals of {len(archive.files):,} files looked up")
    if report.seed is not None:
        parts.append(f"a sample of {report.blocks:,} of {report.blocks_of:,} blocks, --seed {report.seed}")
    return "; ".join(parts)


def _show_left(left: Counter[str]) -> None:
    for reason, cells in left.most_common():
        out().print(f"{cells:,} left by the job, and named: {reason}")


def _verify_json(report: VerifyReport) -> dict[str, Any]:
    return {
        "shards": report.shards,
        "cells": report.cells,
        "body_bytes": report.body_bytes,
        "by_codec": dict(report.by_codec),
        "left": dict(report.left),
        "blocks": report.blocks,
        "blocks_of": report.blocks_of,
        "seed": report.seed,
        "compared": dict(report.compared),
        "archived": report.archived,
        "torn": {str(path): size for path, size in report.torn.items()},
        "fault_counts": dict(report.faults),
    }


@click.command()
@url_option
@job_option("The migration to end.  [default: the last that replaced a body]")
@archive_option(required=False, help_text="The originals.  [default: where the job wrote them]")
@click.option(
    "--accept-left", is_flag=True, help="Accept cells that the job left and named, or that were erased since."
)
@_replicas_option
@_lag_option
@workers_options
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
    """Verify all of a migration, and say which originals may be deleted. Deletes nothing.

    Runs the whole of 'migrate verify' and counts the originals. Refuses while the job is not done, while a fault is
    found, and while one body is left that the job should have replaced, such as one that was written in the old form
    since; run the migration again then. Afterwards the job is called finalised, and its files are listed: delete them
    when no way back to the exact first bytes is wanted any more. 'migrate run --to legacy' still gives JSON text back.

    \b
    Examples:
      schemaless migrate finalise
      schemaless migrate finalise --job 3 --accept-left
      schemaless migrate finalise --json | jq -r '.files[].path' | xargs rm

    Exit status: 0 finalised, 1 refused.
    """
    faults = _Faults(as_json)
    with open_store(url) as store:
        ledger = Ledger(store.catalog, store.name)
        job = chosen_job(ledger, job_id)
        shards = [state.shard for state in ledger.shards(job.job_id, counters=False)]
        with _hands(store, shards, workers, dask) as (hands, advance):
            result = finalise_job(
                store,
                job,
                folders,
                accept_left=accept_left,
                replicas=replicas,
                lag_timeout_s=lag_timeout_s,
                hands=hands,
                on_fault=faults.add,
                on_step=advance,
            )
        _note_others(ledger, job)
    if as_json:
        print_json(
            {
                "job": job.job_id,
                "state": result.job.state,
                "refused": result.refused,
                "files": [{"path": str(file.path), "bytes": file.size_bytes} for file in result.files],
                "freed_bytes": result.freed_bytes,
                **_verify_json(result.verified),
                "missing_originals": [asdict(each) for each in result.missing],
                "faults": faults.found,
            }
        )
        return EXIT_FAILED if result.refused else 0
    _show_left(result.verified.left)
    note_torn(result.verified.torn)
    if result.refused:
        out().print(f"job {job.job_id} is not finalised: {'; '.join(result.refused)}", markup=False)
        for each in result.missing[:SHOWN]:
            out().print(f"  {each}", markup=False)
        return EXIT_FAILED
    out().print(f"job {job.job_id} is finalised: {result.job.message}", markup=False)
    _show_files(result.files, result.freed_bytes)
    return 0


def _note_others(ledger: Ledger, job: Job) -> None:
    """Say which other migrations may have originals."""
    replaced = ledger.that_replaced() - {job.job_id}
    others = [each.job_id for each in ledger.jobs("migrate") if each.state == "done" and each.job_id in replaced]
    if others:
        note(f"done and not finalised yet, each by --job N: {', '.join(map(str, others))}")


def _show_files(files: list[ArchiveFile], freed_bytes: int) -> None:
    if not files:
        out().print("it kept no originals, so there is nothing to delete")
        return
    out().print(f"{len(files):,} files of originals may be deleted now, {bytes_text(freed_bytes)}; nothing was deleted")
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
