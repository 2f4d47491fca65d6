"""``schemaless trigger status``: progress of triggers, worst shards first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from schemaless.cli.options import open_store, url_option
from schemaless.followers.binlog_notifier import HEARD
from schemaless.followers.status import ShardStatus
from schemaless.terminal.output import (
    EXIT_FAILED,
    ReadOnlyCommand,
    facts,
    json_option,
    note,
    out,
    print_json,
    print_table,
)
from schemaless.terminal.progress import duration
from schemaless.triggers.admin import Triggers, TriggerStatus

_SHARDS_SHOWN: Final = 16
_ORDER: Final = {"missing": 0, "stopped": 1, "quarantined": 2, "waiting": 3}
_LONG_CALL_S: Final = 10.0


@click.command(cls=ReadOnlyCommand)
@click.argument("name", required=False)
@click.option("--shards", "each_shard", is_flag=True, help="Show every shard, however many there are.")
@url_option
@json_option
def status(name: str | None, each_shard: bool, url: str, as_json: bool) -> int:
    """Show the state of a trigger, or of all triggers.

    The status shows how far behind each shard is, which shards wait, are quarantined or have stopped and why, and which
    workers run; the worst shards come first. A shard is quarantined while one of its cells kills its workers: separate
    workers handle its cells one at a time, and all other shards continue.

    How far a shard is behind is given in two ways: by the added_ids between the trigger's location and the shard's end,
    counting all columns, and by the age of the first of these cells. A call that has taken 10 seconds or more is named
    with its cell: its shard waits for it, and the worker's other shards go to other workers.

    \b
    Examples:
      schemaless trigger status
      schemaless trigger status bill_rider --json

    Exit status: 0, or 1 if a shard has stopped because of parked cells, or has no progress row.
    """
    with open_store(url) as store:
        triggers = Triggers(store)
        statuses = [triggers.status(trigger) for trigger in ([name] if name is not None else triggers.names())]
    if as_json:
        print_json(status_json(statuses[0]) if name is not None else [status_json(state) for state in statuses])
    elif not statuses:
        out().print("no trigger has run yet; start one with 'schemaless trigger run MODULE:NAME'")
    else:
        for state in statuses:
            show_status(state, each_shard)
    return EXIT_FAILED if any(state.stands for state in statuses) else 0


def show_status(trigger: TriggerStatus, each_shard: bool) -> None:
    """Print the status of a trigger."""
    spec = trigger.setting.spec
    of = "all columns" if spec["column"] is None else f"column {spec['column']}"
    apart = sum(worker.for_quarantine for worker in trigger.workers)
    by = _counted(len(trigger.workers) - apart)
    if apart:
        by += f", and {_counted(apart)} for quarantined shards"
    out().print(f"[bold]{trigger.name}[/]: {trigger.setting.desired_state}, cells of {of}, by {by}")
    if not trigger.workers and trigger.setting.desired_state != "paused":
        note("no worker runs it now; start one with 'schemaless trigger run MODULE:NAME'")
    polled = {server: how for server, how in trigger.finds_by.items() if how != HEARD}
    if trigger.finds_by and not polled:
        note("new cells are heard of from the binary log")
    for server, how in polled.items():
        note(f"new cells on {server} are found by {how}")
    for server, advice in trigger.small_caches.items():
        note(f"{server}: {advice}")
    shards = sorted(trigger.shards, key=_badness)
    shown = shards if each_shard or len(shards) <= _SHARDS_SHOWN else shards[:_SHARDS_SHOWN]
    print_table(
        None,
        ["shard", "state", "ids behind", "for", "attempts", "parked", "location"],
        [_shard_row(status) for status in shown],
        text_columns=2,
    )
    if len(shown) < len(shards):
        note(f"{len(shards) - len(shown):,} more shards are not shown, none of them worse; --shards shows each")
    for status in shown:
        if status.cause is not None:
            note(f"shard {status.shard} {status.state}: {status.cause}")
    for worker in trigger.workers:
        call = worker.reported.get("in_hand")
        if call is not None and call["for_s"] > _LONG_CALL_S:
            note(
                f"worker {worker.worker} has been in one call since {call['since']}: cell "
                f"({', '.join(call['key'])}) of shard {call['shard']}, added_id {call['added_id']}"
            )
        for _, number, reason in worker.reported.get("waits", []):
            note(f"worker {worker.worker} waits in shard {number}: {reason}")


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _badness(status: ShardStatus) -> tuple[Any, ...]:
    return _ORDER.get(status.state, 4), -status.behind_s, -status.ids_behind, status.shard


def _shard_row(status: ShardStatus) -> list[str]:
    row = status.row
    if row is None:
        return [str(status.shard), status.state, "?", "?", "?", "?", "?"]
    return [
        str(status.shard),
        status.state,
        f"{status.ids_behind:,}",
        duration(status.behind_s) if status.behind_s else "-",
        str(row.attempts),
        f"{row.parked:,}",
        f"{row.location:,}",
    ]


def status_json(trigger: TriggerStatus) -> dict[str, Any]:
    """Return a status for ``--json``."""
    return {
        "name": trigger.name,
        "wanted": trigger.setting.desired_state,
        "spec": trigger.setting.spec,
        "stands": trigger.stands,
        "ids_behind": sum(status.ids_behind for status in trigger.shards),
        "behind_s": max((status.behind_s for status in trigger.shards), default=0.0),
        "parked": sum(status.row.parked for status in trigger.shards if status.row is not None),
        "finds_by": trigger.finds_by,
        "small_table_caches": dict(trigger.small_caches),
        "workers": [worker.as_json() for worker in trigger.workers],
        "shards": [
            {
                **({} if status.row is None else asdict(status.row)),
                **facts(status, "shard", "state", "ids_behind", "behind_s", "fault"),
            }
            for status in sorted(trigger.shards, key=_badness)
        ],
    }
