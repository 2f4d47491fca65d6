"""``schemaless check``."""

from __future__ import annotations

import click

from schemaless.cli.jobs import workers_options
from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.cli.proof import ShownFaults, proving_hands
from schemaless.migrate.verify import check as check_cells
from schemaless.terminal.output import EXIT_FAILED, bytes_text, facts, json_option, out, print_json


@click.command()
@url_option
@shards_option
@workers_options
@json_option
def check(url: str, shards_text: str | None, workers: int, dask: str | None, as_json: bool) -> int:
    """Decode every cell and verify its place.

    The command checks four things: each body decodes, it is what a writer of this store would write, each row is in the
    right shard, and each shard is the one that the catalog says. It changes nothing. Each fault is one line that names
    the cell; the page docs/troubleshooting.md says what to do about it.

    \b
    Examples:
      schemaless check
      schemaless check --shards 0-3 --json
      schemaless check --workers 4
      schemaless check --dask tcp://scheduler:8786

    Exit status: 0 clean, 1 faults found.
    """
    faults = ShownFaults(as_json)
    with open_store(url) as store:
        shards = shards_of(shards_text, store.shard_count)
        with proving_hands("checking", store, shards, workers, dask, faults) as (hands, listener):
            report = check_cells(store, shards, hands=hands, listener=listener)
    if as_json:
        print_json({**facts(report, "shards", "cells", "body_bytes", "by_codec"), "faults": faults.found})
    else:
        codecs = ", ".join(f"{cells:,} {name}" for name, cells in report.by_codec.most_common()) or "no cells"
        verdict = f"{report.faults.total():,} faults" if report.faults else "clean"
        out().print(
            f"{verdict}: {report.cells:,} cells in {report.shards} shards, {bytes_text(report.body_bytes)} of bodies "
            f"({codecs})"
        )
    return EXIT_FAILED if report.faults else 0
