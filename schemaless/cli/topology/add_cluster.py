"""``schemaless topology add-cluster``."""

from __future__ import annotations

import click

from schemaless.cli.options import url_option
from schemaless.cli.topology.shown import change_data, say_reconnect, timeout_option
from schemaless.failover.clusters import add_cluster as add
from schemaless.terminal.output import json_option, note, out, print_json


@click.command("add-cluster")
@click.argument("primary", metavar="PRIMARY_URL")
@click.option("--name", metavar="NAME", help="The name of the cluster.  [default: the next cluster-N]")
@click.option("--replica", "replicas", multiple=True, metavar="URL", help="A replica of that server; may be repeated.")
@timeout_option
@url_option
@json_option
def add_cluster(
    primary: str, name: str | None, replicas: tuple[str, ...], timeout_s: float, url: str, as_json: bool
) -> None:
    """Add a cluster without shards to a datastore.

    'schemaless shards move' then moves shards there. Before it writes anything, the command checks that the server
    accepts writes, runs the same database as the others (MySQL or MariaDB), is not one of the datastore's servers
    already, and has no database with a name that the datastore uses; and that the replicas replicate from it. Then it
    creates the database NAME_heartbeat there, with a copy of every dictionary. After an interruption, run the same
    command again. For a cluster that already exists, the command only repeats the checks.

    PRIMARY_URL is the URL of the server, without a database. The datastore's account and password are used: create
    that account there first, with the role admin.

    \b
    Examples:
      schemaless topology add-cluster mysql://db-3:3306/ --replica mysql://db-3b:3306/
      schemaless topology add-cluster --name archive 'mysql:///?unix_socket=/run/mysqld/archive.sock' --json
    """
    change = add(url, primary, name=name, replicas=replicas, timeout_s=timeout_s)
    if as_json:
        print_json(change_data(change))
        return
    cluster = change.cluster
    done = "added" if change.changed else "already exists, and passed the checks"
    out().print(f"{cluster.name} {done}: {cluster.primary} with {len(cluster.replicas)} replicas", markup=False)
    for node, arrived_s in change.arrived_s.items():
        out().print(f"a transaction took {arrived_s * 1000:,.0f} ms to {node}", markup=False)
    if change.changed:
        note(f"'schemaless shards plan SHARDS --to {cluster.name}' predicts what moving shards there would take")
        note("'schemaless grants' prints the privileges that accounts need there; grant those of the role move first")
        say_reconnect()
