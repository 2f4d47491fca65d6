"""``schemaless capacity``: how long the disks last."""

from __future__ import annotations

import click

from schemaless.cli.capacity.history import history
from schemaless.cli.capacity.measure import measure
from schemaless.cli.capacity.model import model_command
from schemaless.cli.capacity.report import report


@click.group(commands=[measure, history, report, model_command])
def capacity() -> None:
    """How long the disks last.

    'measure' looks at a datastore, 'history' at what was measured, and 'report' says from that how long the disks last,
    now and after re-encoding; 'model' calculates it from figures that you give.
    """
