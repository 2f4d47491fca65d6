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

    Applications and followers (triggers and indexes) continue meanwhile: they wait for a fraction of a second while a
    shard is cut over to its new server. Cells keep their added_id, created_at and bytes, and followers keep their
    locations.

    A move is a job in the catalog. If it is killed, the same command continues where it stopped.

    \b
    The order of work:
      schemaless shards plan 0-255 --to cluster-3
      schemaless shards move 0-255 --to cluster-3 --execute
      schemaless shards status                works from any terminal; so do pause, resume, throttle, abort
      schemaless shards verify                compares once more, while there is still something to compare with
      schemaless shards drop-moved            removes what was left behind, once it was compared
    """
