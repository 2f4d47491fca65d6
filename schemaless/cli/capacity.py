"""``schemaless capacity``: how long the disks last."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import replace
from typing import Any, Final

import click

from schemaless.capacity import model
from schemaless.cli.output import json_option, out, print_json, print_table

_UNITS: Final = {
    "b": 1,
    "kb": model.KB,
    "mb": model.MB,
    "gb": model.GB,
    "tb": model.TB,
    "pb": 10**15,
    "kib": model.KIB,
    "mib": model.MIB,
    "gib": model.GIB,
    "tib": model.TIB,
    "pib": 2**50,
}
_SIZE = re.compile(r"([0-9][0-9,_]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|\.[0-9]+)\s*([a-z]*)\Z", re.IGNORECASE)
_MULTIPLES: Final = {"": 1, "k": 10**3, "m": 10**6}


def size_of(value: str) -> float:
    """Return bytes: ``2822``, ``20KB`` (1,000s), ``512GiB`` (1,024s)."""
    number, unit = _split(value)
    if number is None:
        raise click.BadParameter(f"{value!r} is not a size; write for example 2822, 20KB, 1.5TB or 512GiB")
    if unit in ("k", "m", "g", "t", "p"):
        letter = unit.upper()
        raise click.BadParameter(f"{value!r} can be read two ways; write {letter}B for 1,000s or {letter}iB for 1,024s")
    if unit and unit not in _UNITS:
        raise click.BadParameter(f"{value!r}: the unit is B, one of KB, MB, GB, TB, PB, or of KiB, MiB, GiB, TiB, PiB")
    return _whole(value, number * _UNITS[unit or "b"])


def _count(value: str) -> float:
    """Return a number of documents: ``1000000``, ``1,000,000``, ``1M``."""
    number, unit = _split(value)
    if number is None or unit not in _MULTIPLES:
        raise click.BadParameter(
            f"{value!r} is not a number of 0 or more; write for example 2500000, 2,500,000 or 2.5M"
        )
    return _whole(value, number * _MULTIPLES[unit])


def _share(value: str) -> float:
    """Return a part of the whole: ``40%`` or ``0.4``."""
    text = value.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share; write 40% or 0.4") from None
    if not 0 <= share < 1:
        raise click.BadParameter(f"{value!r} is not from 0 to below 100 %; write 40% or 0.4")
    return share


def _split(value: str) -> tuple[float | None, str]:
    matched = _SIZE.match(value.strip())
    if matched is None:
        return None, ""
    return float(matched[1].replace(",", "").replace("_", "")), matched[2].lower()


def _whole(text: str, number: float) -> float:
    """Return a whole number as an int, so that it prints as one."""
    if not math.isfinite(number):
        raise click.BadParameter(f"{text!r} is too large to calculate with")
    return int(number) if number == int(number) else number


@click.group()
def capacity() -> None:
    """How long the disks last.

    'model' calculates it from figures that you give.
    """


@capacity.command("model")
@click.option(
    "--documents-per-day", type=_count, metavar="NUMBER", required=True, help="New documents a day: 1000000 or 1M."
)
@click.option(
    "--bytes-per-document",
    type=size_of,
    metavar="SIZE",
    required=True,
    help="What one takes on disk: 2822, 20KB, 4KiB. Body, row and index; body bytes alone flatter the answer.",
)
@click.option(
    "--bytes-per-document-after",
    type=size_of,
    metavar="SIZE",
    help="The same after re-encoding; shows both side by side.",
)
@click.option("--disk", type=size_of, metavar="SIZE", required=True, help="Each host's disk: 1TB, 512GiB.")
@click.option(
    "--overhead",
    type=_share,
    metavar="SHARE",
    default="0%",
    show_default=True,
    help="The part of the disk that cells cannot have, as 40% or 0.4.",
)
@click.option(
    "--copies", type=int, default=1, show_default=True, help="How often each cell is stored, replicas included."
)
@click.option("--hosts", type=int, help="All hosts, replicas included.  [default: as many as copies]")
@click.option(
    "--start",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="The day on which the disks are empty.  [default: today, UTC]",
)
@click.option("--for-days", type=float, help="Also say how many hosts last for so many days.")
@json_option
def model_command(
    documents_per_day: float,
    bytes_per_document: float,
    bytes_per_document_after: float | None,
    disk: float,
    overhead: float,
    copies: int,
    hosts: int | None,
    start: datetime.datetime | None,
    for_days: float | None,
    as_json: bool,
) -> None:
    """Days until the disks are full, from figures that you give.

    \b
    days = hosts x disk x (1 - overhead) / (documents a day x bytes a document x copies)

    KB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB and TiB powers of 1,024. Growth is linear, and the disks are
    empty at the start.

    Uber's article of 2016 has a million trips of 20 KB a day, on a disk of 1 TB, by which it means 1,024 GB: full in 51
    days, and in 30 when 40 % of the disk goes to other parts of the system. The second is

    \b
      schemaless capacity model --documents-per-day 1M --bytes-per-document 20KB \\
          --disk 1024GB --overhead 40%

    and with --bytes-per-document-after 2822, what a trip took after re-encoding, it is 217 days. The article says 347,
    but that leaves the overhead out: it compares with the 51.
    """
    plan = model.Plan(
        documents_per_day=documents_per_day,
        bytes_per_document=bytes_per_document,
        disk_bytes_per_host=disk,
        overhead_share=overhead,
        copies=copies,
        hosts=max(copies, 1) if hosts is None else hosts,
    )
    plans = {"now": plan}
    if bytes_per_document_after is not None:
        plans["after re-encoding"] = replace(plan, bytes_per_document=bytes_per_document_after)
    first_day = datetime.datetime.now(datetime.UTC).date() if start is None else start.date()
    answers = {name: _answer(each, first_day, for_days) for name, each in plans.items()}

    if as_json:
        result: dict[str, Any] = {"inputs": _inputs(plan) | {"start": first_day.isoformat(), "for_days": for_days}}
        result |= answers["now"]
        if bytes_per_document_after is not None:
            result["inputs"]["bytes_per_document_after"] = bytes_per_document_after
            result["after"] = answers["after re-encoding"]
        print_json(result)
        return

    console = out()
    console.print(f"[bold]{_sentence(answers['now'])}[/]")
    if bytes_per_document_after is not None:
        sentence = _sentence(answers["after re-encoding"])
        console.print(f"After re-encoding: {sentence[0].lower()}{sentence[1:]}")
    console.print()
    print_table(None, ["", *plans], _rows(list(plans.values()), list(answers.values())))


def _inputs(plan: model.Plan) -> dict[str, Any]:
    names = ("documents_per_day", "bytes_per_document", "disk_bytes_per_host", "overhead_share", "copies", "hosts")
    return {name: getattr(plan, name) for name in names}


def _answer(plan: model.Plan, start: datetime.date, for_days: float | None) -> dict[str, Any]:
    days = model.days_until_full(plan)
    full_on = model.full_on(start, days)
    answer: dict[str, Any] = {
        "bytes_per_day": model.bytes_per_day(plan),
        "usable_bytes": model.usable_bytes(plan),
        "days_until_full": None if math.isinf(days) else days,
        "full_on": None if full_on is None else full_on.isoformat(),
    }
    if for_days is not None:
        answer["hosts_needed"] = model.hosts_needed(plan, for_days)
        answer["hosts_needed_for_days"] = for_days
    return answer


def _sentence(answer: dict[str, Any]) -> str:
    days = answer["days_until_full"]
    if days is None:
        return "Never full: no documents are written."
    when = "" if answer["full_on"] is None else f", on {answer['full_on']}"
    return f"Full in {_days_text(days)}{when}."


def _days_text(days: float) -> str:
    """Return whole days, since the last one is not a full one; with years where there are two or more."""
    whole = math.floor(days)
    text = "less than a day" if whole == 0 else "1 day" if whole == 1 else f"{whole:,} days"
    return text if days < 730 else f"{text} ({days / 365.25:,.1f} years)"


def _rows(plans: list[model.Plan], answers: list[dict[str, Any]]) -> list[list[str]]:
    rows = [
        ["documents a day", *(f"{plan.documents_per_day:,}" for plan in plans)],
        ["bytes a document", *(f"{plan.bytes_per_document:,}" for plan in plans)],
        ["copies", *(str(plan.copies) for plan in plans)],
        ["written a day", *(_decimal_text(answer["bytes_per_day"]) for answer in answers)],
        ["hosts", *(f"{plan.hosts:,}" for plan in plans)],
        ["disk of a host", *(_decimal_text(plan.disk_bytes_per_host) for plan in plans)],
        ["overhead", *(f"{plan.overhead_share * 100:.4g} %" for plan in plans)],
        ["room for cells", *(_decimal_text(answer["usable_bytes"]) for answer in answers)],
        ["days until full", *(_table_days(answer["days_until_full"]) for answer in answers)],
    ]
    if "hosts_needed" in answers[0]:
        days = answers[0]["hosts_needed_for_days"]
        rows.append([f"hosts for {days:,g} days", *(f"{answer['hosts_needed']:,}" for answer in answers)])
    return rows


def _table_days(days: float | None) -> str:
    return "never" if days is None else f"{days:,.1f}"


def _decimal_text(count: float) -> str:
    """Return bytes in powers of 1,000, as disks are sold."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:,.4g} {unit}"
        size /= 1000
    return f"{size:,.4g} PB" if size < 1000 else f"{size:,.0f} PB"
