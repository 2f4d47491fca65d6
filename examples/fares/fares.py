"""Fares billed from trips: a trigger that may be killed anywhere, and bills each trip once.

    schemaless trigger run fares:bill --workers 2

Each cell of TRIP has its fare billed as a cell of BILL, in the same row and under the same ref_key. That key is what
makes it safe to be called again: the same bill written twice is a no-op, and another bill for the same trip would be a
CellConflict.
"""

from __future__ import annotations

import os
from pathlib import Path

import schemaless

PER_KM = 2


def fare_of(trip: dict[str, int]) -> int:
    """Return what a trip costs, in cents."""
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
    """End this process as kill -9 would, at the trip that FARES_CRASH_AT names, if that file is still there.

    It happens behind the put and before anybody knows: the moment at which a second call would bill twice, were it not
    for the key.
    """
    place = os.environ.get("FARES_CRASH_AT", "")
    if place and number == int(Path(place).stem) and Path(place).exists():
        Path(place).unlink()
        os._exit(9)
