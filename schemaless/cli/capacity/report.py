"""The command ``schemaless capacity report``."""

from __future__ import annotations

from typing import Final

import click

from schemaless.capacity.planning import PlanningOptions
from schemaless.capacity.report import CapacityReport
from schemaless.capacity.reporting import Asked, make
from schemaless.cli.capacity.shown import disk_of, shares_of
from schemaless.cli.options import choice_options, open_store, url_option
from schemaless.events import Step, only
from schemaless.pages.capacity_charts import overview
from schemaless.pages.capacity_csv import csv_text
from schemaless.pages.capacity_json import report_json
from schemaless.pages.capacity_page import capacity_html
from schemaless.pages.capacity_planning import LEVELS, planning_lines, verdict_text
from schemaless.pages.capacity_text import WHAT_IF, tables
from schemaless.pages.capacity_words import answer
from schemaless.terminal.files import OutputFile, write_and_say, write_csv
from schemaless.terminal.output import (
    EXIT_FAILED,
    ReadOnlyCommand,
    error,
    json_option,
    note,
    out,
    print_json,
    print_table,
)

_FILE = OutputFile()
_ALWAYS: Final = (LEVELS, WHAT_IF)
"""Titles of the tables that are printed without ``--all``."""


@click.command(cls=ReadOnlyCommand)
@url_option
@click.option("--to", "codec", metavar="CODEC", help="Codec to re-encode to.  [default: the recommended one]")
@choice_options
@click.option(
    "--disk",
    "disks",
    multiple=True,
    metavar="CLUSTER=SIZE[:FREE]",
    help="Size and free space of a cluster's disk, overriding the measured ones, such as cluster-1=4TB:1.5TB. May be "
    "repeated.",
)
@click.option("--fresh", is_flag=True, help="Take a new measurement for this report, without saving it.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Also write an HTML page with charts.")
@click.option("--png", "png_file", type=_FILE, metavar="FILE", help="Also write the main charts as a picture.")
@click.option(
    "--csv", "csv_file", type=_FILE, metavar="FILE", help="Also write every figure as CSV; - prints only the CSV."
)
@click.option(
    "--thresholds",
    type=shares_of,
    metavar="SHARES",
    default="80%,90%",
    show_default=True,
    help="Fill levels for which the report gives a date, besides full.",
)
@click.option(
    "--lead-time",
    "lead_days",
    type=float,
    metavar="DAYS",
    help="Days from ordering a disk until it is in use; adds the latest date to order.",
)
@click.option(
    "--price-per-tb",
    type=float,
    metavar="PRICE",
    help="Price of a TB (1,000 GB) of disk; adds the cost of a year's growth.",
)
@click.option(
    "--fail-below",
    "fail_below_days",
    type=float,
    metavar="DAYS",
    help="Exit with status 1 unless all disks last at least this long.",
)
@click.option("--all", "show_all", is_flag=True, help="Print every table.")
@click.option(
    "--seed",
    type=int,
    default=1,
    metavar="N",
    help="Seed of the samples and of the simulated futures; the same seed gives the same report.",
)
@json_option
def report(
    url: str,
    codec: str | None,
    most_cpu: float,
    least_gain: float,
    disks: tuple[str, ...],
    fresh: bool,
    html_file: str | None,
    png_file: str | None,
    csv_file: str | None,
    thresholds: tuple[float, ...],
    lead_days: float | None,
    price_per_tb: float | None,
    fail_below_days: float | None,
    show_all: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Forecast when the disks are full, now and after re-encoding.

    The report combines the measurements saved by 'capacity measure', a forecast of the growth, and a trial of every
    codec on sampled cells. It starts with the answer, followed by notes, the dates at which disks fill up, and what-if
    scenarios: other codecs, rebuilt tables, more growth, a lost host. --all adds the tables behind them. The command
    does not change the datastore. It needs the extra [report].

    Every date comes with an 80 % interval: in 8 of 10 cases the disk is full within it, in 1 of 10 earlier. A forecast
    needs a history of at least 14 days, which a single measurement reads from the created_at of the cells. It covers
    five times the length of the history, at most five years.

    With --fail-below DAYS, the exit status is 0 if all disks last at least that long by the early end of the 80 %
    interval. It is 1 if a disk does not, if that is unknown, or if the report fails.

    \b
    Examples:
      schemaless capacity report
      schemaless capacity report --thresholds 70%,85% --lead-time 45 --price-per-tb 90
      schemaless capacity report --fail-below 60 --html report.html
      schemaless capacity report --html report.html --png report.png
      schemaless capacity report --disk cluster-1=4TB:1.5TB --to msgpack+zstd --json
    """
    options = Asked(
        codec=codec,
        disks=dict(disk_of(disk) for disk in disks),
        least_gain=least_gain,
        most_cpu=most_cpu,
        planning=PlanningOptions(
            thresholds=thresholds, lead_days=lead_days, price_per_tb=price_per_tb, fail_below_days=fail_below_days
        ),
        seed=seed,
    )
    with open_store(url) as store:
        capacity = make(store, options, fresh=fresh, listener=only(Step, lambda step: note(step.what)))
    if html_file is not None:
        write_and_say(html_file, capacity_html(capacity))
    if png_file is not None:
        _write_png(capacity, png_file)
    csv_is_out = write_csv(csv_file, lambda: csv_text(capacity))
    if as_json:
        print_json(report_json(capacity))
    elif not csv_is_out:
        show(capacity, show_all=show_all)
    if capacity.planning.verdict is None or not capacity.planning.verdict.failed:
        return 0
    error(verdict_text(capacity) or "")
    return EXIT_FAILED


def show(capacity: CapacityReport, *, show_all: bool = False) -> None:
    """Print a report: answer, notes, fill levels and scenarios; with ``show_all`` every other table too."""
    console = out()
    now = answer(capacity.now)
    console.print(f"{capacity.measurement.datastore}, measured {capacity.measurement.taken_at:%Y-%m-%d %H:%M} UTC\n")
    console.print(f"[bold]First disk full in: {now.days}.[/]")
    for line in capacity.warnings:
        console.print(f"WARNING: {line}.", style="bold red", markup=False)
    console.print(now.detail, markup=False)
    for line in planning_lines(capacity):
        console.print(line, markup=False)
    if capacity.after is not None:
        after = answer(capacity.after)
        console.print(f"\n[bold]Re-encoded to {capacity.codec} and rebuilt: {after.days}.[/]")
        console.print(after.detail, markup=False)
    console.print()
    for line in capacity.notes:
        console.print(f"note: {line}", markup=False)
    every = tables(capacity)
    others = [table for table in every if table.title not in _ALWAYS]
    for table in every if show_all else [table for table in every if table.title in _ALWAYS]:
        last = -1 if table.last_text else None  # The page has room for the sentences in the last column.
        rows = [row[:last] for row in table.rows]
        print_table(f"\n{table.title}", table.columns[:last], rows, text_columns=table.text_columns)
        if table.note:
            console.print(table.note, markup=False)
    if not show_all and others:
        console.print(f"\n--all adds: {', '.join(table.title for table in others)}.", markup=False)
    console.print("\n--html and --json explain how each figure was obtained.")


def _write_png(capacity: CapacityReport, file: str) -> None:
    chart = overview(capacity)
    if chart is None:
        note(f"did not write {file}: there are no figures to draw yet")
        return
    write_and_say(file, chart.png())
