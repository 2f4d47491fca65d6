"""Where days end among the added_ids of a shard, searched for by looking at single rows; pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from schemaless.survey.sampling import Span

_TOLERATED_S: Final = 600.0
"""A cell may be older by so much than one before it: transactions last, and clocks are set."""

_ROUNDS: Final = 12

_GUESSES: Final = 4
"""So many of the rounds guess by interpolation, the others halve."""

PLACES: Final = 64
"""A statement asks for so many places, at most."""


class Probe(NamedTuple):
    """A row that was looked at: the first one from ``place`` on, and when it was stored, in seconds since 1970.

    Of a search, ``added_id`` counts places too: added_ids without large holes.
    """

    place: int
    added_id: int
    at: float


Ask = Callable[[Sequence[int]], list[Probe]]


@dataclass(frozen=True, slots=True)
class End:
    """Where a day begins in a shard: the last added_id before it, from ``low`` to ``high``, and most likely ``mid``."""

    low: int
    mid: float
    high: int

    @property
    def variance(self) -> float:
        """Of its place, as it is equally likely everywhere in between."""
        return (self.high - self.low) ** 2 / 12


def in_order(points: Iterable[Probe]) -> list[Probe]:
    """Return the most points, in the order of added_id, of which none is older than the one before."""
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
    """Return how many points are out of order by more than clocks and transactions explain.

    >>> inverted([Probe(1, 1, 0.0), Probe(2, 2, 9e9), Probe(3, 3, 500.0), Probe(4, 4, 400.0), Probe(5, 5, 600.0)])
    1
    """
    chain = in_order(points)
    ids, times = [probe.added_id for probe in chain], [probe.at for probe in chain]
    count = 0
    for point in points:
        behind = bisect_right(ids, point.added_id)
        late = behind > 0 and point.at < times[behind - 1] - _TOLERATED_S
        early = bisect_left(ids, point.added_id)
        count += late or (early < len(ids) and point.at > times[early] + _TOLERATED_S)
    return count


def search(ask: Ask, span: Span, midnights: Sequence[float], tolerated_ids: float) -> tuple[list[End], list[Probe]]:
    """Find the last added_id before each midnight.

    By interpolation, one place on each side of where it should be: as a day's cells come more or less evenly, each
    round leaves a small part of what was left.

    Args:
        ask: looks at rows.
        span: of the shard.
        midnights: rising, in seconds since 1970.
        tolerated_ids: how far the two may lie apart that are known to be before and behind.

    Returns:
        One end for each midnight, and every row that was looked at.
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
            # Where cells come in bursts, thirds come to an end, too.
            guess, reach = (end.mid, width * 0.08) if turn < _GUESSES else ((end.low + end.high) / 2, width / 6)
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
        behind = chain[position] if position < len(chain) else None
        low = span.low - 1 if before is None else before.added_id
        high = max(low, span.high if behind is None else behind.place - 1)
        share = 0.5
        if before is not None and behind is not None and behind.at > before.at:
            share = (midnight - before.at) / (behind.at - before.at)
        ends.append(End(low, low + share * (high - low), high))
    return ends


class ConnectionSlots:
    """A shard's added_ids without the large holes among them, numbered from 0: what is searched through."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans)
        self.shard = self._spans[0].shard
        self._starts = [0, *accumulate(span.high - span.low + 1 for span in self._spans)]
        self.count = self._starts[-1]

    def id_at(self, place: int) -> int:
        """Return the added_id at a place."""
        position = bisect_right(self._starts, place, hi=len(self._spans)) - 1
        return self._spans[position].low + place - self._starts[position]

    def place_of(self, added_id: int) -> int:
        """Return the place of an added_id, or of the one before it."""
        position = max(0, bisect_right(self._spans, added_id, key=lambda span: span.low) - 1)
        span = self._spans[position]
        return self._starts[position] + max(0, min(added_id, span.high) - span.low)

    def between(self, after: int, up_to: int) -> list[Span]:
        """Return the added_ids at the places behind ``after`` and up to ``up_to``."""
        spans = []
        for start, span in zip(self._starts, self._spans, strict=False):
            low, high = max(span.low, span.low + after + 1 - start), min(span.high, span.low + up_to - start)
            if low <= high:
                spans.append(Span(self.shard, low, high))
        return spans
