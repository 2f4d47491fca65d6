"""The command ``schemaless capacity advise``."""

from __future__ import annotations

import datetime
import math
from typing import Any

import click

from schemaless.base.events import Step, only
from schemaless.base.numbers import Interval
from schemaless.cli.command import QueryCommand
from schemaless.cli.option import option
from schemaless.cli.options import choice_options, cold_price_option
from schemaless.cli.quantities import FiniteRange
from schemaless.planning.capacity.advice import TIER_AFTER, Suggestion, suggestions
from schemaless.planning.capacity.options import Asked, PlanningOptions
from schemaless.planning.capacity.planning import Saving
from schemaless.planning.capacity.reporting import collect
from schemaless.store.cold.settings import MOST_DAYS
from schemaless.store.datastore import Datastore
from schemaless.store.indexes.usage import unread_since
from schemaless.store.internals import internals_of
from schemaless.ui.pages.capacity_json import cold_json, saving_json
from schemaless.ui.pages.capacity_words import answer, cold_text, figure_text, price_text
from schemaless.ui.terminal.output import note, out, print_result, print_table


@click.command("advise", cls=QueryCommand)
@choice_options
@option(
    "--price-per-tb PRICE",
    "Price of a TB (1,000 GB) of disk; shows what is saved in an average month as a price.",
    type=FiniteRange(min=0),
)
@cold_price_option
@option(
    "--tier-after DAYS",
    "Age at which documents move to cold files, if no column has a policy.",
    type=click.IntRange(0, MOST_DAYS),
    default=TIER_AFTER,
)
def advise_command(
    store: Datastore, price_per_tb: float | None, cold_price_per_gb: float | None, tier_after: int, **limits: Any
) -> int:
    """Rank what would help the disks most, with commands.

    The command compares the present with each change that the newest measurement allows a forecast for: another codec,
    dictionaries, versions as differences, a rebuild, retention policies, fewer versions, cold files, and MyRocks if
    'capacity measure' was run with --engine rocksdb. It adds the indexes, and says if no server has counted a read of
    one since its start. The days are those until the first disk is full; bytes and prices count all copies, of the cold
    store one. Savings overlap and do not add up. The command changes nothing. It needs the extra [report].

    The measurement trains dictionaries on a few hundred cells. 'codec train' reads more, so its dictionaries may save
    more.

    \b
    Examples:
      schemaless capacity advise --price-per-tb 90
      schemaless capacity advise --json
    """
    options = Asked(planning=PlanningOptions(price_per_tb=price_per_tb, cold_price_per_gb=cold_price_per_gb), **limits)
    collected = collect(store, options, listener=only(Step, lambda step: note(step.what)))
    indexes = {entry.layout.table: entry.name for entry in internals_of(store).registry.all()}
    unread = unread_since(internals_of(store).shards, indexes)
    report, found = suggestions(collected, datetime.datetime.now(datetime.UTC), options, indexes, unread, tier_after)
    print_result(
        {
            "measured_at": report.measurement.taken_at.isoformat(timespec="seconds"),
            "price_per_tb": price_per_tb,
            "suggestions": [
                {
                    "name": each.name,
                    **saving_json(each.saving),
                    "least_days": each.saving.least_days,
                    "effort": each.effort,
                    "commands": list(each.commands),
                    "cold": each.cold and cold_json(each.cold),
                }
                for each in found
            ],
        }
    )
    out().print(f"First disk full in: {answer(report.now).days}.", style="bold")
    if not found:
        out().print("Nothing that was measured would help.")
    else:
        columns = ["", "what", "days gained", "frees", "saves a month", "effort"]
        print_table(None, columns, [_row(*each) for each in enumerate(found, start=1)], text_columns=2)
        out().print("In brackets: 80 % intervals. The savings overlap and do not add up.\n")
    for number, each in enumerate(found, start=1):
        for command in each.commands:
            out().print(f"{number}  {command}", soft_wrap=True)
    for line in (*report.warnings, *report.notes):
        out().print(f"note: {line}")
    return 0


def _row(number: int, suggestion: Suggestion) -> list[str]:
    saving = suggestion.saving
    growth, price = saving.bytes_per_month, saving.price_per_month
    a_month = "" if growth is None else figure_text(growth)
    if price is not None:
        a_month = figure_text(price, price_text)
    return [
        str(number),
        suggestion.name,
        _days_text(saving),
        "" if saving.freed_bytes is None else figure_text(saving.freed_bytes),
        a_month,
        suggestion.effort + ("" if suggestion.cold is None else f"; {cold_text(suggestion.cold)}"),
    ]


def _days_text(saving: Saving) -> str:
    days = saving.days
    if days is None:
        return ""
    if math.isinf(days.mid):
        return f"at least {saving.least_days:,}"
    if math.isinf(days.high_80):
        return f"{days.mid:,.0f} ({days.low_80:,.0f} or more)"
    return figure_text(Interval(days.low_80, days.mid, days.high_80), "{:,.0f}".format)
