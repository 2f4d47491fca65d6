"""``schemaless check``."""

from __future__ import annotations

from typing import Any

import click

from schemaless.admin.table_check import TableCheck, TableFault, TableProof
from schemaless.cli.faults import FaultOutput, verify_workers
from schemaless.cli.jobs import workers_options
from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.events import only, together
from schemaless.migrate.faults import Fault
from schemaless.migrate.verify import check as check_cells
from schemaless.terminal.output import EXIT_FAILED, bytes_text, facts, json_option, note, out, print_json, progress


@click.command()
@url_option
@shards_option
@workers_options
@json_option
def check(url: str, shards_text: str | None, workers: int, dask: str | None, as_json: bool) -> int:
    """Decode every cell, and verify its place and the tables of its shard.

    The command checks five things: each body decodes, it is what a writer of this store would write, each row is in the
    right shard, each shard is the one that the catalog says, and each shard has what the catalog's triggers and indexes
    need: their locations, tables that their definitions make, and the cells that are parked. It changes nothing. Each
    fault is one line that names the cell or the table; the page docs/troubleshooting.md says what to do about it.

    Whether the entries of an index agree with their rows is checked by 'schemaless index check'. Locations and parked
    cells are seen by the roles follow, measure and admin, tables of indexes that nobody knows by admin. The command
    says what its account may not see.

    \b
    Examples:
      schemaless check
      schemaless check --shards 0-3 --json
      schemaless check --workers 4
      schemaless check --dask tcp://scheduler:8786

    Exit status: 0 clean, 1 faults found.
    """
    faults = FaultOutput(as_json)
    unsound: set[int | None] = set()

    def mark(fault: Fault) -> None:
        if fault.key is None:
            unsound.add(fault.shard)

    with open_store(url) as store:
        shards = shards_of(shards_text, store.shard_count)
        with verify_workers("checking", store, shards, workers, dask, faults) as (hands, listener):
            report = check_cells(store, shards, workers=hands, listener=together(listener, only(Fault, mark)))
        sound = [shard for shard in shards if shard not in unsound]
        with progress("checking tables of followers and indexes", len(sound), "shards") as shown:
            tables = TableCheck(store).run(sound, together(shown, only(TableFault, faults.add)))
    report.faults.update(tables.faults)
    if as_json:
        counts = facts(report, "shards", "cells", "body_bytes", "by_codec")
        print_json({**counts, "tables": _json(tables), "faults": faults.kept})
    else:
        codecs = ", ".join(f"{cells:,} {name}" for name, cells in report.by_codec.most_common()) or "no cells"
        verdict = f"{report.faults.total():,} faults" if report.faults else "clean"
        out().print(
            f"{verdict}: {report.cells:,} cells in {report.shards} shards, {bytes_text(report.body_bytes)} of bodies "
            f"({codecs})"
        )
        if tables.followers or tables.indexes or tables.faults:
            _print_tables(tables)
    return EXIT_FAILED if report.faults else 0


def _print_tables(tables: TableProof) -> None:
    """Print how many were checked, and what could not be seen; nothing of a datastore without any."""
    out().print(
        f"tables of {tables.followers:,} followers and {tables.indexes:,} indexes in {tables.shards:,} shards: "
        f"{tables.locations:,} locations, {tables.parked_cells:,} parked cells and {tables.index_tables:,} tables of "
        "indexes checked; 'schemaless index check NAME' compares entries with their rows"
    )
    for unseen in tables.unseen:
        note(f"not checked: {unseen.table} in {unseen.shards:,} shards of {unseen.server}: {unseen.message}")


def _json(tables: TableProof) -> dict[str, Any]:
    counts = facts(tables, "followers", "indexes", "shards", "locations", "parked_cells", "index_tables")
    return {**counts, "unseen": [facts(unseen, "server", "table", "shards", "message") for unseen in tables.unseen]}
