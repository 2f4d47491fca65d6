"""``schemaless capacity``: how long the disks last."""

from __future__ import annotations

import click

from schemaless.cli.capacity.history import history
from schemaless.cli.capacity.measure import measure
from schemaless.cli.capacity.model import model_command
from schemaless.cli.capacity.report import report


@click.group(commands=[measure, history, report, model_command])
def capacity() -> None:
    """Measure a datastore, and say how long its disks last.

    'measure' measures sizes and growth, 'history' lists the measurements, and 'report' forecasts from them how long the
    disks last, now and after re-encoding. 'model' needs no datastore: it calculates from figures that you give.

    \b
    The order of work:
      schemaless capacity measure             once a day, from cron
      schemaless capacity report              whenever the answer is wanted
    """
