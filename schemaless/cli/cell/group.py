"""``schemaless cell``: single cells, and all of them as they come."""

from __future__ import annotations

import click

from schemaless.cli.cell.get import get
from schemaless.cli.cell.history import history
from schemaless.cli.cell.put import put
from schemaless.cli.cell.tail import tail


@click.group(commands=[put, get, history, tail])
def cell() -> None:
    """Write and read single cells, or follow them all.

    ROW_KEY is a UUID, or uuid5:NAME for a row that was named by a text, as 'load --row-key uuid5:FIELD' does.
    """
