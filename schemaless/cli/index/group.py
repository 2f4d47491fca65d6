"""``schemaless index``: rows found by what is in their documents."""

from __future__ import annotations

import click

from schemaless.cli.index.check import check
from schemaless.cli.index.create import create
from schemaless.cli.index.drop import drop
from schemaless.cli.index.run import run
from schemaless.cli.index.status import status


@click.group()
def index() -> None:
    """Find rows by what is in their documents.

    An index holds some fields of the latest version of each row, from one column or several. Workers keep it up to date
    from the change feed, on any number of machines. Writers do nothing for it, so an entry appears a moment after its
    cell. The same workers fill a new index while applications write, and queries are accepted once it is ready. A query
    names a value of the shard field, looks in that one shard, and reads each row that it finds again, so that a row
    that does not match is never returned.

    \b
    The order of work:
      schemaless index create client_trips --shard-field BASE.client:uuid --field BASE.at:time
      schemaless index run --workers 4
      schemaless index status

    In Python:

    \b
      store.index("client_trips").query(client=x, where=[("at", ">=", "2026-03-01")], order_by="-at")
    """


for _verb in (create, run, status, check, drop):
    index.add_command(_verb)
