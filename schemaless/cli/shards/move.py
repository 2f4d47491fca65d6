"""``schemaless shards plan`` and ``schemaless shards move``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from schemaless.cli.jobs import JobProgress, job_option, throttle_options, workers_options
from schemaless.cli.options import open_store, shards_of, url_option
from schemaless.cli.shards.shown import show_records
from schemaless.errors import InvalidInput
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.throttle import Thresholds
from schemaless.move.run import MOVE, ShardPlan, begin_or_join
from schemaless.move.run import plan as make_plan
from schemaless.move.run import run as run_move
from schemaless.move.spec import MoveSpec
from schemaless.store.datastore import Datastore
from schemaless.store.tools import tools_of
from schemaless.terminal.output import (
    EXIT_FAILED,
    bytes_text,
    estimate_json,
    estimate_text,
    facts,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
)
from schemaless.terminal.progress import duration

_ROWS_SHOWN = 64


def _which_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says which shards go where."""
    for option in reversed(
        (
            click.argument("shards_text", metavar="[SHARDS]", required=False),
            click.option("--to", "target", metavar="CLUSTER", help="The cluster to move to, such as cluster-3."),
            click.option("--drain", metavar="CLUSTER", help="Move all shards of this cluster, instead of SHARDS."),
            click.option(
                "--unchecked-accounts",
                "unchecked",
                is_flag=True,
                help="Do not check whether the accounts that use a shard may use it on the target.",
            ),
            url_option,
        )
    ):
        command = option(command)
    return command


@click.command()
@_which_options
@json_option
def plan(
    shards_text: str | None, target: str | None, drain: str | None, unchecked: bool, url: str, as_json: bool
) -> int:
    """Say what a move would take. Changes nothing.

    For each shard, the plan shows its bytes, how long copying may take, and why it cannot be moved, if that is so.
    Reasons are: a table that does not belong to this store, an unfinished job about the shard, accounts that may not
    use it on the target (with the GRANT that they need), or no space on the target's disk, as far as that can be seen
    from here.

    \b
    Examples:
      schemaless shards plan 0-255 --to cluster-3
      schemaless shards plan --drain cluster-1 --to cluster-3 --json

    Exit status: 0, or 1 if a shard cannot be moved.
    """
    with open_store(url) as store:
        spec = MoveSpec(_target(target), accounts=not unchecked)
        return _plan(store, spec, _shards(store, shards_text, drain), as_json)


@click.command()
@_which_options
@click.option("--execute", is_flag=True, help="Really move; without it, the command says what that would take.")
@job_option("Continue this job with the options that it was begun with; the other options do not count.")
@workers_options
@throttle_options
@click.option(
    "--max-pause",
    "max_pause_ms",
    default=1000.0,
    metavar="MS",
    help="How long one attempt to cut a shard over may hold its readers and writers.",
)
@click.option(
    "--give-up",
    "give_up_s",
    default=3600.0,
    metavar="SECONDS",
    help="How long to try to cut a copied shard over, for example while a long transaction runs.",
)
@json_option
def move(
    shards_text: str | None,
    target: str | None,
    drain: str | None,
    unchecked: bool,
    url: str,
    execute: bool,
    job_id: int | None,
    workers: int,
    dask: str | None,
    thresholds: Thresholds,
    max_pause_ms: float,
    give_up_s: float,
    as_json: bool,
) -> int:
    """Move shards to another cluster.

    SHARDS are numbers such as 0-3,8. Each shard is copied while applications use it. Then it is held for a moment, in
    which the rest is copied and the catalog is changed. Afterwards all of it is compared with what was left behind,
    cell by cell. Copying waits while replicas of either cluster lag, as a migration does; --max-mb-per-s slows it down.

    If a move is killed, or a server fails, the same command continues it. What it leaves behind stays until 'schemaless
    shards drop-moved'. The account needs the role move.

    \b
    Examples:
      schemaless shards move 17 --to cluster-2
      schemaless shards move 0-255 --to cluster-3 --execute --max-mb-per-s 20
      schemaless shards move --drain cluster-1 --to cluster-3 --execute

    Exit status: 0 moved and compared, 1 a shard cannot be moved, 3 stopped; the same command continues.
    """
    with open_store(url) as store:
        ledger = Ledger(store)
        if job_id is not None:
            job, spec, shards = MOVE.resumed(ledger, job_id)
        else:
            job = None
            spec = MoveSpec(_target(target), max_pause_ms / 1000, give_up_s, not unchecked, thresholds=thresholds)
            shards = _shards(store, shards_text, drain)
        if not execute:
            status = _plan(store, spec, shards, as_json)
            note("nothing was changed; add --execute to do it")
            return status
        if job is None:
            job, _ = begin_or_join(store, spec, shards)
        with JobProgress(ledger) as shown:
            records = run_move(store, spec, shards, job=job, count=workers, dask=dask, listener=shown)
    show_records(records, as_json)
    return 0


def _target(name: str | None) -> str:
    if name is None:
        raise InvalidInput("name the cluster that the shards go to: --to CLUSTER")
    return name


def _shards(store: Datastore, text: str | None, drain: str | None) -> list[int]:
    if (text is None) == (drain is None):
        raise InvalidInput("name the shards, such as 0-3,8, or all of a cluster by --drain CLUSTER")
    if drain is None:
        return shards_of(text, store.shard_count)
    found = tools_of(store).topology.shards_of(tools_of(store).topology.cluster(drain).name)
    if not found:
        raise InvalidInput(f"{drain} has no shards any more")
    return found


def _plan(store: Datastore, spec: MoveSpec, shards: Sequence[int], as_json: bool) -> int:
    with progress("looking at both servers", len(shards), "shards") as listener:
        plans = make_plan(store, spec, shards, listener=listener)
    refused = [each for each in plans if each.refusal is not None]
    total = {
        "shards": len(plans),
        "file_bytes": sum(each.size.file_bytes for each in plans),
        "seconds": round(sum(each.seconds.mid for each in plans), 1),
        "refused": len(refused),
    }
    if as_json:
        print_json({"target": spec.target, "total": total, "shards": [_plan_json(each) for each in plans]})
        return EXIT_FAILED if refused else 0
    out().print(
        f"{len(plans)} shards with {bytes_text(total['file_bytes'])} would go to {spec.target}; copying may take "
        f"{duration(total['seconds'])}, one after the other"
    )
    if plans[0].free_bytes is None:
        note("how much is free on the target's disk cannot be seen from here; look there first")
    if len(plans) <= _ROWS_SHOWN:
        print_table(
            "\nby shard",
            ["shard", "from", "bytes", "copying takes"],
            [
                [
                    str(each.shard),
                    each.source,
                    bytes_text(each.size.file_bytes),
                    estimate_text(each.seconds, duration),
                ]
                for each in plans
            ],
            text_columns=2,
        )
    for each in refused:
        note(f"shard {each.shard} cannot be moved: {each.refusal}")
        for statement in each.grants:
            out().print(f"{statement};", markup=False)
    return EXIT_FAILED if refused else 0


def _plan_json(plan: ShardPlan) -> dict[str, Any]:
    return {
        **facts(plan, "shard", "source", "target"),
        "file_bytes": plan.size.file_bytes,
        "file_bytes_measured": plan.size.measured,
        "seconds": estimate_json(plan.seconds, digits=2),
        **facts(plan, "free_bytes", "refusal"),
        "grants": list(plan.grants),
    }
