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
    """What columns are written in, and zstd dictionaries.

    \b
    The order of work:
      schemaless codec advise                                           what to use, and why
      schemaless codec train --column LOG                               makes dictionary 32768, say
      schemaless codec set --column LOG msgpack+zstd --dictionary 32768 for new cells
      schemaless migrate run --execute --column LOG --to msgpack+zstd --dictionary 32768
      schemaless codec export --output dictionaries.ndjson              a backup of them

    Readers need no setting: a body says what it is in, and which dictionary it needs.
    """
