"""``schemaless config``: the configuration file."""

from __future__ import annotations

import click

from schemaless.cli.config.add import add
from schemaless.cli.config.path import path
from schemaless.cli.config.show import show


@click.group()
def config() -> None:
    """Name datastores, and show which setting is used.

    A TOML file gives names to the URLs of datastores. Every command, and connect(), takes the name in place of the URL:

    \b
      default = "mezzanine"

    \b
      [datastores.mezzanine]
      url = "mysql://app@db-1:3306/mezzanine"
      pool_size = 16

    Besides its url, a datastore may have connect_timeout_s, read_timeout_s, write_timeout_s and pool_size.
    """


for _verb in (show, path, add):
    config.add_command(_verb)
