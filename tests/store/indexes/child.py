"""An index worker in its own process, unchanged or with a fault that must be detected; see ``live.py``.

On SIGUSR1 it freezes at the most harmful moment: after it has read the rows of a page, before it writes their entries.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import schemaless
from schemaless.cell import StoredCell
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.followers.handler import HandlerContext
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes import sql
from schemaless.store.indexes.entries import Entries
from schemaless.store.indexes.entry_changes import PageWrites
from schemaless.store.indexes.follower import Indexing
from schemaless.store.internals import internals_of
from tests.store.followers.child import TIMING, end_with_parent

FREEZES_WITHIN_S: Final = 1.0
"""Time after the signal within which the worker has to come to such a page, in seconds; otherwise it continues."""

_LEAVES: Final = (2,)
"""The version of a row that leaves its shard; a later version returns to it."""


def _location_first() -> None:
    handle = Indexing.handle

    def wrong(self: Indexing, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        context.check_active(lease)
        if cells:
            context.advance(lease, cells[-1].added_id, at_once=True)
        return handle(self, context, lease, cells)

    Indexing.handle = wrong  # type: ignore[method-assign]
    # Otherwise entries would be written before the location after all.
    Indexing.handle_batch = lambda *_: False  # type: ignore[method-assign]


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


def _freeze_on_signal() -> None:
    signalled_s = [0.0]
    apply = Entries.apply

    def on_signal(*_: object) -> None:
        signalled_s[0] = time.monotonic()

    def late(self: Entries, writes: PageWrites) -> None:
        # For a row that leaves its shard and returns: the delete and the write are outdated by then.
        leaves = any(refs == _LEAVES for rows in writes.deletes.values() for _, refs in rows)
        if leaves and time.monotonic() - signalled_s[0] < FREEZES_WITHIN_S:
            signalled_s[0] = 0.0
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        apply(self, writes)

    Entries.apply = late  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, on_signal)


def work(url: str, control: str, name: str) -> None:
    """Run a worker until the process ends."""
    end_with_parent()
    _freeze_on_signal()
    CONTROLS.get(control, lambda: None)()
    with schemaless.connect(url) as store:
        Worker(
            internals_of(store).follower_access,
            indexes_of(store).handlers(),
            name,
            timing=TIMING,
            stop=threading.Event(),
        ).run()
