"""``schemaless topology add-replica`` and ``remove-replica``."""

from __future__ import annotations

import click

from schemaless.cli.options import url_option
from schemaless.cli.topology.shown import change_data, cluster_option, say_reconnect, timeout_option
from schemaless.failover import nodes
from schemaless.terminal.output import json_option, out, print_json


@click.command("add-replica")
@click.argument("replica", metavar="REPLICA_URL")
@cluster_option
@timeout_option
@url_option
@json_option
def add_replica(replica: str, cluster: str, timeout_s: float, url: str, as_json: bool) -> None:
    """Add a replica to the catalog.

    The server must already replicate. Before it writes anything, the command checks that the replica is another server
    than the primary, that a new transaction of the primary arrives there, and that it has every shard of the cluster.
    That transaction writes to the database NAME_heartbeat on the primary, which is created if it is missing.

    REPLICA_URL is the URL of the server, without a database; the datastore's account and password are used. Programs
    read there if they ask for it (read_from="replica").

    \b
    Examples:
      schemaless topology add-replica --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology add-replica --cluster cluster-1 'mysql:///?unix_socket=/run/mysqld/replica.sock'
    """
    change = nodes.add_replica(url, cluster, replica, timeout_s=timeout_s)
    if as_json:
        print_json(change_data(change))
        return
    ((node, arrived_s),) = change.arrived_s.items()
    done = f"added to {cluster}" if change.changed else f"is already a replica of {cluster}, and passed the checks"
    out().print(f"{node} {done}; a transaction took {arrived_s * 1000:,.0f} ms to arrive", markup=False)
    if change.changed:
        say_reconnect()


@click.command("remove-replica")
@click.argument("replica", metavar="REPLICA_URL")
@cluster_option
@url_option
@json_option
def remove_replica(replica: str, cluster: str, url: str, as_json: bool) -> None:
    """Remove a replica from the catalog.

    The server need not answer, and nothing is changed on it.

    \b
    Examples:
      schemaless topology remove-replica --cluster cluster-1 mysql://db-1b:3306/
    """
    change = nodes.remove_replica(url, cluster, replica)
    if as_json:
        print_json(change_data(change))
        return
    out().print(f"{change.removed[0]} removed from {cluster}", markup=False)
    say_reconnect()
