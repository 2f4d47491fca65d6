"""Decides which codec is worth a rewrite; pure functions without access to a server.

Every tool that recommends a codec calls ``choose``, so their recommendations differ only in the codecs they tried.

A rewrite is expensive: each cell is read, re-encoded, verified and written to tables, binary logs and replicas; files
grow during the rewrite, and a rebuild follows. Therefore a codec must save at least ``least_gain`` of the pages. A
codec must also beat the default by that margin to replace it, since a separate setting has to be maintained forever.
The measure is the number of pages, because pages fill the disks. A codec that takes more than ``most_cpu``
times as long as the default is never recommended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from schemaless.base.numbers import Interval

LEAST_GAIN: Final = 0.10
"""Minimum share of pages that a rewrite must save, at the lower end of the interval."""

MOST_CPU: Final = 1.0
"""Maximum time for encoding and decoding, as a multiple of the default codec's."""

_TOLERANCE: Final = 0.01
"""Relative difference up to which sizes count as equal."""


@dataclass(frozen=True, slots=True)
class Option:
    """A codec that was tried on some cells.

    Attributes:
        name: description, unique among the options.
        share: pages that the cells fill after a migration, relative to now.
        body_share: size of their bodies after a migration, relative to now.
        cpu_s: time for encoding and decoding, in seconds; only ratios matter.
        left: number of cells that the codec cannot encode.
    """

    name: str
    share: Interval
    body_share: float
    cpu_s: float
    left: int

    @property
    def gain(self) -> Interval:
        """Share of the pages that it saves."""
        return Interval(1 - self.share.high, 1 - self.share.mid, 1 - self.share.low)


T = TypeVar("T", bound=Option)


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """Result of ``choose``.

    Attributes:
        chosen: the recommended option; None if no rewrite is worthwhile.
        best: the option with the fewest pages within the time limit, recommended or not.
        edge: the Pareto front: options that no other beats in both size and time, fastest first.
        knee: the option on the front after which more time saves little more space.
        default: the default codec, if it was tried.
        least_gain: the requested minimum gain.
        most_cpu: the requested maximum time.
    """

    chosen: T | None
    best: T
    edge: tuple[T, ...]
    knee: T
    default: T | None
    least_gain: float
    most_cpu: float

    def cpu_times(self, option: Option) -> float | None:
        """Return an option's time as a multiple of the default codec's; None if the default was not tried."""
        if self.default is None:
            return None
        return option.cpu_s / max(1e-12, self.default.cpu_s)

    @property
    def reason(self) -> str:
        """Reason for the decision, as a sentence without a full stop."""
        best = self.chosen or self.best
        saves = f"{best.name} saves {share_text(best.gain)} of the pages"
        if self.chosen is not None:
            return saves + self._time(best)
        if best.gain.mid <= 0:
            return f"no codec that was tried takes fewer pages; a rewrite must save at least {self.least_gain:.0%}"
        known = "" if best.gain.exact else " at the lower end of the interval"
        return f"{saves}, but a rewrite must save at least {self.least_gain:.0%}{known}"

    @property
    def knee_text(self) -> str:
        """Description of the knee and of both ends of the front, as a sentence without a full stop."""
        position = self.edge.index(self.knee)
        text = f"the best trade-off of size and time is {self._description(self.knee)}"
        if position + 1 < len(self.edge):
            text += f"; the smallest is {self._description(self.edge[-1])}"
        if position:
            text += f"; the fastest is {self._description(self.edge[0])}"
        return text

    def _description(self, option: Option) -> str:
        return f"{option.name}, {share_text(option.share)} of the present pages{self._time(option)}"

    def _time(self, option: Option) -> str:
        times = self.cpu_times(option)
        return "" if times is None or option is self.default else f", at {times:.2g} times the default's time"


def choose(
    options: Sequence[T], default: str, *, least_gain: float = LEAST_GAIN, most_cpu: float = MOST_CPU
) -> Choice[T] | None:
    """Choose an option; return None if there are none.

    Args:
        options: codecs that were tried on the same cells.
        default: name of the default codec's option.
        least_gain: minimum share of pages that a rewrite must save, 0 to 1.
        most_cpu: maximum time for encoding and decoding, as a multiple of the default codec's.
    """
    if not options:
        return None
    own = next((option for option in options if option.name == default), None)
    # Cells that no codec can encode, such as damaged ones, do not disqualify any.
    fewest_left = min(option.left for option in options)
    complete = [option for option in options if option.left == fewest_left]
    fast = [option for option in complete if own is None or option is own or option.cpu_s <= most_cpu * own.cpu_s]
    best = _smallest(fast or complete)
    edge = _edge(complete)

    def worth(option: T) -> bool:
        return option.gain.low >= least_gain

    chosen = best if worth(best) else None
    if own is not None and own in complete and worth(own) and best.share.mid > own.share.mid * (1 - least_gain):
        chosen = own
    return Choice(chosen, best, tuple(edge), _knee(edge), own, least_gain, most_cpu)


def _smallest(options: Sequence[T]) -> T:
    """Return the fastest of the options with nearly the fewest pages and, among these, nearly the fewest body bytes."""
    fewest = min(option.share.mid for option in options)
    close = [option for option in options if option.share.mid <= fewest * (1 + _TOLERANCE)]
    shortest = min(option.body_share for option in close)
    return min(
        (option for option in close if option.body_share <= shortest * (1 + _TOLERANCE)),
        key=lambda option: option.cpu_s,
    )


def _edge(options: Sequence[T]) -> list[T]:
    """Return the Pareto front of size and time, fastest first."""
    edge: list[T] = []
    for option in sorted(options, key=lambda option: (option.cpu_s, option.share.mid, option.body_share)):
        if not edge or option.share.mid < edge[-1].share.mid:
            edge.append(option)
    return edge


def _knee(edge: Sequence[T]) -> T:
    """Return the option farthest below the line between both ends of the front, on normalized logarithmic axes.

    On these axes, ratios count: saving a tenth is worth as much at 90 % as at 10 %. If there are only two options, the
    smaller one is returned.

    Source: Satopaa and others, Finding a "Kneedle" in a Haystack (2011).
    """
    points = [(math.log(max(option.cpu_s, 1e-12)), math.log(max(option.share.mid, 1e-12))) for option in edge]
    (first_x, first_y), (last_x, last_y) = points[0], points[-1]
    if first_x == last_x or first_y == last_y:
        return edge[-1]

    def below(position: int) -> float:
        x, y = points[position]
        return (first_y - y) / (first_y - last_y) - (x - first_x) / (last_x - first_x)

    return edge[max(range(len(edge)), key=lambda position: (round(below(position), 9), position))]


def share_text(share: Interval, *, digits: int = 1) -> str:
    """Format a share as a percentage, with its interval unless it is exact."""
    low, mid, high = (f"{value:.{digits}%}" for value in share)
    return mid if share.exact else f"{mid} ({low} to {high})"
