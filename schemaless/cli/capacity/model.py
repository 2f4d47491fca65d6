"""``schemaless capacity model``: how long disks last, from figures that are given."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import click

from schemaless.capacity import ratios
from schemaless.capacity.disk_bytes import disk_bytes_range
from schemaless.capacity.model import Plan
from schemaless.capacity.outlook import Outlook, Ranges, outlook
from schemaless.cli.quantities import count_of, growth_of, range_of, ratio_of, share_of, size_of, weekdays_of
from schemaless.errors import InvalidInput
from schemaless.keys import check_column_name
from schemaless.numbers import ZERO, Interval
from schemaless.survey.page_model import MARIADB, MYSQL
from schemaless.terminal.output import json_option, out, print_json, print_table

_LAYOUTS: Final = {"mysql": MYSQL, "mariadb": MARIADB}


@dataclass(frozen=True, slots=True)
class _Variant:
    """A plan in one codec, and how its bytes came about."""

    ranges: Ranges
    seen: Outlook
    body_bytes: Interval | None = None
    ratio: Interval | None = None
    source: str | None = None


def _range(flag: str, read: Callable[[str], float], metavar: str, help_text: str, **more: Any) -> Callable[[Any], Any]:
    """Return an option that takes a value, or a range of them."""
    name = more.pop("name", flag[2:].replace("-", "_"))
    return click.option(flag, name, type=range_of(read), metavar=metavar, help=help_text, **more)


_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("model")
@_range(
    "--documents-per-day",
    count_of,
    "NUMBER",
    "The new documents a day at the start, such as 1000000 or 1M.",
    required=True,
)
@_range(
    "--bytes-per-document",
    size_of,
    "SIZE",
    "The disk space of one document, with its row and index, such as 20KB. If you know bodies only, give --body.",
)
@_range(
    "--body",
    size_of,
    "SIZE",
    "The length of a stored body, in place of --bytes-per-document; space for pages, rows and index is added.",
)
@_range(
    "--bytes-per-document-after",
    size_of,
    "SIZE",
    "The disk space of one document after re-encoding; the command then shows both side by side.",
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="NAME[=RATIO]",
    help="Also show this codec, with bodies of RATIO times their size now, such as msgpack+zstd=12%..14%..17%. "
    "Without RATIO, json+zlib and msgpack+zlib have what Uber measured in 2016. May be repeated.",
)
@click.option(
    "--codec-now",
    default="legacy",
    metavar="NAME",
    help="The codec of bodies now, for a --codec without RATIO; legacy is JSON text.",
)
@click.option(
    "--server",
    type=click.Choice(list(_LAYOUTS)),
    default="mysql",
    help="The kind of server, whose pages --body is put into.",
)
@click.option("--column", default="BASE", help="The column's name, which each row of --body also stores.")
@_range(
    "--disk",
    size_of,
    "SIZE",
    "The disk of each host, such as 1TB, 512GiB or 3.5TB..4TB.",
    name="disk_bytes_per_host",
    required=True,
)
@_range(
    "--overhead",
    share_of,
    "SHARE",
    "The part of the disk that is not for cells, such as 40% or 0.4.",
    name="overhead_share",
    default="0%",
)
@_range(
    "--stored",
    size_of,
    "SIZE",
    "The space that cells take on all hosts together at the start, with all copies.  [default: nothing]",
    name="stored_bytes",
)
@click.option("--copies", default=1, help="The copies of each cell, replicas included.")
@click.option("--hosts", type=int, help="The number of hosts, replicas included.  [default: as many as copies]")
@_range(
    "--growth",
    growth_of,
    "SHARE",
    "By how much the documents a day grow in 365 days, such as 50%, 20%..50%..80% or -10%.",
    name="growth_share_per_year",
    default="0%",
)
@click.option(
    "--growth-kind",
    type=click.Choice(["linear", "compound"]),
    default="compound",
    help="linear adds the same number each day; compound multiplies by the same factor.",
)
@click.option(
    "--weekdays",
    type=weekdays_of,
    metavar="MON,...,SUN",
    help="Weights of Monday to Sunday, such as 1,1,1,1,1.3,0.8,0.6. Only their proportions count.",
)
@click.option(
    "--retention",
    "retention_days",
    type=float,
    metavar="DAYS",
    help="The age at which cells are deleted.  [default: never]",
)
@click.option("--start", type=_DAY, metavar="YYYY-MM-DD", help="The first day.  [default: today, UTC]")
@click.option(
    "--for-days", type=float, help="Also say how many hosts are enough for so many days, and how much is free then."
)
@click.option("--until", type=_DAY, metavar="YYYY-MM-DD", help="The same as --for-days, until the morning of this day.")
@json_option
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
    as_json: bool,
    **ranges: Any,
) -> None:
    """Calculate the days until the disks are full.

    \b
      days = hosts x disk x (1 - overhead) / (documents a day x bytes a document x copies)

    The formula holds if every day brings the same amount and the disks are empty at the start; --growth, --weekdays,
    --stored and --retention change that. KB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB and TiB are powers of
    1,024.

    Give a value that is not known exactly as LOW..HIGH or LOW..MID..HIGH; the answer is then a range, too. Its worst
    end has all values at their bad end at once, and its best end all at their good one.

    Uber's article of 2016 stores a million trips of 20 KB a day on a disk of 1 TB, by which it means 1,024 GB. The disk
    is full after 51 days, and after 30 if 40 % of it goes to other parts of the system. This calculates the 30 days:

    \b
      schemaless capacity model --documents-per-day 1M --bytes-per-document 20KB \\
          --disk 1024GB --overhead 40%

    Add --bytes-per-document-after 2822, the size of a trip after re-encoding, and the disk lasts 217 days. The article
    says 347, since its figure leaves out the 40 %: compare it with the 51 days.
    """
    if (bytes_per_document is None) == (body is None):
        raise click.UsageError(
            "give either --bytes-per-document (the disk space of one) or --body (the length of its body)"
        )
    if for_days is not None and until is not None:
        raise click.UsageError("give --for-days or --until, not both")
    check_column_name(column)
    first_day = datetime.datetime.now(datetime.UTC).date() if start is None else start.date()
    if until is not None:
        for_days = (until.date() - first_day).days
        if for_days < 0:
            raise click.UsageError(f"--until {until.date()} is before the first day, {first_day}")

    def on_disk(body_bytes: Interval) -> Interval:
        return disk_bytes_range(body_bytes, column_name=column, layout=_LAYOUTS[server])

    now = Ranges(
        bytes_per_document=bytes_per_document or on_disk(body or ZERO),
        stored_bytes=stored_bytes or ZERO,
        copies=copies,
        hosts=max(copies, 1) if hosts is None else hosts,
        **ranges,
    )

    def variant(bytes_each: Interval, *origin: Any) -> _Variant:
        ranges = replace(now, bytes_per_document=bytes_each)
        return _Variant(ranges, outlook(ranges, first_day, for_days), *origin)

    variants = {"now": variant(now.bytes_per_document, body)}
    if bytes_per_document_after is not None:
        variants["after re-encoding"] = variant(bytes_per_document_after)
    for text in codecs:
        name, ratio, source = _codec(text, codec_now)
        if name in variants:
            raise click.UsageError(f"--codec {name} was given twice")
        if body is not None:
            variants[name] = variant(on_disk(body * ratio), body * ratio, ratio, source)
        else:
            variants[name] = variant(now.bytes_per_document * ratio, None, ratio, source)

    if as_json:
        result = _json(variants, first_day, for_days)
        result["inputs"] |= {"server": server, "column_name": column, "codec_now": codec_now}
        print_json(result)
    else:
        _print(variants)


def _codec(text: str, before: str) -> tuple[str, Interval, str]:
    name, given, value = text.partition("=")
    if name.strip() in ("", "now", "after re-encoding"):
        raise click.UsageError(f"--codec {text}: write the codec's name, as --codec msgpack+zlib=14%")
    if given:
        return name, range_of(ratio_of)(value), "given"
    try:
        return name, Interval.of(ratios.ratio(name, before)), ratios.SOURCE
    except InvalidInput as error:
        raise click.UsageError(f"{error}, as --codec {name}=14%") from None


def _print(variants: dict[str, _Variant]) -> None:
    console = out()
    for name, variant in variants.items():
        sentence = _sentence(variant)
        if name == "now":
            console.print(f"[bold]{sentence}[/]")
        else:
            what = "After re-encoding" if name == "after re-encoding" else f"As {name}"
            console.print(f"{what}: {sentence[0].lower()}{sentence[1:]}", markup=False)
    console.print()
    print_table(None, ["", *variants], _rows(list(variants.values())))
    for name, variant in variants.items():
        if variant.ratio is not None and variant.source != "given":
            console.print(f"\n{name}: {variant.ratio.mid:.1%} of the bodies now, after {variant.source}.", markup=False)
    if any(variant.ratio is not None and variant.body_bytes is None for variant in variants.values()):
        console.print("\nOf bytes on disk, ratios of bodies are rough: InnoDB allocates in steps. --body counts them.")


def _json(variants: dict[str, _Variant], first_day: datetime.date, for_days: float | None) -> dict[str, Any]:
    now = variants["now"]
    given = {field.name: getattr(now.ranges, field.name) for field in fields(Ranges)}
    inputs: dict[str, Any] = {
        name: _low_mid_high(value) if isinstance(value, Interval) else value for name, value in given.items()
    }
    inputs |= {"start": first_day.isoformat(), "for_days": for_days}
    inputs["body_bytes"] = None if now.body_bytes is None else _low_mid_high(now.body_bytes)
    result: dict[str, Any] = {"inputs": inputs} | _answer(now)
    for name, variant in variants.items():
        if name == "after re-encoding":
            inputs["bytes_per_document_after"] = _low_mid_high(variant.ranges.bytes_per_document)
            result["after"] = _answer(variant)
        elif variant.ratio is not None:
            result.setdefault("codecs", {})[name] = {
                "ratio": _low_mid_high(variant.ratio),
                "ratio_source": variant.source,
                "body_bytes": None if variant.body_bytes is None else _low_mid_high(variant.body_bytes),
                "bytes_per_document": _low_mid_high(variant.ranges.bytes_per_document),
            } | _answer(variant)
    return result


def _answer(variant: _Variant) -> dict[str, Any]:
    seen = variant.seen
    names = ("low", "mid", "high")
    days = [day.isoformat() if day else None for day in seen.full_on]
    answer: dict[str, Any] = {
        "bytes_per_day": _low_mid_high(seen.bytes_per_day),
        "usable_bytes": _low_mid_high(seen.usable_bytes),
        "days_until_full": _low_mid_high(seen.days_until_full),
        "full_on": dict(zip(names, days, strict=True)),
    }
    if seen.at is not None:
        answer["then"] = {
            "days": seen.at.days,
            "stored_bytes": _low_mid_high(seen.at.stored_bytes),
            "headroom_share": _low_mid_high(seen.at.headroom_share),
            "hosts_needed": _low_mid_high(seen.at.hosts_needed),
        }
    return answer


def _low_mid_high(values: Interval) -> dict[str, float | None]:
    """Return an interval for JSON, which has no infinity: null, for never."""
    return {name: None if math.isinf(value) else value for name, value in asdict(values).items()}


def _sentence(variant: _Variant) -> str:
    days, full_on = variant.seen.days_until_full, variant.seen.full_on
    plan = variant.ranges.plan()
    if math.isinf(days.low):
        return f"Never full: {_why_never(plan)}."
    if days.exact:
        when = "" if full_on[1] is None else f", on {full_on[1]}"
        return f"Full in {_days_text(days.mid)}{when}."
    least, most = (_days_text(end) if math.isfinite(end) else "never" for end in (days.low, days.high))
    dates = " to ".join("never" if day is None else str(day) for day in (full_on[0], full_on[2]))
    if math.isinf(days.mid):
        return f"Never full, but at worst in {least}, on {full_on[0]}."
    return f"Full in {_days_text(days.mid)}, on {full_on[1]}; between {least} and {most}, {dates}."


def _why_never(plan: Plan) -> str:
    if plan.documents_per_day == 0:
        return "no documents are written"
    if plan.retention_days is not None:
        return f"what is deleted after {plan.retention_days:g} days makes room for what comes"
    return "what comes gets less and less, and adds up to less than the room"


def _days_text(days: float) -> str:
    """Return whole days, since the last one is not a full one; with years where there are two or more."""
    whole = math.floor(days)
    text = "less than a day" if whole == 0 else "1 day" if whole == 1 else f"{whole:,} days"
    return text if days < 730 else f"{text} ({days / 365.25:,.1f} years)"


def _rows(variants: list[_Variant]) -> list[list[str]]:
    now = variants[0].ranges

    def row(name: str, value: Callable[[_Variant], Interval], text: Callable[[float], str]) -> list[str]:
        return [name, *(_range_text(value(variant), text) for variant in variants)]

    def same(name: str, text: str) -> list[str]:
        return [name, *(text for _ in variants)]

    rows = [same("documents a day", _range_text(now.documents_per_day, _number))]
    if now.growth_share_per_year != ZERO:
        growth = _range_text(now.growth_share_per_year, _percent)
        rows.append(same("growth in a year", f"{growth} {now.growth_kind}"))
    if any(variant.body_bytes for variant in variants):
        rows.append(
            ["body", *(_range_text(variant.body_bytes, _number) if variant.body_bytes else "" for variant in variants)]
        )
    rows += [
        row("bytes a document", lambda variant: variant.ranges.bytes_per_document, _number),
        same("copies", str(now.copies)),
        row("written a day", lambda variant: variant.seen.bytes_per_day, _decimal_text),
    ]
    if now.retention_days is not None:
        rows.append(same("deleted after", f"{now.retention_days:g} days"))
    rows += [
        same("hosts", f"{now.hosts:,}"),
        same("disk of a host", _range_text(now.disk_bytes_per_host, _decimal_text)),
        same("overhead", _range_text(now.overhead_share, _percent)),
        row("room for cells", lambda variant: variant.seen.usable_bytes, _decimal_text),
    ]
    if now.stored_bytes != ZERO:
        rows.append(same("stored at first", _range_text(now.stored_bytes, _decimal_text)))
    rows.append(row("days until full", lambda variant: variant.seen.days_until_full, _table_days))
    ats = [variant.seen.at for variant in variants if variant.seen.at is not None]
    if ats:
        after = f"{ats[0].days:,g} days"
        rows += [
            [f"hosts for {after}", *(_range_text(at.hosts_needed, lambda count: f"{count:,}") for at in ats)],
            [f"headroom after {after}", *(_range_text(at.headroom_share, _whole_percent) for at in ats)],
        ]
    return rows


def _range_text(values: Interval, text: Callable[[float], str]) -> str:
    ends = [text(value) for value in values]
    return ends[1] if ends[0] == ends[2] else f"{ends[1]} ({ends[0]} to {ends[2]})"


def _number(count: float) -> str:
    return f"{count:,}" if count == int(count) else f"{count:,.1f}"


def _percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def _whole_percent(share: float) -> str:
    return f"{math.floor(share * 100):,} %"


def _table_days(days: float) -> str:
    return "never" if math.isinf(days) else f"{days:,.1f}"


def _decimal_text(count: float) -> str:
    """Return bytes in powers of 1,000, as disks are sold."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:,.4g} {unit}"
        size /= 1000
    return f"{size:,.4g} PB" if size < 1000 else f"{size:,.0f} PB"
