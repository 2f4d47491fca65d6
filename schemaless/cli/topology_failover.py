"""``schemaless topology adopt``, ``watch`` and ``lost``, and the output that topology commands share."""

from __future__ import annotations

import json
import math
import random
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from schemaless.base.numbers import counted
from schemaless.cli.command import Command, JSONCommand
from schemaless.cli.option import option
from schemaless.cli.quantities import FiniteRange
from schemaless.errors import TopologyError
from schemaless.ops.admin.ndjson import dump_lines
from schemaless.ops.failover import adopt as failover
from schemaless.ops.failover import nodes
from schemaless.ops.failover.change import NodeChange
from schemaless.ops.failover.lost import lost_cells, settle_lost, unsettled
from schemaless.ops.failover.states import NodeState
from schemaless.ops.failover.watch import Finding, Watch
from schemaless.store.opening import connect
from schemaless.topology.model import Cluster
from schemaless.topology.router import MAX_REFRESH_INTERVAL_S
from schemaless.ui.terminal.files import OutputFile, data_output
from schemaless.ui.terminal.output import EXIT_FAILED, as_json, data_sink, facts, note, out, print_result, progress
from schemaless.wire.node import Node

cluster_option: Final = option(
    "--cluster NAME", "The cluster, such as cluster-1; 'topology show' lists them.", required=True
)

timeout_option: Final = option(
    "--timeout SECONDS",
    "Timeout for a transaction to get from the primary to a replica.",
    name="timeout_s",
    type=FiniteRange(min=0, max=3600),
    default=nodes.ARRIVAL_TIMEOUT_S,
)


def say_reconnect() -> None:
    """Say how soon connected programs follow a change."""
    latest_s = math.ceil(MAX_REFRESH_INTERVAL_S)
    note(f"connected programs follow this change within {latest_s} s while in use")


def say_adoption(done: NodeChange) -> None:
    """Print the consequences of an adoption that need attention."""
    for node, reason in done.removed.items():
        note(f"{node} removed from {done.cluster.name}: {reason}")
    for node in () if done.quorum else done.unasked:
        note(f"{node} did not answer: any transactions that only this replica has received are not on the new primary")
    if done.old_primary == "ahead" or (done.old_primary == "unreachable" and not done.quorum):
        state = "cannot be reached" if done.old_primary == "unreachable" else "has transactions that the new one lacks"
        note(f"the old primary {state}: 'schemaless topology lost --from URL' lists its lost cells once it answers")
    if done.old_written_s is not None:
        note(
            "programs connected to the old primary may write to it until they read the catalog again, for up to "
            f"{math.ceil(done.old_written_s)} s from now, and longer if they cannot reach the catalog: stop the old "
            "primary, or cut it off"
        )
    if done.url is not None:
        note(f"the catalog is on the new primary: export SCHEMALESS_URL='{done.url}'")
    say_promotion(done)
    if done.changed:
        say_reconnect()


def say_promotion(done: NodeChange) -> None:
    """Print a new primary's errant transactions, and what it lacks to survive its own failure."""
    if done.errant:
        lacks = "every other replica that answers" if done.old_primary == "unreachable" else "the old primary"
        note(
            f"{done.cluster.primary} has transactions that {lacks} lacks: {done.errant}. If they are from before the "
            "promotion, they were written there by mistake, and may have changed cells: see 'mysqlbinlog "
            "--include-gtids', compare cells with 'schemaless topology lost', or promote and adopt another server"
        )
    for warning in done.warnings:
        note(warning)


def _node_data(node: Node) -> dict[str, Any]:
    return {"role": node.role, "address": str(node), **facts(node, "host", "port", "socket")}


def state_data(state: NodeState) -> dict[str, Any]:
    """Return a node and its state for ``--json``."""
    return {**_node_data(state.node), **facts(state, "version", "read_only", "claim", "fault", "warnings")}


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster and its nodes for ``--json``."""
    return {"name": cluster.name, "epoch": cluster.epoch, "nodes": [_node_data(node) for node in cluster.nodes]}


def change_data(change: NodeChange) -> dict[str, Any]:
    """Return the result of a change for ``--json``."""
    return {
        "changed": change.changed,
        "cluster": cluster_data(change.cluster),
        "arrived_ms": {str(node): round(seconds * 1000, 1) for node, seconds in change.arrived_s.items()},
        "removed": [{**_node_data(node), "reason": reason} for node, reason in change.removed.items()],
        "unasked": [_node_data(node) for node in change.unasked],
        **facts(change, "old_primary", "old_written_s", "quorum", "url", "errant", "warnings"),
    }


def say_change(change: NodeChange, text: str) -> None:
    """Print the result of a change, for ``--json`` or as text."""
    print_result(change_data(change))
    out().print(text)


@click.command(cls=JSONCommand)
@click.argument("primary", metavar="PRIMARY_URL")
@cluster_option
@option(
    "--accept-loss",
    "Continue even if the read-only old primary has cells that the new one lacks; see 'topology lost'.",
    is_flag=True,
)
@option(
    "--timeout SECONDS",
    "Timeout for a transaction to reach a replica, and for received transactions to be applied.",
    name="timeout_s",
    type=FiniteRange(min=0, max=3600),
    default=failover.TIMEOUT_S,
)
def adopt(primary: str, cluster: str, accept_loss: bool, timeout_s: float, url: str) -> None:
    """Make all programs write to a promoted server.

    Call this command from the hook of your failover tool, such as Group Replication, orchestrator or keepalived, or run
    it by hand. The tool promotes a server; this command checks the result and redirects every program to it. From a
    cluster's first adoption on, programs write only to an adopted server, never to an old primary that returns or to
    another server at the same address. Run it once for your present primary, before you need it.

    Before it writes anything, the command checks that the new primary accepts writes, is not a replica, has every
    shard, and has every transaction that a replica has received, and that the old primary, if it answers, is read-only.
    New added_ids start in a new block, so that no id is assigned twice. Replicas that do not follow the new primary are
    removed from the catalog. Transactions that were written on the new primary itself (errant ones) are printed.

    If the command is killed, run it again. It supports MySQL only.

    \b
    Examples:
      schemaless topology adopt --cluster cluster-2 mysql://db-2b:3306/
      schemaless topology adopt --cluster cluster-1 \\
          --url mysql://app@db-1b:3306/mezzanine mysql://db-1b:3306/
    """
    done = failover.adopt(url, cluster, primary, accept_loss=accept_loss, timeout_s=timeout_s)
    already = "" if done.changed else " already"
    text = f"{done.cluster.primary} is{already} the primary of {cluster}, with claim {done.cluster.epoch}"
    say_change(done, text)
    say_adoption(done)


@click.command(cls=JSONCommand)
@option("--once", "Check once and exit.", is_flag=True)
@option(
    "--interval SECONDS",
    "Time between two checks, with 25% jitter.",
    name="interval_s",
    type=FiniteRange(min=0.1, max=3600),
    default=1.0,
)
def watch(once: bool, interval_s: float, url: str) -> int:
    """Adopt the primaries that groups elect, until Ctrl-C.

    Use it for clusters whose servers form a MySQL Group Replication group in single-primary mode. A group that loses
    its primary elects another. The command asks the members which server that is, and then adopts it as 'schemaless
    topology adopt' does. A group without a claim gets its first one. The command itself never elects a server.

    It trusts only a member that is ONLINE and sees a majority of its group, because a primary that was cut off still
    considers itself the primary. Before it adopts a server, it commits a transaction there, which succeeds only with
    the majority.

    An adoption removes the old primary from the catalog. When that server rejoins the group, the same watch adds it as
    a replica. A cluster whose servers are not a group is reported once and then ignored.

    The command prints a line for each new finding, or a JSON object with --json. Several watches can run at the same
    time: run them on several hosts, so that one remains when a host fails. You can stop a watch at any moment. The
    account needs the role admin.

    Exit status with --once: 0 if each cluster is a group whose primary is adopted, else 1.

    \b
    Examples:
      schemaless topology watch
      schemaless topology watch --once --json
      schemaless local up --servers 1 --group-replication  # to try it
    """
    with closing(Watch(url)) as watching:
        findings = watching.look()
        _say(findings)
        if once:
            return 0 if all(finding.well for finding in findings) else EXIT_FAILED
        if all(finding.kind == "no group" for finding in findings):
            raise TopologyError("no cluster of the datastore is a group, so there is nothing to watch")
        note("watching, until Ctrl-C")
        while True:
            time.sleep(interval_s * random.uniform(0.75, 1.25))  # noqa: S311 - jitter
            _say(watching.look())


def _say(findings: list[Finding]) -> None:
    if as_json():
        sink = data_sink()
        for finding in findings:
            sink.write(json.dumps(_data(finding)).encode() + b"\n")
        sink.flush()
    console = out()
    for finding in findings:
        cluster = "" if finding.cluster is None else f" {finding.cluster}:"
        console.print(f"{finding.at:%Y-%m-%d %H:%M:%S}{cluster} {finding.message}")
        console.file.flush()
        if finding.adoption is not None:
            say_adoption(finding.adoption)


def _data(finding: Finding) -> dict[str, Any]:
    return {
        **facts(finding, "at", "cluster", "message", finding="kind"),
        "adoption": None if finding.adoption is None else change_data(finding.adoption),
    }


@click.command(cls=Command)
@option(
    "--from URL_OLD",
    "The URL of the old primary, which must answer again unless --settled is given.",
    name="old",
    required=True,
)
@option("--stored", "Write stored bytes (base64) instead of documents: an exact copy.", is_flag=True)
@option("--settled", "Instead of writing cells, record that they have been loaded or given up.", is_flag=True)
@option("--output", "Write to this file instead of standard output.", type=OutputFile(Path))
def lost(old: str, stored: bool, settled: bool, output: Path | None, url: str) -> None:
    """Write, as NDJSON, the cells that a failover lost.

    Lost cells exist on the old primary, but are missing from the datastore or have a different document there. The old
    primary may be read-only; unless --settled is given, the command writes to no server. The lines have the format of
    'schemaless dump', and 'schemaless load --from-dump' writes the cells again, with new added_ids and, given
    --created-at created_at, their original times. A cell that exists with a different document is a conflict, which
    'load' reports.

    For each shard with cells on the old primary, the command compares digests of 10,000 rows each, and transfers cells
    only where the digests differ. Run it before you rebuild the old primary.

    If the old primary did not answer during an adoption, or was ahead of the new one, the new primary records it as
    unsettled, and no dictionary can be removed until it is settled. Settle it with --settled and --from, giving the old
    primary's URL as it was in the catalog, or by adding the rebuilt server as a replica.

    \b
    Examples:
      schemaless topology lost --from mysql://db-2:3306/ --output lost.ndjson
      schemaless load --from-dump --created-at created_at --keep-going \\
          --allow-nan lost.ndjson
      schemaless topology lost --from mysql://db-2:3306/ --settled
    """
    if settled:
        with connect(url) as store:
            clusters, remaining = settle_lost(store, old), unsettled(store)
        note(f"settled for {', '.join(clusters)}" if clusters else "no cluster records this server as a lost primary")
        if remaining:
            note(f"not settled yet: {', '.join(remaining)}")
        return
    count = 0
    with connect(url) as store, data_output(output) as sink, progress("comparing", None, "ids") as listener:
        for _, lines in dump_lines(store, lost_cells(store, old, listener=listener), stored=stored):
            sink.write(lines)
            count += 1
    exists = "exists only on the old primary or differs" if count == 1 else "exist only on the old primary or differ"
    note(f"{counted(count, 'cell')} {exists} there" if count else "no cells were lost")
