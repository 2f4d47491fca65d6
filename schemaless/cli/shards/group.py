"""``schemaless shards``: shards moved from cluster to cluster."""

from __future__ import annotations

import click

from schemaless.cli.shards.left import drop_moved
from schemaless.cli.shards.move import move, plan
from schemaless.cli.shards.status import status
from schemaless.cli.shards.steer import abort, pause, resume, throttle
from schemaless.cli.shards.verify import verify


@click.group(commands=[plan, move, status, pause, resume, throttle, abort, verify, drop_moved])
def shards() -> None:
    """Move shards to another cluster.

    Readers, writers and followers go on: they wait for a fraction of a second while a shard is cut over. Cells keep
    their added_id, created_at and bytes; followers keep their locations.

    A move is a job in the catalog. Killed at any moment, the same command goes on.

    \b
    The order of work:
      schemaless shards plan 0-255 --to cluster-3
      schemaless shards move 0-255 --to cluster-3 --execute
      schemaless shards status                from any terminal; also pause, resume, throttle, abort
      schemaless shards verify                compares once more, for as long as there is something to compare with
      schemaless shards drop-moved            what was left behind, once it was compared
    """
