"""How often a forecast's bands hold what then came: seeded histories whose last part is held back.

A third of the histories grow by the same each day, a third by the same factor, and in a third the level wanders, up
more than down. All have a weekly shape and noise. Each is forecast without its last part, and the days of that part and
their sum are held against the bands. What stands behind +- is one standard error; days of one history err together, so
it is taken over histories and not over days. A ! says that a figure is more than two of them from what it should be.

    python benchmarks/capacity_forecast.py [--histories 100] [--days 180] [--held 45]
"""

from __future__ import annotations

import argparse
import datetime
import math
import random
import statistics
import time

from schemaless.capacity.forecast import Forecast, forecast

MONDAY = datetime.date(2026, 1, 5)
KINDS = ("linear", "compound", "wandering")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--days", type=int, default=180)
    parser.add_argument("--held", type=int, default=45)
    arguments = parser.parse_args()
    forecast([(MONDAY + datetime.timedelta(day), 1.0) for day in range(30)])  # imports the library
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


def history(seed: int, kind: str, days: int) -> list[tuple[datetime.date, float]]:
    """Return bytes a day: about 1 GB at first."""
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
    """Return the shares of days within both bands, whether the sum was, and how far off it was."""
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
    """Return a mean with its standard error; for shares near 1 that of what it should be, as none may have missed."""
    mean = statistics.fmean(values)
    error = max(statistics.stdev(values), math.sqrt(right * (1 - right)) if set(values) <= {0, 1} else 0)
    error /= math.sqrt(len(values))
    return f"{mean:.1%} +- {error:.1%}" + (" !" if abs(mean - right) > 2 * error else "")


if __name__ == "__main__":
    main()
