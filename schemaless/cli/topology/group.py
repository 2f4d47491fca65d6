"""The command group ``schemaless topology``."""

from __future__ import annotations

import click

from schemaless.cli.topology.add_cluster import add_cluster
from schemaless.cli.topology.adopt import adopt
from schemaless.cli.topology.lost import lost
from schemaless.cli.topology.replicas import add_replica, remove_replica
from schemaless.cli.topology.set_primary import set_primary
from schemaless.cli.topology.show import show
from schemaless.cli.topology.watch import watch


@click.group(commands=[show, adopt, watch, lost, add_cluster, add_replica, remove_replica, set_primary])
def topology() -> None:
    """Show and change the servers of a datastore.

    The catalog says which server is the primary of each cluster and which servers are its replicas. A command changes
    the catalog only after it has checked the change on the servers themselves. Connected programs follow the change at
    once if a call fails, and otherwise within 38 seconds of use.

    \b
    Examples:
      schemaless topology show
      schemaless topology add-cluster mysql://db-3:3306/
      schemaless topology add-replica --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology set-primary --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology adopt --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology watch
    """
