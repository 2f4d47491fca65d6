"""Put 400 trips, bill them with two workers, one of which crashes halfway, and sum the bills.

    python examples/fares/run.py mysql://app@db-1:3306/trips      a datastore, and an account with app and follow

To create a datastore, run 'schemaless local up', then 'schemaless create trips'.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import schemaless

HERE = Path(__file__).parent
TRIPS = 400
CRASH_AT = 123


def put_trips(store: schemaless.Datastore) -> int:
    """Put the trips, one of them with an impossible distance, and return their total fare in cents."""
    chance = random.Random(1)  # noqa: S311 - the same trips each time
    cents = 0
    cells = []
    for number in range(TRIPS):
        km = -1 if number == 77 else chance.randrange(1, 40)
        cents += 0 if km < 0 else 250 + 200 * km
        trip = {"number": number, "rider": f"rider {number % 9}", "km": km}
        cells.append(schemaless.NewCell(uuid.uuid5(uuid.NAMESPACE_URL, f"trip {number}"), "TRIP", 1, trip))
    store.put_cells(cells)
    return cents


def main(url: str) -> int:
    """Run the example; fail if a bill is missing or duplicated."""
    with schemaless.connect(url) as store, tempfile.TemporaryDirectory() as folder:
        expected = put_trips(store)
        crash = Path(folder, f"{CRASH_AT}.crash")
        crash.touch()
        command = [sys.executable, "-m", "schemaless.cli.entry", "trigger", "run", "fares:bill"]
        subprocess.run(
            [*command, "--workers", "2", "--once"],
            cwd=HERE,
            env={**os.environ, "SCHEMALESS_URL": url, "FARES_CRASH_AT": str(crash)},
            check=True,
        )
        bills = [cell for shard in range(store.shard_count) for cell in store.iter_shard(shard, column_name="BILL")]
        crashed = not crash.exists()
    billed = sum(cell.body["cents"] for cell in bills)
    print(f"{TRIPS} trips, one of them parked, {len(bills)} bills; a worker crashed in the middle: {crashed}")
    print(f"billed {billed} cents, expected {expected}")
    return 0 if (billed, len(bills), crashed) == (expected, TRIPS - 1, True) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
