"""``schemaless tier``: documents of old cells in files on cheap storage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.command import Command, JSONCommand, QueryCommand
from schemaless.cli.job_options import JobRun, run_options
from schemaless.cli.option import option
from schemaless.cli.options import execute_option
from schemaless.ops.jobs.driver import patiently
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import JobKind, S
from schemaless.ops.tier.cooling import TIER, cold_store, spec_of
from schemaless.ops.tier.recall import RECALL, RecallSpec
from schemaless.ops.tier.survey import Survey, Tiers, survey, verify
from schemaless.ops.tier.sweep import SWEEP, SweepSpec
from schemaless.store.cold.files import ShardFiles
from schemaless.store.cold.settings import MOST_DAYS, TierPolicy
from schemaless.store.cold.targets import open_target
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    bytes_change_text,
    facts,
    note,
    out,
    print_result,
    print_rows,
    print_table,
    progress,
)


def _days(text: str) -> int:
    """Parse a number of days, such as ``180d``."""
    found = re.fullmatch(r"([0-9]{1,5})d?", text)
    if found is None or int(found[1]) > MOST_DAYS:
        raise click.BadParameter(f"{text!r} is not a number of days such as 180d, up to {MOST_DAYS:,}")
    return int(found[1])


@click.group()
def tier() -> None:
    """Keep the documents of old cells in files on cheap storage.

    Cold cells keep their rows; their documents are in Parquet files in a folder or an object store, from which every
    call reads them as before, more slowly. DuckDB, Spark and pandas read the files, too. The package needs the extra
    cold: pip install 'schemaless-store[cold]'.

    \b
    Typical order:
      schemaless tier store s3://bucket/cold
      schemaless tier set LOG --after 180d
      schemaless tier plan
      schemaless tier run --execute
      schemaless rebuild --execute
    """


@tier.command(cls=Command)
@click.argument("uri", required=False)
@option(
    "--keep-days N",
    "Keep files that no cell refers to for N days, as long as backups may be restored that do.  [default: 30]",
    type=click.IntRange(0, MOST_DAYS),
)
@option("--moved", "The existing files have been copied to the new place.", is_flag=True)
def store(uri: str | None, store: Datastore, keep_days: int | None, moved: bool) -> None:
    """Show or set where cold files are.

    URI is a folder that every client can reach, or one that pyarrow opens, such as s3://bucket/path. Credentials come
    from the environment of each process. Unless the datastore has cold files, which must be there then, the command
    marks the place as a cold store. The account needs the role admin.

    \b
    Examples:
      schemaless tier store
      schemaless tier store s3://bucket/cold --keep-days 90
    """
    settings = internals_of(store).cold
    known = settings.store()
    if uri is None and keep_days is None:
        print_result(None if known is None else asdict(known))
        if known is None:
            note("the datastore has no cold store; 'schemaless tier store URI' sets one")
        else:
            out().print(
                f"{known.uri}, set by {known.set_by}; unused files are kept for {counted(known.keep_days, 'day')}"
            )
        return
    if uri is None and known is None:
        raise click.UsageError("give the URI, too: the datastore has no cold store yet")
    place = open_target(known.uri if uri is None and known is not None else str(uri)).uri
    has_files = known is not None and _has_files(store)
    if known is not None and place != known.uri and not moved and has_files:
        raise click.UsageError(
            f"cold files are in {known.uri}; copy them to {place} first, and run the command again with --moved"
        )
    days = keep_days if keep_days is not None else 30 if known is None else known.keep_days
    settings.set_store(place, days, marked=uri is None or has_files)
    out().print(f"cold files are in {place}; unused ones are kept for {counted(days, 'day')}")


def _has_files(store: Datastore) -> bool:
    shards = internals_of(store).shards
    return any(ShardFiles(shards, shard).all("live", "writing") for shard in range(store.shard_count))


@tier.command("set", cls=Command)
@click.argument("column")
@option("--after DAYS", "Cells become cold at this age, such as 180d.", name="after_days", type=_days)
@option("--never", "Remove the policy. Cold cells stay cold; 'tier recall' brings them back.", is_flag=True)
def set_(column: str, store: Datastore, after_days: int | None, never: bool) -> None:
    """Set when the cells of a column become cold.

    Nothing is moved by this command. The account needs the role admin.

    \b
    Examples:
      schemaless tier set LOG --after 180d
      schemaless tier set LOG --never
    """
    if never == (after_days is not None):
        raise click.UsageError("give either --after or --never")
    settings = internals_of(store).cold
    if after_days is None:
        settings.remove(column)
        out().print(f"{column}: no further cells become cold")
    else:
        policy = TierPolicy(column, after_days)
        settings.set(policy)
        out().print(f"{column}: {policy}; 'schemaless tier plan' shows what that frees")


@tier.command(cls=QueryCommand)
def plan(store: Datastore, shards: list[int]) -> None:
    """Predict what a run would free, and the size of its files.

    The command reads head and length of every body, and a sample of documents. It changes nothing.

    \b
    Examples:
      schemaless tier plan
      schemaless tier plan --shards 0-15 --json
    """
    _plan_and_show(store, shards)


def _plan_and_show(store: Datastore, shards: Sequence[int]) -> None:
    rules = spec_of(store).rules()
    with progress("counting cells", len(shards), "shards") as listener:
        found = survey(store, rules, shards, listener)
    total = found.total
    for name in sorted({name for name, _ in rules} - found.columns.keys()):
        note(f"{name} has a policy, but no cells in these shards")
    print_result({**_survey_json(found), "freed_bytes": total.freed_bytes, "new_file_bytes": found.new_file_bytes})
    if not total.eligible_cells:
        out().print("no further cells become cold now")
        return
    print_table(
        "",
        ["column", "cells", "become cold", "freed in the database"],
        [
            [name, f"{each.cells:,}", f"{each.eligible_cells:,}", bytes_change_text(each.freed_bytes, less="")]
            for name, each in sorted(found.columns.items())
        ],
        text_columns=1,
    )
    out().print(
        f"{counted(total.eligible_cells, 'cell')} would become cold: {bytes_change_text(total.freed_bytes)} in bodies, "
        f"about {bytes_text(found.new_file_bytes)} of files"
    )


@tier.command(cls=JSONCommand)
@execute_option("Write cold files and replace bodies. Without this option, the command predicts what that frees.")
@run_options("Continue this job; all other options are ignored.")
def run(store: Datastore, shards: list[int], execute: bool, how: JobRun) -> int:
    """Move the documents of old cells into cold files.

    Each file is written, read back and compared with what was written before any body is replaced, and a body is
    replaced only if it is still the one that was read. After Ctrl-C or a kill, running the same command again continues
    the job; run it on several machines to share the work. To give the space back to the disk, run 'schemaless rebuild'.
    The account needs the role migrate.

    \b
    Examples:
      schemaless tier run
      schemaless tier run --execute --workers 2

    Exit status: 0 if done, 1 if cells were left because they do not decode, 3 if stopped; run the same command again to
    continue.
    """
    if not execute:
        _plan_and_show(store, shards)
        return 0
    job, spec, shards = how.resumed(TIER, JobStore(store)) or (None, spec_of(store, thresholds=how.thresholds), shards)
    ended = _run(store, TIER, spec, shards, how, job)
    result = _outcome(store, ended, "files", "file_bytes", "text_bytes", "bases", "changed")
    print_result(result)
    freed = result["bytes_before"] - result["bytes_after"]
    out().print(
        f"{counted(result['cells'], 'cell')} became cold: {bytes_change_text(freed)} in bodies, "
        f"{counted(result['files'], 'file')} of {bytes_text(result['file_bytes'])}"
    )
    if result["bases"]:
        note(f"{counted(result['bases'], 'cell')} stayed, because other versions are stored as differences from them")
    if result["changed"]:
        note(f"{counted(result['changed'], 'cell')} changed while the files were written; run the command again")
    return _left(result["left_cells"], ended)


@tier.command(cls=JSONCommand)
@option("--column NAME", "Only this column; repeat for more.", name="columns", multiple=True)
@execute_option("Put documents back. Without this option, the command counts them.")
@run_options("Continue this job; all other options are ignored.")
def recall(store: Datastore, shards: list[int], columns: tuple[str, ...], execute: bool, how: JobRun) -> int:
    """Put cold documents back into the database.

    They are stored in the codec of their column. Their files stay until 'schemaless tier sweep'. The account needs the
    role migrate.

    \b
    Examples:
      schemaless tier recall --column LOG
      schemaless tier recall --column LOG --execute

    Exit status: 0 if done, 1 if cells were left because they cannot be read, 3 if stopped; run the same command again
    to continue.
    """
    if not execute:
        with progress("counting cells", len(shards), "shards") as listener:
            found = survey(store, [], shards, listener)
        chosen = {name: each for name, each in found.columns.items() if not columns or name in columns}
        print_result({name: asdict(each) for name, each in chosen.items()})
        total = sum(chosen.values(), Tiers())
        out().print(
            f"{counted(total.cold_cells, 'cold cell')} with {bytes_text(total.cold_text_bytes)} of JSON text would be "
            "put back"
        )
        return 0
    new = RecallSpec(columns, thresholds=how.thresholds)
    job, spec, shards = how.resumed(RECALL, JobStore(store)) or (None, new, shards)
    ended = _run(store, RECALL, spec, shards, how, job)
    result = _outcome(store, ended)
    print_result(result)
    out().print(f"{counted(result['cells'], 'cell')} put back: {bytes_text(result['bytes_after'])} of bodies")
    return _left(result["left_cells"], ended)


@tier.command(cls=JSONCommand)
@option("--keep-days N", "Keep them this long.  [default: as in tier store]", type=click.IntRange(0, MOST_DAYS))
@execute_option("Delete files. Without this option, the command counts what is there.")
def sweep(store: Datastore, shards: list[int], keep_days: int | None, execute: bool) -> int:
    """Delete files that no cell refers to, once no backup needs them.

    A backup that is older than the time for which files are kept may refer to deleted ones. The account needs the role
    migrate.

    \b
    Examples:
      schemaless tier sweep
      schemaless tier sweep --execute
    """
    days = cold_store(internals_of(store)).keep_days if keep_days is None else keep_days
    if not execute:
        return _show_status(store, shards)
    ended = _run(store, SWEEP, SweepSpec(days), shards, JobRun())
    result = _outcome(store, ended, "condemned", "deleted", "deleted_bytes")
    print_result(result)
    out().print(
        f"{counted(result['condemned'], 'file')} found unused; {counted(result['deleted'], 'file')} deleted "
        f"({bytes_text(result['deleted_bytes'])}); unused ones are kept for {counted(days, 'day')}"
    )
    return 0


@tier.command(cls=QueryCommand)
def status(store: Datastore, shards: list[int]) -> int:
    """Show cells and bytes of both tiers, and the cold files.

    The command reads head and length of every body. 'schemaless job show' shows the progress of a run.

    \b
    Example:
      schemaless tier status
    """
    return _show_status(store, shards)


def _show_status(store: Datastore, shards: Sequence[int]) -> int:
    with progress("counting cells", len(shards), "shards") as listener:
        found = survey(store, [], shards, listener)
    known = internals_of(store).cold.store()
    policies = {policy.column_name: policy for policy in internals_of(store).cold.policies()}
    print_result({"uri": None if known is None else known.uri, **_survey_json(found)})
    if found.columns:
        rows = [
            {
                "column": name,
                "policy": str(policies.get(name, "stays in the database")),
                "cells": f"{each.cells:,}",
                "cold": f"{each.cold_cells:,}",
                "bodies": bytes_text(each.body_bytes),
                "cold documents": bytes_text(each.cold_text_bytes),
            }
            for name, each in sorted(found.columns.items())
        ]
        print_rows("", rows, text_columns=2)
    out().print(
        f"cold store: {'none' if known is None else known.uri}; {counted(found.files['live'], 'file')} of "
        f"{bytes_text(found.file_bytes)}, {counted(found.files['condemned'], 'unused file')} of "
        f"{bytes_text(found.condemned_bytes)}"
    )
    return 0


@tier.command("verify", cls=QueryCommand)
def verify_(store: Datastore, shards: list[int]) -> int:
    """Read every cold file and compare it with the cells.

    Its checksum must be that of what was written, and every cell that refers to it must find its document there.

    \b
    Example:
      schemaless tier verify --shards 0-15

    Exit status: 0 if all is well, 1 if a file or a cell is not.
    """
    with progress("reading cold files", len(shards), "shards") as listener:
        found = verify(store, shards, listener)
    print_result(
        {
            **facts(found, "files", "file_bytes", "cells"),
            "faults": [
                {"shard": each.shard, "key": None if each.key is None else str(each.key), "message": each.message}
                for each in found.faults
            ],
        }
    )
    for fault in found.faults[:20]:
        note(f"shard {fault.shard}{'' if fault.key is None else f', cell {fault.key}'}: {fault.message}")
    if len(found.faults) > 20:
        note(f"and {len(found.faults) - 20:,} more; --json lists all")
    out().print(
        f"read {counted(found.files, 'file')} of {bytes_text(found.file_bytes)} and "
        f"{counted(found.cells, 'cold cell')}: {counted(len(found.faults), 'fault')}"
    )
    return EXIT_FAILED if found.faults else 0


def _run(
    store: Datastore, kind: JobKind[S], spec: S, shards: Sequence[int], how: JobRun, job: Job | None = None
) -> Job:
    with how.options(JobStore(store), job) as options:
        return kind.run(store, spec, shards, **options)


def _outcome(store: Datastore, job: Job, *counters: str) -> dict[str, Any]:
    states = patiently(store, lambda: JobStore(store).shards(job.job_id))
    sums = {
        name: sum(getattr(state, name) for state in states)
        for name in ("cells", "left_cells", "bytes_before", "bytes_after")
    }
    counted = {name: sum(state.counters.get(name) or 0 for state in states) for name in counters}
    return {"job": job.job_id, "state": job.state, **sums, **counted}


def _left(cells: int, job: Job) -> int:
    if not cells:
        return 0
    note(f"{counted(cells, 'cell')} left as they are; 'schemaless job show {job.job_id}' says why")
    return EXIT_FAILED


def _survey_json(found: Survey) -> dict[str, Any]:
    return {
        "columns": {name: asdict(each) for name, each in found.columns.items()},
        "files": dict(found.files),
        **facts(found, "file_bytes", "condemned_bytes", "file_share", "sampled_cells"),
    }
