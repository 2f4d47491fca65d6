"""``schemaless index create``."""

from __future__ import annotations

import click

from schemaless.admin.indexes import indexes_of
from schemaless.cli.options import open_store, url_option
from schemaless.indexes.definition import define
from schemaless.terminal.output import json_option, note, out, print_json, progress


@click.command()
@click.argument("name")
@click.option(
    "--shard-field",
    metavar="FIELD",
    required=True,
    help="The field whose value decides which shard an entry is in; every query names a value of it.",
)
@click.option(
    "--field",
    "fields",
    metavar="FIELD",
    multiple=True,
    help="A field to query and order by; repeat it for more, in their order.",
)
@url_option
@json_option
def create(name: str, shard_field: str, fields: tuple[str, ...], url: str, as_json: bool) -> None:
    """Create a secondary index, which workers then fill.

    An index is a table in each shard.

    A FIELD is [NAME=]COLUMN.PATH:TYPE. COLUMN and PATH say where its value is in the documents of a column, with a dot
    between keys. TYPE is uuid, int, float, bool, time (ISO 8601; UTC unless it says otherwise) or text(N). NAME is the
    last key unless you give another. A column whose name has a dot stands in quotes: '"v1.BASE".client:uuid'. A value
    that is missing or does not fit is NULL; a row whose shard field is NULL has no entry. A text over N characters is
    cut in the index, and queries still find its row. An index has at most 16 fields.

    The order of fields counts: a query returns rows in the order of the first field that it does not ask for by '='.

    If the command is interrupted, the same command continues. On an index that exists, it restores the progress rows
    that shards have lost, and workers read those shards again. With an existing name and other fields, the new index is
    built beside the old one, which answers queries until the new one is ready.

    The account needs the role admin. Afterwards, grant the roles follow, app and admin again, for the new tables; then
    'schemaless index run' fills the index.

    \b
    Examples:
      schemaless index create client_trips --shard-field BASE.client:uuid --field BASE.at:time \\
          --field status=STATUS.s:text(64)
    """
    definition = define(name, shard_field, fields)
    with open_store(url) as store, progress("making tables", None, "shards") as listener:
        entry, made = indexes_of(store).create(definition, listener)
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
        note("run what 'schemaless grants' prints for the roles follow, app and admin again; then fill the index by")
        note(f"  schemaless index run {name}")
