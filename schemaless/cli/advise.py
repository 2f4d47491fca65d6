"""``schemaless codec advise``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from schemaless.capacity import history as kept_measurements
from schemaless.capacity.model import Plan, days_until_full
from schemaless.cli.options import open_store, shards_of, shards_option, url_option
from schemaless.cli.output import (
    bytes_text,
    estimate_json,
    estimate_text,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
)
from schemaless.cli.quantities import size_of
from schemaless.codec.registry import MSGPACK
from schemaless.store.advice import Candidate, ColumnAdvice
from schemaless.store.advice import advise as make_advice
from schemaless.store.datastore import Datastore

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class _Days:
    """How long disks last: as it is, and as advised."""

    now: float
    advised: float
    basis: str


@click.command()
@url_option
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Only this column; may be repeated.")
@shards_option
@click.option(
    "--cpu",
    "most_cpu",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="How many times the time of the default codec encoding and decoding may take.",
)
@click.option("--per-day", type=click.FloatRange(min=0, min_open=True), metavar="N", help="New cells a day.")
@click.option("--disk", metavar="SIZE", help="The disk of each server, such as 4TB.")
@click.option("--seed", type=int, metavar="N", help="Of the sample, to draw the same one again.")
@click.option("--all", "show_all", is_flag=True, help="Show every codec that was tried.")
@json_option
def advise(
    url: str,
    columns: tuple[str, ...],
    shards_text: str | None,
    most_cpu: float,
    per_day: float | None,
    disk: str | None,
    seed: int | None,
    show_all: bool,
    as_json: bool,
) -> None:
    """Say what each column should be written in, and why. Changes nothing.

    A sample of each column is read. Every codec that the store has is tried on it at several levels, and zstd with a
    freshly trained dictionary; what is compared are rows that the dictionary was not trained on. Advised is what fills
    the fewest pages of the tables without costing more time than --cpu allows; pages and bodies are both shown, as
    InnoDB gives space in steps. Days of disk rest on the last 'capacity measure', or on --per-day and --disk.

    \b
    Examples:
      schemaless codec advise
      schemaless codec advise --column LOG --cpu 2 --all
      schemaless codec advise --per-day 1000000 --disk 4TB --json
    """
    disk_bytes = None if disk is None else size_of(disk)
    with open_store(url) as store:
        shards = shards_of(shards_text, store.shard_count)
        with progress("sampling", None, "windows") as advance:
            found = make_advice(
                store,
                columns=columns or None,
                shards=shards,
                most_cpu=most_cpu,
                seed=seed,
                on_window=lambda done, total: advance(1),
            )
        days = _days(store, found, per_day, disk_bytes)
    if as_json:
        print_json({"columns": [_advice_json(each) for each in found], "days": _days_json(days)})
        return
    if not found:
        out().print("no cells were found" + (" of these columns" if columns else ""))
        return
    for each in found:
        _show(each, show_all)
    if days is not None:
        out().print(
            f"disks last {days.now:,.0f} days as it is, {days.advised:,.0f} once all this is done, at {days.basis}"
        )
    elif any(each.chosen is not None for each in found):
        note("days of disk: give --per-day and --disk, or run 'schemaless capacity measure' once")


def _show(advice: ColumnAdvice, show_all: bool) -> None:
    chosen, default = advice.chosen, advice.default
    stored = ", ".join(f"{count / advice.stored.total():.0%} {name}" for name, count in advice.stored.most_common())
    rows = [
        [
            "->" if each is chosen else "",
            each.name,
            bytes_text(each.body_bytes.mid),
            bytes_text(each.allocated_bytes.mid),
            f"{each.allocated_bytes.mid / max(1.0, advice.allocated_bytes.mid):.0%}",
            f"{each.trial.encode_s * 1e6:,.0f}",
            f"{each.trial.decode_s * 1e6:,.0f}",
            f"{each.cpu_s / max(1e-9, default.cpu_s):.2f}",
        ]
        for each in (advice.candidates if show_all else _best(advice))
    ]
    print_table(
        f"{advice.column_name}: {estimate_text(advice.cells)} cells, {bytes_text(advice.body_bytes.mid)} of bodies in "
        f"{bytes_text(advice.allocated_bytes.mid)} of pages ({stored})",
        ["", "codec", "bodies", "pages", "of now", "encode us", "decode us", "x default"],
        rows,
        text_columns=2,
    )
    which = "all sampled cells" if advice.whole else "sampled cells of rows that no dictionary was trained on"
    out().print(f"compared on {advice.compared:,} {which} (--seed {advice.seed} draws them again)", markup=False)
    for line in advice.notes:
        out().print(f"- {line}", markup=False)
    if chosen is None:
        out().print(f"advice: leave {advice.column_name} as it is; nothing that was tried saves 2 % of its pages\n")
        return
    out().print(
        f"advice: {chosen.name}. Bodies take {bytes_text(chosen.body_bytes.mid)} after a migration, in place of "
        f"{bytes_text(advice.body_bytes.mid)}; pages {bytes_text(chosen.allocated_bytes.mid)}, in place of "
        f"{bytes_text(advice.allocated_bytes.mid)}, after a rebuild; encoding and decoding take "
        f"{chosen.cpu_s / max(1e-9, default.cpu_s):.2f} times what the default takes. Next:",
        markup=False,
    )
    for command in commands(advice):
        out().print(f"  {command}", markup=False, soft_wrap=True)
    out().print("")


def _best(advice: ColumnAdvice) -> list[Candidate]:
    """Return the smallest, and those that one looks for."""
    wanted = [each for each in advice.candidates if each in (advice.chosen, advice.default)]
    text = [each for each in advice.candidates if each.codec.name == "json+zlib" and each.codec.level == 6]
    chosen = [*advice.candidates[: _SHOWN - len(wanted) - len(text)], *wanted, *text]
    return [each for each in advice.candidates if each in chosen]


def commands(advice: ColumnAdvice) -> list[str]:
    """Return the commands that follow the advice."""
    chosen = advice.chosen
    if chosen is None:
        return []
    found = []
    dictionary = ""
    if chosen.codec.dictionary is not None:
        to = "" if chosen.codec.serializer == MSGPACK else f" --to {chosen.codec.name}"
        found.append(f"schemaless codec train --column {advice.column_name}{to} --seed {advice.seed}")
        dictionary = " --dictionary N   # N: what 'codec train' says"
    own = chosen.codec.level == chosen.codec.compressor.level
    level = "" if chosen.codec.level is None or own else f" --level {chosen.codec.level}"
    found.append(f"schemaless codec set --column {advice.column_name} {chosen.codec.name}{level}{dictionary}")
    found.append(
        f"schemaless migrate run --execute --column {advice.column_name} --to {chosen.codec.name}{level}{dictionary}"
    )
    found.append("schemaless rebuild --execute")
    return found


def _days(store: Datastore, found: list[ColumnAdvice], per_day: float | None, disk_bytes: float | None) -> _Days | None:
    """Return how long disks last, as far as growth and disks are known."""
    cells = sum(each.cells.mid for each in found)
    clusters = len(store.topology.clusters)
    stored = None
    basis = ""
    shares = {each.column_name: each.cells.mid / cells for each in found} if cells else {}
    if per_day is not None and disk_bytes is not None:
        basis = f"{per_day:,.0f} new cells a day and a disk of {bytes_text(disk_bytes)} for each cluster"
    else:
        last = kept_measurements.latest(store)
        if last is None:
            return None
        days = {growth.day for growth in last.growth if growth.complete}
        by_column: dict[str, float] = {}
        for growth in last.growth:
            if growth.complete:
                by_column[growth.column_name] = by_column.get(growth.column_name, 0.0) + growth.cells.mid / len(days)
        per_day = sum(by_column.get(name, 0.0) for name in shares) if per_day is None else per_day
        total = sum(by_column.get(name, 0.0) for name in shares)
        shares = {name: by_column.get(name, 0.0) / total for name in shares} if total else shares
        disks = [each.disk_bytes for each in last.clusters if each.disk_bytes is not None]
        free = [each.free_bytes for each in last.clusters if each.free_bytes is not None]
        if disk_bytes is None:
            if len(disks) < clusters or len(free) < clusters:
                return None
            disk_bytes = sum(disks) / clusters
            stored = float(sum(disks) - sum(free))
        basis = f"the {per_day:,.0f} new cells a day that were measured {last.taken_at:%Y-%m-%d}"
    if not per_day or not shares:
        return None
    before, after = (
        sum(shares[each.column_name] * bytes_now / max(1.0, each.cells.mid) for each, bytes_now in pairs)
        for pairs in (
            [(each, each.allocated_bytes.mid) for each in found],
            [(each, (each.chosen or each).allocated_bytes.mid) for each in found],
        )
    )
    taken = sum(each.allocated_bytes.mid for each in found)
    spared = taken - sum((each.chosen or each).allocated_bytes.mid for each in found)

    def days_of(bytes_per_cell: float, stored_bytes: float) -> float:
        return days_until_full(
            Plan(
                documents_per_day=float(per_day or 0),
                bytes_per_document=max(1.0, bytes_per_cell),
                disk_bytes_per_host=float(disk_bytes or 1),
                hosts=clusters,
                stored_bytes=stored_bytes,
            )
        )

    filled = taken if stored is None else stored
    return _Days(days_of(before, filled), days_of(after, max(0.0, filled - spared)), basis)


def _advice_json(advice: ColumnAdvice) -> dict[str, Any]:
    return {
        "column_name": advice.column_name,
        "cells": estimate_json(advice.cells),
        "body_bytes": estimate_json(advice.body_bytes),
        "allocated_bytes": estimate_json(advice.allocated_bytes),
        "stored": dict(advice.stored),
        "setting": str(advice.setting),
        "compared_cells": advice.compared,
        "seed": advice.seed,
        "advice": None if advice.chosen is None else _candidate_json(advice.chosen),
        "default": _candidate_json(advice.default),
        "candidates": [_candidate_json(each) for each in advice.candidates],
        "notes": advice.notes,
        "commands": commands(advice),
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    dictionary = candidate.codec.dictionary
    return {
        "codec": candidate.codec.name,
        "level": candidate.codec.level,
        "dictionary_bytes": None if dictionary is None else len(dictionary.content),
        "body_bytes": estimate_json(candidate.body_bytes),
        "allocated_bytes": estimate_json(candidate.allocated_bytes),
        "encode_s": candidate.trial.encode_s,
        "decode_s": candidate.trial.decode_s,
        "left": dict(candidate.trial.left),
    }


def _days_json(days: _Days | None) -> dict[str, Any] | None:
    return None if days is None else {"now": days.now, "advised": days.advised, "basis": days.basis}
