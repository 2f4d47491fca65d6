"""Charts of a capacity report: disk usage, growth and forecast, file bytes and days by codec, and skew."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from schemaless.base.numbers import bytes_text, counted, size_units
from schemaless.planning.capacity.forecast import Band, Forecast
from schemaless.planning.capacity.report import CapacityReport, bars
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario
from schemaless.ui.pages.capacity_words import answer, days_text, level_name
from schemaless.ui.pages.charts import INK, SERIES, SOFT, Chart
from schemaless.ui.terminal.output import estimate_text

if TYPE_CHECKING:  # Part of an extra, and slow to import.
    from matplotlib.figure import Figure

_NOW, _AFTER = SERIES[0], SERIES[1]
_SIZE: Final = (440, 380)
"""Width and height of a chart in CSS pixels; two fit side by side on a screen, and one shrinks little on a phone."""

_MANY_SHARDS: Final = 64
"""Number of shards above which the chart shows a distribution instead of single shards."""

_FEWEST_PAST_DAYS: Final = 28
_BINS: Final = 32
_MOST_POINTS: Final = 120
_FEWEST_DAYS_BY_WEEK: Final = 42
_FREE: Final = "free in files"
_LONGEST_NAME: Final = 32
_LEGEND_CHARACTERS: Final = 58
_FUTURE_TIMES: Final = 1.0
"""Length of the forecast in the growth chart, as a multiple of the history."""


def charts(report: CapacityReport) -> list[Chart]:
    """Return the charts for which there are figures, in the order of the page."""
    drawn = [
        _fill(report),
        _days_by_scenario(report),
        _growth(report),
        _bytes(report),
        _days_by_codec(report),
        _skew(report),
    ]
    return [chart for chart in drawn if chart is not None]


def overview(report: CapacityReport) -> Chart | None:
    """Return up to four charts as one picture, for places that cannot show a page; None if there are no charts."""
    parts = charts(report)[:4]
    if not parts:
        return None

    def draw(figure: Figure, _: bool) -> None:
        rows, columns = (1, 1) if len(parts) == 1 else (math.ceil(len(parts) / 2), 2)
        cells: Any = figure.subfigures(rows, columns, squeeze=False)
        for part, cell in zip(parts, cells.flat, strict=False):
            cell.suptitle(part.title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)
            part.draw(cell, True)

    after = report.after
    if report.now.first is not None:
        title = f"{report.measurement.datastore}: {_full_text(report.now)}"
        if after is not None and after.first is not None:
            title += f"; re-encoded to {report.codec}: {_full_text(after)}"
    else:
        shown = "; ".join(part.title[:1].lower() + part.title[1:] for part in parts)
        title = f"{report.measurement.datastore}: {shown}; how long the disks will last is unknown"
    if report.warnings:
        title += " (with a warning)"
    height = 460 * math.ceil(len(parts) / 2) + 40
    return Chart("overview", title, "; ".join(part.title for part in parts), draw, (1160, height), None)


def _full_text(scenario: Scenario) -> str:
    """Describe in a few words when the first disk will be full."""
    days = answer(scenario).days
    if days.startswith("over "):
        return f"not full within {days.removeprefix('over ')}"
    return days if days == "no space left" else f"full in {days}"


def _fill(report: CapacityReport) -> Chart | None:
    """Chart past and future usage of the first disk to fill up, with and without re-encoding."""
    first = report.now.first
    if first is None:
        return None
    disk_forecast = next(candidate for candidate in report.disks if candidate.disk.name == first.disk)
    forecast, size = disk_forecast.forecast, disk_forecast.disk.disk_bytes
    if not isinstance(forecast, Forecast) or size is None or first.free_bytes is None:
        return None
    lines: list[tuple[str, str, float, float]] = [("stored as now", _NOW, size - first.free_bytes.mid, 1.0)]
    after = report.after
    outlook = next((candidate for candidate in after.disks if candidate.disk == first.disk), None) if after else None
    if outlook is not None and outlook.free_bytes is not None and outlook.bytes_per_day and first.bytes_per_day:
        factor = outlook.bytes_per_day / first.bytes_per_day
        lines.append((f"{report.codec}", _AFTER, size - outlook.free_bytes.mid, factor))
    until = _until([first, *([] if outlook is None else [outlook])], forecast.horizon_days)
    # Thinned to what is visible: daily bands over five years would be most of the page's bytes.
    ahead = [*range(0, until, math.ceil(until / _MOST_POINTS)), until]
    days = [forecast.first_day + datetime.timedelta(day) for day in ahead]
    sums = [forecast.cumulative[day - 1] if day else Band(0, 0, 0, 0, 0) for day in ahead]
    past = disk_forecast.usage_by_day()[-max(_FEWEST_PAST_DAYS, until) :]
    begin = past[0][0] if past else days[0]
    measured = [(at, used) for at, used in disk_forecast.usage_measured(report.measurements) if at.date() >= begin]
    levels = [(level, _NOW) for level in report.planning.now if level.disk == first.disk]
    levels += [(level, _AFTER) for level in report.planning.after if level.disk == first.disk]

    top = size * 1.12

    def draw(figure: Figure, _: bool) -> None:
        axes: Any = figure.subplots()
        axes.plot([day for day, _ in past], [used for _, used in past], color=INK, label="so far")
        if len(measured) > 1:
            x, y = [at for at, _ in measured], [used for _, used in measured]
            axes.plot(x, y, color=SOFT, linestyle="", marker="o", markersize=3, label="measured files")
        for name, colour, used, factor in lines:
            # Cut instead of clipped: accessibility audits report clipped shapes as covering the text above.
            parts = [[min(top, used + factor * band[place]) for band in sums] for place in range(5)]
            axes.fill_between(days, parts[0], parts[4], color=colour, alpha=0.16, linewidth=0)
            axes.fill_between(days, parts[1], parts[3], color=colour, alpha=0.26, linewidth=0)
            shown = next((place + 1 for place, value in enumerate(parts[2]) if value == top), len(days))
            axes.plot(days[:shown], parts[2][:shown], color=colour, label=name)
        axes.axhline(size, color=SERIES[4], linewidth=1.5, linestyle="--", label=f"disk size, {bytes_text(size)}")
        for share in report.planning.options.thresholds:
            axes.axhline(share * size, color=SERIES[2], linewidth=1.2, linestyle=":")
            where = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "bottom"}
            axes.annotate(f"{share * 100:.4g} %", (0.01, share * size), (0, 2), color=SOFT, fontsize=10, **where)
        for level, colour in levels:
            on = level.on or {}
            mid, low, high = (on.get(name) for name in ("mid", "low_80", "high_80"))
            if mid is not None and low is not None and mid <= days[-1] and level.days and level.days.high_95 > 0:
                height = level.share * size
                width = [low, min(high or days[-1], days[-1])]
                axes.plot(width, [height, height], color=colour, linewidth=4, alpha=0.55)
                axes.plot([mid], [height], color=colour, marker="D", markersize=5)
        axes.axvline(days[0], color=SOFT, linewidth=1)
        axes.annotate("today", (days[0], top), (3, -3), textcoords="offset points", va="top", color=SOFT, fontsize=10)
        axes.set_ylim(0, top)
        axes.set_xlim(begin, days[-1])
        axes.grid(axis="y")
        _bytes_axis(axes.yaxis, "used")
        _date_axis(axes.xaxis)
        _legend(figure)

    texts = "; ".join(
        f"{name}: {days_text(outlook)}"
        for name, outlook in (("stored as now", first), (f"re-encoded to {report.codec}", outlook))
        if outlook is not None
    )
    title = f"Disk usage of {first.disk}" if len(report.disks) > 1 else "Disk usage"
    description = (
        f"Bytes used of {bytes_text(size)}: the past {counted(len(past), 'day')}, and {counted(until, 'day')} ahead "
        f"with 80 and 95 percent bands. Time until full, {texts}."
    )
    marks = [
        f"{level_name(level)} on {level.on['mid']}"
        for level in report.planning.first()
        if level.on and level.on["mid"] and level.days and level.days.high_95 > 0
    ]
    if marks:
        description += f" Stored as now: {'; '.join(marks)}. Horizontal bars show the 80 percent interval of a date."
    return Chart("fill", title, description, draw, _SIZE, None)


def _until(outlooks: Sequence[DiskOutlook], horizon: int) -> int:
    """Return the number of days to draw: until all lines are clearly above the disk size, but at most the horizon."""
    ends = [min(outlook.days.high_80, horizon) for outlook in outlooks if outlook.days is not None]
    return max(7, min(horizon, math.ceil(1.15 * max(ends, default=horizon))))


def _growth(report: CapacityReport) -> Chart | None:
    """Chart measured and forecast daily growth, averaged by week for long histories."""
    total = report.total
    if total is None or len(total.history) < 2:
        return None
    history = total.history
    forecast = total.forecast if isinstance(total.forecast, Forecast) else None
    ahead = forecast.daily[: max(28, math.ceil(_FUTURE_TIMES * len(history)))] if forecast else ()
    step = 7 if len(history) >= _FEWEST_DAYS_BY_WEEK else 1

    def draw(figure: Figure, _: bool) -> None:
        axes: Any = figure.subplots()
        measured = _averages(history, step)
        x = [day for day, _ in measured]
        values = [value for _, value in measured]
        label = "measured" if step == 1 else "measured, by week"
        axes.plot(x, values, color=INK, linewidth=1.2, label=label, marker="o", markersize=2)
        top = max(values)
        if forecast and ahead:
            starts = range(0, len(ahead) - step + 1, step)
            days = [forecast.first_day + datetime.timedelta(day) for day in starts]
            bands = [forecast.between(day, day + step) for day in starts]
            parts = [[band[place] / step for band in bands] for place in range(5)]
            axes.fill_between(days, parts[0], parts[4], color=_NOW, alpha=0.16, linewidth=0, label="95 %")
            axes.fill_between(days, parts[1], parts[3], color=_NOW, alpha=0.3, linewidth=0, label="80 %")
            axes.plot(days, parts[2], color=_NOW, linewidth=1.4, label="forecast")
            # A very wide band is cut, so that the line remains readable.
            top = max(top, max(parts[2]), min(max(parts[4]), 3 * max(top, max(parts[2]))))
        axes.set_ylim(0, top * 1.15 or 1)
        axes.grid(axis="y")
        axes.margins(x=0.01)
        _bytes_axis(axes.yaxis, "a day" if step == 1 else "a day, weekly average")
        _date_axis(axes.xaxis)
        _legend(figure)

    recent = [value for _, value in history[-28:]]
    description = (
        f"{counted(len(history), 'day')} measured, {bytes_text(sum(recent) / len(recent))} a day now"
        + (
            f"; forecast in {counted(len(ahead), 'day')}: {bytes_text(ahead[-1].mid)} a day"
            if ahead
            else "; no forecast"
        )
        + "."
    )
    return Chart("growth", "Daily growth of disk usage", description, draw, _SIZE, None)


def _averages(history: Sequence[tuple[datetime.date, float]], step: int) -> list[tuple[datetime.date, float]]:
    """Average complete groups of ``step`` days, ending with the last day."""
    begins = range(len(history) % step, len(history), step)
    return [(history[begin][0], sum(value for _, value in history[begin : begin + step]) / step) for begin in begins]


def _bytes(report: CapacityReport) -> Chart | None:
    """Chart the file bytes of each column, now and in each codec."""
    in_codecs = bars(report)
    if not in_codecs:
        return None
    now = in_codecs[0].columns
    names = sorted(now, key=lambda name: -now[name])
    most = len(SERIES) - 1 if len(names) < len(SERIES) else len(SERIES) - 2  # The last colour is for free space.
    shown, others = names[:most], names[most:]

    def draw(figure: Figure, _: bool) -> None:
        axes: Any = figure.subplots()
        rows = range(len(in_codecs))
        left = [0.0] * len(in_codecs)
        parts = [(name, [bar.columns[name] for bar in in_codecs]) for name in shown]
        if others:
            parts.append(("others", [sum(bar.columns[name] for name in others) for bar in in_codecs]))
        parts.append((_FREE, [bar.rest for bar in in_codecs]))
        for place, (name, sizes) in enumerate(parts):
            colour = SERIES[-1] if name == _FREE else SERIES[place]
            axes.barh(rows, sizes, left=left, color=colour, label=name, height=0.66)
            left = [before + size for before, size in zip(left, sizes, strict=True)]
        for row, bar in enumerate(in_codecs):
            total = bar.total
            if not total.exact:
                axes.plot([total.low, total.high], [row, row], color=INK, linewidth=1.2)
            text = estimate_text(total, bytes_text).replace(" (", "\n(")
            _beside(axes, text, max(total.mid, total.high), row)
        axes.set_yticks(rows, [bar.name for bar in in_codecs])
        axes.invert_yaxis()
        axes.set_xlim(0, max(bar.total.high for bar in in_codecs) * 1.6)
        axes.grid(axis="x")
        _bytes_axis(axes.xaxis, "files", 4)
        axes.tick_params(axis="y", labelcolor=INK)
        _legend(figure)

    description = f"Files of {counted(len(names), 'column')}: now {estimate_text(in_codecs[0].total, bytes_text)}"
    if len(in_codecs) > 1:
        description += f"; smallest with {in_codecs[1].name}: {estimate_text(in_codecs[1].total, bytes_text)}"
    return Chart("bytes", "File size by column, now and in each codec", f"{description}.", draw, _SIZE, None)


def _days_by_codec(report: CapacityReport) -> Chart | None:
    rows = [each for each in report.scenarios if each.name in ("now", each.change.trial)]
    known = [(each.name, each.first) for each in rows if each.first is not None]
    if len(known) < 2:
        return None
    known = [known[0], *sorted(known[1:], key=lambda row: -_ending(row[1].days, row[1].horizon_days)[2])]
    return _days_chart("days", "Days until full, now and in each codec", known, report.codec)


def _days_by_scenario(report: CapacityReport) -> Chart | None:
    """Chart the days until full in each of the user's scenarios, in the order given."""
    if not report.compares:
        return None
    known = [(each.name, each.first) for each in report.comparisons if each.first is not None]
    return _days_chart("scenarios", "Days until full in each scenario", known, None) if known else None


def _days_chart(name: str, title: str, known: Sequence[tuple[str, DiskOutlook]], marked: str | None) -> Chart:
    """Chart days until full as bars with their intervals.

    Args:
        name: Name of the chart.
        title: Title of the chart.
        known: Name and outlook of each bar; the first one is the present.
        marked: Name of the bar to draw in the colour of re-encoding; None to highlight no bar.
    """
    horizon = max(first.horizon_days or 0 for _, first in known)
    ends = [_ending(first.days, horizon) for _, first in known]
    most = max(end[3] for end in ends)

    def draw(figure: Figure, _: bool) -> None:
        axes: Any = figure.subplots()
        for row, ((bar, first), end) in enumerate(zip(known, ends, strict=True)):
            beyond = first.days is not None and math.isinf(first.days.mid)
            colour = INK if bar == "now" else _AFTER if bar == marked else _NOW
            axes.barh(
                row, end[2], color=colour, height=0.6, alpha=0.35 if beyond else 0.85, hatch="//" if beyond else None
            )
            if not beyond:
                axes.plot([end[0], end[4]], [row, row], color=SOFT, linewidth=1.5)
                axes.plot([end[1], end[3]], [row, row], color=SOFT, linewidth=5, solid_capstyle="butt")
            text = f"over {horizon:,}" if beyond else f"{math.floor(end[2]):,}"
            _beside(axes, text, end[2] if beyond else end[4], row)
        axes.set_yticks(range(len(known)), [_short(bar) for bar, _ in known], color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, most * 1.3)
        axes.set_xlabel("days until full; 80 % (thick), 95 %")
        axes.grid(axis="x")

    texts = "; ".join(f"{bar} {days_text(first)}" for bar, first in known)
    description = f"Days until the first disk is full: {texts}."
    return Chart(name, title, description, draw, _SIZE, None)


def _ending(days: Band | None, horizon: int | None) -> list[float]:
    """Return the band capped at the horizon."""
    return [min(end, horizon or 0) for end in days or ()]


def _skew(report: CapacityReport) -> Chart | None:
    """Chart shard sizes, as a histogram if there are many."""
    skew, sizes = report.skew, report.shard_sizes
    if not sizes or not any(fill.now_bytes for fill in skew.clusters):
        return None
    names = [fill.cluster for fill in skew.clusters]
    colours = {name: SERIES[place % len(SERIES)] for place, name in enumerate(names)}
    many = len(sizes) > _MANY_SHARDS

    def draw(figure: Figure, _: bool) -> None:
        axes: Any = figure.subplots()
        if many:
            stacked = names if len(names) < len(SERIES) else [""]
            parts = [[shard.size_bytes for shard in sizes if shard.cluster == name or not name] for name in stacked]
            label = [name or "all clusters" for name in stacked]
            axes.hist(parts, bins=_BINS, stacked=True, color=SERIES[: len(parts)], label=label)
            axes.set_xlim(0, None)
            axes.set_ylabel("shards")
            _bytes_axis(axes.xaxis, "a shard's file" if not skew.shards else "a shard's allocated bytes", 5)
            axes.locator_params(axis="y", nbins=6, integer=True)
            mean = sum(shard.size_bytes for shard in sizes) / len(sizes)
            axes.axvline(mean, color=SOFT, linewidth=1.2, linestyle="--", label="average")
        else:
            # Numbers of shards repeat between datastores, whose shards then stand in a row.
            places = {(shard.cluster, shard.shard): shard.shard for shard in sizes}
            if len(set(places.values())) < len(places):
                places = {key: place for place, key in enumerate(places)}
            for name in names:
                in_cluster = [shard for shard in sizes if shard.cluster == name]
                numbers = [places[shard.cluster, shard.shard] for shard in in_cluster]
                axes.bar(numbers, [shard.size_bytes for shard in in_cluster], color=colours[name], label=name)
            mean = sum(shard.size_bytes for shard in sizes) / skew.shard_count
            axes.axhline(mean, color=SOFT, linewidth=1.2, linestyle="--", label="average")
            axes.set_xlabel("shard")
            axes.locator_params(axis="x", integer=True)
            _bytes_axis(axes.yaxis, "allocated" if skew.shards else "file")
        axes.grid(axis="y")
        _legend(figure)

    ratio = f"; the largest shard is {skew.shard_ratio:.2f} times the average" if skew.shard_ratio is not None else ""
    description = (
        f"{counted(len(sizes), 'shard')} in {counted(len(skew.clusters), 'cluster')}; "
        f"the fullest cluster has {skew.cluster_ratio:.2f} times its fair share{ratio}; moves that would balance the "
        f"clusters: {len(skew.moves)}."
    )
    if many:
        title = f"Distribution of {counted(len(sizes), 'shard')} by size"
    else:
        title = "Allocated bytes of each shard" if skew.shards else "File size of each shard"
    return Chart("skew", title, description, draw, _SIZE, None)


def _legend(figure: Any) -> None:
    handles, names = figure.axes[0].get_legend_handles_labels()
    short = [_short(name) for name in names]
    columns = max(1, min(len(short), _LEGEND_CHARACTERS // (max(map(len, short), default=1) + 6)))
    figure.legend(handles, short, loc="outside lower center", ncols=columns)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 7]}...{name[-4:]}"


def _beside(axes: Any, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", color=INK, fontsize=10)


def _bytes_axis(axis: Any, label: str, most_ticks: int = 6) -> None:
    """Set ticks at round numbers of kB, MB, ..."""
    high = max(axis.get_view_interval())
    unit, name = next(((size, name) for size, name in reversed(size_units()) if high >= size), size_units()[0])
    least = high / unit / most_ticks
    step = next(
        factor * 10.0**exponent
        for exponent in range(math.floor(math.log10(least)), 99)
        for factor in (1, 2, 5)
        if factor * 10.0**exponent >= least
    )
    ticks = [step * number for number in range(math.floor(high / unit / step) + 1)]
    axis.set_ticks([tick * unit for tick in ticks], [f"{tick:g}" for tick in ticks])
    axis.set_label_text(f"{label}, {name}")


def _date_axis(axis: Any) -> None:
    dates = import_module("matplotlib.dates")
    locator = dates.AutoDateLocator(minticks=3, maxticks=6)
    locator.intervald[dates.MONTHLY] = [1, 2, 3, 4, 6, 12]  # Keeps the number of ticks low for two to three years.
    axis.set_major_locator(locator)
    axis.set_major_formatter(dates.ConciseDateFormatter(locator))
