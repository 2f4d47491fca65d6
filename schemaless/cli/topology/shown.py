"""What commands about servers share: options, and how a change is said."""

from __future__ import annotations

from typing import Any

import click

from schemaless.admin import nodes
from schemaless.admin.nodes import NodeChange, NodeState
from schemaless.cluster.topology import Cluster, Node
from schemaless.terminal.output import note

cluster_option = click.option(
    "--cluster", required=True, metavar="NAME", help="Which cluster, such as cluster-1; 'topology show' lists them."
)

timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, max=3600),
    default=nodes.ARRIVAL_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a transaction may take from the primary to a replica.",
)


def say_reconnect() -> None:
    """Say when connected programs learn of a change."""
    note("programs that are connected take this when they connect again: restart them")


def _node_data(node: Node) -> dict[str, Any]:
    return {"role": node.role, "address": str(node), "host": node.host, "port": node.port, "socket": node.socket}


def state_data(state: NodeState) -> dict[str, Any]:
    """Return a server and what it answered, for ``--json``."""
    return {
        **_node_data(state.node),
        "version": state.version,
        "read_only": state.read_only,
        "fault": state.fault,
    }


def _cluster_data(cluster: Cluster) -> dict[str, Any]:
    return {"name": cluster.name, "nodes": [_node_data(node) for node in cluster.nodes]}


def change_data(change: NodeChange) -> dict[str, Any]:
    """Return what was changed, for ``--json``."""
    return {
        "changed": change.changed,
        "cluster": _cluster_data(change.cluster),
        "arrived_ms": {str(node): round(seconds * 1000, 1) for node, seconds in change.arrived_s.items()},
        "removed": [_node_data(node) for node in change.removed],
        "old_primary": change.old_primary,
        "url": change.url,
    }
