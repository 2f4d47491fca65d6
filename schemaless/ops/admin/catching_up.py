"""``catch_up()``: triggers and indexes, run in this process until the existing cells have been handled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
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

    This does the work of 'schemaless trigger run --once' and 'schemaless index run --once' without worker processes: a
    trigger's ``timeout_s`` does not apply, and a function that kills its process kills the caller's. Workers elsewhere
    take their share of the shards. The account needs the role follow, and what the functions need.

    Args:
        store: the datastore, which is also given to the functions.
        triggers: the triggers; one that has never run is created, and begins where its ``start`` says.
        indexes: names of the indexes; by default all. An index that is filled becomes ready for queries.
        timeout_s: maximum time, in seconds; a call that is running then is completed.

    Returns:
        True if there was anything to do here; functions may have written cells that are still to be handled.

    Raises:
        InvalidInput: an argument is of the wrong type, a trigger exists for another column, or there is no index of
            that name.
        NotCaughtUp: the time is over, a trigger is paused, or a shard has stopped or failed too often.
    """
    access = internals_of(check_datastore(store)).follower_access
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
    ends = {handler.name: CaughtUp(access, handler.name) for handler in handlers}
    backfills = [(entry, admin.backfill(entry)) for entry in entries]
    waiting = set(ends)
    until_s = time.monotonic() + timeout_s

    def is_over() -> bool:
        waiting.difference_update([name for name in waiting if ends[name]()])
        return not waiting or time.monotonic() >= until_s

    worker = Worker(access, handlers, runner_name(), timing=_TIMING, stop=threading.Event(), listen=False)
    if not is_over():
        worker.run(is_over)
    faults = [f"{name}{fault}" for name, end in ends.items() for fault in _faults(access, name, end, name in waiting)]
    if faults:
        raise NotCaughtUp("; ".join(faults))
    for entry, backfill in backfills:
        admin.watch(entry, backfill)
    return worker.context.handled > 0


def _faults(access: DatastoreAccess, name: str, end: CaughtUp, waits: bool) -> Iterator[str]:
    if end.paused:
        yield " is paused"
    for shard, reason in end.gave_up.items():
        yield f", shard {shard}: {reason}"
    for status in shard_statuses(access, name, "it has no progress row"):
        if status.state != RUNNING or (waits and status.ids_behind):
            yield f", shard {status.shard} is {status.state}, {status.ids_behind} ids behind: {status.cause}"
