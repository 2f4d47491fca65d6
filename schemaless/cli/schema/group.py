"""``schemaless schema``: the versions of tables."""

from __future__ import annotations

import click

from schemaless.cli.schema.status import status
from schemaless.cli.schema.upgrade import upgrade


@click.group(commands=[status, upgrade])
def schema() -> None:
    """Upgrade tables, or show their versions.

    Run 'upgrade' after a new version of this package was installed; 'status' says whether it is needed.
    """
