"""Nightly capacity job: measure the datastore, write the report, and fail if a disk will be full too soon.

    15 3 * * *   python nightly_capacity.py mezzanine-measure /var/www/capacity --at-least 90

The account needs the role measure. Cron mails the output, and a monitoring system can use the exit status: 0 if every
disk lasts long enough, 1 if one may not, 2 if unknown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

KEPT_PAGES = 30


def main() -> int:
    """Measure, write the report, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datastore", help="its URL, or its name in the configuration")
    parser.add_argument("folder", type=Path, help="where the pages go")
    parser.add_argument("--at-least", type=float, default=90, metavar="DAYS")
    parser.add_argument("--disk", action="append", default=[], metavar="CLUSTER=TOTAL[:FREE]")
    arguments = parser.parse_args()
    disks = [part for disk in arguments.disk for part in ("--disk", disk)]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    page = arguments.folder / f"capacity-{datetime.now(UTC):%Y-%m-%d}.html"

    schemaless(arguments.datastore, "capacity", "measure", *disks, "--json")
    report = schemaless(arguments.datastore, "capacity", "report", *disks, "--html", str(page), "--json")
    for old in sorted(arguments.folder.glob("capacity-*.html"))[:-KEPT_PAGES]:
        old.unlink()
    return judged(report, arguments.at_least)


def schemaless(datastore: str, *arguments: str) -> dict[str, Any]:
    """Run a command and return its --json output; its standard error is shared with this script."""
    command = [sys.executable, "-m", "schemaless.cli.entry", "--datastore", datastore, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        sys.exit(2)  # the command has said why
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def judged(report: dict[str, Any], at_least_days: float) -> int:
    """Print a line for each disk as it is now, and return the exit status.

    A disk lasts long enough if the early end of the 80 % interval does.
    """
    (now,) = (each for each in report["scenarios"] if each["name"] == "now")
    status = 0
    for disk in now["disks"]:
        days = disk["days_until_full"]
        if days is None:
            print(f"{disk['disk']}: unknown how long it lasts: {disk['why']}")
            status = status or 2
            continue
        early = days["low_80"]  # None: beyond what can be forecast
        enough = early is None or early >= at_least_days
        said = "longer than can be forecast" if early is None else f"{early:.0f} days at least, in 90 of 100 cases"
        print(f"{disk['disk']}: {said}{'' if enough else f'; that is less than {at_least_days:g}'}")
        if not enough:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
