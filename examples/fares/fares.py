"""Trigger that bills trips, each exactly once even if its worker is killed at any point.

    schemaless trigger run fares:bill --workers 2

The function writes the fare of each TRIP cell as a BILL cell with the same row_key and ref_key. That key makes repeated
calls safe: writing the same bill twice is a no-op, and another bill for the same trip raises CellConflict.
"""

from __future__ import annotations

import os
from pathlib import Path

import schemaless

PER_KM = 2


def fare_of(trip: dict[str, int]) -> int:
    """Return the fare of a trip, in cents."""
    if trip["km"] < 0:
        # No attempt mends that: somebody has to look at it.
        raise schemaless.ParkCell(f"a trip of {trip['km']} km")
    return 250 + 100 * PER_KM * trip["km"]


@schemaless.trigger(column="TRIP", start="beginning", attempts=4)
def bill(cell: schemaless.Cell, call: schemaless.Call) -> None:
    """Bill a trip."""
    fare = fare_of(cell.body)
    call.store.put_cell(cell.row_key, "BILL", cell.ref_key, {"rider": cell.body["rider"], "cents": fare})
    crash_once(cell.body["number"])


def crash_once(number: int) -> None:
    """End this process without cleanup, once, at the trip whose number is the stem of the file FARES_CRASH_AT.

    The crash happens after the put and before the location is stored: without the shared key, the repeated call would
    bill twice.
    """
    place = os.environ.get("FARES_CRASH_AT", "")
    if place and number == int(Path(place).stem) and Path(place).exists():
        Path(place).unlink()
        os._exit(9)
