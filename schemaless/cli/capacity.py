"""``schemaless capacity``: measures sizes and growth, and forecasts when disks will be full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from schemaless.base.events import Step, only
from schemaless.base.numbers import Interval, added, bytes_text, counted
from schemaless.cli.capacity_advise import advise_command
from schemaless.cli.capacity_model import model_command
from schemaless.cli.capacity_scenarios import ScenarioFile, read_scenarios
from schemaless.cli.command import JSONCommand, QueryCommand, optional_datastore
from schemaless.cli.option import option
from schemaless.cli.options import choice_options, cold_price_option
from schemaless.cli.quantities import share_of, size_of
from schemaless.errors import ServerError
from schemaless.planning.capacity import history as saved
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.measure import measure as take_measurement
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.options import Asked, PlanningOptions, tiered_after
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.report_notes import note_on_other_tables
from schemaless.planning.capacity.reporting import make
from schemaless.schema.engines import ENGINES
from schemaless.store.cold.settings import MOST_DAYS
from schemaless.store.datastore import Datastore
from schemaless.store.opening import connect
from schemaless.ui.pages.capacity_charts import overview
from schemaless.ui.pages.capacity_json import csv_text, report_json
from schemaless.ui.pages.capacity_page import capacity_html
from schemaless.ui.pages.capacity_tables import (
    BUDGET,
    BY_DISK,
    DATASTORES,
    LEVELS,
    SIDE_BY_SIDE,
    WHAT_IF,
    stored_table,
    tables,
)
from schemaless.ui.pages.capacity_words import answer, planning_lines, saving_text, verdict_text
from schemaless.ui.terminal.files import OutputFile, write_and_say, write_csv
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    error,
    estimate_json,
    estimate_text,
    note,
    out,
    print_result,
    print_rows,
    print_table,
    progress,
    size_text,
)

_LAST_DAYS: Final = 7
_ESTIMATES: Final = ("cells", "body_bytes", "allocated_bytes", "json_bytes", "rebuilt_bytes", "overhead_bytes")
_FILE = OutputFile()
_ALWAYS: Final = (DATASTORES, SIDE_BY_SIDE, BY_DISK, BUDGET, LEVELS, WHAT_IF)
"""Titles of the tables that are printed without ``--all``."""

_DISK_HELP: Final = (
    "Disk that holds a cluster's data: its total size and, after a colon, the space that is free now, such as "
    "cluster-1=4TB:1.5TB (kB to TB are powers of 1,000, KiB to TiB of 1,024). Without FREE, it is assumed that only "
    "this datastore uses the disk. May be repeated."
)


@click.group()
def capacity() -> None:
    """Measure a datastore and forecast when its disks will be full.

    'measure' records sizes and growth in the catalog, 'history' lists the recorded measurements, and 'report' uses them
    to forecast when the disks will be full, as things are and after re-encoding. 'advise' ranks what would help most.
    'model' needs no datastore: it calculates from figures that you supply.

    \b
    Typical use:
      schemaless capacity measure       once a day, from cron
      schemaless capacity report        whenever you need the answer
    """


capacity.add_command(model_command)
capacity.add_command(advise_command)


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement for ``print_result``, rounded to whole numbers as in the catalog."""
    plain = measurement.to_json(trials=False)
    for part in (*plain["groups"], *plain["growth"], *plain["clusters"]):
        part |= {name: estimate_json(Interval(*part[name])) for name in _ESTIMATES if part.get(name) is not None}
    return plain


def disk_of(text: str) -> tuple[str, GivenDisk]:
    """Parse a value of ``--disk``."""
    cluster, equals, sizes = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not of the form CLUSTER=TOTAL[:FREE], such as cluster-1=4TB:1.5TB")
    total, colon, free = sizes.partition(":")
    disk = GivenDisk(round(size_of(total)), round(size_of(free)) if colon else None)
    if disk.free_bytes is not None and disk.free_bytes > disk.disk_bytes:
        raise click.BadParameter(f"{text!r}: the free space is larger than the disk")
    return cluster, disk


def _disk_option(overrides: str) -> Callable[[Any], Any]:
    usage = "--disk CLUSTER=TOTAL[:FREE]"
    return option(usage, f"{_DISK_HELP} {overrides}", name="disks", type=disk_of, multiple=True)


def shares_of(text: str) -> tuple[float, ...]:
    """Parse the value of ``--thresholds``."""
    return tuple(share_of(part.strip()) for part in text.split(","))


@capacity.command(cls=JSONCommand)
@_disk_option("Overrides what the servers report.")
@option(
    "--engine",
    "Also try the sampled cells in this storage engine, for 'capacity report --engine'.",
    type=click.Choice(list(ENGINES)),
)
@option("--no-keep", "Do not save the measurement in the catalog.", is_flag=True)
@option("--seed N", "Seed of the sample; the same seed draws the same sample.", type=int)
def measure(
    store: Datastore, disks: tuple[tuple[str, GivenDisk], ...], engine: str | None, no_keep: bool, seed: int | None
) -> int:
    """Measure sizes and growth, try codecs, and save the results.

    The command samples cells of all shards, on replicas if there are any, and shows each estimate with its 95 %
    confidence interval. The size of the sample does not depend on the number of cells. A small datastore is read
    completely, and its figures are exact. Every codec is tried on sampled cells, which takes some seconds of CPU time.
    The command writes only to the catalog.

    Run the command once a day: 'schemaless capacity report' forecasts from the saved measurements, and 'schemaless
    capacity history' lists them.

    \b
    Examples:
      schemaless capacity measure
      schemaless capacity measure --disk cluster-1=4TB:1.5TB --disk cluster-2=4TB
      schemaless capacity measure --no-keep --json

    Exit status: 0, or 1 if a cluster could not be measured or the measurement could not be saved.
    """
    sample_id: int | None = None
    failed = False
    with progress("measuring", None, "clusters") as listener:
        measurement = take_measurement(
            store, disks=dict(disks), seed=seed, engines=[] if engine is None else [engine], listener=listener
        )
    if not no_keep:
        try:
            sample_id = saved.keep(store, measurement)
        except ServerError as error:
            note(
                f"the measurement was not saved in the catalog: {error}; 'schemaless grants --role measure' prints "
                "the privileges that saving needs"
            )
            failed = True
    print_result({"sample_id": sample_id, **measurement_json(measurement)})
    _show_measurement(measurement)
    if sample_id is not None:
        out().print(f"saved in the catalog as measurement {sample_id}")
    return EXIT_FAILED if failed or measurement.problems else 0


def _show_measurement(measurement: Measurement) -> None:
    table = stored_table(measurement, by_cluster=True)
    if table.rows:
        print_table("stored now", table.columns, table.rows, text_columns=table.text_columns)
    clusters = [
        {
            "cluster": space.cluster,
            "read from": f"{space.read_from} {space.node}" if space.problem is None else "not measured",
            "copies": space.copies,
            "shards": space.shards,
            "files": size_text(space.file_bytes, "?")
            + ("" if space.file_bytes_measured or space.file_bytes is None else " (stat.)"),
            "if rebuilt": "?" if space.rebuilt_bytes is None else estimate_text(space.rebuilt_bytes, bytes_text),
            "not bodies": "?" if space.overhead_bytes is None else estimate_text(space.overhead_bytes, bytes_text),
            "disk": size_text(space.disk_bytes, "?"),
            "free": size_text(space.free_bytes, "?"),
        }
        for space in measurement.clusters
    ]
    print_rows("\nclusters", clusters, text_columns=2)
    files, size, texts = (
        sum(getattr(space, name) for space in measurement.clusters)
        for name in ("cold_files", "cold_file_bytes", "cold_text_bytes")
    )
    if files:
        share = size / max(1, texts)
        out().print(
            f"cold documents: {bytes_text(size)} in {counted(files, 'file')}, {share:.2f} times their JSON text"
        )
    _show_growth(measurement)
    for remark in (*measurement.notes, *note_on_other_tables([measurement])):
        out().print(f"note: {remark}")
    exact = all(group.cells.exact for group in measurement.groups)
    out().print(
        f"\nread {'all cells' if exact else 'a sample'}{measurement.unread}: "
        f"{counted(measurement.rows_read, 'row')}, about "
        f"{counted(measurement.pages_read, 'page')} of cells, in {measurement.seconds:.1f} s"
        + (
            ""
            if exact
            else f"\nbrackets: {measurement.level:.0%} interval; --seed {measurement.seed} draws the same sample again"
        )
    )


def _recent(measurement: Measurement) -> list[date]:
    """Return the last whole days before the measurement, with or without cells; their average is shown."""
    first = min((new.day for new in measurement.growth if new.complete), default=None)
    days = [measurement.taken_at.date() - timedelta(number) for number in range(_LAST_DAYS, 0, -1)]
    return [day for day in days if first is not None and day >= first]


def _show_growth(measurement: Measurement) -> None:
    days = _recent(measurement)
    rows = []
    for column in measurement.column_names if days else ():
        intakes = [new for new in measurement.growth if new.column_name == column]
        recent = [new for new in intakes if new.day in days]
        cells, size = (added(getattr(new, name) for new in recent).times(1 / len(days)) for name in _ESTIMATES[:2])
        methods = ", ".join(sorted({new.method for new in intakes}))
        rows.append([column, estimate_text(cells), estimate_text(size, bytes_text), methods])
    if rows:
        title = f"\nnew a day, {days[0]} to {days[-1]}" if len(days) > 1 else f"\nnew on {days[0]}"
        print_table(title, ["column", "cells", "body bytes", "found by"], rows)


@capacity.command(cls=QueryCommand)
@option("--last N", "List only the N newest measurements.", type=click.IntRange(min=1), default=30)
def history(store: Datastore, last: int) -> None:
    """List the measurements saved in the catalog, oldest first.

    'capacity measure' thins out old measurements: it keeps all from the last 14 days, then one a day up to an age of
    100 days, one a week up to two years, and one a month beyond that. The column 'a day' is the average growth of body
    bytes over the last 7 complete days.

    \b
    Example:
      schemaless capacity history --last 90 --json
    """
    numbers = [kept.sample_id for kept in saved.kept(store)[-last:]]
    measurements, unreadable = saved.read(store, numbers)
    print_result(
        [{"sample_id": number, **measurement_json(measurement)} for number, measurement in measurements.items()]
    )
    for problem in unreadable:
        note(problem)
    if not numbers:
        out().print("no measurements saved yet; take one with 'schemaless capacity measure'")
        return
    print_table(
        None,
        ["no.", "taken (UTC)", "cells", "body bytes", "allocated", "files", "a day", "clusters"],
        [_history_row(number, measurement) for number, measurement in measurements.items()],
        text_columns=2,
    )


def _history_row(number: int, measurement: Measurement) -> list[Any]:
    files = [space.file_bytes for space in measurement.clusters]
    days = _recent(measurement)
    recent = added(new.body_bytes for new in measurement.growth if new.day in days)
    cells, *sizes = (added(getattr(group, name) for group in measurement.groups) for name in _ESTIMATES[:3])
    return [
        number,
        measurement.taken_at,
        estimate_text(cells),
        *(estimate_text(size, bytes_text) for size in sizes),
        bytes_text(sum(size or 0 for size in files)),
        estimate_text(recent.times(1 / len(days)), bytes_text) if days else "?",
        f"{len(measurement.clusters) - len(measurement.problems)} of {len(measurement.clusters)}",
    ]


@capacity.command(cls=QueryCommand)
@optional_datastore
@option(
    "--scenarios FILE",
    "TOML file of scenarios to compare side by side, and of the datastores to report on together.",
    name="scenario_file",
    type=click.Path(dir_okay=False, path_type=Path),
)
@option("--to CODEC", "Codec to re-encode to.  [default: the recommended one]", name="codec")
@option(
    "--engine",
    "Also compare with this storage engine, with sizes predicted from sampled cells.",
    type=click.Choice(list(ENGINES)),
)
@choice_options
@_disk_option("Overrides the measured disk.")
@option("--fresh", "Take a new measurement for this report, without saving it.", is_flag=True)
@option("--html FILE", "Also write an HTML page with charts.", name="html_file", type=_FILE)
@option("--png FILE", "Also write the main charts as a picture.", name="png_file", type=_FILE)
@option("--csv FILE", "Also write every figure as CSV; - prints only the CSV.", name="csv_file", type=_FILE)
@option(
    "--thresholds SHARES",
    "Fill levels for which the report gives a date, besides full.  [default: 80%,90%]",
    type=shares_of,
)
@option(
    "--lead-time DAYS",
    "Days from ordering a disk until it is in use; adds the latest date for ordering one.",
    name="lead_days",
    type=float,
)
@option("--price-per-tb PRICE", "Price of a TB (1,000 GB) of disk; adds the cost of a year's growth.", type=float)
@option(
    "--tier-after DAYS",
    "Add a scenario in which all cells become cold at this age.",
    type=click.IntRange(0, MOST_DAYS),
)
@cold_price_option
@option(
    "--fail-below DAYS",
    "Exit with status 1 unless all disks last at least this long.",
    name="fail_below_days",
    type=float,
)
@option("--all", "Print every table.", name="show_all", is_flag=True)
@option(
    "--seed N",
    "Seed of the simulated futures, and of the samples with --fresh; the same seed gives the same report.",
    type=int,
    default=1,
)
@click.pass_context
def report(
    ctx: click.Context,
    /,
    url: str | None,
    scenario_file: Path | None,
    disks: tuple[tuple[str, GivenDisk], ...],
    fresh: bool,
    html_file: str | None,
    png_file: str | None,
    csv_file: str | None,
    tier_after: int | None,
    show_all: bool,
    **asked: Any,
) -> int:
    """Forecast when disks will be full, now and after re-encoding.

    The report is made from the measurements saved by 'capacity measure': sizes, growth, and the trial of every codec on
    sampled cells. It starts with what re-encoding saves and with the answer, followed by the dates on which disks fill
    up, by what-if scenarios (other codecs, rebuilt tables, more growth, a lost host), and by notes. --all adds the
    remaining tables. The command does not change the datastore. It needs the extra [report].

    --engine rocksdb adds a forecast for the same cells in MyRocks, in their current codecs and in the codec that suits
    MyRocks best. It needs a measurement taken with the same option, or --fresh. No server with MyRocks is needed, as
    for 'codec advise'.

    Every date comes with an 80 % interval: in 8 of 10 cases the disk fills up within it, and in 1 of 10 before it. A
    forecast needs a history of at least 14 days, which even a single measurement provides, from the created_at of the
    cells. It covers five times the length of the history, at most five years.

    --tier-after DAYS adds how long the disks last if documents of that age move to cold files, how large these are, and
    with --cold-price-per-gb what they cost.

    --scenarios FILE adds named scenarios, compares them side by side, and shows a monthly budget for each. If the file
    lists several datastores, one report covers all of them, including disks that they share; --url is then not needed.

    \b
      price_per_tb = 90            # of 1,000 GB of disk, in any currency
      [datastores]
      trips = "mysql://app@db-1:3306/trips"  # or a name in the configuration
      [scenarios."a busy year"]
      growth = 2                             # a multiple of the forecast growth
      codec = "msgpack+zlib"
      engine = "rocksdb"                     # or innodb
      copies = 3

    With --fail-below DAYS, the exit status is 0 if all disks last at least that long, judged by the early end of the 80
    % interval. It is 1 if a disk does not, if that is unknown, or if the report fails.

    \b
    Examples:
      schemaless capacity report
      schemaless capacity report --thresholds 70%,85% --lead-time 45 \\
          --price-per-tb 90
      schemaless capacity report --fail-below 60 --html report.html
      schemaless capacity report --html report.html --png report.png
      schemaless capacity report --disk cluster-1=4TB:1.5TB --to msgpack+zstd \\
          --json
      schemaless capacity report --engine rocksdb --html report.html
      schemaless capacity report --scenarios plan.toml --html plan.html
      schemaless capacity report --tier-after 180 --cold-price-per-gb 0.023
    """
    file = ScenarioFile() if scenario_file is None else read_scenarios(scenario_file)
    given = {part.name: asked.pop(part.name) for part in fields(PlanningOptions)}
    planning = {**file.planning, **{name: value for name, value in given.items() if value is not None}}
    options = Asked(
        **asked,
        disks={**file.disks, **dict(disks)},
        disk_names=file.disk_names,
        planning=PlanningOptions(**planning),
        what_ifs=(*([] if tier_after is None else [tiered_after(tier_after)]), *file.what_ifs),
    )
    listener = only(Step, lambda step: note(step.what))
    with ExitStack() as stack:
        stores = {name: stack.enter_context(connect(of)) for name, of in _datastores(ctx, file, url).items()}
        capacity = make(stores, options, fresh=fresh, listener=listener)
    if html_file is not None:
        write_and_say(html_file, capacity_html(capacity))
    if png_file is not None:
        _write_png(capacity, png_file)
    csv_is_out = write_csv(csv_file, lambda: csv_text(capacity))
    print_result(report_json(capacity))
    if not csv_is_out:
        show(capacity, show_all=show_all)
    if capacity.planning.verdict is None or not capacity.planning.verdict.failed:
        return 0
    error(verdict_text(capacity) or "")
    return EXIT_FAILED


def _datastores(ctx: click.Context, file: ScenarioFile, url: str | None) -> Mapping[str, str]:
    """Return the datastores to report on, keyed by name: those in the file, else that of ``--url``."""
    if not file.datastores:
        if url is None:
            raise click.MissingParameter(
                ctx=ctx, param=next(option for option in ctx.command.params if option.name == "url")
            )
        return {"": url}
    if ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("the scenario file lists datastores, so --url cannot be used")
    return file.datastores


def show(capacity: CapacityReport, *, show_all: bool = False) -> None:
    """Print a report: answer, fill levels, scenarios and notes; with ``show_all`` every other table too."""
    console = out()
    now = answer(capacity.now)
    console.print(f"{capacity.measurement.datastore}, measured {capacity.measurement.taken_at:%Y-%m-%d %H:%M} UTC\n")
    console.print(saving_text(capacity), style="bold")
    if capacity.saving is not None:
        console.print("In brackets: 80 % intervals.")
    console.print()
    console.print(f"First disk full in: {now.days}.", style="bold")
    for line in capacity.warnings:
        console.print(f"WARNING: {line}.", style="bold red")
    console.print(now.detail)
    for line in planning_lines(capacity):
        console.print(line)
    if capacity.after is not None:
        after = answer(capacity.after)
        console.print(f"\nRe-encoded to {capacity.codec} and rebuilt: {after.days}.", style="bold")
        console.print(after.detail)
    every = tables(capacity)
    others = [table for table in every if table.title not in _ALWAYS]
    for table in every if show_all else [table for table in every if table.title in _ALWAYS]:
        last = -1 if table.last_text else None  # The page has room for the sentences in the last column.
        rows = [row[:last] for row in table.rows]
        print_table(f"\n{table.title}", table.columns[:last], rows, text_columns=table.text_columns)
        if table.note:
            console.print(table.note)
    console.print()
    for line in capacity.notes:
        console.print(f"note: {line}")
    if not show_all and others:
        console.print(f"\n--all adds: {', '.join(table.title for table in others)}.")
    console.print("\n--html and --json explain how each figure was obtained.")


def _write_png(capacity: CapacityReport, file: str) -> None:
    chart = overview(capacity)
    if chart is None:
        note(f"did not write {file}: there are no figures to draw yet")
        return
    write_and_say(file, chart.png())
