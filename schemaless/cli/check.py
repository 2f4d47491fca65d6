"""``schemaless check``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from schemaless.cli.jobs import workers_options
from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.errors import ShardIdentityMismatch
from schemaless.jobs.workers import workers as some_workers
from schemaless.migrate.check import Fault, check_with_workers
from schemaless.migrate.check import check as check_cells
from schemaless.mysql.errors import DatabaseMissing
from schemaless.store.datastore import Datastore
from schemaless.terminal.output import EXIT_FAILED, bytes_text, json_option, out, print_json, progress


@click.command()
@url_option
@shards_option
@workers_options
@json_option
def check(url: str, shards_text: str | None, workers: int, dask: str | None, as_json: bool) -> int:
    """Decode every cell and verify its place.

    Looks at every cell: does its body decode, is it what a writer of this store would write, is its row in the right
    shard, is each shard the one that the catalog takes it for? Changes nothing. Each fault is one line that names the
    cell.

    \b
    Examples:
      schemaless check
      schemaless check --shards 0-3 --json
      schemaless check --workers 4
      schemaless check --dask tcp://scheduler:8786

    Exit status: 0 clean, 1 faults found.
    """
    faults: list[dict[str, Any]] = []

    def on_fault(fault: Fault) -> None:
        if as_json:
            key = fault.key
            faults.append(
                {
                    "kind": fault.kind,
                    "shard": fault.shard,
                    "row_key": None if key is None else str(key.row_key),
                    "column_name": None if key is None else key.column_name,
                    "ref_key": None if key is None else key.ref_key,
                    "added_id": fault.added_id,
                    "message": fault.message,
                }
            )
        else:
            out().print(str(fault), markup=False)

    with open_store(url) as store:
        shards = shards_of(shards_text, store.shard_count)
        if workers == 1 and dask is None:
            with progress("checking", _id_total(store, shards), "ids") as advance:
                report = check_cells(store, shards, on_fault=on_fault, on_ids=advance)
        else:
            with some_workers(workers, dask) as hands, progress("checking", len(shards), "shards") as advance:
                report = check_with_workers(store, hands, shards, on_fault=on_fault, on_shard=advance)
    if as_json:
        print_json(
            {
                "shards": report.shards,
                "cells": report.cells,
                "body_bytes": report.body_bytes,
                "by_codec": dict(report.by_codec),
                "faults": faults,
            }
        )
    else:
        codecs = ", ".join(f"{cells:,} {name}" for name, cells in report.by_codec.most_common()) or "no cells"
        verdict = f"{report.faults.total():,} faults" if report.faults else "clean"
        out().print(
            f"{verdict}: {report.cells:,} cells in {report.shards} shards, {bytes_text(report.body_bytes)} of bodies "
            f"({codecs})"
        )
    return EXIT_FAILED if report.faults else 0


def _id_total(store: Datastore, shards: list[int]) -> int:
    """Return how many added_ids shards span, without those that the check will find missing or exchanged."""
    total = 0
    for shard in shards:
        with suppress(ShardIdentityMismatch, DatabaseMissing):
            total += store.id_span(shard)
    return total
