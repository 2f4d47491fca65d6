"""The command ``schemaless capacity measure``."""

from __future__ import annotations

import click

from schemaless.capacity import history
from schemaless.capacity.measure import measure as take_measurement
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.report_notes import note_on_other_tables
from schemaless.cli.capacity.shown import LAST_DAYS, disk_of, measurement_json
from schemaless.cli.options import open_store, url_option
from schemaless.errors import ServerError
from schemaless.numbers import added
from schemaless.terminal.output import (
    EXIT_FAILED,
    bytes_text,
    estimate_text,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
    size_text,
)


@click.command()
@url_option
@click.option(
    "--disk",
    "disks",
    multiple=True,
    metavar="CLUSTER=SIZE[:FREE]",
    help="Size and free space of a cluster's disk, overriding what its servers report, such as cluster-1=4TB:1.5TB. "
    "May be repeated.",
)
@click.option("--no-keep", is_flag=True, help="Do not save the measurement in the catalog.")
@click.option("--seed", type=int, metavar="N", help="Seed of the sample; the same seed draws the same sample.")
@json_option
def measure(url: str, disks: tuple[str, ...], no_keep: bool, seed: int | None, as_json: bool) -> int:
    """Measure sizes and growth, and save the result in the catalog.

    The command samples cells of all shards, on replicas if there are any, and shows each estimate with its 95 %
    confidence interval. The size of the sample does not depend on the number of cells. A small datastore is read
    completely, and its figures are exact. Nothing but the catalog is written to.

    Run the command once a day: 'schemaless capacity report' forecasts from the saved measurements, and 'schemaless
    capacity history' lists them.

    \b
    Examples:
      schemaless capacity measure
      schemaless capacity measure --disk cluster-1=4TB:1.5TB --disk cluster-2=4TB
      schemaless capacity measure --no-keep --json

    Exit status: 0 measured; 1 a cluster could not be measured, or the measurement could not be saved.
    """
    given = dict(disk_of(disk) for disk in disks)
    sample_id: int | None = None
    failed = False
    with open_store(url) as store:
        with progress("measuring", None, "clusters") as listener:
            measurement = take_measurement(store, disks=given, seed=seed, listener=listener)
        if not no_keep:
            try:
                sample_id = history.keep(store, measurement)
            except ServerError as error:
                note(
                    f"the measurement was not saved in the catalog: {error}; 'schemaless grants --role measure' prints "
                    "the privileges that saving needs"
                )
                failed = True
    if as_json:
        print_json({"sample_id": sample_id, **measurement_json(measurement)})
    else:
        _show(measurement)
        if sample_id is not None:
            out().print(f"saved in the catalog as measurement {sample_id}")
    return EXIT_FAILED if failed or measurement.problems else 0


def _show(measurement: Measurement) -> None:
    names = sorted({(group.cluster, group.column_name, group.codec) for group in measurement.groups})
    rows = []
    for name in names:
        groups = [group for group in measurement.groups if (group.cluster, group.column_name, group.codec) == name]
        cells = added(group.cells for group in groups)
        sizes = [
            added(getattr(group, size) for group in groups) for size in ("body_bytes", "allocated_bytes", "json_bytes")
        ]
        rows.append([*name, estimate_text(cells), *(estimate_text(size, bytes_text) for size in sizes)])
    if rows:
        print_table(
            "stored now",
            ["cluster", "column", "codec", "cells", "body bytes", "allocated", "as JSON text"],
            rows,
            text_columns=3,
        )
    print_table(
        "\nclusters",
        ["cluster", "read from", "copies", "shards", "files", "if rebuilt", "overhead", "disk", "free"],
        [
            [
                space.cluster,
                f"{space.read_from} {space.node}" if space.problem is None else "not measured",
                str(space.copies),
                str(space.shards),
                size_text(space.file_bytes, "?")
                + ("" if space.file_bytes_measured or space.file_bytes is None else " (stat.)"),
                "?" if space.rebuilt_bytes is None else estimate_text(space.rebuilt_bytes, bytes_text),
                "?" if space.overhead_bytes is None else estimate_text(space.overhead_bytes, bytes_text),
                size_text(space.disk_bytes, "?"),
                size_text(space.free_bytes, "?"),
            ]
            for space in measurement.clusters
        ],
        text_columns=2,
    )
    _show_growth(measurement)
    for remark in (*measurement.notes, *note_on_other_tables([measurement])):
        out().print(f"note: {remark}", markup=False)
    exact = all(group.cells.exact for group in measurement.groups)
    out().print(
        f"\nread {'all cells' if exact else 'a sample'}: {measurement.rows_read:,} rows, about "
        f"{measurement.pages_read:,} pages of cells, in {measurement.seconds:.1f} s"
        + (
            ""
            if exact
            else f"\nbrackets: {measurement.level:.0%} interval; --seed {measurement.seed} draws the same sample again"
        )
    )


def _show_growth(measurement: Measurement) -> None:
    days = sorted({new.day for new in measurement.growth if new.complete})[-LAST_DAYS:]
    if not days:
        return
    rows = []
    for column in measurement.column_names:
        intakes = [new for new in measurement.growth if new.column_name == column and new.day in days]
        a_day = 1 / len(days)
        rows.append(
            [
                column,
                estimate_text(added(new.cells for new in intakes).times(a_day)),
                estimate_text(added(new.body_bytes for new in intakes).times(a_day), bytes_text),
                ", ".join(sorted({new.method for new in intakes})),
            ]
        )
    title = f"\nnew a day, {days[0]} to {days[-1]}" if len(days) > 1 else f"\nnew on {days[0]}"
    print_table(title, ["column", "cells", "body bytes", "found by"], rows)
