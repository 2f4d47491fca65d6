"""``schemaless capacity report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from schemaless.cli.capacity.shown import disk_of, shares_of
from schemaless.cli.options import choice_options, open_store, url_option
from schemaless.events import Step, only
from schemaless.pages.capacity_csv import csv_text
from schemaless.pages.capacity_planning import LEVELS, planning_lines, verdict_text
from schemaless.pages.capacity_text import WHAT_IF, tables
from schemaless.pages.capacity_words import answer
from schemaless.terminal.files import OutputFile, write_and_say, write_csv
from schemaless.terminal.output import EXIT_FAILED, error, json_option, note, out, print_json, print_table

if TYPE_CHECKING:  # 'capacity model' needs no SQLAlchemy
    from schemaless.capacity.report import CapacityReport

_FILE = OutputFile()
_ALWAYS: Final = (LEVELS, WHAT_IF)
"""These are the titles of the tables that are printed without ``--all``."""


@click.command()
@url_option
@click.option("--to", "codec", metavar="CODEC", help="The codec to re-encode to.  [default: the one that is worth it]")
@choice_options
@click.option(
    "--disk",
    "disks",
    multiple=True,
    metavar="CLUSTER=SIZE[:FREE]",
    help="The disk of a cluster's servers, in place of the measured one, such as cluster-1=4TB:1.5TB; may be repeated.",
)
@click.option("--fresh", is_flag=True, help="Take a new measurement for this report; it is not kept.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Also write one page with charts.")
@click.option("--png", "png_file", type=_FILE, metavar="FILE", help="Also write a picture of the disks.")
@click.option(
    "--csv", "csv_file", type=_FILE, metavar="FILE", help="Also write every figure as CSV; - prints CSV only."
)
@click.option(
    "--thresholds",
    type=shares_of,
    metavar="SHARES",
    default="80%,90%",
    show_default=True,
    help="Also say when each disk is filled to these shares.",
)
@click.option(
    "--lead-time",
    "lead_days",
    type=float,
    metavar="DAYS",
    help="The days from ordering a disk to using it; the report then says when to order.",
)
@click.option(
    "--price-per-tb",
    type=float,
    metavar="PRICE",
    help="The price of a TB (1,000 GB); the report then says what the growth costs.",
)
@click.option(
    "--fail-below",
    "fail_below_days",
    type=float,
    metavar="DAYS",
    help="Exit with status 1 unless all disks last at least so long.",
)
@click.option("--all", "show_all", is_flag=True, help="Print every table.")
@click.option(
    "--seed",
    type=int,
    default=1,
    metavar="N",
    help="The seed of the samples and of simulated futures; the same seed gives the same report.",
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
    """Say how long the disks last, now and after re-encoding.

    The report is made from the measurements that 'capacity measure' keeps, a forecast of the growth, and a trial of
    every codec on some stored cells. It gives the answer first, then what you should know about it, then what would
    change it; --all adds the tables behind it. The command changes nothing in the datastore. It needs the extra
    [report].

    --fail-below DAYS looks at the early end of the 80 % interval. The exit status is then 0 if all disks last at least
    so long. It is 1 if one does not, if that cannot be said, or if the report fails.

    \b
    Examples:
      schemaless capacity report
      schemaless capacity report --thresholds 70%,85% --lead-time 45 --price-per-tb 90
      schemaless capacity report --fail-below 60 --html report.html
      schemaless capacity report --html report.html --png report.png
      schemaless capacity report --disk cluster-1=4TB:1.5TB --to msgpack+zstd --json
    """
    from schemaless.capacity.planning import Wishes
    from schemaless.capacity.reporting import Asked, make

    wishes = Wishes(
        thresholds=thresholds, lead_days=lead_days, price_per_tb=price_per_tb, fail_below_days=fail_below_days
    )
    given = dict(disk_of(disk) for disk in disks)
    asked = Asked(codec=codec, disks=given, least_gain=least_gain, most_cpu=most_cpu, wishes=wishes, seed=seed)
    with open_store(url) as store:
        capacity = make(store, asked, fresh=fresh, listener=only(Step, lambda step: note(step.what)))
    if html_file is not None:
        from schemaless.pages.capacity_page import capacity_html

        write_and_say(html_file, capacity_html(capacity))
    if png_file is not None:
        _write_png(capacity, png_file)
    csv_is_out = write_csv(csv_file, lambda: csv_text(capacity))
    if as_json:
        from schemaless.pages.capacity_json import report_json

        print_json(report_json(capacity))
    elif not csv_is_out:
        show(capacity, show_all=show_all)
    if capacity.planning.verdict is None or not capacity.planning.verdict.failed:
        return 0
    error(verdict_text(capacity) or "")
    return EXIT_FAILED


def show(capacity: CapacityReport, *, show_all: bool = False) -> None:
    """Print a report: the answer, notes, levels, and what if; with ``show_all`` every other table too."""
    console = out()
    now = answer(capacity.now)
    console.print(f"{capacity.measurement.datastore}, measured {capacity.measurement.taken_at:%Y-%m-%d %H:%M} UTC\n")
    console.print(f"[bold]Until a disk is full as it is: {now.days}.[/]")
    for line in capacity.warnings:
        console.print(f"WARNING: {line}.", style="bold red", markup=False)
    console.print(now.detail, markup=False)
    for line in planning_lines(capacity):
        console.print(line, markup=False)
    if capacity.after is not None:
        after = answer(capacity.after)
        console.print(f"\n[bold]After re-encoding to {capacity.codec}, rebuilt: {after.days}.[/]")
        console.print(after.detail, markup=False)
    console.print()
    for line in capacity.notes:
        console.print(f"note: {line}", markup=False)
    every = tables(capacity)
    others = [table for table in every if table.title not in _ALWAYS]
    for table in every if show_all else [table for table in every if table.title in _ALWAYS]:
        last = -1 if table.last_text else None  # sentences are for the page
        rows = [row[:last] for row in table.rows]
        print_table(f"\n{table.title}", table.columns[:last], rows, text_columns=table.text_columns)
        if table.note:
            console.print(table.note, markup=False)
    if not show_all and others:
        console.print(f"\n--all adds: {', '.join(table.title for table in others)}.", markup=False)
    console.print("\nHow each figure was obtained stands on the page (--html) and in --json.")


def _write_png(capacity: CapacityReport, file: str) -> None:
    from schemaless.pages.capacity_charts import overview

    chart = overview(capacity)
    if chart is None:
        note(f"not written: {file}, as there is nothing to draw yet")
        return
    write_and_say(file, chart.png())
