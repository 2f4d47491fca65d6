"""A worker process that logs its cells; ``tests/ops/jobs/test_killed.py`` kills and freezes it."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from typing import Final

import schemaless
from schemaless.cell import StoredCell
from schemaless.store.followers.handler import HandlerContext
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of

NAME = "trigger:written_down"
TIMING = Timing(lease_s=0.8, give_up_s=0.6, renew_s=0.1, busy_s=5.0, note_s=0.02, look_s=0.1)
EARLY: Final = "locations before their cells"
SKIPS: Final = "a moved shard's follower set to its end"


class WrittenDown:
    """Appends a line for each cell: its shard and its added_id."""

    name = NAME
    column = None
    timeout_s = None

    def __init__(self, path: str, *, early: bool = False, slow: bool = False) -> None:
        self._early = early
        self._slow = slow
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle_batch(self, context: HandlerContext, pages: Sequence[tuple[Lease, Sequence[StoredCell]]]) -> bool:
        return False

    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        """Log the cells one by one, before their location is recorded; the control logs them after it."""
        if self._early and cells:
            context.advance(lease, cells[-1].added_id, at_once=True)
        for cell in cells:
            if self._early:
                time.sleep(0.002)
                os.write(self._file, b"%d %d\n" % (cell.shard, cell.added_id))
                continue
            context.check_active(lease)
            if self._slow:
                # So that there is always a cell that has not been delivered.
                time.sleep(0.005)
            os.write(self._file, b"%d %d\n" % (cell.shard, cell.added_id))
            context.advance(lease, cell.added_id)
        return True

    def replay(self, context: HandlerContext, lease: Lease) -> None:
        """Do nothing: no cell is parked here."""


def work(url: str, path: str, name: str, control: str) -> None:
    """Run a worker until the process is killed."""
    end_with_parent()
    with schemaless.connect(url) as store:
        handler = WrittenDown(path, early=control == EARLY, slow=control == SKIPS)
        Worker(internals_of(store).follower_access, [handler], name, timing=TIMING, stop=threading.Event()).run()


def end_with_parent() -> None:
    """Exit this process when its parent ends, for whatever reason."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
