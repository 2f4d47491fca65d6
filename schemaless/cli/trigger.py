"""``schemaless trigger``: runs and controls functions that are called for each new cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, Final

import click

from schemaless.base.events import Advanced
from schemaless.base.numbers import counted
from schemaless.cli.command import JSONCommand, QueryCommand
from schemaless.cli.job_options import stop_option, workers_option
from schemaless.cli.option import option
from schemaless.cli.options import (
    allow_nan_option,
    execute_option,
    note_gave_up,
    note_waits,
    shard_json,
    time_of,
    with_options,
)
from schemaless.errors import InvalidInput
from schemaless.store.datastore import Datastore
from schemaless.store.followers.binlog_notifier import HEARD
from schemaless.store.followers.status import ShardStatus
from schemaless.store.opening import connect
from schemaless.store.triggers.admin import ParkedCell, Triggers, TriggerStatus
from schemaless.store.triggers.declaration import import_trigger
from schemaless.store.triggers.supervision import caught_up, prepare, trigger_supervisor
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    as_json,
    error,
    facts,
    hint,
    key_json,
    note,
    out,
    print_json_array,
    print_result,
    print_table,
    progress,
)
from schemaless.ui.terminal.progress import duration

PARKED_SHOWN: Final = 1_000
"""Maximum number of parked cells in a table."""

_SHARDS_SHOWN: Final = 16
_ORDER: Final = {"missing": 0, "stopped": 1, "quarantined": 2, "waiting": 3}
_LONG_CALL_S: Final = 10.0


@click.group()
def trigger() -> None:
    """Call a function for each new cell.

    The decorator @schemaless.trigger(column=...) makes a function a trigger. It is called at least once for each cell
    of the column, in the order in which the cells were added to their shard. Each shard stores the trigger's location.
    Workers on any number of machines divide the shards among themselves, and take over the shards of a worker that
    dies. If the function fails for a cell, the call is retried with exponential backoff, and then the cell is parked.
    If too many cells of a shard are parked, the shard stops.

    \b
    Examples:
      schemaless trigger run billing:bill_rider --workers 4
      schemaless trigger status bill_rider
      schemaless trigger parked bill_rider
      schemaless trigger replay bill_rider --all --execute
    """


@trigger.command(cls=JSONCommand)
@click.argument("target", metavar="MODULE:NAME")
@workers_option
@option("--once", "Exit once all cells and erasures that are stored now have been processed.", is_flag=True)
@stop_option
@allow_nan_option
def run(target: str, workers: int, once: bool, stop_s: float, allow_nan: bool, url: str) -> int:
    """Call a trigger's function for each cell, until Ctrl-C.

    The function is called for existing cells and for new ones. Each worker process imports MODULE from the current
    folder or from Python's module path. NAME is the decorated function in MODULE. On its first run, a trigger starts at
    the position that start= in its decorator gives; later runs continue where it stopped. The command may run on
    several machines at once: the shards are divided again whenever a worker starts or exits.

    On Ctrl-C, SIGTERM or SIGHUP, running calls are allowed to complete, and the workers save their locations; calls
    that are still running after --stop-timeout are killed, and a second signal kills them at once. After kill -9, the
    last cells of each worker are delivered again: those of the last 100 ms, at most 500.

    If a cell kills its worker process, its shard is quarantined: separate processes call the function for the cells of
    quarantined shards, one at a time, and all other shards continue.

    The account needs the role follow, and also app if the function writes cells. Cells that hold NaN or
    infinities, such as migrated text, are read in any case; --allow-nan lets the function write them.

    \b
    Examples:
      schemaless trigger run billing:bill_rider --workers 4
      schemaless trigger run billing:bill_rider --once

    Exit status: 3 if stopped; 2 if MODULE cannot be imported, even if it raises SystemExit with another status; with
    --once, 0, or 1 if a shard has stopped because of parked cells, the trigger is paused with cells or erasures left,
    or on_erase fails 8 times in a row or kills 8 workers.
    """
    loaded = import_trigger(target)
    with connect(url, allow_nan=allow_nan) as store:
        supervisor = trigger_supervisor(store, target, loaded.name, workers)
        if prepare(store, loaded):
            place = f"the {loaded.start} of {counted(store.shard_count, 'shard')}"
            note(f"trigger {loaded.name} is new; it starts at {place}")
        if not once:
            supervisor.run(stop_s=stop_s)
            return 0
        ended = caught_up(store, loaded)
        supervisor.run(ended, stop_s=stop_s)
        trigger = Triggers(store).status(loaded.name)
    print_result(status_json(trigger))
    show_status(trigger, each_shard=False)
    note_gave_up(ended.gave_up)
    if ended.paused:
        error(
            f"trigger {loaded.name} is paused; run 'schemaless trigger resume {loaded.name}', then this command again"
        )
    return EXIT_FAILED if trigger.stands or ended.gave_up or ended.paused else 0


@trigger.command(cls=QueryCommand)
@click.argument("name", required=False)
@option("--shards", "Show every shard, however many there are.", name="each_shard", is_flag=True)
def status(name: str | None, each_shard: bool, store: Datastore) -> int:
    """Show the state of a trigger, or of all triggers.

    The status shows the lag of each shard, why a shard waits, is quarantined or has stopped, and the running workers;
    the worst shards come first. A shard is quarantined after one of its cells has killed a worker: separate workers
    handle its cells one at a time, and all other shards continue.

    The lag is shown as the number of added_ids between the trigger's location and the shard's end, counting all
    columns, and as the age of the first cell among them. A call that has taken 10 seconds or more is listed with its
    cell: the shard waits for the call, and the worker's other shards go to other workers.

    \b
    Examples:
      schemaless trigger status
      schemaless trigger status bill_rider --json

    Exit status: 0, or 1 if a shard has stopped because of parked cells, or has no progress row.
    """
    triggers = Triggers(store)
    statuses = [triggers.status(trigger) for trigger in ([name] if name is not None else triggers.names())]
    print_result(status_json(statuses[0]) if name is not None else [status_json(state) for state in statuses])
    if not statuses:
        out().print("no trigger has run yet; start one with 'schemaless trigger run MODULE:NAME'")
    else:
        for state in statuses:
            show_status(state, each_shard)
    return EXIT_FAILED if any(state.stands for state in statuses) else 0


def show_status(trigger: TriggerStatus, each_shard: bool) -> None:
    """Print the status of a trigger."""
    spec = trigger.setting.spec
    of = "all columns" if spec["column"] is None else f"column {spec['column']}"
    separate = sum(worker.for_quarantine for worker in trigger.workers)
    by = counted(len(trigger.workers) - separate, "worker")
    if separate:
        by += f", and {counted(separate, 'worker')} for quarantined shards"
    out().print(f"[bold]{trigger.name}[/]: {trigger.setting.desired_state}; cells of {of}; {by}", markup=True)
    if not trigger.workers and trigger.setting.desired_state != "paused":
        note("no worker is running it now; 'schemaless trigger run MODULE:NAME' starts one")
    polled = {server: how for server, how in trigger.finds_by.items() if how != HEARD}
    if trigger.finds_by and not polled:
        note("the binary log announces new cells")
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
        note(f"{len(shards) - len(shown):,} more shards, none in a worse state, are not shown; --shards shows all")
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
    note_waits(trigger.workers)


def _badness(status: ShardStatus) -> tuple[Any, ...]:
    return _ORDER.get(status.state, 4), -status.behind_s, -status.ids_behind, status.shard


def _shard_row(status: ShardStatus) -> list[Any]:
    row = status.row
    if row is None:
        return [status.shard, status.state, *"?????"]
    behind = duration(status.behind_s) if status.behind_s else None
    return [status.shard, status.state, status.ids_behind, behind, row.attempts, row.parked, row.location]


def status_json(trigger: TriggerStatus) -> dict[str, Any]:
    """Return a status for ``--json``."""
    return {
        "name": trigger.name,
        "wanted": trigger.setting.desired_state,
        "spec": trigger.setting.spec,
        **facts(trigger, "stands", "ids_behind", "behind_s", "parked"),
        "finds_by": trigger.finds_by,
        "small_table_caches": dict(trigger.small_caches),
        "workers": [worker.as_json() for worker in trigger.workers],
        "shards": [shard_json(status, "state") for status in sorted(trigger.shards, key=_badness)],
    }


@trigger.command(cls=JSONCommand)
@click.argument("name")
def pause(name: str, store: Datastore) -> None:
    """Pause a trigger: workers make no calls until it is resumed.

    Running calls complete. Workers notice the pause within two seconds, and keep their shards.

    \b
    Examples:
      schemaless trigger pause bill_rider
    """
    Triggers(store).pause(name)
    print_result({"name": name, "wanted": "paused"})
    out().print(f"{name} is paused; 'schemaless trigger resume {name}' resumes it")


@trigger.command(cls=JSONCommand)
@click.argument("name")
def resume(name: str, store: Datastore) -> None:
    """Resume a paused trigger and stopped shards.

    A stopped shard retries the cell at which it stopped, counting attempts from one. A shard stops when too many of its
    cells are parked: inspect them with 'trigger parked', fix the cause, and then use 'trigger replay' or 'trigger
    skip'. Otherwise the shard stops at the same cell again.

    \b
    Examples:
      schemaless trigger resume bill_rider
    """
    restarted = Triggers(store).resume(name)
    print_result({"name": name, "wanted": "running", "restarted_shards": restarted})
    out().print(f"{name} is running again; {counted(restarted, 'stopped shard')} restarted")


@trigger.command(cls=JSONCommand)
@click.argument("name")
@execute_option()
def remove(name: str, execute: bool, store: Datastore) -> None:
    """Remove a trigger, with its progress and parked cells.

    Its workers exit. If the trigger is run again later, it starts at the position that start= in its decorator gives.

    \b
    Examples:
      schemaless trigger remove bill_rider
      schemaless trigger remove bill_rider --execute
    """
    triggers = Triggers(store)
    parked = triggers.status(name).parked
    if execute:
        triggers.remove(name)
    print_result({"name": name, "removed": execute, "parked": parked})
    out().print(f"{name} {'was' if execute else 'would be'} removed, with {counted(parked, 'parked cell')}")


@trigger.command(cls=JSONCommand)
@click.argument("name")
@option("--from-beginning", "Continue from the first cell.", is_flag=True)
@option("--location", "Continue after this added_id; for one shard only.", type=click.IntRange(min=0))
@option("--since TIME", "Continue from the first cell stored at or after this time, such as 2026-03-01T12:00+00:00.")
@execute_option()
def reset(
    name: str,
    from_beginning: bool,
    location: int | None,
    since: str | None,
    shards: list[int],
    execute: bool,
    store: Datastore,
) -> None:
    """Move a trigger to another location.

    The trigger is called again for the cells after the location. Use it after fixing the function, or after a failover
    that lost cells. Parked cells after the location are no longer parked, since the trigger is called for them anyway.
    Workers continue from the new location almost at once.

    With --since, the command searches each shard for the location of a time ten minutes earlier, since cells are not
    stored in the exact order of their times.

    \b
    Examples:
      schemaless trigger reset bill_rider --from-beginning
      schemaless trigger reset bill_rider --since 2026-03-01T12:00+00:00 --execute
      schemaless trigger reset bill_rider --shards 17 --location 250311 --execute
    """
    if sum((from_beginning, location is not None, since is not None)) != 1:
        raise InvalidInput("give exactly one of --from-beginning, --location and --since")
    triggers = Triggers(store)
    before = {status.shard: status.row for status in triggers.status(name).shards}
    if location is not None and len(shards) != 1:
        raise InvalidInput("--location is for one shard: name that shard with --shards")
    at = None if since is None else time_of("--since", since)
    places = {
        shard: triggers.location_since(shard, at) if at is not None else location or 0
        for shard in shards
        if before[shard] is not None
    }
    if execute:
        triggers.reset(name, places)
    changes = [
        {"shard": shard, "before": row.location, "after": place, "added_ids": row.top - place}
        for shard, place in places.items()
        if (row := before[shard]) is not None
    ]
    print_result({"name": name, "reset": execute, "shards": changes})
    total = sum(change["added_ids"] for change in changes)
    out().print(
        f"{name} {'continues' if execute else 'would continue'} from the new location in "
        f"{counted(len(changes), 'shard')}, with {total:,} added_ids of all columns ahead of it"
    )


_cell_options: Final = with_options(
    option("--added-id", "Only the cell with this added_id; name its shard with --shards.", type=click.IntRange(min=1)),
    option("--all", "All parked cells, or all those in --shards.", name="everything", is_flag=True),
    execute_option(),
)


@trigger.command(cls=QueryCommand)
@click.argument("name")
def parked(name: str, shards: list[int], store: Datastore) -> None:
    """List the cells that a trigger has parked, and their errors.

    The error is that of the last attempt; --json adds the traceback. At most 1,000 cells are shown without --json. Fix
    the cause and use 'trigger replay', or use 'trigger skip'.

    \b
    Examples:
      schemaless trigger parked bill_rider
      schemaless trigger parked bill_rider --shards 17 --json
    """
    triggers = Triggers(store)
    if as_json():
        print_json_array(
            {**asdict(cell), "key": key_json(cell.key)} for page in triggers.parked_pages(name, shards) for cell in page
        )
        return
    count = triggers.parked_count(name, shards)
    pages = triggers.parked_pages(name, shards, tracebacks=False)
    cells = list(islice(chain.from_iterable(pages), PARKED_SHOWN))
    if not cells:
        out().print(f"{name} has no parked cells")
        return
    _show_parked(cells, count)


@trigger.command(cls=JSONCommand)
@click.argument("name")
@_cell_options
def replay(name: str, store: Datastore, shards: list[int], **chosen: Any) -> None:
    """Retry parked cells.

    The workers of their shards soon call the function for them, in between new cells and thus out of the shard's order.
    A cell whose call succeeds is no longer parked; any other stays parked with its latest error. If the trigger is
    paused or has no workers, the calls are made once it runs again.

    \b
    Examples:
      schemaless trigger replay bill_rider --shards 17 --added-id 250311 --execute
      schemaless trigger replay bill_rider --all --execute
    """
    _treat(Triggers.replay, name, "will be tried again", "would be tried again", store, shards, **chosen)


@trigger.command(cls=JSONCommand)
@click.argument("name")
@_cell_options
def skip(name: str, store: Datastore, shards: list[int], **chosen: Any) -> None:
    """Discard parked cells: the function is never called for them again.

    The cells themselves are kept. 'trigger resume' restarts a shard that has stopped.

    \b
    Examples:
      schemaless trigger skip bill_rider --shards 17 --added-id 250311 --execute
      schemaless trigger skip bill_rider --all
    """
    _treat(Triggers.skip, name, "will not be tried again", "would be skipped", store, shards, **chosen)


def _treat(
    treat: Callable[[Triggers, str, list[ParkedCell]], None],
    name: str,
    done: str,
    would: str,
    store: Datastore,
    shards: list[int],
    *,
    added_id: int | None,
    everything: bool,
    execute: bool,
) -> None:
    """Replay or skip the parked cells that the options select; without --execute, only list them."""
    if everything == (added_id is not None):
        raise InvalidInput("name one parked cell with --shards and --added-id, or use --all")
    shown: list[ParkedCell] = []
    count = 0
    if added_id is not None and len(shards) != 1:
        raise InvalidInput("--added-id is for one shard: name that shard with --shards")
    triggers = Triggers(store)
    total = triggers.parked_count(name, shards) if added_id is None else 1
    with progress(f"parked cells of {name}", total, "cells") as listener:
        for page in triggers.parked_pages(name, shards, added_id=added_id, tracebacks=False):
            if execute:
                treat(triggers, name, page)
            shown += page[: PARKED_SHOWN - len(shown)]
            count += len(page)
            listener(Advanced(len(page)))
    if not count and added_id is not None:
        raise InvalidInput(
            f"{name} has not parked added_id {added_id} of shard {shards[0]}; 'trigger parked' lists its parked cells"
        )
    print_result({"name": name, "executed": execute, "cells": count})
    if shown:
        _show_parked(shown, count)
    out().print(f"{counted(count, 'parked cell')} of {name} {done if execute else would}")


def _show_parked(cells: list[ParkedCell], count: int) -> None:
    print_table(
        None,
        ["shard", "cell", "parked at", "error", "added_id", "attempts"],
        [[cell.shard, cell.key, cell.parked_at[:19], cell.error, str(cell.added_id), cell.attempts] for cell in cells],
        text_columns=4,
    )
    if count > len(cells):
        hint(f"{count - len(cells):,} more parked cells are not shown; 'trigger parked --json' lists them all")
    waiting = sum(cell.replay for cell in cells)
    if waiting:
        note(f"{waiting:,} of them will be tried again")
