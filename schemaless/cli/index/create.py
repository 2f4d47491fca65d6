"""``schemaless index create``."""

from __future__ import annotations

import click

from schemaless.cli.options import open_store, url_option
from schemaless.feed.indexes import Indexes
from schemaless.store.definitions import define
from schemaless.terminal.output import json_option, note, out, print_json, progress


@click.command()
@click.argument("name")
@click.option(
    "--shard-field",
    metavar="FIELD",
    required=True,
    help="Which shard an entry is in follows from it; every query names it.",
)
@click.option("--field", "fields", metavar="FIELD", multiple=True, help="What else to ask for and order by, in order.")
@url_option
@json_option
def create(name: str, shard_field: str, fields: tuple[str, ...], url: str, as_json: bool) -> None:
    """Create a secondary index: a table in each shard, empty until workers fill it.

    A FIELD is [NAME=]COLUMN.PATH:TYPE: where its value is in the documents of a column, with a dot between keys,
    and what it is: uuid, int, float, bool, time (ISO 8601; UTC unless it says otherwise) or text(N). Its name is
    the last key unless another is given. A column whose name has a dot stands in quotes: '"v1.BASE".client:uuid'. A
    value that is missing or does not fit is NULL; where that is the shard field's, the row has no entry. A text
    over N characters is cut in the index, which loses no row. At most 16 fields.

    The order of fields counts: a query gives rows in the order of the first field that it does not ask for by '='.

    Interrupted, the same command goes on. Where the index is there, it makes rows of its follower that shards have
    lost, and workers go over those shards again. With a name that is there and other fields, the new index is built
    beside the old one, which answers until the new one is ready. The account needs the role admin. Afterwards the
    roles follow, app and admin need their grants again, for the new tables.

    \b
    Examples:
      schemaless index create client_trips --shard-field BASE.client:uuid --field BASE.at:time \\
          --field status=STATUS.s:text(64)
    """
    definition = define(name, shard_field, fields)
    with open_store(url) as store, progress("making tables", None, "shards") as listener:
        entry, made = Indexes(store).create(definition, listener)
    if as_json:
        print_json(
            {
                "name": name,
                "number": entry.number,
                "state": entry.state,
                "created": made,
                "columns": list(definition.sources),
                "fields": [field.name for field in definition.all_fields],
            }
        )
        return
    out().print(
        f"index {name} is {'made' if made else 'there already'}, number {entry.number}: {entry.state}", markup=False
    )
    if made:
        note("give the roles follow, app and admin their grants again ('schemaless grants'); then it is filled by")
        note(f"  schemaless index run {name}")
