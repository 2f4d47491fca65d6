"""The command group ``schemaless bench``."""

from __future__ import annotations

import click

from schemaless.cli.bench.codecs import codecs


@click.group(commands=[codecs])
def bench() -> None:
    """Compare codecs on your own documents.

    'codecs' repeats the experiment of Uber's article on your documents: with all serializers and compressors of the
    article, newer ones, and the codecs that schemaless can store.
    """
