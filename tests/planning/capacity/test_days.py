"""The search for the ends of days among added_ids, with few probes."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from schemaless.planning.capacity.day_ends import Probe, in_order, inverted, search
from schemaless.planning.sampling.sampling import Span

pytestmark = pytest.mark.once

DAY_S = 86_400.0
DAYS = 60


def rows_of(pattern: str, seed: int, a_day: int = 200) -> list[tuple[int, float]]:
    """Return added_ids and times of the rows of a shard, in order."""
    drawn = random.Random(seed)
    rows: list[tuple[int, float]] = []
    added_id = drawn.randrange(1, 10**6)
    for day in range(DAYS):
        count = 0 if pattern == "idle" and day % 7 in (3, 4) else drawn.randrange(1, 2 * a_day)
        if pattern == "bursts":
            times = [day * DAY_S + drawn.choice((0.0, 50_000.0)) + drawn.random() for _ in range(count)]
        else:
            times = [day * DAY_S + drawn.random() * DAY_S for _ in range(count)]
        for at in sorted(times):
            added_id += int(drawn.expovariate(1 / 30)) + 1 if pattern == "gaps" else 1
            rows.append((added_id, at))
        if pattern == "holes" and day % 10 == 5:
            added_id += 10**7
    return rows


def last_before(rows: list[tuple[int, float]], day: int) -> int:
    """Return the last added_id before a day, of rows whose times are in order."""
    number = bisect_left(rows, day * DAY_S, key=lambda row: row[1])
    return rows[number - 1][0] if number else rows[0][0] - 1


def searched(rows: list[tuple[int, float]], tolerated_ids: float):
    """Search for the days of rows; return the ends and the number of probes."""
    ids = [added_id for added_id, _ in rows]
    probed = []

    def ask(places):
        probed.extend(places)
        found = [(place, bisect_left(ids, place)) for place in places]
        return [Probe(place, *rows[position]) for place, position in found if position < len(rows)]

    midnights = [day * DAY_S for day in range(DAYS + 1)]
    ends, _ = search(ask, Span(0, ids[0], ids[-1]), midnights, tolerated_ids)
    return ends, len(probed)


@pytest.mark.parametrize("pattern", ["even", "bursts", "gaps", "idle", "holes"])
@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_contain_the_last_id_of_each_day(pattern, seed):
    """Without tolerance, the bounds meet at it."""
    rows = rows_of(pattern, seed)
    near, _ = searched(rows, 10)
    exact, _ = searched(rows, 0)
    for day, (end, known) in enumerate(zip(near, exact, strict=True)):
        last = last_before(rows, day)

        assert end.low <= last <= end.high, (seed, day)
        assert end.low <= end.mid <= end.high, (seed, day)
        assert known.low == known.high == last, (seed, day)


@pytest.mark.parametrize("pattern", ["even", "gaps", "holes"])
def test_the_number_of_probes_does_not_grow_with_the_number_of_rows(pattern):
    """The search stops as soon as the ends are precise enough, relative to the size of a day."""
    few, many = (
        searched(rows, 0.02 * (rows[-1][0] - rows[0][0]) / DAYS)[1]
        for rows in (rows_of(pattern, 1, a_day) for a_day in (30, 3_000))
    )

    assert many < 10 * DAYS
    assert many < 2 * few


@pytest.mark.parametrize("seed", range(4))
def test_a_few_rows_out_of_order_do_not_move_a_day(seed):
    """Clocks that jump briefly move the end of a day by a row or two at most."""
    rows = rows_of("even", seed)
    drawn = random.Random(seed)
    spoilt = [
        (added_id, drawn.choice((0.0, 1e9)) if number % 50 == 7 else at) for number, (added_id, at) in enumerate(rows)
    ]
    ends, _ = searched(spoilt, 0)
    for day, end in enumerate(ends[1:-1], start=1):
        last = last_before(rows, day)

        assert abs(end.mid - last) <= 3, (seed, day)


def test_in_order_drops_as_few_points_as_possible():
    """One row from the future does not invalidate the rows after it."""
    times = [0, 10, 10**9, 20, 30, 5, 40, 50]
    points = [Probe(number, number, at) for number, at in enumerate(times)]

    assert [point.at for point in in_order(points)] == [0, 10, 20, 30, 40, 50]
    assert in_order([]) == []


def test_inverted_counts_imports_and_jumps_but_not_jitter():
    """Transactions of a minute are tolerated; a block of old rows after new ones is not."""
    drawn = random.Random(5)
    jitter = [Probe(number, number, number * 10 + drawn.uniform(-60, 60)) for number in range(1_000)]
    old = [Probe(1_000 + number, 1_000 + number, -1e6 + number) for number in range(50)]

    assert inverted(jitter) == 0
    assert inverted([*jitter, *old]) == 50
    assert inverted([Probe(number, number, drawn.random() * 1e7) for number in range(1_000)]) > 900
