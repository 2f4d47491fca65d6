"""``schemaless capacity report``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from schemaless.cli.capacity.shown import disk_of
from schemaless.cli.options import choice_options, open_store, url_option
from schemaless.events import Step, only
from schemaless.pages.capacity_text import WHAT_IF, answer, tables
from schemaless.terminal.files import OutputFile, write_whole
from schemaless.terminal.output import json_option, note, out, print_json, print_table
from schemaless.terminal.shown import CSVText

if TYPE_CHECKING:  # 'capacity model' needs no SQLAlchemy
    from schemaless.capacity.report import Report

_FILE = OutputFile()


@click.command()
@url_option
@click.option("--to", "codec", metavar="CODEC", help="What re-encoding would be to.  [default: what is worth it]")
@choice_options
@click.option(
    "--disk",
    "disks",
    multiple=True,
    metavar="CLUSTER=SIZE[:FREE]",
    help="A cluster's disk, in place of what was measured, such as cluster-1=4TB:1.5TB; may be repeated.",
)
@click.option("--fresh", is_flag=True, help="Measure anew, for this report only.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Also write one page with charts.")
@click.option("--png", "png_file", type=_FILE, metavar="FILE", help="Also write a picture.")
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="Also write every figure as CSV; - alone.")
@click.option("--all", "show_all", is_flag=True, help="Print every table, not only what if.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Of samples and simulated futures.")
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
    show_all: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Say how long the disks last, now and after re-encoding.

    From the measurements that 'capacity measure' keeps, a forecast of the growth, and a trial of every codec on some
    stored cells. First the answer, then what is to be known about it, then what if; --all adds the tables behind it.
    Writes nothing to the datastore. Needs the extra [report].

    \b
    Examples:
      schemaless capacity report
      schemaless capacity report --html report.html --png report.png
      schemaless capacity report --disk cluster-1=4TB:1.5TB --to msgpack+zstd --json
    """
    from schemaless.capacity.reporting import make

    given = dict(disk_of(disk) for disk in disks)
    with open_store(url) as store:
        found = make(
            store,
            codec=codec,
            disks=given,
            fresh=fresh,
            least_gain=least_gain,
            most_cpu=most_cpu,
            seed=seed,
            listener=only(Step, lambda step: note(step.what)),
        )
    if html_file is not None:
        from schemaless.pages.capacity_page import page

        write_whole(html_file, page(found))
        note(f"written: {html_file}")
    if png_file is not None:
        _write_png(found, png_file)
    if csv_file == "-":
        click.echo(csv_text(found), nl=False)
        return
    if csv_file is not None:
        write_whole(csv_file, csv_text(found))
        note(f"written: {csv_file}")
    if as_json:
        from schemaless.pages.capacity_json import report_json

        print_json(report_json(found))
    else:
        show(found, show_all=show_all)


def show(found: Report, *, show_all: bool = False) -> None:
    """Print a report: the answer, notes, and what if; with ``show_all`` every other table too."""
    console = out()
    now = answer(found.now)
    console.print(f"{found.measurement.datastore}, measured {found.measurement.taken_at:%Y-%m-%d %H:%M} UTC\n")
    console.print(f"[bold]Full as it is: {now.days}.[/]")
    for each in found.warnings:
        console.print(f"WARNING: {each}.", style="bold red", markup=False)
    console.print(now.detail, markup=False)
    if found.after is not None:
        after = answer(found.after)
        console.print(f"\n[bold]After re-encoding to {found.codec}, rebuilt: {after.days}.[/]")
        console.print(after.detail, markup=False)
    console.print()
    for each in found.notes:
        console.print(f"note: {each}", markup=False)
    every = tables(found)
    others = [table for table in every if table.title != WHAT_IF]
    for table in every if show_all else [table for table in every if table.title == WHAT_IF]:
        last = -1 if table.last_text else None  # sentences are for the page
        rows = [row[:last] for row in table.rows]
        print_table(f"\n{table.title}", table.columns[:last], rows, text_columns=table.text_columns)
        if table.note:
            console.print(table.note, markup=False)
    if not show_all and others:
        console.print(f"\n--all adds: {', '.join(table.title for table in others)}.", markup=False)
    console.print("\nHow each figure was obtained stands on the page (--html) and in --json.")


def csv_text(found: Report) -> str:
    """Return every figure on a line: what it is, of what, its unit, and its intervals; empty is not known, or never."""
    writer = CSVText()
    writer.writerow(["section", "name", "item", "figure", "unit", "low_95", "low_80", "value", "high_80", "high_95"])

    def line(section: str, name: str, item: str, figure: str, unit: str, *values: Any) -> None:
        low_95, low_80, mid, high_80, high_95 = values if len(values) == 5 else ("", "", *values, "", "")
        numbers = [
            "" if isinstance(value, float) and math.isinf(value) else value
            for value in (low_95, low_80, mid, high_80, high_95)
        ]
        writer.writerow([section, name, item, figure, unit, *numbers])

    for scenario in found.scenarios:
        for outlook in scenario.disks:
            where = ("scenario", scenario.name, outlook.disk)
            if outlook.days is not None:
                line(*where, "days_until_full", "days", *outlook.days)
            if outlook.at_rate is not None:
                low, mid, high = outlook.at_rate.low, outlook.at_rate.mid, outlook.at_rate.high
                line(*where, "days_at_constant_rate", "days", low, "", mid, "", high)
            if outlook.free_bytes is not None:
                line(*where, "free", "bytes", round(outlook.free_bytes.mid))
            if outlook.bytes_per_day is not None:
                line(*where, "growth_per_day", "bytes", round(outlook.bytes_per_day))
    for group in found.measurement.groups:
        name = group.cluster if group.shard is None else f"{group.cluster} shard {group.shard}"
        for figure in ("cells", "body_bytes", "allocated_bytes", "json_bytes"):
            size = getattr(group, figure)
            unit = "cells" if figure == "cells" else "bytes"
            values = (round(size.low), "", round(size.mid), "", round(size.high))
            line("stored", name, f"{group.column_name} {group.codec}", figure, unit, *values)
    for trial in found.trials:
        where = ("codec", trial.codec, trial.column_name)
        for figure in ("body_share", "allocated_share"):
            share = getattr(trial, figure)
            line(*where, figure, "share", round(share.low, 5), "", round(share.mid, 5), "", round(share.high, 5))
        line(*where, "encode", "cpu_s_per_day", trial.encode_s_per_day)
        line(*where, "decode", "cpu_s_per_day", trial.decode_s_per_day)
    for each in found.disks:
        for day, value in each.history:
            line("history", each.disk.name, day.isoformat(), "growth", "bytes", round(value))
        _forecast_lines(line, each)
    for fill in found.skew.clusters:
        line("skew", fill.cluster, "", "now", "bytes", round(fill.now_bytes))
        line("skew", fill.cluster, "", "even", "bytes", round(fill.even_bytes))
    for move in found.skew.moves:
        line(
            "move",
            f"shard {move.shard}",
            f"{move.from_cluster} to {move.to_cluster}",
            "move",
            "bytes",
            round(move.size_bytes),
        )
    return writer.getvalue()


def _forecast_lines(line: Any, each: Any) -> None:
    import datetime

    from schemaless.capacity.forecast import Forecast

    if not isinstance(each.forecast, Forecast):
        return
    for number, band in enumerate(each.forecast.daily):
        day = each.forecast.first_day + datetime.timedelta(number)
        line("forecast", each.disk.name, day.isoformat(), "growth", "bytes", *(round(value) for value in band))


def _write_png(found: Report, file: str) -> None:
    from schemaless.pages.capacity_charts import overview

    chart = overview(found)
    if chart is None:
        note(f"not written: {file}, as there is nothing to draw yet")
        return
    write_whole(file, chart.png())
    note(f"written: {file}")
