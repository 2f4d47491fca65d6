"""The command ``schemaless capacity model``."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import click

from schemaless.base.keys import check_column_name
from schemaless.base.numbers import ZERO, Interval, bytes_text, counted, number_text
from schemaless.cli.command import QueryCommand
from schemaless.cli.option import option
from schemaless.cli.quantities import (
    FiniteRange,
    count_of,
    growth_of,
    range_of,
    ratio_of,
    share_of,
    size_of,
    weekdays_of,
)
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.disk_bytes import DiskParts, disk_bytes_range, disk_parts
from schemaless.planning.capacity.model import TB, Plan
from schemaless.planning.capacity.outlook import Outlook, Ranges, outlook
from schemaless.planning.capacity.planning import MONTH_DAYS
from schemaless.planning.sampling.page_model import MARIADB, MYSQL
from schemaless.ui.pages.capacity_words import price_text
from schemaless.ui.terminal.output import MOST_SHOWN_DAYS, change_text, day_count_text, out, print_result, print_table

_LAYOUTS: Final = {"mysql": MYSQL, "mariadb": MARIADB}

_SOURCE: Final = "Uber's encoding test of 2016, on 2,219 trips"

_SIZES_BYTES: Final = {"legacy": 132_852_837, "json+zlib": 23_560_699, "msgpack+zlib": 18_312_106}
"""Total size of the test's trips in bytes, by codec, for those codecs that schemaless supports."""


def published_ratio(codec: str, before: str = "legacy") -> float:
    """Return the size of bodies in ``codec`` relative to their size in ``before``.

    Other documents may have twice that ratio, or half: measure your own with ``schemaless migrate plan``.

    Raises:
        InvalidInput: There is no published size for one of the codecs.

    >>> round(published_ratio("msgpack+zlib"), 3), round(published_ratio("msgpack+zlib", "json+zlib"), 3)
    (0.138, 0.777)
    """
    for name in (codec, before):
        if name not in _SIZES_BYTES:
            raise InvalidInput(
                f"no published ratio for codec {name!r}, only for {', '.join(_SIZES_BYTES)}; give a ratio"
            )
    return _SIZES_BYTES[codec] / _SIZES_BYTES[before]


@dataclass(frozen=True, slots=True)
class _Variant:
    """The plan for one codec, its outlook, and the origin of its document size.

    ``parts`` breaks down the mid value of that size.
    """

    ranges: Ranges
    outlook: Outlook
    body_bytes: Interval | None = None
    ratio: Interval | None = None
    source: str | None = None
    parts: DiskParts | None = None
    price_per_tb: float | None = None

    @property
    def price_per_month(self) -> Interval | None:
        """Price of the disk space that is written in an average month, at the rate of the start."""
        price = self.price_per_tb
        return None if price is None else self.outlook.bytes_per_day.times(MONTH_DAYS / TB * price)

    def saved(self, now: _Variant) -> str:
        """Return the days and the money that this variant saves, as the end of a sentence."""
        texts, early, late = [], now.outlook.days_until_full, self.outlook.days_until_full
        if late.high <= MOST_SHOWN_DAYS:
            days = Interval(
                *sorted(math.floor(after) - math.floor(before) for before, after in zip(early, late, strict=True))
            )
            texts.append(change_text(days, lambda each: _range_text(each, "{:,.0f}".format), "days more", "days less"))
        before, after = now.price_per_month, self.price_per_month
        if before is not None and after is not None:
            less = Interval(*sorted(was - then for was, then in zip(before, after, strict=True)))
            texts.append(change_text(less, lambda each: _range_text(each, price_text), "a month less", "a month more"))
        share = 1 - self.outlook.bytes_per_day.mid / now.outlook.bytes_per_day.mid
        return f": {', '.join(texts)} ({abs(share) * 100:.0f} %)" if texts else ""


_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("model", cls=QueryCommand)
@option(
    "--documents-per-day NUMBER",
    "New documents a day at the start, such as 1000000 or 1M.",
    type=range_of(count_of),
    required=True,
)
@option(
    "--bytes-per-document SIZE",
    "Disk space of one document including row and index, such as 20kB. If you only know the body, use --body.",
    type=range_of(size_of),
)
@option(
    "--body SIZE",
    "Length of a stored body, instead of --bytes-per-document; the command adds the row, its index "
    "entry and the free pages of InnoDB.",
    type=range_of(size_of),
)
@option(
    "--bytes-per-document-after SIZE",
    "Disk space of one document after re-encoding, for a side-by-side comparison.",
    type=range_of(size_of),
)
@option(
    "--codec NAME[=RATIO]",
    "Codec to compare with, and the size of its bodies relative to now, such as msgpack+zstd=12%..14%..17%. "
    "Without RATIO, Uber's figures of 2016 are used for json+zlib and msgpack+zlib. May be repeated.",
    name="codecs",
    multiple=True,
)
@option(
    "--codec-now NAME", "Codec of the bodies now, for a --codec without RATIO; legacy is JSON text.", default="legacy"
)
@option("--server", "Server whose page layout is used for --body.", type=click.Choice(list(_LAYOUTS)), default="mysql")
@option("--column", "Column name, which is also stored in every row; for --body.", default="BASE")
@option(
    "--disk SIZE",
    "Disk size of each host, such as 1TB, 512GiB or 3.5TB..4TB.",
    name="disk_bytes_per_host",
    type=range_of(size_of),
    required=True,
)
@option(
    "--overhead SHARE",
    "Share of the disk that is not available for cells (system, logs, working space), such as 40% or 0.4.",
    name="overhead_share",
    type=range_of(share_of),
    default="0%",
)
@option(
    "--stored SIZE",
    "Disk space of the cells on all hosts at the start, including all copies.  [default: 0]",
    name="stored_bytes",
    type=range_of(size_of),
)
@option("--copies", "Copies of each cell, including replicas.", default=1)
@option("--hosts", "Number of hosts, including replicas.  [default: as many as --copies]", type=int)
@option(
    "--growth SHARE",
    "Growth in the number of documents a day over 365 days, such as 50%, 20%..50%..80% or -10%.",
    name="growth_share_per_year",
    type=range_of(growth_of),
    default="0%",
)
@option(
    "--growth-kind",
    "linear adds the same number each day; compound multiplies by the same factor.",
    type=click.Choice(["linear", "compound"]),
    default="compound",
)
@option(
    "--weekdays MON,...,SUN",
    "Weights of Monday to Sunday, such as 1,1,1,1,1.3,0.8,0.6; only their proportions count.",
    type=weekdays_of,
)
@option("--retention DAYS", "Age at which cells are deleted.  [default: never]", name="retention_days", type=float)
@option("--start YYYY-MM-DD", "First day of the calculation. [default: today, UTC]", type=_DAY)
@option(
    "--for-days DAYS", "Also show the number of hosts needed for this period, and the headroom at its end.", type=float
)
@option("--until YYYY-MM-DD", "Like --for-days, for the period that ends at the start of this day.", type=_DAY)
@option(
    "--price-per-tb PRICE",
    "Price of a TB (1,000 GB) of disk; adds the cost of a month's documents, at the present rate.",
    type=FiniteRange(min=0),
)
def model_command(
    bytes_per_document: Interval | None,
    body: Interval | None,
    bytes_per_document_after: Interval | None,
    codecs: tuple[str, ...],
    codec_now: str,
    server: str,
    column: str,
    stored_bytes: Interval | None,
    copies: int,
    hosts: int | None,
    start: datetime.datetime | None,
    for_days: float | None,
    until: datetime.datetime | None,
    price_per_tb: float | None,
    **ranges: Any,
) -> None:
    """Calculate how long disks will last, from your own figures.

    \b
      days = hosts x disk x (1 - overhead)
             / (documents a day x bytes a document x copies)

    This formula applies if the same amount is written every day and the disks are empty at the start; --growth,
    --weekdays, --stored and --retention change these assumptions. kB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB
    and TiB are powers of 1,024. The command connects to no server.

    Give an uncertain value as LOW..HIGH or LOW..MID..HIGH, and the answer becomes a range too. Its worst end combines
    the worst ends of all values, its best end the best ones.

    Example: In Uber's article of 2016, a million trips of 20 kB are stored each day on a disk of 1 TB, meaning 1,024
    GB. The disk is full after 51 days, or after 30 days if other parts of the system use 40 % of it:

    \b
      schemaless capacity model --documents-per-day 1M --bytes-per-document 20kB \\
          --disk 1024GB --overhead 40%

    With --bytes-per-document-after 2822, the size of a trip after re-encoding, the disk lasts 217 days. The article's
    figure of 347 days does not deduct the 40 %, so compare it with the 51 days.
    """
    if (bytes_per_document is None) == (body is None):
        raise click.UsageError(
            "give either --bytes-per-document (disk space of a document) or --body (length of its body)"
        )
    check_column_name(column)
    first_day = datetime.datetime.now(datetime.UTC).date() if start is None else start.date()
    for_days = _days_to_show(first_day, for_days, until)

    def on_disk(body_bytes: Interval) -> Interval:
        return disk_bytes_range(body_bytes, column_name=column, layout=_LAYOUTS[server])

    now = Ranges(
        bytes_per_document=bytes_per_document or on_disk(body or ZERO),
        stored_bytes=stored_bytes or ZERO,
        copies=copies,
        hosts=max(copies, 1) if hosts is None else hosts,
        **ranges,
    )

    def variant(
        bytes_each: Interval, body: Interval | None = None, ratio: Interval | None = None, source: str | None = None
    ) -> _Variant:
        ranges = replace(now, bytes_per_document=bytes_each)
        parts = None if body is None else disk_parts(body.mid, column_name=column, layout=_LAYOUTS[server])
        return _Variant(ranges, outlook(ranges, first_day, for_days), body, ratio, source, parts, price_per_tb)

    variants = {"now": variant(now.bytes_per_document, body)}
    if bytes_per_document_after is not None:
        variants["after re-encoding"] = variant(bytes_per_document_after)
    for text in codecs:
        name, ratio, source = _codec(text, codec_now)
        if name in variants:
            raise click.UsageError(f"--codec {name} is given twice")
        then = body and body * ratio
        variants[name] = variant(on_disk(then) if then else now.bytes_per_document * ratio, then, ratio, source)

    result = _json(variants, first_day, for_days)
    result["inputs"] |= {"server": server, "column_name": column, "codec_now": codec_now}
    print_result(result)
    _print(variants)


def _days_to_show(first_day: datetime.date, for_days: float | None, until: datetime.datetime | None) -> float | None:
    if until is None:
        return for_days
    if for_days is not None:
        raise click.UsageError("give --for-days or --until, not both")
    days = (until.date() - first_day).days
    if days < 0:
        raise click.UsageError(f"--until {until.date()} is before the first day, {first_day}; see --start")
    return days


def _codec(text: str, before: str) -> tuple[str, Interval, str]:
    name, equals, value = text.partition("=")
    if name.strip() in ("", "now", "after re-encoding"):
        raise click.UsageError(f"--codec {text}: give the name of a codec, such as --codec msgpack+zlib=14%")
    if equals:
        return name, range_of(ratio_of)(value), "given"
    try:
        return name, Interval.of(published_ratio(name, before)), _SOURCE
    except InvalidInput as error:
        raise click.UsageError(f"{error}, such as --codec {name}=14%") from None


def _print(variants: dict[str, _Variant]) -> None:
    console = out()
    for name, variant in variants.items():
        sentence = _sentence(variant)
        if name == "now":
            console.print(sentence, style="bold")
        else:
            label = "After re-encoding" if name == "after re-encoding" else f"With {name}"
            console.print(f"{label}: {sentence[0].lower()}{sentence[1:-1]}{variant.saved(variants['now'])}.")
    console.print()
    print_table(None, ["", *variants], _rows(list(variants.values())))
    for name, variant in variants.items():
        if variant.ratio is not None and variant.source != "given":
            text = f"\n{name}: bodies are {variant.ratio.mid:.1%} of their present size, according to {variant.source}."
            console.print(text)
    if variants["now"].body_bytes is not None:
        console.print()
        for name, variant in variants.items():
            if variant.parts is not None:
                console.print(_parts_text(name, variant.parts))
    if any(variant.ratio is not None and variant.body_bytes is None for variant in variants.values()):
        console.print(
            "\nBody size ratios are only approximate for disk space, which InnoDB allocates in steps; --body takes "
            "that into account."
        )


def _parts_text(name: str, parts: DiskParts) -> str:
    """Return a sentence that breaks down the disk space of a document."""
    total = sum(parts)
    times = "" if not parts.body else f", {total / parts.body:.2f} times as much"
    return (
        f"{name}: a body of {parts.body:,.0f} bytes takes {total:,.0f} bytes of disk{times}: {parts.row:,.0f} for the "
        f"rest of its row, {parts.key:,.0f} for its index entry, {parts.unfilled:,.0f} unfilled in its pages, and "
        f"{parts.free_pages:,.0f} in pages that InnoDB keeps free."
    )


def _json(variants: dict[str, _Variant], first_day: datetime.date, for_days: float | None) -> dict[str, Any]:
    now = variants["now"]
    inputs: dict[str, Any] = {part.name: _low_mid_high(getattr(now.ranges, part.name)) for part in fields(Ranges)}
    inputs |= {"start": first_day.isoformat(), "for_days": for_days, "body_bytes": _low_mid_high(now.body_bytes)}
    inputs["price_per_tb"] = now.price_per_tb
    result: dict[str, Any] = {"inputs": inputs} | _answer(now)
    if now.parts is not None:
        result["bytes_per_document_parts"] = now.parts._asdict()
    for name, variant in variants.items():
        size = _low_mid_high(variant.ranges.bytes_per_document)
        if name == "after re-encoding":
            inputs["bytes_per_document_after"] = size
            result["after"] = _answer(variant)
        elif variant.ratio is not None:
            result.setdefault("codecs", {})[name] = {
                "ratio": _low_mid_high(variant.ratio),
                "ratio_source": variant.source,
                "body_bytes": _low_mid_high(variant.body_bytes),
                "bytes_per_document": size,
            } | _answer(variant)
    return result


def _answer(variant: _Variant) -> dict[str, Any]:
    found = variant.outlook
    days = [day.isoformat() if day else None for day in found.full_on]
    names = ("bytes_per_day", "usable_bytes", "days_until_full")
    answer: dict[str, Any] = {name: _low_mid_high(getattr(found, name)) for name in names}
    answer["full_on"] = dict(zip(("low", "mid", "high"), days, strict=True))
    if variant.price_per_month is not None:
        answer["price_per_month"] = _low_mid_high(variant.price_per_month)
    if found.at is not None:
        answer["then"] = {part.name: _low_mid_high(getattr(found.at, part.name)) for part in fields(found.at)}
    return answer


def _low_mid_high(value: Any) -> Any:
    """Return a value for JSON; infinity (never) becomes null, as JSON has no infinity."""
    if isinstance(value, Interval):
        return {name: None if math.isinf(end) else end for name, end in asdict(value).items()}
    return value


def _sentence(variant: _Variant) -> str:
    days, full_on = variant.outlook.days_until_full, variant.outlook.full_on
    plan = variant.ranges.plan()
    if math.isinf(days.low):
        return f"Never full: {_why_never(plan)}."
    least, likely, most = (
        f"{_days_text(end)}{f', on {day}' if day and end <= MOST_SHOWN_DAYS else ''}"
        for end, day in zip(days, full_on, strict=True)
    )
    if math.isinf(days.mid):
        return f"Never full at the middle values; in the worst case, full in {least}."
    certain = days.exact or days.low > MOST_SHOWN_DAYS
    return f"Full in {likely}." if certain else f"Full in {likely}; between {least}, and {most}."


def _why_never(plan: Plan) -> str:
    if plan.documents_per_day == 0:
        return "no documents are written"
    if plan.retention_days is not None:
        return f"deleting documents after {counted(plan.retention_days, 'day')} frees enough space for new ones"
    return "growth is negative, and all future documents fit on the disks"


def _days_text(days: float) -> str:
    """Format days, rounded down; from two years on, add the number of years."""
    if days > MOST_SHOWN_DAYS:
        return day_count_text(days)
    text = "less than a day" if days < 1 else counted(math.floor(days), "day")
    return text if days < 730 else f"{text} ({days / 365.25:,.1f} years)"


def _rows(variants: list[_Variant]) -> list[list[str]]:
    """Return the rows of the table, without those that are empty in every column."""
    price, at = variants[0].price_per_tb, variants[0].outlook.at
    after = "" if at is None else counted(at.days, "day")
    rows: dict[str, Callable[[_Variant], str]] = {
        "documents a day": lambda each: _range_text(each.ranges.documents_per_day, _number),
        "growth a year": lambda each: _growth_text(each.ranges),
        "body": lambda each: _range_text(each.body_bytes, _number),
        "bytes a document": lambda each: _range_text(each.ranges.bytes_per_document, _number),
        "copies": lambda each: str(each.ranges.copies),
        "written a day": lambda each: _range_text(each.outlook.bytes_per_day, bytes_text),
        "deleted after": lambda each: counted(days, "day") if (days := each.ranges.retention_days) is not None else "",
        "hosts": lambda each: f"{each.ranges.hosts:,}",
        "disk of a host": lambda each: _range_text(each.ranges.disk_bytes_per_host, bytes_text),
        "overhead": lambda each: _range_text(each.ranges.overhead_share, _percent),
        "room for cells": lambda each: _range_text(each.outlook.usable_bytes, bytes_text),
        f"a month at {number_text(price or 0)} per TB": lambda each: _range_text(each.price_per_month, price_text),
        "stored at the start": lambda each: _range_text(_unless_zero(each.ranges.stored_bytes), bytes_text),
        "days until full": lambda each: _range_text(each.outlook.days_until_full, day_count_text),
        f"hosts for {after}": lambda each: _range_text(_at(each, "hosts_needed"), "{:,}".format),
        f"headroom after {after}": lambda each: _range_text(_at(each, "headroom_share"), _whole_percent),
    }
    texts = {name: [text(each) for each in variants] for name, text in rows.items()}
    return [[name, *row] for name, row in texts.items() if any(row)]


def _at(variant: _Variant, name: str) -> Interval | None:
    return getattr(variant.outlook.at, name, None)


def _growth_text(ranges: Ranges) -> str:
    growth = _unless_zero(ranges.growth_share_per_year)
    return "" if growth is None else f"{_range_text(growth, _percent)} {ranges.growth_kind}"


def _unless_zero(values: Interval) -> Interval | None:
    return None if values == ZERO else values


def _range_text(values: Interval | None, text: Callable[[float], str]) -> str:
    if values is None:
        return ""
    ends = [text(value) for value in values]
    return ends[1] if ends[0] == ends[2] else f"{ends[1]} ({ends[0]} to {ends[2]})"


def _number(count: float) -> str:
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


def _percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def _whole_percent(share: float) -> str:
    return f"{math.floor(share * 100):,} %"
