"""``schemaless migrate report``."""

from __future__ import annotations

from dataclasses import asdict, astuple
from datetime import UTC, datetime
from typing import Any

import click

from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.command import QueryCommand
from schemaless.cli.job_options import chosen_job, job_option
from schemaless.cli.option import option
from schemaless.cli.options import note_estimated_sizes
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.reclaimed import Part, ReclaimedReport, others_text, reclaimed_report
from schemaless.ops.migrate.tally import Tally
from schemaless.store.datastore import Datastore
from schemaless.ui.pages.reclaimed_page import reclaimed_html
from schemaless.ui.terminal.files import OutputFile, write_and_say, write_csv
from schemaless.ui.terminal.output import (
    estimate_json,
    estimate_text,
    facts,
    hint,
    out,
    print_result,
    print_rows,
    print_table,
    size_text,
)
from schemaless.ui.terminal.shown import csv_of

_ROWS_SHOWN = 40


@click.command(cls=QueryCommand)
@job_option("The migration to report on.  [default: the unfinished one, else the last that replaced a body]")
@option("--csv FILE", "Also write a CSV file; - prints CSV only.", name="csv_file", type=OutputFile())
@option("--html FILE", "Also write an HTML page with charts.", name="html_file", type=OutputFile())
@option("--all", "Also print the figures of each cluster, shard and column.", name="show_all", is_flag=True)
def report(store: Datastore, job_id: int | None, csv_file: str | None, html_file: str | None, show_all: bool) -> None:
    """Show the effect of a migration on space.

    The report compares four quantities before the migration, after it, and after a rebuild: body bytes, length of the
    table files, disk space allocated for the files, and bytes written to binary logs. It also compares predicted with
    actual figures. With --all, the report adds tables by cluster, shard and column.

    \b
    Examples:
      schemaless migrate report
      schemaless migrate report --job 3 --html report.html
      schemaless migrate report --csv - > report.csv
    """
    job_store = JobStore(store)
    job = chosen_job(job_store, job_id)
    job.check_kind("migrate")
    space = reclaimed_report(store, job, datetime.now(UTC))
    if html_file is not None:
        write_and_say(html_file, reclaimed_html(space))
    if write_csv(csv_file, lambda: csv_text(space)):
        return
    print_result(_json(space))
    _show(space, show_all)


def csv_text(space: ReclaimedReport) -> str:
    """Return a report as CSV, with a line for the total and each cluster, shard and column; unknown sizes are empty."""
    plain = _json(space)
    levels = {
        "all": [plain["total"]],
        "cluster": plain["clusters"],
        "shard": plain["shards"],
        "column": plain["columns"],
    }
    return csv_of(
        {"level": level, "name": part.get("column_name"), "left_cells": sum(part["left"].values()), **part}
        for level, parts in levels.items()
        for part in parts
    )


def _json(space: ReclaimedReport) -> dict[str, Any]:
    def part_json(part: Part) -> dict[str, Any]:
        return {
            "name": part.name,
            "cluster": part.cluster or None,
            **facts(part, "shards", "rebuilt_shards"),
            **part.tally.as_json(),
            "file_bytes": asdict(part.file),
            "allocated_bytes": asdict(part.allocated),
            "sizes_measured": part.measured,
        }

    return {
        "datastore": space.datastore,
        "job": space.job.job_id,
        "state": space.job.state,
        "to": space.to,
        "made_at": space.made_at.isoformat(timespec="seconds"),
        "total": {**part_json(space.total), "binary_log_bytes": space.binary_log_bytes},
        "clusters": [
            {**part_json(part), "binary_log_bytes": space.binary_log.get(part.name)} for part in space.clusters
        ],
        "columns": [{"column_name": name, **tally.as_json()} for name, tally in space.columns.items()],
        "shards": [part_json(part) for part in space.shards],
        "stored_before_estimate": [
            {"column_name": column, "codec": codec, "cells": estimate_json(cells), "body_bytes": estimate_json(size)}
            for column, codec, cells, size in space.stored_before
        ],
        "predictions": [
            {
                **facts(prediction, "what", "predicted", "actual"),
                "off": None if prediction.off is None else round(prediction.off, 4),
            }
            for prediction in space.predictions
        ],
        "other_jobs": [asdict(other) for other in space.others],
    }


def _show(space: ReclaimedReport, show_all: bool) -> None:
    job, total = space.job, space.total
    out().print(f"migration {job.job_id} of {space.datastore} to {space.to}, {job.state}\n")
    tally = total.tally
    if tally.bytes_before:
        reclaimed = tally.reclaimed_bytes
        verb = "reclaimed" if reclaimed >= 0 else "added"
        share = -reclaimed / tally.bytes_before
        out().print(f"{bytes_text(abs(reclaimed))} of body bytes {verb} ({share:+.1%}).\n", style="bold")
    rebuilt = f"after a rebuild of {total.rebuilt_shards} of {counted(total.shards, 'shard')}"
    print_table(
        None,
        ["", "before", "after the run", rebuilt],
        [
            ["body bytes re-encoded", bytes_text(tally.bytes_before), bytes_text(tally.bytes_after), ""],
            ["files", *map(size_text, astuple(total.file))],
            ["allocated", *map(size_text, astuple(total.allocated))],
            ["binary log written", "", size_text(space.binary_log_bytes), ""],
        ],
    )
    if not total.measured:
        note_estimated_sizes()
    predictions = [
        {
            "": prediction.what,
            "predicted": estimate_text(prediction.predicted, _text_of(prediction.what)),
            "actual": _text_of(prediction.what)(prediction.actual),
            "off by": "-" if prediction.off is None else f"{prediction.off:+.1%}",
        }
        for prediction in space.predictions
    ]
    print_rows("\npredicted and actual", predictions)
    if others := others_text(space.others):
        out().print(f"\n{others}")
    if show_all:
        _show_parts(space)
    else:
        out().print("\n--all adds tables by cluster, by shard and by column")


def _show_parts(space: ReclaimedReport) -> None:
    headers = ["cells", "left", "bodies before", "after", "files before", "after", "rebuilt"]
    if len(space.clusters) > 1:
        print_table("\nby cluster", ["cluster", *headers], [_row(part) for part in space.clusters])
    if len(space.shards) <= _ROWS_SHOWN:
        print_table("\nby shard", ["shard", *headers], [_row(part) for part in space.shards])
    else:
        hint(f"{len(space.shards)} shards are too many to print; --json, --csv and --html list all")
    columns = [[name, *_tally(tally)] for name, tally in space.columns.items()]
    print_table("\nby column", ["column", *headers[:4]], columns)


def _text_of(what: str) -> Any:
    return "{:,.0f}".format if what.startswith("cells") else bytes_text


def _row(part: Part) -> list[Any]:
    return [part.name.removeprefix("shard "), *_tally(part.tally), *(size_text(size) for size in astuple(part.file))]


def _tally(tally: Tally) -> list[Any]:
    return [tally.cells, tally.left.total(), bytes_text(tally.bytes_before), bytes_text(tally.bytes_after)]
