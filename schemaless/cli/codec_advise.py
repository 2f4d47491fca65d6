"""``schemaless codec advise``: recommends a codec for each column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from schemaless.base.numbers import Interval, bytes_text, counted
from schemaless.cli.command import QueryCommand
from schemaless.cli.option import option
from schemaless.cli.options import choice_options
from schemaless.cli.quantities import FiniteRange, size_of
from schemaless.codec.registry import MSGPACK, Codec
from schemaless.planning.capacity import history as kept_measurements
from schemaless.planning.capacity.disks import disks_of
from schemaless.planning.capacity.model import Plan, days_until_full
from schemaless.planning.capacity.series import daily
from schemaless.planning.sampling.advice import Candidate, ColumnAdvice
from schemaless.planning.sampling.advice import advise as make_advice
from schemaless.planning.sampling.recommendation import share_text
from schemaless.schema.engines import ENGINES
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.output import (
    days_long_text,
    estimate_json,
    estimate_text,
    facts,
    note,
    out,
    print_result,
    print_table,
    progress,
)

_SHOWN = 12


@click.command(cls=QueryCommand)
@option("--column NAME", "Only cells of this column; may be repeated.", name="columns", multiple=True)
@choice_options
@option("--per-day N", "New cells per day.", type=FiniteRange(min=0, min_open=True))
@option("--disk SIZE", "Disk size of each server, such as 4TB.", name="disk_bytes", type=size_of)
@option(
    "--engine",
    "Predict sizes in this storage engine instead of the one that the cells are in.",
    type=click.Choice(list(ENGINES)),
)
@option("--seed N", "Seed of the sample; the same seed draws the same sample.", type=int)
@option("--all", "Show every codec that was tried.", name="show_all", is_flag=True)
def advise(
    store: Datastore,
    columns: tuple[str, ...],
    shards: list[int],
    per_day: float | None,
    disk_bytes: float | None,
    show_all: bool,
    **asked: Any,
) -> None:
    """Recommend a codec for each column, with reasons. Read-only.

    The command samples each column and tries every codec at several levels, including zstd with a freshly trained
    dictionary, on rows that the dictionary was not trained on. It recommends the codec that needs the fewest table
    pages within the CPU budget of --cpu, and recommends no change if that saves less than --least-gain. It shows both
    pages and bodies, since InnoDB allocates space in steps. The days until disks are full are calculated from the last
    'capacity measure', or from --per-day and --disk. 'codec set' and 'migrate run' apply the advice.

    With --engine rocksdb, the sizes are those after all shards have moved to clusters with MyRocks, which compresses
    blocks of neighbouring cells. The command compresses such blocks of the sample itself, so no server with MyRocks is
    needed.

    \b
    Examples:
      schemaless codec advise
      schemaless codec advise --engine rocksdb
      schemaless codec advise --column LOG --cpu 2 --all
      schemaless codec advise --per-day 1000000 --disk 4TB --json
    """
    with progress("sampling", None, "windows") as listener:
        advice = make_advice(store, columns=columns or None, shards=shards, listener=listener, **asked)
    days = _days(store, advice, per_day, disk_bytes)
    last = days and {"now": estimate_json(days[0]), "advised": estimate_json(days[1]), "basis": days[2]}
    print_result({"columns": [_advice_json(of_column) for of_column in advice], "days": last})
    if not advice:
        out().print("no cells found" + (" in these columns" if columns else ""))
        return
    for of_column in advice:
        _show(of_column, show_all)
    if days is not None:
        out().print(
            f"disks last {days_long_text(days[0])} with the current codecs, {days_long_text(days[1])} with the "
            f"advised ones, at {days[2]}"
        )
    elif any(of_column.chosen is not None for of_column in advice):
        note("to see how many days disks last, give --per-day and --disk, or run 'schemaless capacity measure' once")


def _show(advice: ColumnAdvice, show_all: bool) -> None:
    choice, chosen, default = advice.choice, advice.chosen, advice.default
    stored = ", ".join(f"{count / advice.stored.total():.0%} {name}" for name, count in advice.stored.most_common())
    title = (
        f"{advice.column_name}: {estimate_text(advice.cells)} cells, {estimate_text(advice.body_bytes, bytes_text)} of "
        f"bodies in {estimate_text(advice.allocated_bytes, bytes_text)} of pages"
    )
    if advice.present_bytes is not None:
        title += f" on the other engine, {estimate_text(advice.present_bytes, bytes_text)} on the present one"
    if choice is None or default is None:
        out().print(title, style="bold")
    else:
        rows = [
            [
                "->" if candidate is chosen else "knee" if candidate.name == choice.knee.name else "",
                candidate.name,
                share_text(candidate.trial.migrated_share),
                share_text(candidate.share),
                f"{candidate.trial.encode_s * 1e6:,.0f}",
                f"{candidate.trial.decode_s * 1e6:,.0f}",
                f"{candidate.cpu_s / max(1e-9, default.cpu_s):.2f}",
            ]
            for candidate in (advice.candidates if show_all else _best(advice))
        ]
        columns = ["", "codec", "bodies, of now", "pages, of now", "encode us", "decode us", "x default"]
        print_table(title, columns, rows, text_columns=2)
        which = "all sampled cells" if advice.whole else "sampled cells of rows that no dictionary was trained on"
        out().print(
            f"now {stored} (in the sample); compared on {advice.compared:,} {which} (--seed {advice.seed} draws them "
            "again)"
        )
        out().print(f"- {choice.knee_text}.")
    for line in advice.notes:
        out().print(f"- {line}")
    # Once they are differences, there is nothing more to gain.
    if advice.history is not None and advice.history.as_deltas.mid < 0.95 * advice.history.now.mid:
        out().print(
            f"- {estimate_text(advice.history.versions, '{:,.1f}'.format)} versions per row; superseded ones are "
            f"{share_text(advice.history.now)} of the bytes; as differences they would take "
            f"{share_text(advice.history.as_deltas)}: {history_command(advice)}",
            soft_wrap=True,
        )
    if chosen is None:
        why = "too few cells to tell" if choice is None else choice.reason
        out().print(f"advice: keep the codec of {advice.column_name}; {why}\n")
        return
    bodies, pages = (
        f"{estimate_text(then, bytes_text)} instead of {estimate_text(now, bytes_text)}"
        for then, now in ((chosen.body_bytes, advice.body_bytes), (chosen.allocated_bytes, advice.allocated_bytes))
    )
    times = None if choice is None or choice.chosen is None else choice.cpu_times(choice.chosen)
    out().print(
        f"advice: {chosen.name}. After a migration, bodies take {bodies}; after a rebuild, pages take {pages}. "
        f"Encoding and decoding take {times:.2f} times as long as with the default codec. Next:"
    )
    for command in commands(advice):
        out().print(f"  {command}", soft_wrap=True)
    out().print("")


def _best(advice: ColumnAdvice) -> list[Candidate]:
    """Return the candidates shown without ``--all``: the smallest, advised, default, knee and json+zlib ones."""
    knee = None if advice.choice is None else advice.choice.knee.name
    wanted = [tried for tried in advice.candidates if tried in (advice.chosen, advice.default) or tried.name == knee]
    text = [tried for tried in advice.candidates if tried.codec.name == "json+zlib" and tried.codec.level == 6]
    chosen = [*advice.candidates[: _SHOWN - len(wanted) - len(text)], *wanted, *text]
    return [tried for tried in advice.candidates if tried in chosen]


def commands(advice: ColumnAdvice) -> list[str]:
    """Return the commands that apply the advice."""
    chosen = advice.chosen
    if chosen is None:
        return []
    lines = []
    if chosen.codec.dictionary is not None:
        to = "" if chosen.codec.serializer == MSGPACK else f" --to {chosen.codec.name}"
        lines.append(f"schemaless codec train --column {advice.column_name}{to} --seed {advice.seed}")
    lines.append(f"schemaless codec set --column {advice.column_name} {_options(advice, chosen.codec)}")
    lines.append(
        f"schemaless migrate run --execute --column {advice.column_name} --to {_options(advice, chosen.codec)}"
    )
    lines.append("schemaless rebuild --execute")
    return lines


def history_command(advice: ColumnAdvice) -> str:
    """Return the command that stores superseded versions as deltas."""
    codec = advice.history_codec
    return f"schemaless migrate run --execute --column {advice.column_name} --history --to {_options(advice, codec)}"


def _options(advice: ColumnAdvice, codec: Codec) -> str:
    level = "" if codec.level in (None, codec.compressor.level) else f" --level {codec.level}"
    if codec.dictionary is None:
        return f"{codec.name}{level}"
    if advice.chosen is None or codec is not advice.chosen.codec:
        return f"{codec.name}{level} --dictionary {codec.dictionary.id}"
    return f"{codec.name}{level} --dictionary N   # N: the number that 'codec train' prints"


def _days(
    store: Datastore, advice: list[ColumnAdvice], per_day: float | None, disk_bytes: float | None
) -> tuple[Interval, Interval, str] | None:
    """Return the days until disks are full with the current and with the advised codecs, and the basis in words.

    Figures that are not given are taken from the last measurement; None if one is in neither.
    """
    hosts = len(internals_of(store).topology.clusters)
    growth = {of_column.column_name: of_column.cells.mid for of_column in advice}
    filled = None
    if per_day is not None and disk_bytes is not None:
        basis = f"{counted(round(per_day), 'new cell')} a day and a disk of {bytes_text(disk_bytes)} for each cluster"
    else:
        last = kept_measurements.latest(store)
        if last is None:
            return None
        columns = daily([last])
        measured = {name: sum(each.cells_per_day for each in columns if each.column_name == name) for name in growth}
        if sum(measured.values()):
            growth = measured
        basis = f"{counted(round(per_day or 0), 'new cell')} a day and disks as measured on {last.taken_at:%Y-%m-%d}"
        if per_day is None:
            per_day = sum(measured.values())
            basis = f"the {counted(round(per_day), 'new cell')} a day measured on {last.taken_at:%Y-%m-%d}"
        disks = disks_of(last)
        sizes = [disk.disk_bytes for disk in disks if disk.disk_bytes is not None]
        used = [disk.used_bytes for disk in disks if disk.used_bytes is not None]
        if disk_bytes is not None and sizes:
            average = bytes_text(sum(sizes) / len(sizes))
            basis += f"; the disk size is that of --disk, not the measured {average}"
        elif disk_bytes is None:
            if not disks or len(used) < len(disks):
                return None
            hosts, disk_bytes, filled = len(disks), sum(sizes) / len(disks), float(sum(used))
    if not per_day or not sum(growth.values()):
        return None
    plan = Plan(documents_per_day=per_day, bytes_per_document=1.0, disk_bytes_per_host=disk_bytes or 1.0, hosts=hosts)

    def days_of(pages: list[float], stored_bytes: float) -> float:
        per_cell = sum(
            growth[of_column.column_name] / sum(growth.values()) * size / max(1.0, of_column.cells.mid)
            for of_column, size in zip(advice, pages, strict=True)
        )
        return days_until_full(replace(plan, bytes_per_document=max(1.0, per_cell), stored_bytes=stored_bytes))

    now, advised = [], []
    for end in ("high", "mid", "low"):
        pages = [getattr(of_column.allocated_bytes, end) for of_column in advice]
        then = [getattr((of_column.chosen or of_column).allocated_bytes, end) for of_column in advice]
        stored = sum(pages) if filled is None else filled
        now.append(days_of(pages, stored))
        advised.append(days_of(then, max(0.0, stored - sum(pages) + sum(then))))
    return Interval(*now), Interval(*advised), basis


def _advice_json(advice: ColumnAdvice) -> dict[str, Any]:
    return {
        **facts(advice, "column_name", "cells", "body_bytes", "allocated_bytes", "present_bytes", "seed", "notes"),
        "compared_cells": advice.compared,
        "stored": dict(advice.stored),
        "setting": str(advice.setting),
        "advice": advice.chosen and _candidate_json(advice.chosen),
        "default": advice.default and _candidate_json(advice.default),
        "knee": advice.choice and advice.choice.knee.name,
        "least_gain": advice.choice and advice.choice.least_gain,
        "reason": advice.choice and advice.choice.reason,
        "candidates": [_candidate_json(candidate) for candidate in advice.candidates],
        "commands": commands(advice),
        "history": advice.history
        and {
            "versions_per_row": estimate_json(advice.history.versions, digits=2),
            "superseded_share": estimate_json(advice.history.now, digits=5),
            "delta_share": estimate_json(advice.history.as_deltas, digits=5),
            "command": history_command(advice),
        },
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    dictionary = candidate.codec.dictionary
    return {
        "codec": candidate.codec.name,
        "level": candidate.codec.level,
        "dictionary_bytes": None if dictionary is None else len(dictionary.content),
        "body_share": estimate_json(candidate.trial.migrated_share, digits=5),
        "share": estimate_json(candidate.share, digits=5),
        **facts(candidate, "body_bytes", "allocated_bytes"),
        **facts(candidate.trial, "encode_s", "decode_s"),
        "left": dict(candidate.trial.left),
    }
