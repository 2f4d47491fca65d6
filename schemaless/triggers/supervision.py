"""What the worker processes of a trigger run, and how its rows are prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.followers.handler import Dealer
from schemaless.followers.membership import Pair
from schemaless.followers.rows import FollowerRows
from schemaless.followers.settings import Settings
from schemaless.followers.states import STOPPED
from schemaless.followers.supervisor import _log
from schemaless.internals import internals_of
from schemaless.triggers.calling import Calls
from schemaless.triggers.declaration import Trigger, follower_name, import_trigger


def prepare(store: Datastore, trigger: Trigger) -> bool:
    """Make a trigger's rows where it is run for the first time; return whether it is.

    Raises:
        InvalidInput: it was made for another column.
    """
    settings = Settings(store)
    name = follower_name(trigger.name)
    before = settings.all().get(name)
    if before is not None and before.spec["column"] != trigger.column:
        raise InvalidInput(
            f"trigger {trigger.name} follows column {before.spec['column']}, and the code says {trigger.column}: give "
            f"it another name, or 'schemaless trigger remove {trigger.name} --execute', which forgets how far it is"
        )

    def start_of(shard: int) -> int:
        return 0 if trigger.start == "beginning" else store.end_of_shard(shard)

    return settings.make(name, trigger.spec, start_of)


@dataclass(frozen=True, slots=True)
class CallTrigger:
    """Workers call a trigger's function.

    Attributes:
        target: ``MODULE:NAME``, imported by each process.
        name: the trigger's.
    """

    target: str
    name: str

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return f"trigger {self.name}"

    def dealers(self, store: Datastore) -> Sequence[Dealer]:
        """Return what calls the function."""
        return [Calls(import_trigger(self.target))]

    def followers(self, store: Datastore) -> Sequence[str]:
        """Return the follower's name."""
        return [follower_name(self.name)]


def caught_up(store: Datastore, trigger: Trigger) -> Callable[[], bool]:
    """Return what says whether a trigger has dealt with all that is there now; a shard that stands still counts.

    Of a shard that cannot be asked, or has no row, nobody knows: it is waited for, until it can be.
    """
    rows = FollowerRows(internals_of(store).shards)
    pairs = [(follower_name(trigger.name), shard) for shard in range(store.shard_count)]
    ends: dict[Pair, int] = {}
    said: set[int] = set()

    def ended() -> bool:
        looked = rows.look(pairs)
        now = looked.rows
        for pair in pairs:
            if pair in now:
                ends.setdefault(pair, now[pair].top)
            elif pair[1] not in said:
                said.add(pair[1])
                reason = looked.failed.get(pair[1], "it has no progress row there")
                _log.warning("this cannot see whether %s has caught up in shard %d: %s", trigger.name, pair[1], reason)
        return all(
            pair in now and not now[pair].replays and (now[pair].location >= ends[pair] or now[pair].state == STOPPED)
            for pair in pairs
        )

    ended()
    return ended
