"""The command ``schemaless capacity history``."""

from __future__ import annotations

import click

from schemaless.capacity import history as saved
from schemaless.capacity.measurement import Measurement
from schemaless.cli.capacity.shown import LAST_DAYS, measurement_json
from schemaless.cli.options import open_store, url_option
from schemaless.numbers import added
from schemaless.terminal.output import (
    ReadOnlyCommand,
    bytes_text,
    estimate_text,
    json_option,
    out,
    print_json,
    print_table,
)


@click.command(cls=ReadOnlyCommand)
@url_option
@click.option(
    "--last", type=click.IntRange(min=1), default=30, metavar="N", help="List only the N newest measurements."
)
@json_option
def history(url: str, last: int, as_json: bool) -> None:
    """List the measurements saved in the catalog, oldest first.

    'capacity measure' thins out old measurements: it keeps all of the last 14 days, then one a day for 100 days, one a
    week for two years, and one a month before that. The column 'a day' is the average growth of body bytes over the
    last 7 complete days.

    \b
    Example:
      schemaless capacity history --last 90 --json
    """
    with open_store(url) as store:
        numbers = [kept.sample_id for kept in saved.kept(store)[-last:]]
        measurements = dict(zip(numbers, saved.read(store, numbers), strict=True))
    if as_json:
        print_json(
            [{"sample_id": number, **measurement_json(measurement)} for number, measurement in measurements.items()]
        )
        return
    if not measurements:
        out().print("no measurements saved yet; take one with 'schemaless capacity measure'")
        return
    print_table(
        None,
        ["no.", "taken (UTC)", "cells", "body bytes", "allocated", "files", "a day", "clusters"],
        [_row(number, measurement) for number, measurement in measurements.items()],
        text_columns=2,
    )


def _row(number: int, measurement: Measurement) -> list[str]:
    files = [space.file_bytes for space in measurement.clusters]
    days = sorted({new.day for new in measurement.growth if new.complete})[-LAST_DAYS:]
    recent = added(new.body_bytes for new in measurement.growth if new.day in days)
    return [
        str(number),
        f"{measurement.taken_at:%Y-%m-%d %H:%M}",
        estimate_text(added(group.cells for group in measurement.groups)),
        estimate_text(added(group.body_bytes for group in measurement.groups), bytes_text),
        estimate_text(added(group.allocated_bytes for group in measurement.groups), bytes_text),
        bytes_text(sum(size or 0 for size in files)),
        estimate_text(recent.times(1 / len(days)), bytes_text) if days else "?",
        f"{len(measurement.clusters) - len(measurement.problems)} of {len(measurement.clusters)}",
    ]
