"""``schemaless local``: private servers on this machine."""

from __future__ import annotations

import click

from schemaless.cli.local.down import down
from schemaless.cli.local.status import status
from schemaless.cli.local.up import up


@click.group(commands=[up, status, down])
def local() -> None:
    """Run private MySQL servers on this machine, without root or Docker.

    The servers run under your account, listen on a socket that only you can reach, and keep their data in a folder of
    their own. They keep running after the command that starts them.

    \b
    Examples:
      schemaless local up                      # two MySQL servers in .schemaless/local
      schemaless local up --flavour mariadb --folder /tmp/maria
      schemaless local status
      schemaless local down                    # stop them; their data stays
      schemaless local down --delete           # stop them and remove their data
    """
