"""How often a forecast's bands contain what followed: seeded histories whose last part is held back.

A third of the histories grow by the same amount each day, a third by the same factor, and in a third the level wanders,
more often up than down. All have a weekly shape and noise. Each is forecast without its last part, and the days of that
part and their sum are compared with the bands. The value after +- is one standard error; errors within one history are
correlated, so it is taken over histories and not over days. A ! marks a figure more than two standard errors from what
it should be.

Then series of different kinds, twelve synthetic and twelve real, of a year or a year and a half: every 30 days from day
120 on, a forecast is made from the previous year and compared with the next 30 days. A ! marks an 80 % band that
contained fewer than 70 % of the days, or more than 90 %.

    python benchmarks/capacity_forecast.py [--only histories|kinds] [--histories 100] [--days 180] [--held 45]
"""

from __future__ import annotations

import argparse
import datetime
import math
import random
import statistics
import time

from _daily_series import Days, made, public

from schemaless.planning.capacity.forecast import Forecast, forecast

MONDAY = datetime.date(2026, 1, 5)
KINDS = ("linear", "compound", "wandering")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--days", type=int, default=180)
    parser.add_argument("--held", type=int, default=45)
    parser.add_argument("--only", choices=("histories", "kinds"))
    arguments = parser.parse_args()
    forecast([(MONDAY + datetime.timedelta(day), 1.0) for day in range(30)])  # imports the library
    if arguments.only != "kinds":
        histories(arguments)
    if arguments.only != "histories":
        kinds()


def histories(arguments: argparse.Namespace) -> None:
    """Print how often bands contained the days of similar histories."""
    begun = time.process_time()
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for seed in range(arguments.histories):
        kind = KINDS[seed % len(KINDS)]
        found[kind].append(held_against(history(seed, kind, arguments.days), arguments.held))
    seconds = (time.process_time() - begun) / arguments.histories
    print(
        f"{arguments.histories} histories of {arguments.days} days, the last {arguments.held} held back; "
        f"{seconds:.2f} s of CPU each, back-test included\n"
    )
    columns = ("days in 80 %", "days in 95 %", "sum in 80 %", "sum in 95 %")
    print("| histories | n | " + " | ".join(columns) + " | sum off by |")
    print("|---|--:|" + "--:|" * (len(columns) + 1))
    for name, rows in [*found.items(), ("all", [row for each in found.values() for row in each])]:
        cells = [share(values, right) for values, right in zip(zip(*rows, strict=True), (0.8, 0.95) * 2, strict=False)]
        off = [row[4] for row in rows]
        cells.append(f"{statistics.fmean(off):+.1%}, typically {statistics.median(map(abs, off)):.1%}")
        print(f"| {name} | {len(rows)} | " + " | ".join(cells) + " |")


FIRST_ORIGIN, EVERY, MOST_FITTED = 120, 30, 365
LEAST, MOST = 0.7, 0.9


def kinds() -> None:
    """Print how often bands contained the days of series of different kinds."""
    begun = time.process_time()
    print(f"\nfrom day {FIRST_ORIGIN} on, every {EVERY} days a forecast of {EVERY}, from {MOST_FITTED} at most\n")
    print("| series | | days | in 80 % | in 95 % | sums in 80 % | sum typically off by |")
    print("|---|---|--:|--:|--:|--:|--:|")
    held = days = inside = 0
    rows = [("made", *each) for each in made().items()] + [("real", *each) for each in public().items()]
    for kind, name, series in rows:
        found = rolled(series)
        within = [sum(each[place] for each in found) for place in range(3)]
        share = within[1] / within[0]
        good = LEAST <= share <= MOST
        sums = [each[3] for each in found]
        off = statistics.median(abs(each[4]) for each in found)
        print(
            f"| {name} | {kind} | {within[0]} | {share:.0%}{'' if good else ' !'} | {within[2] / within[0]:.0%} | "
            f"{sum(sums)} of {len(sums)} | {off:.0%} |"
        )
        held, days, inside = held + good, days + within[0], inside + within[1]
    print(
        f"\nthe 80 % band held between {LEAST:.0%} and {MOST:.0%} of the days of {held} series of {len(rows)}, and "
        f"{inside / days:.1%} of all {days:,} days; {time.process_time() - begun:.0f} s of CPU"
    )


def rolled(series: Days) -> list[tuple[int, int, int, bool, float]]:
    """Return for each forecast: days, days within 80 and 95 %, whether the sum was within 80 %, and its error.

    Days that were not measured count neither as days nor in the sums.
    """
    found = []
    for origin in range(FIRST_ORIGIN, len(series) - EVERY + 1, EVERY):
        came = series[origin : origin + EVERY]
        horizon = (came[-1][0] - series[origin - 1][0]).days
        seen = forecast(series[max(0, origin - MOST_FITTED) : origin], horizon_days=horizon)
        assert isinstance(seen, Forecast)
        bands = [(value, seen.daily[(day - seen.first_day).days]) for day, value in came]
        total, band = sum(value for value, _ in bands), seen.between(0, horizon)
        if len(came) < horizon:  # a gap: scale the measured days up by the forecast's share for them
            total *= sum(each.mid for each in seen.daily) / sum(each.mid for _, each in bands)
        found.append(
            (
                len(came),
                sum(each.low_80 <= value <= each.high_80 for value, each in bands),
                sum(each.low_95 <= value <= each.high_95 for value, each in bands),
                band.low_80 <= total <= band.high_80,
                band.mid / total - 1,
            )
        )
    return found


def history(seed: int, kind: str, days: int) -> list[tuple[datetime.date, float]]:
    """Return bytes per day, about 1 GB at first."""
    draw = random.Random(seed)
    growth, noise = draw.uniform(-0.2, 1.5), draw.uniform(0.03, 0.2)
    week = [draw.uniform(0.5, 1.3) for _ in range(7)]
    level, found = 1.0, []
    for day in range(days):
        if kind == "linear":
            level = 1 + growth * day / 365
        elif kind == "compound":
            level = (1 + growth) ** (day / 365)
        else:
            level *= math.exp(draw.gauss(0.001, 0.02))
        value = 1e9 * level * week[day % 7] * 7 / sum(week) * math.exp(draw.gauss(0, noise))
        found.append((MONDAY + datetime.timedelta(day), value))
    return found


def held_against(days: list[tuple[datetime.date, float]], held: int) -> list[float]:
    """Return the shares of days within each band, whether the sum was within each, and the sum's error."""
    seen = forecast(days[:-held], horizon_days=held)
    assert isinstance(seen, Forecast)
    actual = [value for _, value in days[-held:]]
    total, band = sum(actual), seen.cumulative[-1]
    pairs = list(zip(actual, seen.daily, strict=True))
    return [
        sum(day.low_80 <= value <= day.high_80 for value, day in pairs) / held,
        sum(day.low_95 <= value <= day.high_95 for value, day in pairs) / held,
        float(band.low_80 <= total <= band.high_80),
        float(band.low_95 <= total <= band.high_95),
        band.mid / total - 1,
    ]


def share(values: tuple[float, ...], right: float) -> str:
    """Return a mean and its standard error; of yes-or-no values, at least that of ``right``."""
    mean = statistics.fmean(values)
    error = max(statistics.stdev(values), math.sqrt(right * (1 - right)) if set(values) <= {0, 1} else 0)
    error /= math.sqrt(len(values))
    return f"{mean:.1%} +- {error:.1%}" + (" !" if abs(mean - right) > 2 * error else "")


if __name__ == "__main__":
    main()
