"""Options and output shared by the ``topology`` commands."""

from __future__ import annotations

import math
from typing import Any

import click

from schemaless.cli.quantities import FiniteRange
from schemaless.failover import nodes
from schemaless.failover.adopt import Adoption
from schemaless.failover.nodes import NodeChange
from schemaless.failover.states import NodeState
from schemaless.terminal.output import facts, note
from schemaless.topology.model import Cluster
from schemaless.topology.shards import LATEST_LOOK_S
from schemaless.wire.node import Node

cluster_option = click.option(
    "--cluster", required=True, metavar="NAME", help="The cluster, such as cluster-1; 'topology show' lists them."
)

timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=0, max=3600),
    default=nodes.ARRIVAL_TIMEOUT_S,
    metavar="SECONDS",
    help="Timeout for a transaction from the primary to a replica.",
)


def say_reconnect() -> None:
    """Print when connected programs learn of a change."""
    latest_s = math.ceil(LATEST_LOOK_S)
    note(f"connected programs follow this change within {latest_s} s of use; those of version 0.1 when they reconnect")


def say_adoption(done: Adoption) -> None:
    """Print the consequences of an adoption that need attention."""
    for node, reason in done.removed.items():
        note(f"{node} removed from {done.cluster.name}: {reason}")
    for node in () if done.quorum else done.unasked:
        note(f"{node} did not answer: transactions that only this replica has received are not on the new primary")
    if done.old_primary == "ahead" or (done.old_primary == "unreachable" and not done.quorum):
        state = "cannot be reached" if done.old_primary == "unreachable" else "has transactions that the new one lacks"
        note(f"the old primary {state}: 'schemaless topology lost --from URL' lists its lost cells once it answers")
    if done.old_written_s is not None:
        note(
            f"programs that are connected to the old primary may write there for up to {math.ceil(done.old_written_s)} "
            "s from now, until they read the catalog again, and longer if they cannot reach the catalog: stop the old "
            "primary, or cut it off"
        )
    if done.url is not None:
        note(f"the catalog is on the new primary: export SCHEMALESS_URL='{done.url}'")
    if done.changed:
        say_reconnect()


def _node_data(node: Node) -> dict[str, Any]:
    return {"role": node.role, "address": str(node), **facts(node, "host", "port", "socket")}


def state_data(state: NodeState) -> dict[str, Any]:
    """Return a node and its state for ``--json``."""
    return {
        **_node_data(state.node),
        **facts(state, "version", "read_only", "claim", "fault", "warnings"),
    }


def _cluster_data(cluster: Cluster) -> dict[str, Any]:
    return {"name": cluster.name, "epoch": cluster.epoch, "nodes": [_node_data(node) for node in cluster.nodes]}


def adoption_data(done: Adoption) -> dict[str, Any]:
    """Return the result of an adoption for ``--json``."""
    return {
        **_common_data(done),
        "removed": [{**_node_data(node), "reason": reason} for node, reason in done.removed.items()],
        "unasked": [_node_data(node) for node in done.unasked],
        **facts(done, "old_primary", "old_written_s", "quorum", "url"),
    }


def _common_data(done: Adoption | NodeChange) -> dict[str, Any]:
    arrived_ms = {str(node): round(seconds * 1000, 1) for node, seconds in done.arrived_s.items()}
    return {"changed": done.changed, "cluster": _cluster_data(done.cluster), "arrived_ms": arrived_ms}


def change_data(change: NodeChange) -> dict[str, Any]:
    """Return the result of a change for ``--json``."""
    return {
        **_common_data(change),
        "removed": [_node_data(node) for node in change.removed],
        **facts(change, "old_primary", "url"),
    }
