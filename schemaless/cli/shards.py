"""``schemaless shards``: moves shards between clusters."""

from __future__ import annotations

import click

from schemaless.base.numbers import counted
from schemaless.cli.command import JSONCommand, QueryCommand
from schemaless.cli.job_options import chosen_job, job_option
from schemaless.cli.option import option
from schemaless.cli.options import execute_option
from schemaless.cli.shards_move import move, plan, show_records
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.move import run as moves
from schemaless.ops.move.compare import Compared, Leftovers, compare
from schemaless.ops.move.record import Records
from schemaless.ops.move.run import drop, left_behind
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.job_progress import JobProgress
from schemaless.ui.terminal.output import EXIT_FAILED, facts, note, out, print_result, print_rows, progress


@click.group(commands=[plan, move])
def shards() -> None:
    """Move shards to another cluster.

    Applications and followers (triggers and indexes) keep running; they pause for a fraction of a second while a shard
    is cut over to its new server. Cells keep their added_id, created_at and bytes, and followers keep their locations.

    A move is a job in the catalog. If it is killed, running the same command again resumes it.

    \b
    Workflow:
      schemaless shards plan 0-255 --to cluster-3
      schemaless shards move 0-255 --to cluster-3 --execute
      schemaless job show            shows the progress; 'schemaless job' also
                                     pauses and throttles a move
      schemaless shards verify       compares shards with their old tables
      schemaless shards drop-moved   drops the old tables, once compared
    """


@shards.command(cls=QueryCommand)
@job_option("The move to show.  [default: the unfinished one, or the last]")
@option("--all", "Show the shards of all moves.", name="show_all", is_flag=True)
def status(store: Datastore, job_id: int | None, show_all: bool) -> None:
    """Show the phase of each shard of a move.

    'schemaless job show' shows the progress of the move. The phases are copying, cutting over (a moment), moved,
    verified once the shard has been compared with its old tables, and dropped once those are removed. The column
    "paused for" shows how long readers and writers had to wait.

    \b
    Examples:
      schemaless shards status
      schemaless shards status --all --json
    """
    if not show_all:
        job = chosen_job(JobStore(store), job_id, "move")
        job.check_kind("move")
        job_id = job.job_id
    records = Records(store).all(None if show_all else job_id)
    show_records(records)


@shards.command(cls=JSONCommand)
@job_option("The number of the move.  [default: the unfinished one]")
@option("--uncompared", "Skip comparing a moved shard if its old server cannot be reached.", is_flag=True)
def abort(store: Datastore, job_id: int | None, uncompared: bool) -> int:
    """Abort a move for good.

    Shards that have not been cut over stay where they are, and their copies are dropped. A shard that has been cut over
    stays on its new cluster, since it may have new cells there; another move can bring it back. It is still compared
    with its old tables; if their server is gone for good, use --uncompared. If the command is killed, run it again to
    resume it.

    \b
    Example:
      schemaless shards abort --job 3

    Exit status: 0 if aborted, 1 if some shards had moved already, 3 if stopped; run the same command again to continue.
    """
    job_store = JobStore(store)
    job = chosen_job(job_store, job_id, "move")
    with JobProgress(job_store) as shown:
        records = moves.abort(store, job, uncompared=uncompared, listener=shown)
    show_records(records)
    moved = [record.shard for record in records if record.phase != "aborted"]
    if moved:
        note(f"already cut over, and staying on the new cluster: {counted(len(moved), 'shard')}")
    return EXIT_FAILED if moved else 0


_NAMED = 5


@shards.command(cls=JSONCommand)
def verify(shards: list[int], store: Datastore) -> int:
    """Compare moved shards with their old tables, cell by cell. Read-only.

    A move makes this comparison for each shard before it ends. This command repeats it, as long as 'shards drop-moved'
    has not dropped the old tables. It compares ids, keys, times and bytes by digests that the two servers compute. A
    body that was re-encoded after the move counts as equal if its document is equal; cells written after the move are
    ignored. The output shows the SHA-256 of all cells in the old tables.

    \b
    Examples:
      schemaless shards verify
      schemaless shards verify --shards 0-255 --json

    Exit status: 0, or 1 if a shard differs.
    """
    left = [place for place in left_behind(store, shards) if place.has_cells]
    with progress("comparing", len(left), "shards") as listener:
        comparisons = [compare(store, place, listener=listener) for place in left]
    print_result({"shards": [_data(comparison) for comparison in comparisons]})
    _show_comparisons(comparisons)
    return 0 if all(comparison.same for comparison in comparisons) else EXIT_FAILED


def _data(compared: Compared) -> dict[str, object]:
    own = facts(compared, "cells", "same", "left_digest", "digest", "re_encoded", "lacking", "differing", "strange")
    return {**facts(compared.record, "shard", "job_id", "source", "target"), **own}


def _show_comparisons(comparisons: list[Compared]) -> None:
    if not comparisons:
        out().print("no moved shard has old tables to compare with")
        return
    rows = [
        {
            "shard": compared.record.shard,
            "job": compared.record.job_id,
            "from": compared.record.source,
            "sha-256": compared.left_digest[:16],
            "": "same" if compared.same else "differs",
            "cells": compared.cells,
            "re-encoded": compared.re_encoded,
        }
        for compared in comparisons
    ]
    print_rows(None, rows, text_columns=5)
    for compared in comparisons:
        for what, ids in (
            ("missing from the moved shard", compared.lacking),
            ("different in the moved shard", compared.differing),
            ("in the moved shard, but not in its old tables", compared.strange),
        ):
            if ids:
                named = ", ".join(map(str, ids[:_NAMED])) + (", ..." if len(ids) > _NAMED else "")
                note(f"shard {compared.record.shard}: {counted(len(ids), 'cell')} {what}, by added_id: {named}")


@shards.command("drop-moved", cls=JSONCommand)
@execute_option("Drop the tables. Without this option, the command only lists them.")
def drop_moved(shards: list[int], execute: bool, store: Datastore) -> int:
    """Drop the old tables of moved shards.

    The old tables are on the clusters that the shards came from. The command drops a shard's old tables only if they
    have been compared with the moved shard, still have as many cells as they had then, and are on a server that the
    catalog no longer lists for the shard. Dropping cannot be undone, but the moved shard has all the cells.

    \b
    Examples:
      schemaless shards drop-moved
      schemaless shards drop-moved --shards 0-255 --execute

    Exit status: 0, or 1 if some tables could not be dropped.
    """
    leftovers = left_behind(store, shards)
    ready = [leftover for leftover in leftovers if leftover.refusal is None]
    if execute:
        with progress("dropping", len(ready), "shards") as listener:
            for leftover in ready:
                drop(store, leftover, listener=listener)
    _show_leftovers(leftovers, execute)
    return EXIT_FAILED if len(ready) < len(leftovers) else 0


def _show_leftovers(leftovers: list[Leftovers], execute: bool) -> None:
    print_result(
        {
            "shards": [
                {
                    **facts(leftover.record, "shard", "job_id", "source"),
                    "node": str(leftover.node),
                    **facts(leftover, "cells", "refusal"),
                    "dropped": execute and leftover.refusal is None,
                }
                for leftover in leftovers
            ]
        }
    )
    if not leftovers:
        out().print("no moved shard has old tables")
        return
    done = "dropped" if execute else "would be dropped"
    rows = [
        {
            "shard": leftover.record.shard,
            "job": leftover.record.job_id,
            "left on": leftover.node,
            "cells": leftover.cells,
            "": done if leftover.refusal is None else "stays",
        }
        for leftover in leftovers
    ]
    print_rows(None, rows, text_columns=3)
    for leftover in leftovers:
        if leftover.refusal is not None:
            note(f"shard {leftover.record.shard} stays: {leftover.refusal}")
