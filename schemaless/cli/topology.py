"""``schemaless topology``: the servers of a datastore."""

from __future__ import annotations

from typing import Any

import click

from schemaless.base.numbers import counted, shards_text
from schemaless.cli.command import Command, JSONCommand, QueryCommand
from schemaless.cli.option import option
from schemaless.cli.options import engine_option
from schemaless.cli.topology_failover import (
    adopt,
    cluster_option,
    lost,
    say_change,
    say_promotion,
    say_reconnect,
    state_data,
    timeout_option,
    watch,
)
from schemaless.cli.topology_restored import restored
from schemaless.ops.failover import nodes
from schemaless.ops.failover.clusters import add_cluster as add
from schemaless.ops.failover.states import NodeState, node_states
from schemaless.ui.terminal.output import EXIT_FAILED, note, out, print_result, print_rows
from schemaless.ui.terminal.server_names import ServerNames


@click.group(commands=[adopt, watch, lost, restored])
def topology() -> None:
    """Show and change the servers of a datastore.

    The catalog says which server is the primary of each cluster and which servers are its replicas. A command changes
    the catalog only after it has checked the change on the servers themselves. Connected programs follow the change at
    once if a call fails; otherwise, as long as they make calls, they follow it within 38 seconds.

    \b
    Examples:
      schemaless topology show
      schemaless topology add-cluster mysql://db-3:3306/
      schemaless topology add-replica --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology set-primary --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology adopt --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology watch
      schemaless topology restored --map cluster-1=mysql://drill-1:3306/
    """


@topology.command(cls=QueryCommand)
def show(url: str) -> int:
    """Show every server and its state.

    For a primary with replicas, the command also warns if a failover would lose cells: asynchronous replication
    loses everything not yet sent. It also warns of a semi-synchronous timeout below one hour, and of replicas whose
    replication threads the account may not read. A server with the cells of a shard that the catalog places elsewhere
    was restored from a backup that is older than a move, and is reported; a replica that has yet to apply a move is
    not.

    Servers that are reached by a socket have a short name; --json has their addresses.

    \b
    Examples:
      schemaless topology show
      schemaless topology show --json

    Exit status: 0 if all servers answer and have no other shards' cells, primaries accept writes and have their claims,
    replicas are read-only and replicate, semi-synchronous replication neither blocks writes nor has become
    asynchronous, and no cluster has lost all its replicas, else 1.
    """
    datastore, states = node_states(url)
    faults = [(state, fault) for state in states for fault in (state.fault, state.exposed) if fault]
    clusters = [
        {
            "name": cluster.name,
            "epoch": cluster.epoch,
            "engine": cluster.engine,
            "shards": len(datastore.shards_of(cluster.name)),
            "nodes": [state_data(state) for state in states if state.cluster == cluster.name],
        }
        for cluster in datastore.clusters
    ]
    print_result({"name": datastore.name, "shards": datastore.shard_count, "clusters": clusters})
    names = ServerNames(str(state.node) for state in states)
    rows = [
        {
            "cluster": state.cluster,
            "role": state.node.role,
            "server": names.short(str(state.node)),
            "version": state.version or "does not answer",
            "engine": datastore.cluster(state.cluster).engine,
            "writes": _writes(state),
            "shards": shards_text(datastore.shards_of(state.cluster)).replace(",", ", "),
        }
        for state in states
    ]
    print_rows(None, rows, text_columns=7)
    for state, fault in faults:
        note(f"{state.cluster}, {state.node.role} {names.short(str(state.node))}: {fault}")
    for state in states:
        for warning in state.warnings:
            note(f"{state.cluster}: {warning}")
    return EXIT_FAILED if faults else 0


def _writes(state: NodeState) -> str:
    if state.semi_sync is not None and state.semi_sync.blocks_writes:
        return "wait"
    return {None: "-", True: "read-only", False: "yes"}[state.read_only]


@topology.command("add-cluster", cls=JSONCommand)
@click.argument("primary", metavar="PRIMARY_URL")
@option("--name NAME", "The name of the cluster.  [default: the next cluster-N]")
@option("--replica URL", "A replica of PRIMARY_URL; may be repeated.", name="replicas", multiple=True)
@engine_option
@timeout_option
def add_cluster(primary: str, url: str, **asked: Any) -> None:
    """Add a cluster without shards to a datastore.

    'schemaless shards move' then moves shards there. Before it writes anything, the command checks that the server
    accepts writes, runs the same database as the others (MySQL or MariaDB), is not already one of the datastore's
    servers, and has no database with a name that the datastore uses. It also checks that the replicas replicate from
    that server. Then it creates the database NAME_heartbeat there, with a copy of every dictionary, and lists the
    accounts that the datastore's first server knows and that lack privileges there. After an interruption, run the same
    command again. For a cluster that already exists, the command only repeats the checks.

    With --engine rocksdb, the cluster keeps cells in MyRocks; moving a shard there or back converts it.

    PRIMARY_URL is the URL of the server, without a database. The datastore's account and password are used: create
    that account there first, with the role admin.

    \b
    Examples:
      schemaless topology add-cluster mysql://db-3:3306/ \\
          --replica mysql://db-3b:3306/
      schemaless topology add-cluster --engine rocksdb --name rocks \\
          mysql://maria-4:3306/
      schemaless topology add-cluster --name archive \\
          'mysql:///?unix_socket=/run/mysqld/archive.sock' --json
    """
    change = add(url, primary, **asked)
    cluster = change.cluster
    done = "added" if change.changed else "already exists, and passed the checks"
    text = f"{cluster.name} {done}: {cluster.primary} with {counted(len(cluster.replicas), 'replica')}"
    say_change(change, text)
    for node, arrived_s in change.arrived_s.items():
        out().print(f"a transaction took {arrived_s * 1000:,.0f} ms to reach {node}")
    for warning in change.warnings:
        note(warning)
    if change.changed:
        note(f"'schemaless shards plan SHARDS --to {cluster.name}' predicts what moving shards there would take")
        note("'schemaless grants --role move' prints what a move needs there")
        say_reconnect()


@topology.command("add-replica", cls=JSONCommand)
@click.argument("replica", metavar="REPLICA_URL")
@cluster_option
@timeout_option
def add_replica(replica: str, cluster: str, timeout_s: float, url: str) -> None:
    """Add a replica to the catalog.

    The server must already replicate. Before it writes anything, the command checks that the replica is not the primary
    itself, that a new transaction on the primary arrives there, and that the replica has every shard of the cluster.
    That transaction writes to the primary's database NAME_heartbeat, which is created if it is missing.

    REPLICA_URL is the URL of the server, without a database; the datastore's account and password are used. Programs
    read there if they ask for it (read_from="replica").

    \b
    Examples:
      schemaless topology add-replica --cluster cluster-1 mysql://db-1b:3306/
      schemaless topology add-replica --cluster cluster-1 \\
          'mysql:///?unix_socket=/run/mysqld/replica.sock'
    """
    change = nodes.add_replica(url, cluster, replica, timeout_s=timeout_s)
    ((node, arrived_s),) = change.arrived_s.items()
    done = f"added to {cluster}" if change.changed else f"is already a replica of {cluster}, and passed the checks"
    text = f"{node} {done}; a transaction took {arrived_s * 1000:,.0f} ms to arrive"
    say_change(change, text)
    if change.changed:
        say_reconnect()


@topology.command("remove-replica", cls=JSONCommand)
@click.argument("replica", metavar="REPLICA_URL")
@cluster_option
def remove_replica(replica: str, cluster: str, url: str) -> None:
    """Remove a replica from the catalog.

    The server need not answer, and nothing is changed on it.

    \b
    Examples:
      schemaless topology remove-replica --cluster cluster-1 mysql://db-1b:3306/
    """
    change = nodes.remove_replica(url, cluster, replica)
    say_change(change, f"{next(iter(change.removed))} removed from {cluster}")
    say_reconnect()


@topology.command(cls=Command)
@cluster_option
@option("--replicas", "The number of replicas; fewer are reported.", type=click.IntRange(min=0))
@option("--semi-sync/--no-semi-sync", "Whether an asynchronous primary is reported as a fault.", default=None)
def expect(cluster: str, replicas: int | None, semi_sync: bool | None, url: str) -> None:
    """Set the redundancy that a cluster should have.

    'status', 'metrics' and 'topology show' report what a cluster lacks. Without this command, a cluster should have as
    many replicas as it ever had, and semi-synchronous replication if 'status' or 'metrics' have seen it.

    \b
    Examples:
      schemaless topology expect --cluster cluster-1 --replicas 1 --no-semi-sync
    """
    if replicas is None and semi_sync is None:
        raise click.UsageError("give --replicas, --semi-sync or --no-semi-sync")
    nodes.expect(url, cluster, replicas=replicas, semi_sync=semi_sync)
    note(f"what {cluster} should have is recorded")


@topology.command("set-primary", cls=JSONCommand)
@click.argument("primary", metavar="PRIMARY_URL")
@cluster_option
@option(
    "--keep-old-as-replica",
    "Keep the old primary in the catalog, as a replica of the new one.",
    name="keep_old",
    is_flag=True,
)
@option("--drop-replicas", "Remove from the catalog any replicas that do not follow the new primary.", is_flag=True)
@timeout_option
def set_primary(primary: str, cluster: str, keep_old: bool, drop_replicas: bool, timeout_s: float, url: str) -> None:
    """Change a cluster's primary in the catalog.

    Use it after a failover or a switchover by another tool, or when the server's address has changed. If the primary's
    address leads to another server now, name the same address again. The servers themselves are not changed.

    Before it writes anything, the command checks that the new primary accepts writes and has every shard of the
    cluster, that the old one, if it answers, is read-only and has nothing that the new one lacks, and that each replica
    follows the new one.

    The catalog is on the first cluster. If that cluster's primary changes, the catalog is on the new server too: give a
    URL with that server (--url), and use such a URL in every program from then on.

    \b
    Examples:
      schemaless topology set-primary --cluster cluster-2 mysql://db-2b:3306/
      schemaless topology set-primary --cluster cluster-1 \\
          --url mysql://app@db-1b:3306/mezzanine mysql://db-1b:3306/
    """
    change = nodes.set_primary(
        url, cluster, primary, keep_old=keep_old, drop_replicas=drop_replicas, timeout_s=timeout_s
    )
    say_change(change, f"{change.cluster.primary} is the primary of {cluster}")
    for node in change.removed:
        note(f"{node} removed from {cluster}")
    if change.old_primary == "unreachable":
        note(
            "the old primary cannot be reached: transactions that it did not send are not on the new one ('schemaless "
            "topology lost' lists their cells once the server answers). If it comes back, make sure that connected "
            "programs cannot reach it"
        )
    say_promotion(change)
    if change.url is not None:
        note(
            f"the catalog is on the new primary: export SCHEMALESS_URL='{change.url}', and replace the old URL in each "
            "configuration file ('schemaless config path' prints the path of yours)"
        )
    say_reconnect()
