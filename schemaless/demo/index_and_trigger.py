"""The demo's index of the logbooks' contents, and its trigger, which counts flights."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Final

from schemaless.base.numbers import counted
from schemaless.bench.logbooks import COLUMN
from schemaless.cell import Cell, CellKey
from schemaless.errors import SchemalessError
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.datastore import Datastore
from schemaless.store.followers.handler import Handler
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.definition import define
from schemaless.store.internals import internals_of
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.declaration import Call, trigger
from schemaless.store.triggers.supervision import caught_up, prepare
from schemaless.ui.terminal.output import out

_INDEX: Final = define("by_maker", f"{COLUMN}.plane.manufacturer:text(40)", [f"{COLUMN}.plane.seats:int"])
_MAKER: Final = "AIRBUS"
_SHOWN: Final = 3
_POLL_S: Final = 0.02
_TIMEOUT_S: Final = 120.0

_flights: dict[CellKey, Counter[str]] = {}


@trigger(column=COLUMN, start="beginning")
def flights_by_airline(cell: Cell, call: Call) -> None:
    """Count a logbook's flights by airline, and store the counts by cell key, so that a repeated call is harmless."""
    _flights[cell.key] = Counter(leg["carrier"]["name"] for leg in cell.body["legs"])


def show(store: Datastore) -> None:
    """Fill and query an index of the logbooks, call a trigger for each of them, and print the results.

    Raises:
        SchemalessError: the index or the trigger did not catch up within two minutes.
    """
    _flights.clear()
    indexes = indexes_of(store)
    indexes.create(_INDEX)
    prepare(store, flights_by_airline)
    started_s = time.monotonic()
    stop = threading.Event()
    handlers: list[Handler] = [*indexes.handlers(), Calls(flights_by_airline, store)]
    # 'schemaless index run' and 'trigger run' start worker processes; here a thread is enough.
    worker = Worker(internals_of(store).follower_access, handlers, "the demo", stop=stop)
    thread = threading.Thread(target=worker.run, name="the demo's worker")
    thread.start()
    try:
        (entry,) = indexes.named(_INDEX.name)
        filling, called = indexes.backfill(entry), caught_up(store, flights_by_airline)
        while not (indexes.watch(entry, filling) and called()):
            if not thread.is_alive():
                raise SchemalessError(
                    "the worker ended before the index and the trigger had caught up; see its error above"
                )
            if time.monotonic() > started_s + _TIMEOUT_S:
                raise SchemalessError(f"the index and the trigger have not caught up after {_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
    finally:
        stop.set()
        thread.join()
    out().print(
        f"   one worker filled an index of makers and seats, and called the trigger for "
        f"{counted(len(_flights), 'cell')}, in {time.monotonic() - started_s:.1f} s"
    )
    started_s = time.monotonic()
    page = store.index(_INDEX.name).query(manufacturer=_MAKER, order_by="-seats", limit=_SHOWN)
    took_ms = 1_000 * (time.monotonic() - started_s)
    books = [row.cells[COLUMN].body for row in page.rows]
    planes = (f"{book['tail_number']} ({book['plane']['model']}, {book['plane']['seats']})" for book in books)
    out().print(f"   index: the {_MAKER} planes with the most seats, in {took_ms:.0f} ms: {', '.join(planes)}")
    airlines = sum(_flights.values(), Counter[str]())
    most = ", ".join(f"{name} {count:,}" for name, count in airlines.most_common(_SHOWN))
    out().print(f"   trigger: {airlines.total():,} flights of {counted(len(airlines), 'airline')}: {most}")
