"""``schemaless migrate``: the group of commands that re-encode bodies in place."""

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
    codec, while applications read and write. Keys, added_id and created_at stay the same. Before a new body is written,
    it is decoded and compared with the old one, and it replaces only the exact bytes that were read.

    A migration is a job in the catalog. Any number of runs, on any machine, share its work. After a run was killed, the
    same command continues where it stopped.

    \b
    Typical order:
      schemaless migrate plan                 predicts what a run would change and cost
      schemaless migrate run --execute --archive DIR
      schemaless migrate status               shows the progress; pause, resume, abort and throttle control the job
      schemaless migrate verify               checks the result on primaries, on replicas and against the archive
      schemaless migrate finalise             lists the archive files that may be deleted
      schemaless rebuild                      gives the freed space back to the disk
      schemaless migrate report               shows the space saved, optionally as an HTML page
    """
