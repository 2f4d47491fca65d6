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

    A migration turns legacy bodies (bare JSON text), or bodies in any other codec, into MessagePack + zlib or another
    codec, while applications read and write. Keys, added_id and created_at stay. Each new body is decoded again and
    compared before it replaces the old one, and it replaces only the bytes that were read.

    A migration is a job in the catalog. Any number of runs, on any machine, share its work. If a run is killed, the
    same command continues where it stopped.

    \b
    The order of work:
      schemaless migrate plan                 shows what a run would do and cost
      schemaless migrate run --execute --archive DIR
      schemaless migrate status               works from any terminal; so do pause, resume, abort, throttle
      schemaless migrate verify               proves the result, and the copies of replicas
      schemaless migrate finalise             lists the files of the archive that may be deleted
      schemaless rebuild                      gives the space back to the disk
      schemaless migrate report               shows what happened to space, also as a page with pictures
    """
