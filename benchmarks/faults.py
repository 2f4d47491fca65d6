"""Checks that the store reports the truth while connections break, by seeded schedules of faults on private servers.

    python benchmarks/faults.py [--schedules N] [--first NUMBER] [--flavour mysql|mariadb]

Each schedule is an operation and the faults during it, both determined by its number (tests/faults). After each one,
the rows are read without the proxy and compared with what was returned or raised. Exit status 1 if anything was untrue.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from schemaless.testing.servers import private_servers
from schemaless.wire import pool
from tests.accounts import accounts_on
from tests.faults.harness import Harness, Report
from tests.faults.proxy import ANSWERING, HOWS, SENDING
from tests.faults.verdicts import Untrue

PLACES = ("accept", "greeting", "login", "setup", "SELECT", "START TRANSACTION", "INSERT", "COMMIT", "ROLLBACK")
OUTCOMES = {
    "written": ("written",),
    "conflict": ("CellConflict", "BatchError of CellConflict"),
    "unavailable": ("ServerUnavailable", "BatchError of ServerUnavailable"),
    "timeout": ("ServerTimeout", "BatchError of ServerTimeout"),
    "unknown, written": ("OutcomeUnknown, written", "BatchError of OutcomeUnknown, written"),
    "unknown, not": ("OutcomeUnknown, not written", "BatchError of OutcomeUnknown, not written"),
    "several causes": (),
}


def column_of(outcome: str) -> str:
    """Return the column that an outcome is counted in."""
    return next((column for column, names in OUTCOMES.items() if outcome in names), "several causes")


def table(head: str, lines: Sequence[tuple[str, Counter[str]]], columns: Sequence[str]) -> None:
    """Print counts, with their sums."""
    width = max(len(name) for name, _ in [(head, None), *lines, ("all", None)])
    print(f"{head:<{width}}  {'all':>5}  " + "  ".join(f"{column:>5}" for column in columns))
    total: Counter[str] = Counter()
    for _, counts in lines:
        total += counts
    for name, counts in [*lines, ("all", total)]:
        numbers = "  ".join(f"{counts[column] or '.':>{max(5, len(column))}}" for column in columns)
        print(f"{name:<{width}}  {counts.total():>5}  {numbers}")


def show(reports: Sequence[Report]) -> None:
    """Print how many faults struck where, and what became of the operations."""
    struck = [fault for report in reports for fault in report.struck]
    print("\nfaults that struck, by the place and by what happened there")
    table("place", [(place, Counter(fault.how for fault in struck if fault.where == place)) for place in PLACES], HOWS)
    print("\nfaults that struck, by how much had got through")
    sides = (*SENDING, "blocked", *ANSWERING)
    table("got through", [(at, Counter(fault.how for fault in struck if fault.at == at)) for at in sides], HOWS)
    print("\nschedules, by their first fault and their outcome")
    firsts = [
        (column_of(report.outcome), report.struck[0].where if report.struck else "none struck") for report in reports
    ]
    places = [
        (place, Counter(outcome for outcome, first in firsts if first == place)) for place in (*PLACES, "none struck")
    ]
    table("first fault at", places, tuple(OUTCOMES))
    print("\nschedules, by their operation and their outcome")
    names = sorted({report.operation for report in reports})
    operations = [
        (name, Counter(column_of(report.outcome) for report in reports if report.operation == name)) for name in names
    ]
    table("operation", operations, tuple(OUTCOMES))


def main() -> int:
    """Run the schedules and print their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    arguments = parser.parse_args()
    pool.NodePool.retry_pause_s = 0.002
    reports: list[Report] = []
    untrue: list[str] = []
    with (
        private_servers(arguments.flavour, 2) as servers,
        accounts_on([server.url for server in servers]) as accounts,
    ):
        print(f"{servers[0].flavour} {servers[0].version}, two servers, a datastore of four shards")
        sockets = [str(server.socket) for server in servers]
        harness = Harness(sockets, accounts, "faults", stalls=0.02, read_timeout_s=0.3)
        began_s = time.monotonic()
        for number in range(arguments.first, arguments.first + arguments.schedules):
            try:
                reports.append(harness.run(number))
            except Untrue as error:
                untrue.append(str(error))
        try:
            harness.expect_what_was_not_written_is_not_there()
        except Untrue as error:
            untrue.append(str(error))
        took_s = time.monotonic() - began_s
        harness.close()
    print(f"{arguments.schedules:,} schedules in {took_s:.0f} s, {len(untrue)} untrue")
    show(reports)
    for line in untrue:
        print(f"\nuntrue: {line}")
    return 1 if untrue else 0


if __name__ == "__main__":
    sys.exit(main())
