"""``schemaless demo``: a tour with real data, from starting empty servers to reclaiming disk space."""

from __future__ import annotations

from pathlib import Path

import click

from schemaless.cli.command import Command
from schemaless.cli.option import option
from schemaless.cli.options import codec_option
from schemaless.demo.story import run


@click.command(cls=Command)
@option("--data FILE", "A file of your own documents, as NDJSON, plain or gzipped.", type=click.Path(path_type=Path))
@option("--row-key EXPR", "With --data: where the row_key is, as in 'schemaless load'.", default="@line")
@option("--ref-key EXPR", "With --data: where the ref_key is, as in 'schemaless load'.", default="=1")
@click.option("--flavour", type=click.Choice(["mysql", "mariadb"]), default="mysql")
@option(
    "--folder",
    "Data directory of the two servers; it is emptied at the start.",
    type=click.Path(path_type=Path),
    default=Path(".schemaless") / "demo",
)
@codec_option("--to", legacy=False, help_text="The codec to re-encode to.")
def demo(data: Path | None, row_key: str, ref_key: str, flavour: str, folder: Path, codec: str) -> int:
    """Take a tour of the store, using 7,134 real documents.

    The demo starts two private servers, creates a datastore of two shards on them, and loads, as legacy JSON text, the
    logbooks of aircraft that left New York in 2013. It then reads some back, forecasts when disks would be full,
    re-encodes all documents, checks every cell, queries an index, counts flights with a trigger, and shows the space
    saved. The servers keep running afterwards, so that you can explore the datastore.

    \b
    Examples:
      schemaless demo
      schemaless demo --data trips.ndjson.gz --row-key trip.uuid
    """
    return run(data, row_key, ref_key, flavour, folder, codec)
