"""Charts of a codec benchmark: bars of size and of time, and a scatter plot of both with the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from schemaless.bench.article import ARTICLE
from schemaless.bench.results import STAGES, Combination, Result
from schemaless.ui.pages.charts import INK, LINE, SERIES, SOFT, Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COMPRESSORS: Final = {
    "none": SERIES[7],
    "snappy": SERIES[6],
    "zlib": SERIES[0],
    "bz2": SERIES[3],
    "zstd": SERIES[1],
    "lz4": SERIES[5],
}
_STAGE_COLOURS: Final = (SERIES[0], SERIES[3], SERIES[1], SERIES[5])
_OTHER: Final = SERIES[2]
_FRONT: Final = SERIES[4]
_ROW_PX: Final = 17
_AROUND_PX: Final = 90
_PALE: Final = 0.4
_BARS_END_AT: Final = 2.5
_TICKS: Final = tuple(digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5))


def charts_of(result: Result) -> dict[str, Chart]:
    """Return the three charts by file name."""
    complete = [combination for combination in result.combinations if combination.time_factor is not None]
    by_size = sorted(complete, key=attrgetter("size_bytes"))
    by_time = sorted(complete, key=attrgetter("time"))
    height = _AROUND_PX + _ROW_PX * len(complete)
    name = result.corpus.name
    smallest, fastest = by_size[0], by_time[0]
    front = [combination.name for combination in by_size if combination.on_front]
    return {
        "size": Chart(
            "size",
            f"Size of {name}, relative to JSON + zlib",
            f"Bars for {len(complete)} combinations, smallest first: from {smallest.name} with "
            f"{smallest.size_factor:.2f} times the bytes of JSON + zlib to {by_size[-1].name} with "
            f"{by_size[-1].size_factor:.2f} times.",
            _size(by_size),
            (960, height),
            (380, height),
        ),
        "time": Chart(
            "time",
            f"CPU time of {name}, relative to JSON + zlib",
            f"Bars for {len(complete)} combinations, fastest first, each stacked from encoding, compressing, "
            f"decompressing and decoding: from {fastest.name} with {fastest.time:.2f} times the time of JSON + zlib "
            f"to {by_time[-1].name} with {by_time[-1].time:.2f} times.",
            _times(by_time, result),
            (960, height),
            (380, height),
        ),
        "front": Chart(
            "front",
            f"Size against time of {name}, with the Pareto front",
            "Each combination as a point, time to the right and size upwards, both relative to JSON + zlib. "
            f"On the Pareto front, smallest first: {', '.join(front)}.",
            _scatter(complete),
            (960, 620),
            (380, 460),
        ),
    }


def _colour(combination: Combination) -> str:
    return _COMPRESSORS.get(combination.compressor, _OTHER)


def _alpha(combination: Combination) -> float:
    return _PALE if combination.fidelity.mark else 1.0


def _rows(figure: Figure, shown: Sequence[Combination], narrow: bool) -> Any:
    """Return axes with one row per combination, the first on top."""
    axes = figure.subplots()
    axes.set_yticks(range(len(shown)), [combination.label for combination in shown], fontsize=9.5 if narrow else 11)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    for text, combination in zip(axes.get_yticklabels(), shown, strict=True):
        text.set_color(_FRONT if combination.on_front else INK)
    axes.grid(axis="x")
    axes.axvline(1, color=SOFT, linewidth=1)
    axes.spines["left"].set_visible(False)
    return axes


def _legend(figure: Figure, handles: list[Any], narrow: bool) -> None:
    figure.legend(
        handles=handles, loc="outside upper left", ncols=3 if narrow else 9, handlelength=1, columnspacing=1.2
    )


def _patches(pairs: Sequence[tuple[str, str]]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=colour, label=label) for label, colour in pairs]


def _article_key() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], marker="D", linestyle="", markersize=5, color=INK, markerfacecolor="none", label="article")


def _compressors_of(shown: Sequence[Combination]) -> list[tuple[str, str]]:
    names = dict.fromkeys(combination.compressor for combination in shown)
    known = [(name, colour) for name, colour in _COMPRESSORS.items() if name in names]
    return known + [(name, _OTHER) for name in names if name not in _COMPRESSORS]


def _size(shown: Sequence[Combination]) -> Callable[[Figure, bool], None]:
    def draw(figure: Figure, narrow: bool) -> None:
        axes = _rows(figure, shown, narrow)
        limit = _limit([combination.size_factor for combination in shown])
        for row, combination in enumerate(shown):
            axes.barh(
                row,
                min(combination.size_factor, limit),
                height=0.72,
                color=_colour(combination),
                alpha=_alpha(combination),
            )
            _value(axes, row, combination.size_factor, combination.size_factor, limit)
            if combination.article:
                _diamond(axes, row, combination.article.size_factor, limit)
        axes.set_xlim(0, limit * (1.16 if narrow else 1.09))
        axes.set_xlabel("bytes / those of JSON + zlib")
        _legend(figure, [*_patches(_compressors_of(shown)), _article_key()], narrow)

    return draw


def _times(shown: Sequence[Combination], result: Result) -> Callable[[Figure, bool], None]:
    def draw(figure: Figure, narrow: bool) -> None:
        axes = _rows(figure, shown, narrow)
        limit = _limit([combination.time for combination in shown])
        for row, combination in enumerate(shown):
            # The time factor is a median over rounds; the stages divide it in proportion to their own medians.
            left, whole = 0.0, sum(spread.mid for spread in combination.stages.values()) or 1.0
            for stage, colour in zip(STAGES, _STAGE_COLOURS, strict=True):
                width = min(combination.time * combination.stages[stage].mid / whole, limit - left)
                axes.barh(row, width, left=left, height=0.72, color=colour, alpha=_alpha(combination))
                left += width
            assert combination.time_factor is not None
            low, high = min(combination.time_factor.low, limit), min(combination.time_factor.high, limit)
            axes.plot([low, high], [row, row], color=INK, linewidth=1.2)
            _value(axes, row, combination.time, max(left, high), limit)
            if combination.article:
                _diamond(axes, row, combination.article.speed_factor, limit)
        axes.set_xlim(0, limit * (1.16 if narrow else 1.09))
        spread = "" if narrow else f"; lines: spread of {result.rounds} rounds"
        axes.set_xlabel(f"CPU time / that of JSON + zlib{spread}")
        _legend(figure, [*_patches(list(zip(STAGES, _STAGE_COLOURS, strict=True))), _article_key()], narrow)

    return draw


def _limit(values: Sequence[float]) -> float:
    """Return the length at which bars are cut, so that a few outliers do not squeeze the others."""
    return min(max(values), _BARS_END_AT)


def _value(axes: Any, row: int, value: float, end: float, limit: float) -> None:
    """Write a bar's value at its end, with a mark if the bar is cut."""
    cut = value > limit
    text = f" {value:.2f}{' >' if cut else ''}"
    axes.text(min(end, limit), row, text, va="center", color=INK if cut else SOFT, fontsize=9.5, clip_on=False)


def _diamond(axes: Any, row: int, value: float, limit: float) -> None:
    if value <= limit:
        axes.plot(value, row, "D", markersize=5, color=INK, markerfacecolor="none")


def _scatter(shown: Sequence[Combination]) -> Callable[[Figure, bool], None]:
    def draw(figure: Figure, narrow: bool) -> None:
        from matplotlib.ticker import FixedLocator, NullLocator

        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(which="major")
        axes.axvline(1, color=LINE, linewidth=1.5)
        axes.axhline(1, color=LINE, linewidth=1.5)
        for combination in shown:
            axes.scatter(
                combination.time,
                combination.size_factor,
                s=36,
                color=_colour(combination),
                alpha=_alpha(combination),
                linewidths=0,
                zorder=3,
            )
        for figures in ARTICLE.values():
            axes.plot(
                figures.speed_factor,
                figures.size_factor,
                "D",
                markersize=5,
                color=SOFT,
                markerfacecolor="none",
                zorder=2,
            )
        front = sorted((combination for combination in shown if combination.on_front), key=attrgetter("time"))
        axes.plot(
            [combination.time for combination in front],
            [combination.size_factor for combination in front],
            color=_FRONT,
            linewidth=1.6,
            zorder=4,
        )
        axes.margins(x=0.14, y=0.08)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(_TICKS))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        _name(axes, front, narrow)
        axes.set_xlabel("CPU time / that of JSON + zlib")
        axes.set_ylabel("bytes / those of JSON + zlib")
        _legend(figure, [*_patches(_compressors_of(shown)), _article_key()], narrow)

    return draw


def _name(axes: Any, front: Sequence[Combination], narrow: bool) -> None:
    """Label points without overlaps; a label that does not fit anywhere is omitted."""
    size = 9 if narrow else 10.5
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    width, height = axes.figure.get_size_inches() * 72 * 0.9
    occupied: list[tuple[float, float, float, float]] = []
    for combination in sorted(front, key=attrgetter("size_bytes")):
        across = log(combination.time / left) / log(right / left) * width
        up = log(combination.size_factor / bottom) / log(top / bottom) * height
        long = len(combination.name) * size * 0.6
        for right_of, away in ((False, -6), (False, -20), (True, 14), (False, -34), (True, 28), (False, 14)):
            start = across + 6 if right_of else across - 6 - long
            box = (start, up + away - size, start + long, up + away)
            if start < -30 or start + long > width or any(_overlap(box, other) for other in occupied):
                continue
            occupied.append(box)
            axes.annotate(
                combination.name,
                (combination.time, combination.size_factor),
                xytext=(6 if right_of else -6, away),
                textcoords="offset points",
                ha="left" if right_of else "right",
                va="top",
                fontsize=size,
                color=_FRONT,
                zorder=5,
            )
            break


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
