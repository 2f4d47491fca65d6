"""The command group ``schemaless schema``."""

from __future__ import annotations

import click

from schemaless.cli.schema.status import status
from schemaless.cli.schema.upgrade import upgrade


@click.group(commands=[status, upgrade])
def schema() -> None:
    """Upgrade tables, or show their versions.

    Run 'upgrade' after installing a new version of this package; 'status' shows whether it is needed.
    """
