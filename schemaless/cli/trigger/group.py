"""``schemaless trigger``: functions that are called for each new cell."""

from __future__ import annotations

import click

from schemaless.cli.trigger.parked import parked, replay, skip
from schemaless.cli.trigger.run import run
from schemaless.cli.trigger.status import status
from schemaless.cli.trigger.steer import pause, remove, reset, resume


@click.group()
def trigger() -> None:
    """Call a function for each new cell.

    A function becomes a trigger by @schemaless.trigger(column=...). It is called at least once for each cell of the
    column, in the order in which the cells were added to their shard. Each shard stores how far the trigger is. Workers
    on any number of machines share the shards out between them, and take over the shards of a worker that dies. If the
    function fails for a cell, the cell is tried again after longer and longer waits, and then parked. If too many cells
    of a shard are parked, the shard stops.

    \b
    Examples:
      schemaless trigger run billing:bill_rider --workers 4
      schemaless trigger status bill_rider
      schemaless trigger parked bill_rider
      schemaless trigger replay bill_rider --all --execute
    """


for _verb in (run, status, pause, resume, remove, parked, replay, skip, reset):
    trigger.add_command(_verb)
