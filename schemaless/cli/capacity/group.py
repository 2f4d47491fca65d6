"""The command group ``schemaless capacity``."""

from __future__ import annotations

import click

from schemaless.cli.capacity.history import history
from schemaless.cli.capacity.measure import measure
from schemaless.cli.capacity.model import model_command
from schemaless.cli.capacity.report import report


@click.group(commands=[measure, history, report, model_command])
def capacity() -> None:
    """Measure a datastore, and say how long its disks last.

    'measure' records sizes and growth in the catalog, 'history' lists the recorded measurements, and 'report' uses them
    to forecast when the disks are full, now and after re-encoding. 'model' needs no datastore: it calculates from
    figures that you supply.

    \b
    Typical use:
      schemaless capacity measure       once a day, from cron
      schemaless capacity report        whenever you need the answer
    """
