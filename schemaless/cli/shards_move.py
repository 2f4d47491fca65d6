"""``schemaless shards plan`` and ``schemaless shards move``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import click

from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.command import JSONCommand, QueryCommand
from schemaless.cli.job_options import JobRun, run_options
from schemaless.cli.option import option
from schemaless.cli.options import as_spec, note_dry, with_options
from schemaless.cli.quantities import FiniteRange, shards_of
from schemaless.errors import InvalidInput
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.move.record import MoveRecord
from schemaless.ops.move.run import MOVE, ShardPlan
from schemaless.ops.move.run import plan as make_plan
from schemaless.ops.move.run import run as run_move
from schemaless.ops.move.spec import MOST_GIVE_UP_S, MOST_PAUSE_S, MoveSpec
from schemaless.planning.capacity.skew import Skew, shards_to_balance
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    estimate_json,
    estimate_text,
    facts,
    note,
    out,
    print_result,
    print_rows,
    print_table,
    progress,
)
from schemaless.ui.terminal.progress import duration

_ROWS_SHOWN = 64

_Run = Callable[[MoveSpec, Sequence[int], Job | None], None]
"""Runs one job to its end: the given one, else the shards' unfinished job or a new one."""


@dataclass(frozen=True, slots=True)
class _Which:
    """Which shards to move where, from ``_which_options``."""

    numbers: str | None = None
    target: str | None = None
    drain: str | None = None
    balanced: bool = False


_which_options: Final = with_options(
    click.argument("numbers", metavar="[SHARDS]", required=False),
    option("--to CLUSTER", "The cluster to move to, such as cluster-3.", name="target"),
    option("--drain CLUSTER", "Move all shards of this cluster, instead of SHARDS."),
    option(
        "--balance",
        "Choose shards and targets that even out the clusters, based on the figures of 'capacity report'; "
        "use it instead of SHARDS and --to.",
        name="balanced",
        is_flag=True,
    ),
    option(
        "--unchecked-accounts",
        "Skip the check that the accounts that use a shard have grants for it on the target.",
        name="unchecked",
        is_flag=True,
    ),
    as_spec(_Which, name="which"),
)
"""The options that choose shards and their target, passed as ``which``."""


@click.command(cls=QueryCommand)
@_which_options
def plan(which: _Which, unchecked: bool, store: Datastore) -> int:
    """Estimate the size and duration of a move. Read-only.

    For each shard, the plan shows its bytes, an estimate of the copying time, and anything that prevents the move: a
    table that does not belong to this store, an unfinished job on the shard, accounts without grants on the target
    (with the GRANT statements they need), or too little space on the target's disk, if its free space can be read.

    \b
    Examples:
      schemaless shards plan 0-255 --to cluster-3
      schemaless shards plan --drain cluster-1 --to cluster-3 --json
      schemaless shards plan --balance

    Exit status: 0, or 1 if a shard cannot be moved.
    """
    _check_which(which)
    spec = _spec(store, which, accounts=not unchecked)
    return _plan(store, spec, None if which.balanced else _shards(store, which.numbers, spec.drain))


@click.command(cls=JSONCommand)
@_which_options
@option("--execute", "Move the shards. Without this option, the command only prints the plan.", is_flag=True)
@run_options("Resume this job, with the shards, target and options that it was started with.")
@option(
    "--max-pause MS",
    "Longest pause of readers and writers per attempt to cut a shard over.",
    name="max_pause_ms",
    type=FiniteRange(0, MOST_PAUSE_S * 1000, min_open=True),
    default=1000.0,
)
@option(
    "--give-up SECONDS",
    "Give up after this long if a cutover keeps failing, for example because of a long transaction, or if "
    "copying goes on without shrinking the backlog.",
    name="give_up_s",
    type=FiniteRange(0, MOST_GIVE_UP_S, min_open=True),
    default=3600.0,
)
def move(
    which: _Which,
    unchecked: bool,
    store: Datastore,
    execute: bool,
    how: JobRun,
    max_pause_ms: float,
    give_up_s: float,
) -> int:
    """Move shards to another cluster.

    SHARDS are numbers such as 0-3,8. Each shard is copied while applications use it. Its readers and writers then pause
    for a moment, in which the remaining cells are copied and the catalog is changed. Finally the moved shard is
    compared with its old tables, cell by cell. Copying waits while replicas of either cluster lag, as a migration does;
    --max-mb-per-s limits its rate.

    If a move is killed, or a server fails, running the same command again resumes it. With --drain, it then also moves
    any shards that the drained cluster has received in the meantime; if the cluster has no shards, the command succeeds
    at once. The old tables stay until 'schemaless shards drop-moved'. The account needs the role move.

    \b
    Examples:
      schemaless shards move 17 --to cluster-2
      schemaless shards move 0-255 --to cluster-3 --execute --max-mb-per-s 20
      schemaless shards move --drain cluster-1 --to cluster-3 --execute
      schemaless shards move --balance --execute

    Exit status: 0 if all are moved and compared, 1 if a shard cannot be moved, 3 if stopped; run the same command again
    to continue.
    """
    if how.job_id is None:
        _check_which(which)
    options: dict[str, Any] = {"max_pause_s": max_pause_ms / 1000, "give_up_s": give_up_s, "accounts": not unchecked}
    records: list[MoveRecord] = []
    job_store, job, shards = JobStore(store), None, None
    if (resumed := how.resumed(MOVE, job_store)) is not None:
        job, spec, shards = resumed
    else:
        spec = _spec(store, which, thresholds=how.thresholds, **options)
        shards = None if which.balanced else _shards(store, which.numbers, spec.drain)
    if not execute:
        status = _plan(store, spec, shards)
        if status:
            note("nothing was changed; --execute is refused while a shard cannot be moved")
        else:
            note_dry()
        return status

    def run(spec: MoveSpec, shards: Sequence[int], job: Job | None = None) -> None:
        with how.options(job_store, job) as options:
            records.extend(run_move(store, spec, shards, **options))

    if shards is None:
        _balance(store, spec, run)
    elif spec.drain is not None and job is None:
        _drain(store, spec, run)
    else:
        run(spec, shards, job)
    show_records(records)
    return 0


def _check_which(which: _Which) -> None:
    if which.balanced:
        if which != _Which(balanced=True):
            raise InvalidInput("--balance chooses the shards and their targets; omit SHARDS, --to and --drain")
    elif which.target is None:
        raise InvalidInput("name the target cluster: --to CLUSTER")
    elif (which.numbers is None) == (which.drain is None):
        raise InvalidInput("name the shards, such as 0-3,8, or use --drain CLUSTER for all shards of a cluster")


def _spec(store: Datastore, which: _Which, **options: Any) -> MoveSpec:
    drained = None if which.drain is None else internals_of(store).topology.cluster(which.drain).name
    return MoveSpec("balance" if which.balanced else which.target or "", drain=drained, **options)


def _shards(store: Datastore, text: str | None, drain: str | None) -> list[int]:
    if drain is None:
        return shards_of(text, store.shard_count)
    return internals_of(store).topology.shards_of(drain)


def _drain(store: Datastore, spec: MoveSpec, run: _Run) -> None:
    """Move all shards of a cluster, completing an interrupted drain first."""
    job_store = JobStore(store)
    shards = _shards(store, None, spec.drain)
    joined = MOVE.same(job_store, spec, shards)
    if joined is not None:
        run(spec, shards, joined)
        _look_again(store)
        # Exclude shards that the job left there because their move was aborted.
        shards = sorted({*_shards(store, None, spec.drain)} - {*job_store.numbers(joined.job_id)})
    if shards:
        run(spec, shards, None)
    elif joined is None:
        note(f"{spec.drain} has no shards; there is nothing to move")


def _balance(store: Datastore, spec: MoveSpec, run: _Run) -> None:
    """Complete unfinished moves, then even out the clusters with one job for each target."""
    job_store = JobStore(store)
    for job in job_store.jobs("move"):
        if job.unfinished:
            run(MoveSpec.of(job), job_store.numbers(job.job_id), job)
    _look_again(store)
    for target, shards in _balancing(store)[1].items():
        run(replace(spec, target=target), shards, None)


def _look_again(store: Datastore) -> None:
    shards = internals_of(store).shards
    shards.router.again(shards.routing)


def _balancing(store: Datastore) -> tuple[Skew, dict[str, list[int]]]:
    """Return the skew between clusters, and the shards that have yet to be moved to each target cluster."""
    uneven, parts = shards_to_balance(store)
    topology = internals_of(store).topology
    left = {
        target: [shard for shard in shards if topology.cluster_of(shard).name != target]
        for target, shards in parts.items()
    }
    return uneven, {target: shards for target, shards in left.items() if shards}


def _plan(store: Datastore, spec: MoveSpec, shards: Sequence[int] | None) -> int:
    """Print the plan of a move; without ``shards``, of moves that even out the clusters."""
    uneven, parts = _balancing(store) if shards is None else (None, {spec.target: shards})
    plans = {target: _plans(store, replace(spec, target=target), part) for target, part in parts.items()}
    targets = [_plan_data(target, of_target) for target, of_target in plans.items()]
    print_result(targets[0] if uneven is None else {**_skew_data(uneven), "targets": targets})
    if uneven is not None:
        _show_skew(uneven)
    for target, of_target in plans.items():
        _show_plan(target, of_target)
    if uneven is not None and uneven.moves and not plans:
        note("all these shards have been moved; run 'schemaless capacity measure' before balancing again")
    return EXIT_FAILED if any(plan.refusal is not None for some in plans.values() for plan in some) else 0


def _plans(store: Datastore, spec: MoveSpec, shards: Sequence[int]) -> list[ShardPlan]:
    if not shards:
        return []
    with progress("inspecting both servers", len(shards), "shards") as listener:
        return make_plan(store, spec, shards, listener=listener)


def _plan_data(target: str, plans: Sequence[ShardPlan]) -> dict[str, Any]:
    total = {
        "shards": len(plans),
        "file_bytes": sum(plan.size.file_bytes for plan in plans),
        "seconds": round(sum(plan.seconds.mid for plan in plans), 1),
        "refused": sum(plan.refusal is not None for plan in plans),
    }
    return {"target": target, "total": total, "shards": [_plan_json(plan) for plan in plans]}


def _show_plan(target: str, plans: Sequence[ShardPlan]) -> None:
    if not plans:
        out().print(f"there is nothing to move to {target}")
        return
    movable = [plan for plan in plans if plan.refusal is None]
    total = _plan_data(target, movable)["total"]
    out().print(
        f"{counted(len(movable), 'shard')} with {bytes_text(total['file_bytes'])} would move to {target}; "
        f"copying them one by one may take {duration(total['seconds'])}"
    )
    if plans[0].free_bytes is None:
        note("the free space on the target's disk cannot be read from here; check it on that server first")
    if len(plans) <= _ROWS_SHOWN:
        print_table(
            "\nby shard",
            ["shard", "from", "bytes", "copying takes"],
            [
                [plan.shard, plan.source, bytes_text(plan.size.file_bytes), estimate_text(plan.seconds, duration)]
                for plan in plans
            ],
            text_columns=2,
        )
    for plan in plans:
        if plan.refusal is not None:
            first = "; run there first:" if plan.grants else ""
            note(f"shard {plan.shard} cannot be moved: {plan.refusal}{first}")
            for statement in plan.grants:
                out().print(f"{statement};")


def _plan_json(plan: ShardPlan) -> dict[str, Any]:
    return {
        **facts(plan, "shard", "source", "target", "free_bytes", "refusal"),
        **facts(plan.size, "file_bytes", file_bytes_measured="measured"),
        "seconds": estimate_json(plan.seconds, digits=2),
        "grants": list(plan.grants),
    }


def _show_skew(uneven: Skew) -> None:
    if not uneven.moves:
        out().print(f"nothing to move: the fullest cluster has {uneven.cluster_ratio:.2f} times its fair share")
        return
    out().print(
        f"the fullest cluster has {uneven.cluster_ratio:.2f} times its fair share; "
        f"moving {counted(len(uneven.moves), 'shard')} with {bytes_text(uneven.moved_bytes)} "
        f"reduces that to {uneven.cluster_ratio_after:.2f}"
    )


def _skew_data(uneven: Skew) -> dict[str, Any]:
    return {
        "cluster_ratio": round(uneven.cluster_ratio, 4),
        "cluster_ratio_after": round(uneven.cluster_ratio_after, 4),
        "moved_bytes": round(uneven.moved_bytes),
        "by_disk": uneven.by_disk,
    }


def show_records(records: Sequence[MoveRecord]) -> None:
    """Print the outcome for each shard of a job."""
    print_result({"shards": [asdict(record) for record in records]})
    if not records:
        out().print("no shard has started to move")
        return
    rows = [
        {
            "shard": record.shard,
            "from": record.source,
            "to": record.target,
            "phase": record.phase,
            "cells": record.fence_rows,
            "paused for": None if record.pause_s is None else f"{record.pause_s * 1000:,.0f} ms",
        }
        for record in records
    ]
    print_rows(None, rows, text_columns=4)
