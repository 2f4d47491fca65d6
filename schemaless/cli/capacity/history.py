"""``schemaless capacity history``: what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from schemaless.cli.options import open_store, url_option
from schemaless.terminal.output import bytes_text, estimate_text, json_option, out, print_json, print_table

if TYPE_CHECKING:  # 'capacity model' needs no SQLAlchemy
    from schemaless.capacity.measurement import Measurement
from schemaless.cli.capacity.shown import LAST_DAYS, measurement_json


@click.command()
@url_option
@click.option(
    "--last", type=click.IntRange(min=1), default=30, metavar="N", help="How many measurements to list, the newest."
)
@json_option
def history(url: str, last: int, as_json: bool) -> None:
    """List the measurements that are kept in the catalog, oldest first.

    'capacity measure' thins old ones out: it keeps all of the last 14 days, one a day of the last 100 days, one a week
    of the last two years, and one a month before that.

    \b
    Example:
      schemaless capacity history --last 90 --json
    """
    from schemaless.capacity import history as keeping

    with open_store(url) as store:
        numbers = [kept.sample_id for kept in keeping.kept(store)[-last:]]
        measurements = dict(zip(numbers, keeping.read(store, numbers), strict=True))
    if as_json:
        print_json([{"sample_id": number, **measurement_json(taken)} for number, taken in measurements.items()])
        return
    if not measurements:
        out().print("no measurement is kept; 'schemaless capacity measure' takes one")
        return
    print_table(
        None,
        ["no.", "taken (UTC)", "cells", "body bytes", "allocated", "files", "a day", "clusters"],
        [_line(number, taken) for number, taken in measurements.items()],
        text_columns=2,
    )


def _line(number: int, measurement: Measurement) -> list[str]:
    from schemaless.numbers import added

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
