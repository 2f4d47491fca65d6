"""``schemaless index drop``."""

from __future__ import annotations

import click

from schemaless.admin.indexes import indexes_of
from schemaless.cli.options import note_dry, open_store, url_option
from schemaless.cli.quantities import CatalogId
from schemaless.cli.trigger.steer import execute_option
from schemaless.errors import InvalidInput
from schemaless.indexes.registry import DROPPING
from schemaless.terminal.output import json_option, out, print_json, progress


@click.command()
@click.argument("name")
@click.option(
    "--number",
    type=CatalogId(),
    metavar="N",
    help="Drop only the index of this number, if several have the name.",
)
@click.option(
    "--replaced",
    is_flag=True,
    help="Drop only indexes that another definition has replaced, or whose drop was interrupted.",
)
@execute_option
@url_option
@json_option
def drop(name: str, number: int | None, replaced: bool, execute: bool, url: str, as_json: bool) -> None:
    """Drop an index.

    From then on, queries of the index are refused. The command waits until workers have let go of the index, and then
    drops its table in each shard. It drops every index of the name, unless --number or --replaced chooses one. Cells
    are not changed. If the command is interrupted, the same command continues. The account needs the role admin, with
    grants for the index's tables.

    \b
    Examples:
      schemaless index drop client_trips
      schemaless index drop client_trips --replaced --execute
    """
    with open_store(url) as store:
        indexes = indexes_of(store)
        chosen = [
            entry
            for entry in indexes.named(name)
            if (number is None or entry.number == number) and (not replaced or entry.state == DROPPING)
        ]
        if not chosen:
            there = ", ".join(f"{entry.number} ({entry.state})" for entry in indexes.named(name))
            raise InvalidInput(f"no index {name} matches that; there are {there}")
        for entry in chosen if execute else ():
            with progress(f"dropping {name} ({entry.number})", None, "shards") as listener:
                indexes.drop(entry, listener)
    if as_json:
        print_json({"name": name, "numbers": [entry.number for entry in chosen], "dropped": execute})
        return
    for entry in chosen:
        out().print(
            f"index {name}, number {entry.number}, {entry.state}, {'is' if execute else 'would be'} dropped",
            markup=False,
        )
    if not execute:
        note_dry()
