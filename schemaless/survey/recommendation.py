"""Which codec is worth it. Pure: candidates go in, tried by whoever has cells, and one decision comes out.

Every tool that recommends a codec asks ``choose``, so that no two of them differ but in what they tried.

Who rewrites cells pays for it: each is read, re-encoded, verified and written again, to tables, binary logs and
replicas, files grow meanwhile, and a rebuild follows. So what saves less than ``least_gain`` of the pages is left as it
is. By the same measure another codec has to be smaller than the default one to be taken in its place, since a setting
of one's own has to be kept for ever. Pages count, which disks are filled with; and nothing is recommended that takes
more time than ``most_cpu`` times the default one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.numbers import Interval

__all__ = ["LEAST_GAIN", "MOST_CPU", "Choice", "Option", "choose", "share_text"]

LEAST_GAIN: Final = 0.10
"""A rewrite has to save so much of the pages, at the bad end of its interval."""

MOST_CPU: Final = 1.0
"""Encoding and decoding may take so many times what the default codec takes."""

_CLOSE: Final = 0.01
"""Pages or bodies that differ by no more than this are as good as each other."""


@dataclass(frozen=True, slots=True)
class Option:
    """A codec, as tried on some cells.

    Attributes:
        name: in words; no two options have the same.
        share: the pages that the cells fill in it after a migration, over those that they fill now.
        body_share: the same of their bodies.
        cpu_s: encoding and decoding, in seconds: only proportions count.
        left: how many of the cells cannot be had in it.
    """

    name: str
    share: Interval
    body_share: float
    cpu_s: float
    left: int = 0

    @property
    def gain(self) -> Interval:
        """The part of the pages that it saves."""
        return Interval(1 - self.share.high, 1 - self.share.mid, 1 - self.share.low)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided.

    Attributes:
        chosen: what to re-encode to; None where nothing is worth it.
        best: what comes nearest to that where nothing is: the fewest pages within the bound of time.
        edge: the options to which no other is better in bytes and time both, the quickest first.
        knee: the one of them where bytes and time both are few: before it time buys the most, behind it the least.
        default: the default codec, where it was tried.
        least_gain: that was asked for.
        most_cpu: likewise.
    """

    chosen: Option | None
    best: Option
    edge: tuple[Option, ...]
    knee: Option
    default: Option | None
    least_gain: float
    most_cpu: float

    def cpu_times(self, option: Option) -> float | None:
        """Return how many times the default codec's time an option takes; None where that was not tried."""
        if self.default is None:
            return None
        return option.cpu_s / max(1e-12, self.default.cpu_s)

    @property
    def reason(self) -> str:
        """Why, in a sentence without its full stop."""
        best = self.chosen or self.best
        saves = f"{best.name} saves {share_text(best.gain)} of the pages"
        if self.chosen is not None:
            return saves + self._time(best)
        if best.gain.mid <= 0:
            return f"nothing that was tried takes fewer pages; a rewrite is advised from {self.least_gain:.0%} on"
        known = "" if best.gain.exact else " at the bad end of the interval"
        return f"{saves}, and a rewrite is advised from {self.least_gain:.0%} on{known}"

    @property
    def knee_text(self) -> str:
        """Where the knee is, and what lies before and behind it, in a sentence without its full stop."""
        place = self.edge.index(self.knee)
        text = f"the knee of bytes against time is {self._described(self.knee)}"
        if place + 1 < len(self.edge):
            text += f"; the fewest pages has {self._described(self.edge[-1])}"
        if place:
            text += f"; the quickest is {self._described(self.edge[0])}"
        return text

    def _described(self, option: Option) -> str:
        return f"{option.name}, {share_text(option.share)} of the pages now{self._time(option)}"

    def _time(self, option: Option) -> str:
        times = self.cpu_times(option)
        return "" if times is None or option is self.default else f", at {times:.2g} times the time of the default"


def choose(
    options: Sequence[Option], default: str, *, least_gain: float = LEAST_GAIN, most_cpu: float = MOST_CPU
) -> Choice | None:
    """Decide; None where there is no option.

    Args:
        options: what was tried, all on the same cells.
        default: the name of the store's own codec among them.
        least_gain: what a rewrite has to save of the pages, 0 to 1.
        most_cpu: how many times the default codec's time encoding and decoding may take.
    """
    if not options:
        return None
    own = next((option for option in options if option.name == default), None)
    # Cells that no codec takes, such as damaged ones, decide nothing.
    fewest_left = min(option.left for option in options)
    whole = [option for option in options if option.left == fewest_left]
    quick = [option for option in whole if own is None or option is own or option.cpu_s <= most_cpu * own.cpu_s]
    best = _smallest(quick or whole)
    edge = _edge(whole)

    def worth(option: Option) -> bool:
        return option.gain.low >= least_gain

    chosen = best if worth(best) else None
    if own is not None and own in whole and worth(own) and best.share.mid > own.share.mid * (1 - least_gain):
        chosen = own
    return Choice(chosen, best, tuple(edge), _knee(edge), own, least_gain, most_cpu)


def _smallest(options: Sequence[Option]) -> Option:
    """Return the quickest of those that take next to the fewest pages, and of these next to the fewest body bytes."""
    fewest = min(option.share.mid for option in options)
    close = [option for option in options if option.share.mid <= fewest * (1 + _CLOSE)]
    shortest = min(option.body_share for option in close)
    return min(
        (option for option in close if option.body_share <= shortest * (1 + _CLOSE)), key=lambda option: option.cpu_s
    )


def _edge(options: Sequence[Option]) -> list[Option]:
    """Return those to which no other is better in both, the quickest first."""
    edge: list[Option] = []
    for option in sorted(options, key=lambda option: (option.cpu_s, option.share.mid, option.body_share)):
        if not edge or option.share.mid < edge[-1].share.mid:
            edge.append(option)
    return edge


def _knee(edge: Sequence[Option]) -> Option:
    """Return the option farthest below the line between the two ends, both axes logarithmic and as long as the other.

    Proportions count: a tenth of the bytes is as much at 90 % as at 10 %. Of two, the smaller one is the knee.

    Source: Satopaa and others, Finding a "Kneedle" in a Haystack (2011).
    """
    points = [(math.log(max(option.cpu_s, 1e-12)), math.log(max(option.share.mid, 1e-12))) for option in edge]
    (first_x, first_y), (last_x, last_y) = points[0], points[-1]
    if first_x == last_x or first_y == last_y:
        return edge[-1]

    def below(place: int) -> float:
        x, y = points[place]
        return (first_y - y) / (first_y - last_y) - (x - first_x) / (last_x - first_x)

    return edge[max(range(len(edge)), key=lambda place: (round(below(place), 9), place))]


def share_text(share: Interval, *, digits: int = 1) -> str:
    """Return a share as percent, with its interval unless it is exact."""
    low, mid, high = (f"{value:.{digits}%}" for value in share)
    return mid if share.exact else f"{mid} ({low} to {high})"
