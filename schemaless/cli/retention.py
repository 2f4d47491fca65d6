"""``schemaless retention``: policies of columns, legal holds of rows, and the job that erases expired cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from schemaless.base.numbers import bytes_text, counted
from schemaless.cell import TOMBSTONE_BYTES
from schemaless.cli.command import Command, JSONCommand, QueryCommand
from schemaless.cli.job_options import JobRun, job_option, run_options
from schemaless.cli.option import option
from schemaless.cli.options import execute_option, row_key_of
from schemaless.ops.erasure.expired import Rule, server_time
from schemaless.ops.erasure.job import RETAIN, ErasureSpec, Outcome, begin_retention, outcome_of
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.plan import plan_expired
from schemaless.ops.jobs.driver import patiently
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.reclaimed import others_text
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.retention import MOST_DAYS, MOST_VERSIONS, Policy
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.output import facts, note, out, print_result, print_rows, print_table, progress


@click.group()
def retention() -> None:
    """Erase old cells by policy, and place legal holds on rows.

    A policy limits which cells of a column are kept: those from the last N days, the last N versions of each row, or
    both; a cell is kept if either rule keeps it. A run erases the rest, except in rows under a legal hold. An erased
    cell keeps its key, so that it cannot be written again.

    \b
    Typical order:
      schemaless retention set LOG --days 400
      schemaless retention plan
      schemaless retention run --execute
      schemaless rebuild --execute
    """


@retention.command("set", cls=Command)
@click.argument("column")
@option("--days N", "Keep cells of the last N days.", type=click.IntRange(1, MOST_DAYS))
@option(
    "--versions N",
    "Keep the last N versions of each row; erased versions count.",
    type=click.IntRange(1, MOST_VERSIONS),
)
@option("--forever", "Keep everything: remove the policy.", is_flag=True)
def set_(column: str, store: Datastore, days: int | None, versions: int | None, forever: bool) -> None:
    """Set the retention policy of a column.

    Nothing is erased by this command. The account needs the role erase.

    \b
    Examples:
      schemaless retention set LOG --days 400
      schemaless retention set STATUS --days 400 --versions 3
      schemaless retention set LOG --forever
    """
    if forever == (days is not None or versions is not None):
        raise click.UsageError("give --days, --versions or both; or --forever alone")
    policies = internals_of(store).policies
    if forever:
        policies.remove(column)
        out().print(f"{column}: keep everything")
    else:
        policy = Policy(column, days, versions)
        policies.set(policy)
        out().print(f"{column}: {policy}; 'schemaless retention plan' shows what that erases")


@retention.command(cls=QueryCommand)
@option("--released", "Also list holds that have ended.", is_flag=True)
def show(store: Datastore, released: bool) -> None:
    """Show policies and legal holds.

    \b
    Example:
      schemaless retention show --released --json
    """
    policies = internals_of(store).policies.all()
    holds = internals_of(store).holds.all(released=released)
    print_result({"policies": [_policy_json(policy) for policy in policies], "holds": list(map(asdict, holds))})
    if policies:
        print_table(
            "policies",
            ["column", "policy", "set by", "set (UTC)"],
            [[policy.column_name, policy, policy.set_by, policy.set_at] for policy in policies],
            text_columns=4,
        )
    out().print("all other columns: keep everything" if policies else "all columns: keep everything")
    if holds:
        print_table(
            "\nlegal holds",
            ["row", "held by", "reason", "since (UTC)", "released (UTC)"],
            [[hold.row_key, hold.held_by, hold.reason, hold.held_at, hold.released_at] for hold in holds],
            text_columns=5,
        )


@retention.command(cls=Command)
@click.argument("row_keys", metavar="ROW_KEY...", nargs=-1, required=True)
@option("--by WHO", "Who holds the rows, such as a department.", name="held_by", required=True)
@option("--reason CODE", "The reason, as a code such as case-4711.", required=True)
def hold(row_keys: tuple[str, ...], store: Datastore, held_by: str, reason: str) -> None:
    """Keep rows from being erased until they are released.

    Retention skips the rows, and 'erase' refuses them and says who holds them. Several parties can hold a row
    independently. The account needs the role erase.

    \b
    Example:
      schemaless retention hold uuid5:N14228 --by legal --reason case-4711
    """
    internals_of(store).holds.hold(map(row_key_of, row_keys), held_by, reason)
    out().print(f"held by {held_by}: {counted(len(row_keys), 'row')}")


@retention.command(cls=Command)
@click.argument("row_keys", metavar="ROW_KEY...", nargs=-1, required=True)
@option("--by WHO", "Who held the rows.", name="held_by", required=True)
def release(row_keys: tuple[str, ...], store: Datastore, held_by: str) -> None:
    """End one party's legal holds on rows.

    \b
    Example:
      schemaless retention release uuid5:N14228 --by legal
    """
    released = internals_of(store).holds.release(map(row_key_of, row_keys), held_by)
    out().print(f"released for {held_by}: {counted(released, 'hold')}")


@retention.command(cls=QueryCommand)
def plan(store: Datastore, shards: list[int]) -> None:
    """Count the cells that a run would erase now.

    The command reads the key of every cell, and the lengths of the bodies that have expired. It changes nothing.

    \b
    Examples:
      schemaless retention plan
      schemaless retention plan --shards 0-15 --json
    """
    _plan_and_show(store, shards)


@retention.command(cls=JSONCommand)
@execute_option("Erase. Without this option, the command counts what it would erase.")
@run_options("Continue this job; all other options are ignored.")
def run(store: Datastore, execute: bool, how: JobRun) -> None:
    """Erase expired cells.

    The run adds one entry to the ledger of erasures before anything is erased; the ages of cells are calculated as of
    that moment. It is a job that may run beside other jobs. After Ctrl-C or a kill, running the same command again
    continues the job; run it on several machines to share the work. To give the space back to the disk, run 'schemaless
    rebuild'. The account needs the role erase.

    \b
    Examples:
      schemaless retention run
      schemaless retention run --execute --max-mb-per-s 5

    Exit status: 0 if done, 3 if stopped; run the same command again to continue.
    """
    if not execute:
        _plan_and_show(store, range(store.shard_count))
        return
    job_store = JobStore(store)
    job, resumed, _ = how.resumed(RETAIN, job_store) or (None, None, ())
    number = begin_retention(store) if resumed is None else resumed.erasure
    if number is None:
        note("no column has a policy; 'schemaless retention set' sets one")
        return
    with how.options(job_store, job) as options:
        ended = run_erasure(store, ErasureSpec(number, thresholds=how.thresholds), **options)
        outcome = patiently(store, lambda: outcome_of(store, ended))
    _show_outcome(outcome)


@retention.command(cls=QueryCommand)
@job_option("The job to show.  [default: the latest run]")
def status(store: Datastore, job_id: int | None) -> None:
    """Show what a run has erased, and the space it has freed.

    'schemaless job show' shows its progress.

    \b
    Example:
      schemaless retention status
    """
    job_store = JobStore(store)
    jobs = job_store.jobs("retain")
    if job_id is not None:
        job_store.job(job_id).check_kind("retain")
    elif not jobs:
        note("retention has never run; 'schemaless retention run --execute' starts it")
        return
    chosen = jobs[-1].job_id if job_id is None else job_id
    outcome = outcome_of(store, job_store.job(chosen))
    _show_outcome(outcome)


def _policy_json(policy: Policy) -> dict[str, Any]:
    return facts(policy, "column_name", "keep_days", "keep_versions", "set_by", "set_at")


def _plan_and_show(store: Datastore, shards: Sequence[int]) -> None:
    """Print what a run would erase now."""
    policies, now = internals_of(store).policies.all(), server_time(store)
    with progress("counting expired cells", len(shards), "shards") as listener:
        planned = plan_expired(store, [Rule.of(policy, now) for policy in policies], shards, listener=listener)
    totals = {policy.column_name: planned.total(policy.column_name) for policy in policies}
    freed = {name: total.body_bytes - TOMBSTONE_BYTES * total.cells for name, total in totals.items()}
    held = sum(planned.held.values())
    by_shard: dict[int, dict[str, Any]] = {shard: {} for shard in shards if policies}
    for part in planned.parts:
        by_shard[part.shard][part.of] = facts(part, "cells", "body_bytes")
    print_result(
        {
            "now": now,
            "policies": [_policy_json(policy) for policy in policies],
            "columns": {
                name: {**facts(total, "cells", "body_bytes"), "freed_bytes": freed[name]}
                for name, total in totals.items()
            },
            "held_cells": held,
            "shards": [
                {"shard": shard, "columns": columns, "held": planned.held.get(shard, 0)}
                for shard, columns in by_shard.items()
            ],
        }
    )
    if not policies:
        note("no column has a policy; 'schemaless retention set' sets one")
        return
    rows = [
        {
            "column": policy.column_name,
            "policy": policy,
            "cells to erase": totals[policy.column_name].cells,
            "their bodies": bytes_text(totals[policy.column_name].body_bytes),
            "freed, less tombstones": bytes_text(freed[policy.column_name]),
        }
        for policy in policies
    ]
    print_rows(None, rows, text_columns=2)
    if held:
        note(f"{held:,} more expired cells are kept, because their rows are held")


def _show_outcome(outcome: Outcome) -> None:
    print_result(
        {
            **facts(outcome, "erasure", "job_id", "state", "cells", "held", "bytes_before", "bytes_after"),
            "files": asdict(outcome.sizes.file),
            "allocated": asdict(outcome.sizes.allocated),
            **facts(outcome.sizes, "rebuilt_shards", "shards", files_measured="measured"),
            "other_jobs": [asdict(other) for other in outcome.others],
        }
    )
    out().print(
        f"erasure {outcome.erasure}: {counted(outcome.cells, 'cell')} erased; bodies of "
        f"{bytes_text(outcome.bytes_before)} became tombstones of {bytes_text(outcome.bytes_after)}"
    )
    if outcome.held:
        note(f"kept {counted(outcome.held, 'expired cell')} of rows that are held")
    file = outcome.sizes.file
    if file.before is not None and file.after is not None:
        rebuilt = "" if file.rebuilt is None else f", {bytes_text(file.rebuilt)} after a rebuild"
        statistics = "" if outcome.sizes.measured else " (by InnoDB's statistics)"
        out().print(f"files: {bytes_text(file.before)} before, {bytes_text(file.after)} after{rebuilt}{statistics}")
    if others := others_text(outcome.others):
        note(others)
    if outcome.cells and outcome.sizes.rebuilt_shards < outcome.sizes.shards:
        note("'schemaless rebuild --execute' gives the freed space back to the disk")
