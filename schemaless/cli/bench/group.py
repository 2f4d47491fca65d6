"""``schemaless bench``: which codec, on your own documents."""

from __future__ import annotations

import click

from schemaless.cli.bench.codecs import codecs


@click.group(commands=[codecs])
def bench() -> None:
    """Compare codecs on your own documents.

    'codecs' repeats Uber's experiment with them: all serializers and compressors that the article compared, and newer
    ones.
    """
