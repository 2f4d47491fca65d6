"""``schemaless topology``: which servers a datastore's clusters have, and changing them."""

from __future__ import annotations

from typing import Any

import click

from schemaless.admin import nodes
from schemaless.admin.nodes import NodeChange, NodeState
from schemaless.cli.options import url_option
from schemaless.cluster.topology import Cluster, Node
from schemaless.terminal.output import EXIT_FAILED, json_option, note, out, print_json, print_table

_cluster_option = click.option(
    "--cluster", required=True, metavar="NAME", help="Which cluster, such as cluster-1; 'topology show' lists them."
)
_timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, max=3600),
    default=nodes.ARRIVAL_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a transaction may take from the primary to a replica.",
)


@click.group()
def topology() -> None:
    """Show and change the servers of a datastore.

    The catalog says which server is the primary of each cluster and which are its replicas. A change is written there
    after it was proven on the servers themselves. Programs that are connected go on with the servers that they know:
    they take a change when they connect again.

    \b
    Examples:
      schemaless topology show
      schemaless topology add-replica --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology set-primary --cluster cluster-1 mysql://db-1b:3306/
    """


@topology.command()
@url_option
@json_option
def show(url: str, as_json: bool) -> int:
    """Show every server of the datastore, and whether it answers.

    Exit status: 0 when all answer, primaries take writes and replicas are read-only, else 1.

    \b
    Examples:
      schemaless topology show
      schemaless topology show --json
    """
    datastore, states = nodes.node_states(url)
    faults = [state for state in states if state.fault]
    if as_json:
        clusters = [
            {
                "name": cluster.name,
                "shards": len(datastore.shards_of(cluster.name)),
                "nodes": [_state_data(state) for state in states if state.cluster == cluster.name],
            }
            for cluster in datastore.clusters
        ]
        print_json({"name": datastore.name, "shards": datastore.shard_count, "clusters": clusters})
    else:
        rows = [
            [
                state.cluster,
                state.node.role,
                str(state.node),
                state.version or "does not answer",
                {None: "-", True: "read-only", False: "yes"}[state.read_only],
                _spans(datastore.shards_of(state.cluster)),
            ]
            for state in states
        ]
        print_table(None, ["cluster", "role", "server", "version", "writes", "shards"], rows, text_columns=6)
        for state in faults:
            note(f"{state.cluster}, {state.node.role} {state.node}: {state.fault}")
    return EXIT_FAILED if faults else 0


@topology.command("add-replica")
@click.argument("replica", metavar="REPLICA_URL")
@_cluster_option
@_timeout_option
@url_option
@json_option
def add_replica(replica: str, cluster: str, timeout_s: float, url: str, as_json: bool) -> None:
    """Write a replica into the catalog.

    It has to replicate already. Proven before anything is written: it is another server than the primary, a new
    transaction of the primary arrives there, and it has every shard of the cluster. That transaction goes to the table
    heartbeat of a database of its own on the primary, NAME_heartbeat, which is made where it is missing.

    REPLICA_URL is the server's, without a database; the datastore's account and password are used. Reads go there where
    the program asks for it (read_from="replica").

    \b
    Examples:
      schemaless topology add-replica --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology add-replica --cluster cluster-1 'mysql:///?unix_socket=/run/mysqld/replica.sock'
    """
    change = nodes.add_replica(url, cluster, replica, timeout_s=timeout_s)
    if as_json:
        print_json(_change_data(change))
        return
    ((node, arrived_s),) = change.arrived_s.items()
    done = f"added to {cluster}" if change.changed else f"is a replica of {cluster} already, and still is one"
    out().print(f"{node} {done}; a transaction took {arrived_s * 1000:,.0f} ms to it", markup=False)
    if change.changed:
        _say_reconnect()


@topology.command("remove-replica")
@click.argument("replica", metavar="REPLICA_URL")
@_cluster_option
@url_option
@json_option
def remove_replica(replica: str, cluster: str, url: str, as_json: bool) -> None:
    """Take a replica out of the catalog.

    The server need not answer, and nothing is changed on it.

    \b
    Examples:
      schemaless topology remove-replica --cluster cluster-1 mysql://db-1b:3306/
    """
    change = nodes.remove_replica(url, cluster, replica)
    if as_json:
        print_json(_change_data(change))
        return
    out().print(f"{change.removed[0]} removed from {cluster}", markup=False)
    _say_reconnect()


@topology.command("set-primary")
@click.argument("primary", metavar="PRIMARY_URL")
@_cluster_option
@click.option("--keep-old-as-replica", "keep_old", is_flag=True, help="Keep the old primary, as a replica of the new.")
@click.option("--drop-replicas", is_flag=True, help="Take replicas that do not follow the new primary out.")
@_timeout_option
@url_option
@json_option
def set_primary(
    primary: str, cluster: str, keep_old: bool, drop_replicas: bool, timeout_s: float, url: str, as_json: bool
) -> None:
    """Name another server as a cluster's primary.

    For after a failover or a switchover, which something else has made, and for a new address of the same server. The
    servers themselves are not changed. Proven before anything is written: the new primary takes writes and has every
    shard of the cluster; the old one, where it answers, is read-only and had nothing that the new one lacks; each
    replica follows the new one.

    The catalog is on the first cluster. When that one's primary changes, name the datastore by the new server (--url):
    the catalog is there too, and every program's URL has to name that one from then on.

    \b
    Examples:
      schemaless topology set-primary --cluster cluster-2 mysql://db-2b:3306/
      schemaless topology set-primary --cluster cluster-1 --url mysql://app@db-1b:3306/mezzanine mysql://db-1b:3306/
    """
    change = nodes.set_primary(
        url, cluster, primary, keep_old=keep_old, drop_replicas=drop_replicas, timeout_s=timeout_s
    )
    if as_json:
        print_json(_change_data(change))
        return
    if not change.changed:
        out().print(f"{change.cluster.primary} is the primary of {cluster} already", markup=False)
        return
    out().print(f"{change.cluster.primary} is the primary of {cluster}", markup=False)
    for node in change.removed:
        note(f"{node} removed from {cluster}")
    if change.old_primary == "unreachable":
        note(
            "the old primary cannot be reached: what it committed and did not send is not on the new one, and if it "
            "comes back, programs that know it must not reach it"
        )
    if change.url is not None:
        note(f"the catalog is on the new primary: export SCHEMALESS_URL='{change.url}'")
    _say_reconnect()


def _say_reconnect() -> None:
    note("programs that are connected take this when they connect again: restart them")


def _spans(shards: list[int]) -> str:
    """Return shard numbers for people: ``0-3, 8``."""
    spans: list[list[int]] = []
    for shard in shards:
        if spans and spans[-1][1] == shard - 1:
            spans[-1][1] = shard
        else:
            spans.append([shard, shard])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _node_data(node: Node) -> dict[str, Any]:
    return {"role": node.role, "address": str(node), "host": node.host, "port": node.port, "socket": node.socket}


def _state_data(state: NodeState) -> dict[str, Any]:
    return {
        **_node_data(state.node),
        "version": state.version,
        "read_only": state.read_only,
        "fault": state.fault,
    }


def _cluster_data(cluster: Cluster) -> dict[str, Any]:
    return {"name": cluster.name, "nodes": [_node_data(node) for node in cluster.nodes]}


def _change_data(change: NodeChange) -> dict[str, Any]:
    return {
        "changed": change.changed,
        "cluster": _cluster_data(change.cluster),
        "arrived_ms": {str(node): round(seconds * 1000, 1) for node, seconds in change.arrived_s.items()},
        "removed": [_node_data(node) for node in change.removed],
        "old_primary": change.old_primary,
        "url": change.url,
    }
