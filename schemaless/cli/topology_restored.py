"""``schemaless topology restored``: gives a restored datastore its own servers."""

from __future__ import annotations

import click

from schemaless.base.numbers import shards_text
from schemaless.cli.command import JSONCommand
from schemaless.cli.erase_shown import show_undone, undone_json
from schemaless.cli.option import option
from schemaless.cli.topology_failover import cluster_data
from schemaless.ops.erasure.ledger_file import Recorded, load_ledger
from schemaless.ops.erasure.replay import Undone, replay, undone
from schemaless.ops.export.admin import exports
from schemaless.ops.failover import restored as failover
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.job_progress import JobProgress
from schemaless.ui.terminal.output import note, out, print_result, progress


def _mapping(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    servers: dict[str, str] = {}
    for text in given:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise click.BadParameter("must be CLUSTER=URL or ADDRESS=URL", context, parameter)
        if old in servers:
            raise click.BadParameter(f"{old} is given twice", context, parameter)
        servers[old] = new
    return servers


@click.command(cls=JSONCommand)
@option(
    "--map OLD=NEW",
    "Server of a cluster: OLD is the cluster's name or its old primary's address, NEW the URL of its new primary. "
    "Repeat the option for each cluster.",
    name="servers",
    multiple=True,
    callback=_mapping,
)
@option(
    "--from FILE",
    "First add the erasures in this file, written by 'erase ledger', to the ledger.",
    name="ledger_file",
    type=click.Path(allow_dash=True),
)
@option(
    "--replaces-original",
    "The original is no longer in use: NEW may be one of its servers, and clusters without --map keep theirs.",
    is_flag=True,
)
def restored(servers: dict[str, str], ledger_file: str | None, replaces_original: bool, url: str) -> None:
    """Give a restored datastore its own servers.

    A restored catalog names the servers of the original datastore. Programs and commands refuse such a catalog, so that
    they do not write to the original, until this command has given every cluster the server that its backup was
    restored on. The command does not contact the servers of the original.

    It checks that each new server accepts writes and has the databases of the cluster, repeats erasures as 'erase
    replay' does, makes new claims where the original had them, and then changes the catalog. Give a URL (--url) with
    the server on which the catalog was restored. The account needs the roles admin and erase. If the command is
    interrupted, run it again.

    With --replaces-original, the original's servers may be used: after a disaster, or if a server was moved or promoted
    in a way that the catalog does not know of. Restart programs that are still connected to the original.

    \b
    Examples:
      schemaless topology restored --url mysql://drill-1:3306/mezzanine \\
          --map cluster-1=mysql://drill-1:3306/ \\
          --map cluster-2=mysql://drill-2:3306/ --from ledger.ndjson
      schemaless topology restored --url mysql://db-1c:3306/mezzanine \\
          --map cluster-1=mysql://db-1c:3306/ --replaces-original
    """
    recorded, found, targets = Recorded(), list[Undone](), dict[str, str]()

    def erase(store: Datastore) -> None:
        nonlocal recorded, found
        if ledger_file is not None:
            with click.open_file(ledger_file, "rb") as lines:
                recorded = load_ledger(store, lines)
        with progress("comparing", len(internals_of(store).erasures.ledger.entries()), "erasures") as listener:
            found = undone(store, listener=listener)
        with JobProgress(JobStore(store)) as shown:
            replay(store, found, Thresholds(), listener=shown)
        targets.update(exports(store))

    done = failover.restored(url, servers, erase, replaces_original=replaces_original)
    print_result(
        {
            "changed": done.changed,
            "clusters": [cluster_data(cluster) for cluster in done.topology.clusters],
            "added": len(recorded.erasures),
            "undone": [undone_json(each) for each in found],
        }
    )
    for cluster in done.topology.clusters:
        shards = shards_text(done.topology.shards_of(cluster.name)).replace(",", ", ")
        out().print(f"{cluster.primary} is the primary of {cluster.name} and has its shards: {shards}")
    show_undone(recorded, found, executed=True)
    if not done.changed:
        note("an earlier run had already given the datastore these servers")
    for name, uri in () if replaces_original else targets.items():
        note(
            f"export {name} writes to {uri}, as the original's does: if the original is still in use, run 'schemaless "
            f"export remove {name} --execute', and give a new export another target"
        )
    note("'schemaless topology add-replica' adds replicas; 'schemaless check' verifies every cell")
