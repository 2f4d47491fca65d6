"""Projection: fares by destination, kept up to date from the change feed in a small SQLite database.

    python examples/projection.py mezzanine fares.sqlite            once, for example from cron
    python examples/projection.py mezzanine fares.sqlite --follow   keep waiting for new cells, until Ctrl-C

The view can be deleted and rebuilt from the store at any time. Each shard's location is written in the same transaction
as the view, so a crash neither misses a cell nor counts one twice.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from contextlib import closing
from typing import Any

import schemaless

COLUMN = "TRIP"
PAGE_CELLS = 1_000
POLL_S = 0.5
TABLES = """
CREATE TABLE IF NOT EXISTS location (shard INTEGER PRIMARY KEY, location INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS trip (
    id BLOB PRIMARY KEY, version INTEGER NOT NULL, destination TEXT NOT NULL, fare REAL NOT NULL
);
CREATE VIEW IF NOT EXISTS fares AS SELECT destination, count(*) AS trips, sum(fare) AS total FROM trip GROUP BY 1;
"""
NEWER = """
INSERT INTO trip VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET version = excluded.version, destination = excluded.destination, fare = excluded.fare
WHERE excluded.version > trip.version
"""
FURTHER = "INSERT INTO location VALUES (?, ?) ON CONFLICT (shard) DO UPDATE SET location = excluded.location"


def main() -> int:
    """Bring the view up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datastore", help="its URL, or its name in the configuration")
    parser.add_argument("view", help="the SQLite file; created if missing")
    parser.add_argument("--follow", action="store_true")
    arguments = parser.parse_args()
    with schemaless.connect(arguments.datastore) as store, closing(sqlite3.connect(arguments.view)) as view:
        view.executescript(TABLES)
        while True:
            read = sum(catch_up(store, view, shard) for shard in range(store.shard_count))
            if not arguments.follow:
                break
            if not read:
                time.sleep(POLL_S)
        for destination, trips, total in view.execute("SELECT * FROM fares ORDER BY total DESC"):
            print(f"{destination:<8} {trips:>8,} trips {total:>12,.2f}")
    return 0


def catch_up(store: schemaless.Datastore, view: sqlite3.Connection, shard: int) -> int:
    """Apply a shard's new cells to the view and return their number."""
    found = view.execute("SELECT location FROM location WHERE shard = ?", (shard,)).fetchone()
    location = found[0] if found else 0
    read = 0
    while True:
        page = store.get_cells_for_shard(shard, location, PAGE_CELLS, column_name=COLUMN)
        if page.next_location == location:
            return read
        with view:  # one transaction: the cells, and that they were read
            view.executemany(NEWER, map(row_of, page.cells))
            view.execute(FURTHER, (shard, page.next_location))
        location = page.next_location
        read += len(page.cells)


def row_of(cell: schemaless.Cell) -> tuple[bytes, int, str, float]:
    """Return the view's row for a cell. Versions may arrive in any order; the view keeps the highest."""
    trip: Any = cell.body
    return cell.row_key.bytes, cell.ref_key, str(trip["to"]), float(trip["fare"])


if __name__ == "__main__":
    sys.exit(main())
