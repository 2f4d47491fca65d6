"""``schemaless migrate``: re-encodes bodies in place."""

from __future__ import annotations

import click

from schemaless.cli.migrate.finalise import finalise
from schemaless.cli.migrate.plan import plan
from schemaless.cli.migrate.report import report
from schemaless.cli.migrate.restore import restore
from schemaless.cli.migrate.run import run
from schemaless.cli.migrate.status import status
from schemaless.cli.migrate.steer import abort, pause, resume, throttle
from schemaless.cli.migrate.verify import verify


@click.group(commands=[plan, run, status, pause, resume, abort, throttle, restore, verify, finalise, report])
def migrate() -> None:
    """Re-encode bodies in place.

    Legacy bodies (bare JSON text), or bodies in any codec, become MessagePack + zlib, or another codec, while readers
    and writers go on. Keys, added_id and created_at stay. Each new body is decoded again and compared before it
    replaces the old one, and only where the stored bytes are still those that were read.

    A migration is a job in the catalog. Any number of runs, on any machine, share its work; killed at any moment, the
    same command goes on.

    \b
    The order of work:
      schemaless migrate plan
      schemaless migrate run --execute --archive DIR
      schemaless migrate status               from any terminal; also pause, resume, abort, throttle
      schemaless migrate verify
      schemaless migrate finalise             what may be deleted, once all is proven
      schemaless rebuild                      gives the space back to the disk
      schemaless migrate report               what it did to space, also as a page with pictures
    """
