"""``schemaless topology add-cluster``."""

from __future__ import annotations

import click

from schemaless.admin.clusters import add_cluster as add
from schemaless.cli.options import url_option
from schemaless.cli.topology.shown import change_data, say_reconnect, timeout_option
from schemaless.terminal.output import json_option, note, out, print_json


@click.command("add-cluster")
@click.argument("primary", metavar="PRIMARY_URL")
@click.option("--name", metavar="NAME", help="What it is called.  [default: the next cluster-N]")
@click.option("--replica", "replicas", multiple=True, metavar="URL", help="A replica of it; may be repeated.")
@timeout_option
@url_option
@json_option
def add_cluster(
    primary: str, name: str | None, replicas: tuple[str, ...], timeout_s: float, url: str, as_json: bool
) -> None:
    """Give a datastore another cluster, without shards yet.

    'schemaless shards move' brings shards there. Proven before anything is written: the server takes writes, is of the
    kind of the others, none of the servers that the datastore has, and has no database that it would use; its replicas
    replicate from it. It gets a database of its own, NAME_heartbeat, with a copy of every dictionary. Interrupted, the
    same command goes on; run again, it proves what is there.

    PRIMARY_URL is the server's, without a database; the datastore's account and password are used, which has to be
    there, with the role admin.

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
    done = "added" if change.changed else "is there already, and still fit"
    out().print(f"{cluster.name} {done}: {cluster.primary} with {len(cluster.replicas)} replicas", markup=False)
    for node, arrived_s in change.arrived_s.items():
        out().print(f"a transaction took {arrived_s * 1000:,.0f} ms to {node}", markup=False)
    if change.changed:
        note(f"'schemaless shards plan SHARDS --to {cluster.name}' says what moving shards there would take")
        note("'schemaless grants' prints what accounts need there; the role move needs it first")
        say_reconnect()
