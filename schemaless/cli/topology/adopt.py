"""``schemaless topology adopt``."""

from __future__ import annotations

import click

from schemaless.cli.options import url_option
from schemaless.cli.quantities import FiniteRange
from schemaless.cli.topology.shown import adoption_data, cluster_option, say_adoption
from schemaless.failover import adopt as failover
from schemaless.terminal.output import json_option, out, print_json


@click.command()
@click.argument("primary", metavar="PRIMARY_URL")
@cluster_option
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Continue even if the read-only old primary has cells that the new one lacks; see 'topology lost'.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=0, max=3600),
    default=failover.TIMEOUT_S,
    metavar="SECONDS",
    help="Timeout for a transaction to reach a replica, and for received transactions to be applied.",
)
@url_option
@json_option
def adopt(primary: str, cluster: str, accept_loss: bool, timeout_s: float, url: str, as_json: bool) -> None:
    """Make all programs write to a server that was promoted.

    Call this command from the hook of your failover tool, such as Group Replication, orchestrator or keepalived, or run
    it yourself. The tool promotes a server; this command checks the result, and makes every program write there. From
    a cluster's first adoption on, no program writes to a server that was not adopted: neither to an old primary that
    returns, nor to another server behind the same address. Run it once for your present primary, before you need it.

    Before it writes anything, the command checks that the new primary accepts writes, replicates from no server, has
    every shard, and lacks nothing that a replica has received, and that the old primary, if it answers, is read-only.
    Then added_ids continue in a new block, so that no id is assigned twice. Replicas that do not follow the new primary
    are removed from the catalog.

    If the command is killed, run it again. It supports MySQL only.

    \b
    Examples:
      schemaless topology adopt --cluster cluster-2 mysql://db-2b:3306/
      schemaless topology adopt --cluster cluster-1 --url mysql://app@db-1b:3306/mezzanine mysql://db-1b:3306/
    """
    done = failover.adopt(url, cluster, primary, accept_loss=accept_loss, timeout_s=timeout_s)
    if as_json:
        print_json(adoption_data(done))
        return
    claimed = f"with claim {done.cluster.epoch}"
    if done.changed:
        out().print(f"{done.cluster.primary} is the primary of {cluster}, {claimed}", markup=False)
    else:
        out().print(f"{done.cluster.primary} is already the primary of {cluster}, {claimed}", markup=False)
    say_adoption(done)
