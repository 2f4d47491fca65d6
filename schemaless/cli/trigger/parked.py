"""``schemaless trigger parked``, ``replay`` and ``skip``: the cells that a trigger has skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypedDict, Unpack

import click

from schemaless.cli.options import note_dry, open_store, shards_of, shards_option, url_option, with_options
from schemaless.cli.trigger.steer import execute_option
from schemaless.errors import InvalidInput
from schemaless.terminal.output import ReadOnlyCommand, json_option, key_json, note, out, print_json, print_table
from schemaless.triggers.admin import ParkedCell, Triggers


class _Chosen(TypedDict):
    shards_text: str | None
    added_id: int | None
    everything: bool
    execute: bool
    url: str
    as_json: bool


def _cell_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return with_options(
        command,
        shards_option,
        click.option(
            "--added-id",
            type=click.IntRange(min=1),
            help="Only the cell with this added_id; name its shard by --shards.",
        ),
        click.option("--all", "everything", is_flag=True, help="All parked cells, or all of --shards."),
        execute_option,
        url_option,
        json_option,
    )


@click.command(cls=ReadOnlyCommand)
@click.argument("name")
@shards_option
@url_option
@json_option
def parked(name: str, shards_text: str | None, url: str, as_json: bool) -> None:
    """List the cells that a trigger has parked, and why.

    Each cell has the error of its last attempt; with --json, also the traceback. Fix the cause and use 'trigger
    replay', or use 'trigger skip'.

    \b
    Examples:
      schemaless trigger parked bill_rider
      schemaless trigger parked bill_rider --shards 17 --json
    """
    with open_store(url) as store:
        cells = Triggers(store).parked(name, shards_of(shards_text, store.shard_count))
    if as_json:
        print_json([_json(cell) for cell in cells])
        return
    if not cells:
        out().print(f"{name} has no parked cells", markup=False)
        return
    _show(cells)


@click.command()
@click.argument("name")
@_cell_options
def replay(name: str, **chosen: Unpack[_Chosen]) -> None:
    """Try parked cells again, once each.

    The workers of their shards call the function for them within a moment, between new cells, so they are not in the
    order of the shard. A cell whose call succeeds is parked no more; any other stays parked, with its newest error. If
    the trigger is paused or has no workers, the calls are made once it runs again.

    \b
    Examples:
      schemaless trigger replay bill_rider --shards 17 --added-id 250311 --execute
      schemaless trigger replay bill_rider --all --execute
    """
    _treat(Triggers.replay, name, "will be tried again", "would be tried again", **chosen)


@click.command()
@click.argument("name")
@_cell_options
def skip(name: str, **chosen: Unpack[_Chosen]) -> None:
    """Forget parked cells: the function is never called for them again.

    The cells themselves are kept. If a shard has stopped, 'trigger resume' lets it continue.

    \b
    Examples:
      schemaless trigger skip bill_rider --shards 17 --added-id 250311 --execute
      schemaless trigger skip bill_rider --all
    """
    _treat(Triggers.skip, name, "are skipped", "would be skipped", **chosen)


def _treat(
    treat: Callable[[Triggers, str, list[ParkedCell]], None],
    name: str,
    done: str,
    would: str,
    **chosen: Unpack[_Chosen],
) -> None:
    """Replay or skip the parked cells that the options select, or list them without --execute."""
    execute = chosen["execute"]
    with open_store(chosen["url"]) as store:
        triggers = Triggers(store)
        shards = shards_of(chosen["shards_text"], store.shard_count)
        cells = _chosen_cells(triggers, name, shards, chosen["added_id"], chosen["everything"])
        if execute:
            treat(triggers, name, cells)
    if chosen["as_json"]:
        print_json({"name": name, "executed": execute, "cells": [_json(cell) for cell in cells]})
        return
    if cells:
        _show(cells)
    out().print(f"{len(cells):,} parked cells of {name} {done if execute else would}", markup=False)
    if not execute:
        note_dry()


def _chosen_cells(
    triggers: Triggers, name: str, shards: list[int], added_id: int | None, everything: bool
) -> list[ParkedCell]:
    if everything == (added_id is not None):
        raise InvalidInput("name one parked cell by --shards and --added-id, or take --all")
    if added_id is not None and len(shards) != 1:
        raise InvalidInput("--added-id is for one shard: name that shard with --shards")
    cells = [cell for cell in triggers.parked(name, shards) if everything or cell.added_id == added_id]
    if not cells and added_id is not None:
        raise InvalidInput(
            f"{name} has not parked added_id {added_id} of shard {shards[0]}; 'parked' lists what it has"
        )
    return cells


def _show(cells: list[ParkedCell]) -> None:
    print_table(
        None,
        ["shard", "cell", "parked at", "error", "added_id", "attempts"],
        [
            [
                str(cell.shard),
                str(cell.key),
                cell.parked_at[:19],
                cell.error.partition("\n")[0],
                str(cell.added_id),
                str(cell.attempts),
            ]
            for cell in cells
        ],
        text_columns=4,
    )
    waiting = sum(cell.replay for cell in cells)
    if waiting:
        note(f"{waiting:,} of them will be tried again")


def _json(cell: ParkedCell) -> dict[str, Any]:
    return {**asdict(cell), "key": key_json(cell.key)}
