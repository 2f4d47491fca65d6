"""``schemaless check``."""

from __future__ import annotations

from typing import Any

import click

from schemaless.base.events import only, together
from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.command import QueryCommand
from schemaless.cli.faults import FaultOutput, verify_workers
from schemaless.cli.job_options import workers_options
from schemaless.cli.option import option
from schemaless.ops.admin.table_check import TableCheck, TableCheckReport, TableFault
from schemaless.ops.migrate.verify import Fault
from schemaless.ops.migrate.verify import check as check_cells
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import EXIT_FAILED, facts, note, out, print_result, progress


@click.command(cls=QueryCommand)
@option("--cold", "Also read the documents in cold files, and decode them.", is_flag=True)
@workers_options
def check(store: Datastore, shards: list[int], cold: bool, workers: int, dask: str | None) -> int:
    """Check every cell and the tables of every shard. Read-only.

    \b
    - Bodies: each body decodes and is in canonical form; the reference of a
      cold cell is to a file of its shard.
    - Placement: each row is in the shard of its row_key.
    - Identity: each shard is the one that the catalog lists.
    - Triggers and indexes: each shard has their locations, index tables that
      match the definitions, and every cell that it records as parked.
    - Former servers: no server has the cells of a shard that the catalog
      places elsewhere, as a restored one may.
    - Storage engines: cells and index entries are in the engine that the
      catalog records.

    Each fault is printed as one line that names the cell or the table. The page docs/troubleshooting.md says how to fix
    it. To check that the entries of an index agree with their rows, use 'schemaless index check'.

    The roles follow, measure and admin can read locations and parked cells; only admin can find tables of unknown
    indexes. The command lists what its account cannot read.

    \b
    Examples:
      schemaless check
      schemaless check --shards 0-3 --json
      schemaless check --workers 4
      schemaless check --cold
      schemaless check --dask tcp://scheduler:8786

    Exit status: 0, or 1 if faults were found.
    """
    faults = FaultOutput()
    unsound: set[int | None] = set()

    def mark(fault: Fault) -> None:
        if fault.key is None:
            unsound.add(fault.shard)

    with verify_workers("checking", store, shards, workers, dask, faults) as (pool, listener):
        report = check_cells(store, shards, cold=cold, workers=pool, listener=together(listener, only(Fault, mark)))
    sound = [shard for shard in shards if shard not in unsound]
    with progress("checking tables of followers and indexes", len(sound), "shards") as shown:
        tables = TableCheck(store).run(sound, together(shown, only(TableFault, faults.add)))
    report.faults.update(tables.faults)
    counts = facts(report, "shards", "cells", "body_bytes", "by_codec")
    print_result({**counts, "tables": _json(tables), "faults": faults.kept})
    codecs = ", ".join(f"{cells:,} {name}" for name, cells in report.by_codec.most_common()) or "no cells"
    verdict = counted(report.faults.total(), "fault") if report.faults else "clean"
    out().print(
        f"{verdict}: {counted(report.cells, 'cell')} in {counted(report.shards, 'shard')}, "
        f"{bytes_text(report.body_bytes)} of bodies ({codecs})"
    )
    if tables.followers or tables.indexes or tables.faults:
        _print_tables(tables)
    return EXIT_FAILED if report.faults else 0


def _print_tables(tables: TableCheckReport) -> None:
    out().print(
        f"tables of {counted(tables.followers, 'follower')} and {counted(tables.indexes, 'index', 'indexes')} in "
        f"{counted(tables.shards, 'shard')}: checked {counted(tables.locations, 'location')}, "
        f"{counted(tables.parked_cells, 'parked cell')} and {counted(tables.index_tables, 'index table')}; "
        "to compare index entries with their rows, use 'schemaless index check NAME'"
    )
    for unseen in tables.unseen:
        note(f"not checked: {unseen.table} in {counted(unseen.shards, 'shard')} of {unseen.server}: {unseen.message}")


def _json(tables: TableCheckReport) -> dict[str, Any]:
    counts = facts(tables, "followers", "indexes", "shards", "locations", "parked_cells", "index_tables")
    return {**counts, "unseen": [facts(unseen, "server", "table", "shards", "message") for unseen in tables.unseen]}
