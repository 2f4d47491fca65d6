"""What people do to triggers: look where they are, pause, resume, reset and remove them, and deal with parked cells."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemaless.cell import CellKey
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.followers import sql as followers_sql
from schemaless.followers.rows import FollowerRows
from schemaless.followers.settings import Setting, Settings
from schemaless.followers.states import DIED, PAUSED, RUNNING, STOPPED
from schemaless.followers.status import ShardStatus, WorkerStatus, shard_statuses, workers_of
from schemaless.followers.table_cache import small_table_caches
from schemaless.internals import internals_of
from schemaless.topology.model import check_shard
from schemaless.triggers import sql
from schemaless.triggers.declaration import follower_name, is_trigger, trigger_name
from schemaless.wire.connection import Connection

_SINCE_MARGIN: Final = timedelta(minutes=10)
"""created_at is not the order in which cells were committed."""

_SCANNED_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TriggerStatus:
    """Where a trigger is.

    Attributes:
        small_caches: what to do on servers that keep too few tables open for it.
    """

    name: str
    setting: Setting
    shards: tuple[ShardStatus, ...]
    workers: tuple[WorkerStatus, ...]
    small_caches: Mapping[str, str]

    @property
    def finds_by(self) -> dict[str, str]:
        """How its workers find new cells, by server: the binary log, or a sweep, and why."""
        return {server: how for worker in self.workers for server, how in worker.reported.get("finds_by", {}).items()}

    @property
    def stands(self) -> bool:
        """Whether a shard stands still, and somebody has to do something."""
        return any(status.state in (STOPPED, "missing") for status in self.shards)


@dataclass(frozen=True, slots=True)
class ParkedCell:
    """A cell that a trigger went past.

    Attributes:
        error: what the last attempt said, with its traceback.
        parked_at: UTC.
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
    """The triggers of a datastore, for who runs it."""

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
        """Return where a trigger is.

        Raises:
            InvalidInput: there is none of that name.
        """
        follower = follower_name(name)
        setting = self._settings.get(follower)
        missing = (
            "it has no progress row here; 'schemaless trigger reset' cannot make one, only 'remove' and then 'run' can"
        )
        shards = tuple(shard_statuses(self._access, follower, missing))
        workers = tuple(workers_of(self._access, follower))
        return TriggerStatus(name, setting, shards, workers, small_table_caches(self._shards))

    def pause(self, name: str) -> None:
        """Have workers begin no more calls, until ``resume``; raises what ``status`` does."""
        self._settings.set_desired_state(follower_name(name), PAUSED)

    def resume(self, name: str) -> int:
        """Have a trigger go on, and its shards that stand still try their cell again; return how many did stand."""
        follower = follower_name(name)
        self._settings.get(follower)
        looked = self._rows.look((follower, shard) for shard in range(self._store.shard_count))
        stopped = [shard for (_, shard), row in looked.rows.items() if row.state == STOPPED]
        for shard in stopped:
            self._shards.execute(shard, sql.restart(self._shards.database(shard), follower, DIED))
        self._settings.set_desired_state(follower, RUNNING)
        return len(stopped)

    def remove(self, name: str) -> None:
        """Forget a trigger: how far it is, and its parked cells; raises what ``status`` does."""
        self._settings.get(follower_name(name))
        self._settings.remove(follower_name(name))

    def parked(self, name: str, shards: Iterable[int]) -> list[ParkedCell]:
        """Return the parked cells of some shards; raises what ``status`` does."""
        follower = follower_name(name)
        self._settings.get(follower)
        cells = []
        for shard in shards:
            rows = self._shards.rows(shard, followers_sql.select_parked(self._shards.database(shard), follower))
            for added_id, row_key, column_name, ref_key, attempts, error, parked_at, replay in rows:
                key = CellKey(uuid.UUID(bytes=row_key), str(column_name), int(ref_key))
                at = str(parked_at).replace(" ", "T")
                cells.append(ParkedCell(shard, int(added_id), key, int(attempts), str(error), at, bool(replay)))
        return cells

    def replay(self, name: str, cells: Iterable[ParkedCell]) -> None:
        """Have parked cells tried again by the workers of their shards; those that come through are parked no more."""
        for cell in cells:
            database = self._shards.database(cell.shard)
            self._shards.execute(cell.shard, sql.ask_to_replay(database, follower_name(name), cell.added_id))

    def skip(self, name: str, cells: Iterable[ParkedCell]) -> None:
        """Forget parked cells: the trigger is not called for them any more."""
        for cell in cells:
            database = self._shards.database(cell.shard)
            self._shards.execute(cell.shard, followers_sql.delete_parked(database, follower_name(name), cell.added_id))

    def reset(self, name: str, locations: Mapping[int, int]) -> None:
        """Have a trigger go on from other locations; what is parked behind them comes again by itself.

        Args:
            name: which.
            locations: by shard.
        """
        follower = follower_name(name)
        self._settings.get(follower)
        for shard, location in locations.items():
            if not 0 <= location < 1 << 64:
                raise InvalidInput(f"a location is 0 or an added_id, got {location}")
            database = self._shards.database(check_shard(shard, self._store.shard_count))

            def operation(connection: Connection, database: str = database, location: int = location) -> None:
                with connection.transaction():
                    connection.execute(sql.reset(database, follower, location))
                    connection.execute(followers_sql.delete_parked(database, follower, behind=location))

            # Safe to repeat: an epoch more does no harm.
            self._shards.run(shard, operation, writes=True)

    def location_since(self, shard: int, since: datetime) -> int:
        """Return a location before every cell of a shard that was stored at a time or later, or 10 minutes before."""
        at = (since - _SINCE_MARGIN).replace(tzinfo=None).isoformat(" ")
        database = self._shards.database(shard)
        for after, up_to, _ in self._internals.id_blocks(shard, _SCANNED_ROWS):
            rows = self._shards.rows(shard, sql.select_first_since(database, after, up_to, at))
            if rows:
                return int(rows[0][0]) - 1
        return self._store.end_of_shard(shard)
