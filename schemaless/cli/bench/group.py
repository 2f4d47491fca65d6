"""``schemaless bench``: which codec, on your own documents."""

from __future__ import annotations

import click

from schemaless.cli.bench.codecs import codecs


@click.group(commands=[codecs])
def bench() -> None:
    """Which codec, on your own documents.

    'codecs' repeats Uber's experiment on them, with everything that it compared and what has appeared since.
    """
