"""``schemaless rebuild``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from schemaless.base.numbers import Interval, bytes_text, counted
from schemaless.cli.command import JSONCommand
from schemaless.cli.job_options import JobRun, run_options
from schemaless.cli.option import option
from schemaless.cli.options import as_spec, execute_option, note_estimated_sizes
from schemaless.cli.quantities import FiniteRange, size_of
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.rebuild import (
    MOST_LAG_S,
    MOST_TRIES,
    REBUILD,
    RebuildPlan,
    RebuildSpec,
    ShardRebuilt,
    plan_rebuild,
)
from schemaless.ops.migrate.rebuild import run as run_rebuild
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    bytes_change_text,
    estimate_json,
    estimate_text,
    facts,
    note,
    out,
    print_result,
    print_rows,
    progress,
    size_text,
)
from schemaless.ui.terminal.progress import duration


@click.command(cls=JSONCommand, before=as_spec(RebuildSpec))
@execute_option("Rebuild the tables. Without this option, the command predicts cost and gain.")
@run_options("Continue this job with the options that it was started with; all other options are ignored.")
@option(
    "--max-rebuild-lag SECONDS",
    "On clusters with replicas, skip a shard whose rebuild may make them lag by more than this.",
    name="max_rebuild_lag_s",
    type=FiniteRange(0, MOST_LAG_S, min_open=True),
    default=600.0,
)
@option(
    "--free-bytes SIZE",
    "Free space on each server's disk, such as 200GB, for servers where the command cannot determine it.",
    type=size_of,
    callback=lambda context, option, size: None if size is None else int(size),
)
@option(
    "--lock-wait SECONDS",
    "Time that a rebuild waits for open transactions before it tries again; new writers queue while it waits.",
    name="lock_wait_s",
    type=click.IntRange(1, MOST_TRIES),
    default=2,
)
@option("--attempts", "Maximum number of attempts per shard.", type=click.IntRange(1, MOST_TRIES), default=30)
def rebuild(store: Datastore, shards: list[int], execute: bool, how: JobRun, spec: RebuildSpec) -> int:
    """Rebuild tables to give free space back to the disk.

    A migration leaves free space inside the table files, and only a rebuild shrinks the files. Tables are rebuilt
    online, one shard at a time on each server, while applications read and write.

    On MySQL, the command copies each table, and locks out writers for a fraction of a second to swap the copy in. The
    binary log receives all cells, and replicas lag while they build the copy's index. On MariaDB, the server rebuilds
    the table; that cannot be throttled once it runs, and replicas lag by as long as it takes.

    A rebuild needs disk space for the new file beside the old one. The command waits for replicas between shards, and
    skips shards that would make them lag too long or do not fit on the disk. If it is killed, each table is either
    unchanged or completely rebuilt, and running the same command again continues the work. The account needs the role
    move.

    \b
    Examples:
      schemaless rebuild
      schemaless rebuild --execute --shards 0-255
      schemaless rebuild --execute --free-bytes 200GB --max-rebuild-lag 1800

    Exit status: 0 if done, 1 if some shards were skipped, 3 if stopped; run the same command again to continue.
    """
    new = replace(spec, thresholds=how.thresholds)
    job, spec, shards = how.resumed(REBUILD, JobStore(store)) or (None, new, shards)
    if not execute:
        with progress("sampling", len(shards), "shards") as listener:
            plans = plan_rebuild(store, spec, shards, listener=listener)
        _show_plan(plans)
        return 0
    with how.options(JobStore(store), job) as options:
        rebuilt = run_rebuild(store, spec, shards, **options)
    _show_rebuilt(rebuilt)
    return EXIT_FAILED if any(outcome.state == "failed" for outcome in rebuilt) else 0


def _show_plan(plans: list[RebuildPlan]) -> None:
    print_result({"total": _plan_total(plans), "shards": [_plan_json(plan) for plan in plans]})
    total = _plan_total(plans)
    possible = counted(total["shards"] - total["refused"], "shard")
    out().print(
        f"{possible}: files of {bytes_text(total['file_bytes'])} would become about "
        f"{bytes_text(total['rebuilt_bytes'])}, {bytes_change_text(total['file_bytes'] - total['rebuilt_bytes'])}"
    )
    if any(plan.replicas for plan in plans):
        longest = max((plan for plan in plans if plan.replicas), key=lambda plan: plan.lag_s.high)
        out().print(f"replicas would lag by up to {duration(longest.lag_s.high)} (shard {longest.shard})")
    if not all(plan.size.measured for plan in plans):
        note_estimated_sizes()
    if any(plan.free_bytes is None for plan in plans):
        note("the free disk space shown as ? is unknown and not checked; give it with --free-bytes")
    for plan in plans:
        if plan.refusal is not None:
            note(f"shard {plan.shard} would be skipped: {plan.refusal}")
    rows = [
        {
            "shard": plan.shard,
            "cluster": plan.cluster,
            "file now": bytes_text(plan.size.file_bytes),
            "rebuilt": estimate_text(plan.prediction.file_bytes, bytes_text),
            "gives back": "-"
            if plan.refusal
            else bytes_change_text(plan.size.file_bytes - plan.prediction.file_bytes.mid, less=""),
            "needs free": bytes_text(plan.needed_bytes),
            "free": size_text(plan.free_bytes, "?"),
            "takes": estimate_text(plan.seconds, duration),
        }
        for plan in plans
    ]
    print_rows("\nby shard", rows, "shards", text_columns=2)


def _plan_total(plans: list[RebuildPlan]) -> dict[str, Any]:
    possible = [plan for plan in plans if plan.refusal is None]
    return {
        "shards": len(plans),
        "file_bytes": sum(plan.size.file_bytes for plan in possible),
        "rebuilt_bytes": round(sum(plan.prediction.file_bytes.mid for plan in possible)),
        "seconds": round(sum(plan.seconds.mid for plan in possible), 1),
        "refused": sum(plan.refusal is not None for plan in plans),
    }


def _plan_json(plan: RebuildPlan) -> dict[str, Any]:
    return {
        **facts(plan, "shard", "cluster", "replicas", "free_bytes", "refusal"),
        **facts(plan.size, "file_bytes", file_bytes_measured="measured"),
        **facts(plan.prediction, "cells", "body_bytes", rebuilt_bytes="file_bytes"),
        "needed_bytes": round(plan.needed_bytes),
        "seconds": estimate_json(plan.seconds, digits=2),
        "lag_seconds": estimate_json(plan.lag_s, digits=2),
    }


def _show_rebuilt(rebuilt: list[ShardRebuilt]) -> None:
    done = [outcome for outcome in rebuilt if outcome.after_bytes is not None]
    total = {
        "shards": len(rebuilt),
        "done": len(done),
        "before_bytes": sum(outcome.before_bytes for outcome in done),
        "after_bytes": sum(outcome.after_bytes or 0 for outcome in done),
        "predicted_bytes": round(sum((outcome.predicted or Interval.of(0)).mid for outcome in done)),
        "seconds": round(sum(outcome.seconds or 0.0 for outcome in done), 3),
    }
    print_result({"total": total, "shards": [_rebuilt_json(outcome) for outcome in rebuilt]})
    freed = bytes_change_text(
        total["before_bytes"] - total["after_bytes"], "given back to the disk", "more space used on the disk"
    )
    out().print(
        f"{len(done)} of {counted(len(rebuilt), 'shard')} rebuilt: {bytes_text(total['before_bytes'])} became "
        f"{bytes_text(total['after_bytes'])}; [bold]{freed}[/]",
        markup=True,
    )
    if total["after_bytes"]:
        off = total["predicted_bytes"] / total["after_bytes"] - 1
        out().print(f"the prediction was {bytes_text(total['predicted_bytes'])}, off by {off:+.1%}")
    for outcome in rebuilt:
        if outcome.message is not None:
            note(f"shard {outcome.shard}: {outcome.message}")
    rows = [
        {
            "shard": outcome.shard,
            "cluster": outcome.cluster,
            "before": bytes_text(outcome.before_bytes),
            "after": size_text(outcome.after_bytes),
            "given back": None
            if outcome.after_bytes is None
            else bytes_change_text(outcome.before_bytes - outcome.after_bytes, less=""),
            "predicted": outcome.predicted and bytes_text(outcome.predicted.mid),
            "off by": None if outcome.off is None else f"{outcome.off:+.1%}",
            "took": None if outcome.seconds is None else duration(outcome.seconds),
        }
        for outcome in rebuilt
    ]
    print_rows("\nby shard", rows, "shards", text_columns=2)


def _rebuilt_json(rebuilt: ShardRebuilt) -> dict[str, Any]:
    return {
        **facts(rebuilt, "shard", "cluster", "state", "before_bytes", "after_bytes", "seconds", "attempts", "message"),
        "predicted_bytes": rebuilt.predicted and estimate_json(rebuilt.predicted),
        "off": None if rebuilt.off is None else round(rebuilt.off, 4),
    }
