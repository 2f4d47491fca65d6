"""``schemaless topology show``."""

from __future__ import annotations

import click

from schemaless.cli.options import url_option
from schemaless.cli.topology.shown import state_data
from schemaless.failover.states import node_states
from schemaless.terminal.output import EXIT_FAILED, json_option, note, print_json, print_table


@click.command()
@url_option
@json_option
def show(url: str, as_json: bool) -> int:
    """Show every server and its state.

    For a primary with replicas, the command also warns if a failover would lose cells: asynchronous replication loses
    everything that was not sent yet. A semi-synchronous timeout below one hour is a warning as well.

    \b
    Examples:
      schemaless topology show
      schemaless topology show --json

    Exit status: 0 if all servers answer, primaries accept writes and have their claims, replicas are read-only, and
    semi-synchronous replication has not fallen back, else 1.
    """
    datastore, states = node_states(url)
    faults = [state for state in states if state.fault]
    if as_json:
        clusters = [
            {
                "name": cluster.name,
                "epoch": cluster.epoch,
                "shards": len(datastore.shards_of(cluster.name)),
                "nodes": [state_data(state) for state in states if state.cluster == cluster.name],
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
        for state in states:
            for warning in state.warnings:
                note(f"{state.cluster}: {warning}")
    return EXIT_FAILED if faults else 0


def _spans(shards: list[int]) -> str:
    """Format shard numbers as ranges: ``0-3, 8``."""
    spans: list[list[int]] = []
    for shard in shards:
        if spans and spans[-1][1] == shard - 1:
            spans[-1][1] = shard
        else:
            spans.append([shard, shard])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
