"""``catch_up()``: triggers and indexes, run in this process until the existing cells have been handled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from schemaless.base.keys import check_each
from schemaless.base.runner_names import runner_name
from schemaless.errors import NotCaughtUp
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.datastore import Datastore, check_datastore
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.caught_up import CaughtUp
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.states import RUNNING
from schemaless.store.followers.status import shard_statuses
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.declaration import Trigger, check_trigger
from schemaless.store.triggers.supervision import prepare

_TIMING: Final = Timing(note_s=0.01, look_s=0.1)
"""Frequent checkpoints and reads of the rows, because the rows tell when the worker has caught up."""


def catch_up(
    store: Datastore, *triggers: Trigger, indexes: Iterable[str] | None = None, timeout_s: float = 60.0
) -> bool:
    """Call triggers for the cells and erasures that exist now, and index them, in the calling thread.

        schemaless.catch_up(store, bill_rider)

    Cells that the functions write are handled too, including those that one trigger writes for another. Only a trigger
    that reads cells that it writes itself, or whose cells come back to it, may be left with more to do.

    This does the work of 'schemaless trigger run --once' and 'schemaless index run --once' without worker processes: a
    trigger's ``timeout_s`` does not apply, and a function that kills its process kills the caller's. Workers elsewhere
    take their share of the shards. The account needs the role follow, and what the functions need.

    Args:
        store: the datastore, which is also given to the functions.
        triggers: the triggers, in any order; one that has never run is created, and begins where its ``start`` says.
        indexes: names of the indexes; by default all. An index that is filled becomes ready for queries.
        timeout_s: maximum time, in seconds; a call that is running then is completed.

    Returns:
        True if there was anything to do here.

    Raises:
        InvalidInput: an argument is of the wrong type, a trigger exists for another column, or there is no index of
            that name.
        NotCaughtUp: the time is over, a trigger is paused, or a shard has stopped or failed too often.
    """
    return catch_up_unless(threading.Event(), check_datastore(store), triggers, indexes, timeout_s)


def catch_up_unless(
    stop: threading.Event,
    store: Datastore,
    triggers: Sequence[Trigger],
    indexes: Iterable[str] | None,
    timeout_s: float,
) -> bool:
    """Catch up as ``catch_up`` does, but end after the running call once ``stop`` is set."""
    access = internals_of(store).follower_access
    for trigger in triggers:
        check_trigger(trigger)
    admin = indexes_of(store)
    names = None if indexes is None else list(check_each(indexes, "indexes", str))
    for name in names or ():
        admin.named(name)
    entries = [] if names == [] else admin.maintained(names or ())
    for trigger in triggers:
        prepare(store, trigger)
    handlers = [
        *(Calls(replace(trigger, timeout_s=None), store) for trigger in triggers),
        *(admin.handlers([entry.name for entry in entries]) if entries else ()),
    ]
    backfills = [(entry, admin.backfill(entry)) for entry in entries]
    worker = Worker(access, handlers, runner_name(), timing=_TIMING, stop=stop, listen=False)
    until_s = time.monotonic() + timeout_s
    rounds = _Rounds(worker, access, [handler.name for handler in handlers], len(triggers))
    if not rounds.over():
        worker.run(lambda: time.monotonic() >= until_s or rounds.over())
    faults = [
        f"{name}{fault}"
        for name, end in rounds.ends.items()
        for fault in _faults(access, name, end, name in rounds.waiting)
    ]
    if faults and not stop.is_set():
        raise NotCaughtUp("; ".join(faults))
    for entry, backfill in backfills:
        admin.watch(entry, backfill)
    return worker.context.handled > 0


class _Rounds:
    """Ends of the work: first the cells that exist, then those that the functions have written, once per trigger.

    With one more round than triggers, the last of them sees what was written through each of the others. Cells that
    other processes keep writing do not prolong the work further.

    Attributes:
        ends: by follower, whether it has handled the cells that existed when the round began.
        waiting: followers that have not.
    """

    def __init__(self, worker: Worker, access: DatastoreAccess, followers: Sequence[str], further: int) -> None:
        self._worker = worker
        self._access = access
        self._followers = followers
        self._further = further
        self._begin()

    def over(self) -> bool:
        """Read the progress, and begin the next round if that is due; return whether nothing is left to do."""
        while True:
            self.waiting.difference_update([name for name in self.waiting if self.ends[name]()])
            if self.waiting:
                return False
            if not self._further or self._worker.context.handled == self._handled or self._faulty:
                return True
            self._further -= 1
            self._begin()

    @property
    def _faulty(self) -> bool:
        return any(end.paused or end.gave_up for end in self.ends.values())

    def _begin(self) -> None:
        self.ends = {name: CaughtUp(self._access, name) for name in self._followers}
        self.waiting = set(self.ends)
        self._handled = self._worker.context.handled


def _faults(access: DatastoreAccess, name: str, end: CaughtUp, waits: bool) -> Iterator[str]:
    if end.paused:
        yield " is paused"
    for shard, reason in end.gave_up.items():
        yield f", shard {shard}: {reason}"
    for status in shard_statuses(access, name, "it has no progress row"):
        if status.state != RUNNING or (waits and status.ids_behind):
            yield f", shard {status.shard} is {status.state}, {status.ids_behind} ids behind: {status.cause}"
