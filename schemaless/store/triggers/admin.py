"""Administration of triggers: status, pausing, resetting, removal, and parked cells."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from schemaless.cell import CellKey
from schemaless.errors import InvalidInput
from schemaless.store.datastore import Datastore
from schemaless.store.followers import sql
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.settings import Setting, Settings
from schemaless.store.followers.states import DIED, PAUSED, RUNNING, STOPPED
from schemaless.store.followers.status import FollowerStatus, follower_status
from schemaless.store.internals import internals_of
from schemaless.store.triggers.declaration import follower_name, is_trigger, trigger_name
from schemaless.topology.model import check_shard
from schemaless.wire.connection import Connection

PARKED_PER_READ: Final = 500
"""Maximum number of parked cells that are read by one statement."""


@dataclass(frozen=True, slots=True)
class TriggerStatus(FollowerStatus):
    """Status of a trigger.

    Attributes:
        name: name of the trigger.
        setting: its entry in the catalog.
    """

    name: str
    setting: Setting

    @property
    def finds_by(self) -> dict[str, str]:
        """How the workers find new cells on each server: from the binary log, or by polling, and why."""
        return {server: how for worker in self.workers for server, how in worker.reported.get("finds_by", {}).items()}

    @property
    def stands(self) -> bool:
        """True if a shard needs action because it has stopped, or because its row is missing or cannot be read."""
        return any(status.state in (STOPPED, "missing") for status in self.shards)


@dataclass(frozen=True, slots=True)
class ParkedCell:
    """A cell that a trigger has skipped.

    Attributes:
        error: the error of the last attempt, with or without its traceback.
        parked_at: when it was parked; UTC, ISO 8601.
        replay: whether it is to be tried again.
    """

    shard: int
    added_id: int
    key: CellKey
    attempts: int
    error: str
    parked_at: str
    replay: bool


class Triggers:
    """The triggers of a datastore, for its operators.

    Args:
        store: the datastore.
    """

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._access = self._internals.follower_access
        self._shards = self._internals.shards
        self._settings = Settings(self._access)
        self._rows = FollowerRows(self._shards)

    def names(self) -> list[str]:
        """Return the names of all triggers."""
        return [trigger_name(name) for name in self._settings.all() if is_trigger(name)]

    def status(self, name: str) -> TriggerStatus:
        """Return the status of a trigger.

        Raises:
            InvalidInput: the trigger does not exist.
        """
        follower = follower_name(name)
        setting = self._settings.get(follower)
        missing = (
            "it has no progress row here; to create one, run 'schemaless trigger remove', then 'run' ('reset' cannot)"
        )
        status = follower_status(self._access, follower, missing)
        return TriggerStatus(status.shards, status.workers, status.small_caches, name, setting)

    def pause(self, name: str) -> None:
        """Pause a trigger: workers start no more calls. Raises what ``status`` does."""
        self._settings.set_desired_state(follower_name(name), PAUSED)

    def resume(self, name: str) -> int:
        """Resume a trigger and its stopped shards; return the number of shards that had stopped."""
        follower = follower_name(name)
        self._settings.get(follower)
        looked = self._rows.look((follower, shard) for shard in range(self._store.shard_count))
        stopped = [shard for (_, shard), row in looked.rows.items() if row.state == STOPPED]
        for shard in stopped:
            self._shards.execute(shard, sql.restart(self._shards.database(shard), follower, DIED))
        self._settings.set_desired_state(follower, RUNNING)
        return len(stopped)

    def remove(self, name: str) -> None:
        """Delete a trigger with its locations and parked cells; raises what ``status`` does."""
        self._settings.get(follower_name(name))
        self._settings.remove(follower_name(name))

    def parked_count(self, name: str, shards: Iterable[int]) -> int:
        """Return the number of parked cells of some shards; raises what ``status`` does."""
        follower = follower_name(name)
        self._settings.get(follower)
        return sum(row.parked for row in self._rows.look((follower, shard) for shard in shards).rows.values())

    def parked(self, name: str, shards: Iterable[int]) -> list[ParkedCell]:
        """Return the parked cells of some shards, with tracebacks; raises what ``status`` does."""
        return [cell for page in self.parked_pages(name, shards) for cell in page]

    def parked_pages(
        self, name: str, shards: Iterable[int], *, added_id: int | None = None, tracebacks: bool = True
    ) -> Iterator[list[ParkedCell]]:
        """Yield the parked cells of some shards, up to 500 of a shard at a time; raises what ``status`` does.

        Args:
            name: name of the trigger.
            shards: the shards.
            added_id: added_id of the only cell; None for all.
            tracebacks: whether errors have their traceback, which takes up to 8,000 characters.
        """
        follower = follower_name(name)
        self._settings.get(follower)
        for shard in shards:
            database, after = self._shards.database(shard), 0
            while True:
                statement = sql.select_parked(
                    database, follower, after, PARKED_PER_READ, added_id=added_id, tracebacks=tracebacks
                )
                page = [_parked_cell(shard, *row) for row in self._shards.rows(shard, statement)]
                if page:
                    yield page
                if len(page) < PARKED_PER_READ:
                    break
                after = page[-1].added_id

    def replay(self, name: str, cells: Iterable[ParkedCell]) -> None:
        """Ask workers to try parked cells again; those that succeed are no longer parked."""
        for shard, ids in _by_shard(cells):
            database = self._shards.database(shard)
            self._shards.execute(shard, sql.ask_to_replay(database, follower_name(name), ids))

    def skip(self, name: str, cells: Iterable[ParkedCell]) -> None:
        """Delete parked cells: the trigger is never called for them again."""
        for shard, ids in _by_shard(cells):
            database = self._shards.database(shard)
            self._shards.execute(shard, sql.delete_parked(database, follower_name(name), ids))

    def reset(self, name: str, locations: Mapping[int, int]) -> None:
        """Set the locations of a trigger. Parked cells after them are delivered again and are no longer parked.

        Args:
            name: name of the trigger.
            locations: the new location of each shard to reset.
        """
        follower = follower_name(name)
        self._settings.get(follower)
        for shard, location in locations.items():
            if not 0 <= location < 1 << 64:
                raise InvalidInput(f"a location must be 0 or an added_id, got {location}")
            database = self._shards.database(check_shard(shard, self._store.shard_count))

            def operation(connection: Connection, database: str = database, location: int = location) -> None:
                with connection.transaction():
                    connection.execute(sql.reset(database, follower, location))
                    connection.execute(sql.delete_parked(database, follower, after=location))

            # Safe to repeat: another increment of the epoch does no harm.
            self._shards.run(shard, operation, writes=True)

    def location_since(self, shard: int, since: datetime) -> int:
        """Return a location before every cell of a shard that was stored at or after a time.

        As a margin, cells stored in the 10 minutes before that time also follow the location.
        """
        return self._internals.location_since(shard, since)


def _parked_cell(shard: int, *row: Any) -> ParkedCell:
    added_id, row_key, column_name, ref_key, attempts, error, parked_at, replay = row
    key = CellKey(uuid.UUID(bytes=row_key), column_name, ref_key)
    return ParkedCell(shard, added_id, key, attempts, error, parked_at.replace(" ", "T"), bool(replay))


def _by_shard(cells: Iterable[ParkedCell]) -> Iterator[tuple[int, list[int]]]:
    shard_of = attrgetter("shard")
    for shard, of_shard in groupby(sorted(cells, key=shard_of), shard_of):
        yield shard, [cell.added_id for cell in of_shard]
