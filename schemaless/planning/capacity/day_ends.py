"""Search for the added_id at which each day of a shard begins, by probing single rows. Pure functions."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from schemaless.planning.sampling.sampling import Span

_TOLERATED_S: Final = 600.0
"""How much older than its predecessor a cell may be, in seconds: transactions take time, and clocks are adjusted."""

_ROUNDS: Final = 12

_INTERPOLATED_ROUNDS: Final = 4
"""Number of rounds that interpolate; later rounds bisect."""

PLACES: Final = 64
"""Maximum number of places probed per statement."""


class Probe(NamedTuple):
    """The first row at or after ``place``, and when it was stored, in seconds since 1970.

    During a search, ``added_id`` is also a place: a number that leaves out the large holes (``DenseIds``).
    """

    place: int
    added_id: int
    at: float


Ask = Callable[[Sequence[int]], list[Probe]]


@dataclass(frozen=True, slots=True)
class End:
    """Bounds and best estimate of the last added_id before a day."""

    low: int
    mid: float
    high: int

    @property
    def variance(self) -> float:
        """Variance of the position, which is equally likely anywhere between the bounds."""
        return (self.high - self.low) ** 2 / 12


def in_order(points: Iterable[Probe]) -> list[Probe]:
    """Return the longest chain of points, by added_id, in which no point is older than its predecessor."""
    ordered = sorted(points, key=lambda point: (point.added_id, point.place))
    tails: list[float] = []
    last: list[int] = []
    before: list[int | None] = []
    for number, point in enumerate(ordered):
        position = bisect_right(tails, point.at)
        before.append(last[position - 1] if position else None)
        if position == len(tails):
            tails.append(point.at)
            last.append(number)
        else:
            tails[position], last[position] = point.at, number
    chain: list[Probe] = []
    step = last[-1] if last else None
    while step is not None:
        chain.append(ordered[step])
        step = before[step]
    return chain[::-1]


def inverted(points: Sequence[Probe]) -> int:
    """Count the points that are out of order by more than clocks and transactions explain.

    >>> inverted([Probe(1, 1, 0.0), Probe(2, 2, 9e9), Probe(3, 3, 500.0), Probe(4, 4, 400.0), Probe(5, 5, 600.0)])
    1
    """
    chain = in_order(points)
    ids, times = [probe.added_id for probe in chain], [probe.at for probe in chain]
    count = 0
    for point in points:
        after = bisect_right(ids, point.added_id)
        too_old = after > 0 and point.at < times[after - 1] - _TOLERATED_S
        before = bisect_left(ids, point.added_id)
        count += too_old or (before < len(ids) and point.at > times[before] + _TOLERATED_S)
    return count


def search(ask: Ask, span: Span, midnights: Sequence[float], tolerated_ids: float) -> tuple[list[End], list[Probe]]:
    """Find the last added_id before each midnight.

    Interpolation search with one probe on each side of the estimate: cells arrive fairly evenly over a day, so each
    round narrows the bracket to a small part of its width.

    Args:
        ask: Probes rows by place.
        span: The places of the shard.
        midnights: In increasing order, in seconds since 1970.
        tolerated_ids: Width of the bracket at which the search for an end stops.

    Returns:
        One end for each midnight, and every row that was probed.
    """
    ids = span.high - span.low
    count = min(len(midnights), ids)
    probes = ask(sorted({span.low, span.high, *(span.low + ids * step // (count + 1) for step in range(1, count + 1))}))
    for turn in range(_ROUNDS):
        ends = _bracketed(in_order(probes), span, midnights)
        places: set[int] = set()
        for end in ends:
            width = end.high - end.low
            if width <= tolerated_ids:
                continue
            # Interpolation converges slowly if cells arrive in bursts; splitting into thirds always converges.
            interpolate = turn < _INTERPOLATED_ROUNDS
            guess, reach = (end.mid, width * 0.08) if interpolate else ((end.low + end.high) / 2, width / 6)
            for place in (math.floor(guess - max(1.0, reach)), math.ceil(guess + max(1.0, reach))):
                places.add(min(max(place, end.low + 1), end.high))
        places -= {probe.place for probe in probes}
        if not places:
            break
        probes += ask(sorted(places))
    return _bracketed(in_order(probes), span, midnights), probes


def _bracketed(chain: Sequence[Probe], span: Span, midnights: Sequence[float]) -> list[End]:
    times = [probe.at for probe in chain]
    ends = []
    for midnight in midnights:
        position = bisect_left(times, midnight)
        before = chain[position - 1] if position else None
        after = chain[position] if position < len(chain) else None
        low = span.low - 1 if before is None else before.added_id
        high = max(low, span.high if after is None else after.place - 1)
        share = 0.5
        if before is not None and after is not None and after.at > before.at:
            share = (midnight - before.at) / (after.at - before.at)
        ends.append(End(low, low + share * (high - low), high))
    return ends


class DenseIds:
    """The added_ids of a shard renumbered from 0 without their large holes: the places that a search works on."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans)
        self.shard: int = self._spans[0].shard
        self._starts = [0, *accumulate(span.high - span.low + 1 for span in self._spans)]
        self.count: int = self._starts[-1]

    def id_at(self, place: int) -> int:
        """Return the added_id at ``place``."""
        position = bisect_right(self._starts, place, hi=len(self._spans)) - 1
        return self._spans[position].low + place - self._starts[position]

    def place_of(self, added_id: int) -> int:
        """Return the place of ``added_id``, or of the closest one before it."""
        position = max(0, bisect_right(self._spans, added_id, key=lambda span: span.low) - 1)
        span = self._spans[position]
        return self._starts[position] + max(0, min(added_id, span.high) - span.low)

    def between(self, after: int, up_to: int) -> list[Span]:
        """Return the added_ids at the places after ``after``, up to and including ``up_to``."""
        spans = []
        for start, span in zip(self._starts, self._spans, strict=False):
            low, high = max(span.low, span.low + after + 1 - start), min(span.high, span.low + up_to - start)
            if low <= high:
                spans.append(Span(self.shard, low, high))
        return spans
