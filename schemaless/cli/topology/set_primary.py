"""``schemaless topology set-primary``."""

from __future__ import annotations

import click

from schemaless.cli.options import url_option
from schemaless.cli.topology.shown import change_data, cluster_option, say_reconnect, timeout_option
from schemaless.failover import nodes
from schemaless.terminal.output import json_option, note, out, print_json


@click.command("set-primary")
@click.argument("primary", metavar="PRIMARY_URL")
@cluster_option
@click.option(
    "--keep-old-as-replica",
    "keep_old",
    is_flag=True,
    help="Keep the old primary in the catalog, as a replica of the new one.",
)
@click.option(
    "--drop-replicas", is_flag=True, help="Remove replicas that do not follow the new primary from the catalog."
)
@timeout_option
@url_option
@json_option
def set_primary(
    primary: str, cluster: str, keep_old: bool, drop_replicas: bool, timeout_s: float, url: str, as_json: bool
) -> None:
    """Change a cluster's primary in the catalog.

    Use it after a failover or a switchover by another tool, and for a new address of the same server. The servers
    themselves are not changed. Before it writes anything, the command checks that the new primary accepts writes and
    has every shard of the cluster, that the old one, if it answers, is read-only and has nothing that the new one
    lacks, and that each replica follows the new one.

    The catalog is on the first cluster. If that cluster's primary changes, use a URL with the new server (--url),
    because the catalog is there too; every program needs a URL with the new server from then on.

    \b
    Examples:
      schemaless topology set-primary --cluster cluster-2 mysql://db-2b:3306/
      schemaless topology set-primary --cluster cluster-1 --url mysql://app@db-1b:3306/mezzanine mysql://db-1b:3306/
    """
    change = nodes.set_primary(
        url, cluster, primary, keep_old=keep_old, drop_replicas=drop_replicas, timeout_s=timeout_s
    )
    if as_json:
        print_json(change_data(change))
        return
    if not change.changed:
        out().print(f"{change.cluster.primary} is already the primary of {cluster}", markup=False)
        return
    out().print(f"{change.cluster.primary} is the primary of {cluster}", markup=False)
    for node in change.removed:
        note(f"{node} removed from {cluster}")
    if change.old_primary == "unreachable":
        note(
            "the old primary cannot be reached: transactions that it did not send are not on the new one ('schemaless "
            "topology lost' lists their cells once the server answers). If it comes back, make sure that connected "
            "programs cannot reach it"
        )
    if change.url is not None:
        note(
            f"the catalog is on the new primary: export SCHEMALESS_URL='{change.url}', and replace the old URL in each "
            "configuration file ('schemaless config path' prints the path of yours)"
        )
    say_reconnect()
