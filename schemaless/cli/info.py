"""``schemaless info``."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import click

from schemaless.base.events import Advanced
from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.command import QueryCommand
from schemaless.cli.option import option
from schemaless.codec.envelope import COLD, DELTA_FORMATS
from schemaless.errors import AccessDenied
from schemaless.planning.capacity.basis import groups_of
from schemaless.planning.capacity.history import latest
from schemaless.planning.capacity.measurement import Group
from schemaless.planning.sampling.table_sizes import TableSize, cell_table_sizes, obsolete_bytes, other_table_sizes
from schemaless.store.cells.counting import estimate_on, exact_count
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.model import Cluster
from schemaless.ui.terminal.output import out, print_result, print_rows, print_table, progress

_KINDS: Final = ("whole", "deltas", "cold")


@click.command(cls=QueryCommand)
@option("--count", "Count cells exactly; by default, InnoDB's estimate is shown, which may be far off.", is_flag=True)
@option("--all", "Also show the placement rule, and the sizes of other tables.", name="internals", is_flag=True)
def info(store: Datastore, count: bool, internals: bool) -> None:
    """Show a datastore's topology and cell counts.

    The counts come with what the latest 'schemaless capacity measure' found. --json includes what --all shows.

    \b
    Examples:
      schemaless info
      schemaless info --count --all
      schemaless info --json
    """
    clusters = [_cluster_facts(store, cluster, count) for cluster in internals_of(store).topology.clusters]
    stored = _stored_facts(store)
    facts = {
        "name": store.name,
        "shards": store.shard_count,
        "placement": internals_of(store).topology.placement,
        "clusters": clusters,
        "stored": stored,
    }
    print_result(facts)
    placed = f", placed by {facts['placement']}" if internals else ""
    out().print(f"datastore {facts['name']}: {counted(store.shard_count, 'shard')}{placed}")
    rows = [
        {
            "cluster": cluster["name"],
            "primary": cluster["primary"],
            "server": cluster["version"],
            "engine": cluster["engine"],
            "shards": cluster["shards"],
            "cells" if count else "cells (estimate)": cluster["cells"],
            "table files": "needs PROCESS" if cluster["file_bytes"] is None else bytes_text(cluster["file_bytes"]),
        }
        for cluster in clusters
    ]
    print_rows(None, rows, text_columns=4)
    for cluster in clusters:
        if cluster["obsolete_bytes"]:
            out().print(
                f"{cluster['name']}: {bytes_text(cluster['obsolete_bytes'])} of the files are obsolete versions, which "
                "MyRocks removes eventually and 'schemaless rebuild' removes at once",
                soft_wrap=True,
                highlight=False,
            )
    if stored is not None:
        out().print(f"\nstored bodies, measured at {stored['measured_at'][:16]} UTC")
        print_table(
            None,
            ["column", "whole", "bytes", "differences", "bytes", "cold", "bytes"],
            [
                [column["column_name"], *(text for kind in _KINDS for text in _kind_texts(column[kind]))]
                for column in stored["columns"]
            ],
        )
    known = [cluster["other_tables"] for cluster in clusters if cluster["other_tables"] is not None]
    if known and internals:
        totals: Counter[str] = Counter()
        for tables in known:
            totals.update({table: sizes["file_bytes"] for table, sizes in tables.items()})
        listed = ", ".join(f"{table} {bytes_text(total)}" for table, total in sorted(totals.items()))
        out().print(f"other tables: {listed}")


def _stored_facts(store: Datastore) -> dict[str, Any] | None:
    """Return the number and size of each column's bodies in the latest measurement, whole, deltas and references."""
    try:
        measurement = latest(store)
    except AccessDenied:
        return None
    if measurement is None:
        return None
    columns = []
    for name in measurement.column_names:
        kinds: dict[str, list[Group]] = {kind: [] for kind in _KINDS}
        for group in groups_of(measurement, name):
            is_delta = group.codec in DELTA_FORMATS.values()
            kinds["deltas" if is_delta else "cold" if group.codec == COLD else "whole"].append(group)
        sizes = {
            kind: {size: round(sum(getattr(group, size).mid for group in groups)) for size in ("cells", "body_bytes")}
            for kind, groups in kinds.items()
        }
        columns.append({"column_name": name, **sizes})
    return {"measured_at": measurement.taken_at.isoformat(), "columns": columns}


def _kind_texts(sizes: dict[str, int]) -> list[Any]:
    return [sizes["cells"], bytes_text(sizes["body_bytes"])]


def _cluster_facts(store: Datastore, cluster: Cluster, count: bool) -> dict[str, Any]:
    internals = internals_of(store)
    shards = internals.topology.shards_of(cluster.name)
    pool = internals.shards.pool_for(cluster.primary)
    databases = [internals.shards.database(shard) for shard in shards]
    if count:
        with progress(f"counting {cluster.name}", len(shards), "shards") as listener:
            cells = 0
            for shard in shards:
                cells += exact_count(internals.shards, shard)
                listener(Advanced())
    else:
        cells = estimate_on(internals.shards, cluster.primary, databases)
    size: TableSize | None
    others: dict[str, dict[str, int]] | None
    try:
        size = sum(cell_table_sizes(pool, databases).values(), TableSize(0, 0))
        others = {
            table: {"file_bytes": other.file_bytes, "allocated_bytes": other.allocated_bytes}
            for table, other in other_table_sizes(pool, databases).items()
        }
    except AccessDenied:
        size = others = None
    return {
        "name": cluster.name,
        "primary": str(cluster.primary),
        "replicas": [str(replica) for replica in cluster.replicas],
        "version": pool.run(lambda connection: connection.version),
        "engine": cluster.engine,
        "shards": len(shards),
        "cells": cells,
        "cells_exact": count,
        "file_bytes": None if size is None else size.file_bytes,
        "allocated_bytes": None if size is None else size.allocated_bytes,
        "obsolete_bytes": obsolete_bytes(pool, databases),
        "other_tables": others,
    }
