"""``schemaless codec``: what columns are written in, and the dictionaries for that."""

from __future__ import annotations

import click

from schemaless.cli.codec.advise import advise
from schemaless.cli.codec.export import export_, import_
from schemaless.cli.codec.list import list_
from schemaless.cli.codec.remove import remove
from schemaless.cli.codec.set import set_
from schemaless.cli.codec.train import train


@click.group(commands=[advise, list_, train, set_, remove, export_, import_])
def codec() -> None:
    """Choose the codec of each column, and manage zstd dictionaries.

    \b
    The order of work:
      schemaless codec advise                                           says which codec to use, and why
      schemaless codec train --column LOG                               makes a dictionary, such as 32768
      schemaless codec set --column LOG msgpack+zstd --dictionary 32768 sets the codec of new cells
      schemaless migrate run --execute --column LOG --to msgpack+zstd --dictionary 32768
      schemaless codec export --output dictionaries.ndjson              backs the dictionaries up

    Readers need no setting: each body says which codec and which dictionary it was written with.
    """
