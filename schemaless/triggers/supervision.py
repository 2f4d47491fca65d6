"""Creation of a trigger's rows, and the worker processes that call its function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.followers.membership import Pair, Timing
from schemaless.followers.rows import FollowerRows
from schemaless.followers.settings import Settings
from schemaless.followers.states import STOPPED
from schemaless.followers.supervisor import OpenWork, Supervisor
from schemaless.internals import internals_of
from schemaless.opening import Opening, opening_of
from schemaless.triggers.calling import Calls
from schemaless.triggers.declaration import Trigger, follower_name, import_trigger

_log = logging.getLogger("schemaless")


def prepare(store: Datastore, trigger: Trigger) -> bool:
    """Create a trigger's rows if it runs for the first time; return True if it does.

    Raises:
        InvalidInput: the trigger was created for another column.
    """
    settings = Settings(internals_of(store).follower_access)
    name = follower_name(trigger.name)
    before = settings.all().get(name)
    if before is not None and before.spec["column"] != trigger.column:
        raise InvalidInput(
            f"trigger {trigger.name} follows column {before.spec['column']}, and the code says {trigger.column}: give "
            f"it another name, or 'schemaless trigger remove {trigger.name} --execute', which deletes its progress"
        )

    def start_of(shard: int) -> int:
        return 0 if trigger.start == "beginning" else store.end_of_shard(shard)

    return settings.create(name, trigger.spec, start_of)


@dataclass(frozen=True, slots=True)
class CallTrigger:
    """The work of worker processes that call a trigger's function.

    Attributes:
        opening: opens the datastore.
        target: ``MODULE:NAME``, imported by each process.
        name: name of the trigger.
    """

    opening: Opening
    target: str
    name: str

    @property
    def title(self) -> str:
        """Description of the work in messages."""
        return f"trigger {self.name}"

    @contextmanager
    def open(self) -> Iterator[OpenWork]:
        """Open the datastore and import the trigger, in a worker process."""
        with self.opening.open() as store:
            yield OpenWork(internals_of(store).follower_access, [Calls(import_trigger(self.target), store)])


def trigger_supervisor(
    store: Datastore, target: str, name: str, workers: int, *, timing: Timing | None = None
) -> Supervisor:
    """Return the supervisor of worker processes that call a trigger's function.

    Args:
        store: the datastore.
        target: ``MODULE:NAME``, imported by each process.
        name: name of the trigger.
        workers: number of worker processes.
        timing: intervals and timeouts of the workers.
    """
    # Each process reads the topology itself, because it may have changed since this process did.
    work = CallTrigger(replace(opening_of(store), topology=None), target, name)
    return Supervisor(internals_of(store).follower_access, work, lambda: [follower_name(name)], workers, timing=timing)


def caught_up(store: Datastore, trigger: Trigger) -> Callable[[], bool]:
    """Return a predicate that is true once a trigger has handled all cells that exist now.

    Stopped shards count as done. A shard that cannot be read, or has no row, is waited for.
    """
    rows = FollowerRows(internals_of(store).shards)
    pairs = [(follower_name(trigger.name), shard) for shard in range(store.shard_count)]
    ends: dict[Pair, int] = {}
    reported: set[int] = set()

    def ended() -> bool:
        looked = rows.look(pairs)
        now = looked.rows
        for pair in pairs:
            if pair in now:
                ends.setdefault(pair, now[pair].top)
            elif pair[1] not in reported:
                reported.add(pair[1])
                reason = looked.failed.get(pair[1], "it has no progress row there")
                _log.warning("cannot tell whether %s has caught up in shard %d: %s", trigger.name, pair[1], reason)
        return all(
            pair in now and not now[pair].replays and (now[pair].location >= ends[pair] or now[pair].state == STOPPED)
            for pair in pairs
        )

    ended()
    return ended
