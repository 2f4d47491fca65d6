"""``schemaless migrate``: re-encodes bodies in place."""

from __future__ import annotations

import click

from schemaless.cli.migrate_plan import plan
from schemaless.cli.migrate_report import report
from schemaless.cli.migrate_run import run
from schemaless.cli.migrate_verify import finalise, restore, verify


@click.group(commands=[plan, run, restore, verify, finalise, report])
def migrate() -> None:
    """Re-encode bodies in place.

    A migration turns legacy bodies (bare JSON text), or bodies in any other codec, into MessagePack + zlib or another
    codec, while applications read and write. Keys, added_id and created_at stay the same. Before a new body is written,
    it is decoded and compared with the old one, and it replaces only the exact bytes that were read.

    A migration is a job in the catalog. Any number of runs, on any machine, share its work. If a run is killed, running
    the same command again continues where it stopped.

    \b
    Typical order:
      schemaless migrate plan       predicts what a run would change and cost
      schemaless migrate run --execute --archive DIR
      schemaless job show           shows the progress; 'schemaless job' also
                                    pauses, throttles and cancels jobs
      schemaless migrate verify     checks primaries, replicas and the archive
      schemaless migrate finalise   lists archive files that may be deleted
      schemaless rebuild            gives the freed space back to the disk
      schemaless migrate report     shows the space saved, also as an HTML page
    """
