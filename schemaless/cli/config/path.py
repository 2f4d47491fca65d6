"""``schemaless config path``: where the file is."""

from __future__ import annotations

import click

from schemaless.terminal.output import out
from schemaless.topology.configuration import configuration_path


@click.command()
def path() -> None:
    """Print where the configuration file is, or would be.

    The path is that in SCHEMALESS_CONFIG, or else config.toml in the user's configuration folder.

    \b
    Example:
      $EDITOR "$(schemaless config path)"
    """
    out().print(str(configuration_path()[0]), markup=False)
