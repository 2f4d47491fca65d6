"""A worker of indexes in a process of its own, as it is or with a fault that must be found: see ``live.py``.

Told by SIGUSR1, it freezes where that does the most harm: when it has read the rows of a page, and has not written
their entries.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import schemaless
from schemaless.admin.indexes import indexes_of
from schemaless.cell import StoredCell
from schemaless.followers.lease_state import Owned
from schemaless.followers.worker import Worker
from schemaless.indexes import sql
from schemaless.indexes.entries import Entries
from schemaless.indexes.entry_changes import PageWrites
from schemaless.indexes.follower import Indexing
from tests.followers.child import TIMING, end_with_parent

FREEZES_WITHIN_S: Final = 1.0
"""Whoever has come to no such page by then does not freeze."""

_LEAVES: Final = (2,)
"""The version of a row that leaves its shard; a later one comes back."""


def _location_first() -> None:
    deal = Indexing.deal

    def wrong(self: Indexing, worker: Worker, owned: Owned, cells: Sequence[StoredCell]) -> bool:
        worker.go_on(owned)
        if cells:
            worker.dealt(owned, cells[-1].added_id, at_once=True)
        return deal(self, worker, owned, cells)

    Indexing.deal = wrong  # type: ignore[method-assign]
    # Else entries are written before each page's location after all.
    Indexing.deal_together = lambda *_: False  # type: ignore[method-assign]


def _upserts_unguarded() -> None:
    upsert = sql.upsert_entries

    def wrong(*args: Any) -> bytes:
        return upsert(*args).split(b" ON DUPLICATE ")[0].replace(b"INSERT", b"REPLACE", 1)

    sql.upsert_entries = wrong


def _deletes_unguarded() -> None:
    delete = sql.delete_entries

    def wrong(*args: Any, **named: Any) -> bytes:
        return re.sub(rb" AND ref_\d+<=-?\d+", b"", delete(*args, **named))

    sql.delete_entries = wrong


CONTROLS: Final[dict[str, Callable[[], None]]] = {
    "location before the entries": _location_first,
    "upserts unguarded": _upserts_unguarded,
    "deletes unguarded": _deletes_unguarded,
}


def _freeze_when_told() -> None:
    told_s = [0.0]
    apply = Entries.apply

    def told(*_: object) -> None:
        told_s[0] = time.monotonic()

    def late(self: Entries, writes: PageWrites) -> None:
        # A row that leaves a shard, and comes back: what is deleted there, and written elsewhere, is old by then.
        leaves = any(refs == _LEAVES for rows in writes.deletes.values() for _, refs in rows)
        if leaves and time.monotonic() - told_s[0] < FREEZES_WITHIN_S:
            told_s[0] = 0.0
            os.kill(os.getpid(), signal.SIGSTOP)
        apply(self, writes)

    Entries.apply = late  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, told)


def work(url: str, control: str, name: str) -> None:
    """Be a worker for ever."""
    end_with_parent()
    _freeze_when_told()
    CONTROLS.get(control, lambda: None)()
    with schemaless.connect(url) as store:
        Worker(store, indexes_of(store).handlers(), name, timing=TIMING, stop=threading.Event()).run()
