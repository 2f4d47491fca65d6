"""What commands about a migration's originals share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from schemaless.cli.options import id_total
from schemaless.jobs.workers import Workers
from schemaless.jobs.workers import workers as some_workers
from schemaless.migrate.check import Fault
from schemaless.migrate.originals import Missing, missing_text
from schemaless.migrate.verify import LAG_TIMEOUT_S, VerifyReport
from schemaless.store.datastore import Datastore
from schemaless.terminal.output import (
    note,
    out,
    progress,
)

SHOWN = 20


def archive_option(*, required: bool, help_text: str) -> Callable[[Any], Any]:
    """Return the option that names archives."""
    return click.option(
        "--archive",
        "folders",
        type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
        multiple=True,
        required=required,
        metavar="DIR",
        help=help_text,
    )


replicas_option = click.option(
    "--replicas/--no-replicas",
    default=True,
    show_default=True,
    help="Compare with the replicas that the topology names.",
)

lag_option = click.option(
    "--lag-timeout",
    "lag_timeout_s",
    type=click.FloatRange(min=0),
    default=LAG_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a replica that differs may take to catch up.",
)


def note_torn(torn: dict[Path, int]) -> None:
    """Name files whose last frame is not whole."""
    for path, size in sorted(torn.items()):
        note(
            f"{path} ends in {size:,} bytes that are no whole frame: a runner that ended there had replaced none of "
            "their cells, but of a copy that broke off the rest is missing"
        )


def show_missing(missing: list[Missing]) -> None:
    """Print which originals are missing."""
    text = missing_text(missing)
    if text is not None:
        out().print(text, markup=False)
    for each in missing[:SHOWN]:
        out().print(f"  {each}", markup=False)
    if len(missing) > SHOWN:
        note(f"the first {SHOWN} files are shown; --json lists all")


@contextmanager
def proving_hands(
    store: Datastore, shards: list[int], count: int, dask: str | None
) -> Iterator[tuple[Workers | None, Callable[[int], None]]]:
    """Give workers, or None for this process alone, and what takes how far they are."""
    if count == 1 and dask is None:
        with progress("verifying", id_total(store, shards), "ids") as advance:
            yield None, advance
    else:
        with some_workers(count, dask) as hands, progress("verifying", len(shards), "shards") as advance:
            yield hands, advance


class ShownFaults:
    """Prints faults as they are found, or keeps them for JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.found: list[dict[str, Any]] = []

    def add(self, fault: Fault) -> None:
        """Print a fault, or keep it for ``--json``."""
        if not self._as_json:
            out().print(str(fault), markup=False)
            return
        key = fault.key
        self.found.append(
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


def show_left(left: Counter[str]) -> None:
    """Print how many cells the job left, by reason."""
    for reason, cells in left.most_common():
        out().print(f"{cells:,} left by the job, and named: {reason}")


def verify_json(report: VerifyReport) -> dict[str, Any]:
    """Return what a proof found, for ``--json``."""
    return {
        "shards": report.shards,
        "cells": report.cells,
        "body_bytes": report.body_bytes,
        "by_codec": dict(report.by_codec),
        "left": dict(report.left),
        "blocks": report.blocks,
        "blocks_of": report.blocks_of,
        "seed": report.seed,
        "compared": dict(report.compared),
        "archived": report.archived,
        "torn": {str(path): size for path, size in report.torn.items()},
        "fault_counts": dict(report.faults),
    }
