"""Creation of a trigger's rows, and the worker processes that call its function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from schemaless.errors import InvalidInput
from schemaless.store.datastore import Datastore
from schemaless.store.followers.caught_up import CaughtUp
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.supervisor import OpenWork, Supervisor, Work
from schemaless.store.internals import internals_of
from schemaless.store.opening import Opening, opening_of
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.declaration import Trigger, follower_name, import_trigger


def prepare(store: Datastore, trigger: Trigger) -> bool:
    """Create a trigger unless it exists, and store its parameters; return True if it was created.

    Raises:
        InvalidInput: the trigger was created for another column.
    """
    settings = Settings(internals_of(store).follower_access)
    name = follower_name(trigger.name)
    before = settings.all().get(name)
    if before is not None and before.spec["column"] != trigger.column:
        raise InvalidInput(
            f"trigger {trigger.name} follows column {before.spec['column']}, but the code names {trigger.column}: give "
            f"it another name, or run 'schemaless trigger remove {trigger.name} --execute', which deletes its progress"
        )

    def start_of(shard: int) -> int:
        return 0 if trigger.start == "beginning" else store.end_of_shard(shard)

    return settings.create(name, trigger.spec, start_of)


@contextmanager
def _open(opening: Opening, target: str) -> Iterator[OpenWork]:
    with opening.open() as store:
        yield OpenWork(internals_of(store).follower_access, [Calls(import_trigger(target), store)])


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
    work = Work(f"trigger {name}", partial(_open, replace(opening_of(store), topology=None), target))
    return Supervisor(internals_of(store).follower_access, work, lambda: [follower_name(name)], workers, timing=timing)


def caught_up(store: Datastore, trigger: Trigger) -> CaughtUp:
    """Return a predicate that is true once a trigger has handled all cells and erasures that exist now."""
    return CaughtUp(internals_of(store).follower_access, follower_name(trigger.name))
