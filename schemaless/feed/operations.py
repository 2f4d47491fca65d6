"""What people do to triggers: look where they are, pause, resume, reset and remove them, and deal with parked cells."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from schemaless.cell import CellKey
from schemaless.cluster.topology import check_shard
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.feed.owned import PAUSED, RUNNING, STOPPED
from schemaless.feed.rows import FollowerRow, FollowerRows
from schemaless.feed.settings import Setting, Settings
from schemaless.feed.table_caches import small_table_caches
from schemaless.feed.trigger import follower_name, is_trigger, trigger_name
from schemaless.mysql.connection import Connection
from schemaless.mysql.sql import followers as sql
from schemaless.store.datastore import Datastore
from schemaless.store.tools import tools_of

_SINCE_MARGIN: Final = timedelta(minutes=10)
"""created_at is not the order in which cells were committed."""

_SCANNED_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Where a trigger is in a shard.

    Attributes:
        row: what the shard says; None where there is none, or it cannot be asked.
        behind_s: how long ago the first cell that is still to come was stored; 0 where there is none.
        fault: why there is nothing to be said.
    """

    shard: int
    row: FollowerRow | None
    behind_s: float = 0.0
    fault: str | None = None

    @property
    def state(self) -> str:
        """In a word: stopped, waiting (for the next attempt), running, or missing."""
        if self.row is None:
            return "missing"
        if self.row.state == RUNNING and self.row.retry_s is not None:
            return "waiting"
        return self.row.state

    @property
    def ids_behind(self) -> int:
        """How many added_ids are between its location and the end: cells of its column, and others."""
        return 0 if self.row is None else max(0, self.row.top - self.row.location)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that lives.

    Attributes:
        lease_s: seconds left of its lease.
        told: what it says of itself: "dealt"; "owned"; "heard" and "found", in how many shards it heard of new cells,
            and found some by looking; "finds_by", how it finds them on each server; "waits"; and "in_hand" where it is
            in a call.
    """

    worker: str
    followers: tuple[str, ...]
    lease_s: float
    told: Mapping[str, Any]


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
        return {server: how for worker in self.workers for server, how in worker.told.get("finds_by", {}).items()}

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
        self._tools = tools_of(store)
        self._shards = self._tools.shards
        self._settings = Settings(store)
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
        shards = tuple(shard_statuses(self._store, follower, missing))
        workers = tuple(workers_of(self._store, follower))
        return TriggerStatus(name, setting, shards, workers, small_table_caches(self._tools))

    def pause(self, name: str) -> None:
        """Have workers begin no more calls, until ``resume``; raises what ``status`` does."""
        self._settings.want(follower_name(name), PAUSED)

    def resume(self, name: str) -> int:
        """Have a trigger go on, and its shards that stand still try their cell again; return how many did stand."""
        follower = follower_name(name)
        self._settings.get(follower)
        looked = self._rows.look((follower, shard) for shard in range(self._store.shard_count))
        stopped = [shard for (_, shard), row in looked.rows.items() if row.state == STOPPED]
        for shard in stopped:
            self._shards.execute(shard, sql.restart(self._shards.database(shard), follower))
        self._settings.want(follower, RUNNING)
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
            rows = self._shards.rows(shard, sql.select_parked(self._shards.database(shard), follower))
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
            self._shards.execute(cell.shard, sql.delete_parked(database, follower_name(name), cell.added_id))

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
                    connection.execute(sql.delete_parked(database, follower, behind=location))

            # Safe to repeat: an epoch more does no harm.
            self._shards.run(shard, operation, writes=True)

    def location_since(self, shard: int, since: datetime) -> int:
        """Return a location before every cell of a shard that was stored at a time or later, or 10 minutes before."""
        at = (since - _SINCE_MARGIN).replace(tzinfo=None).isoformat(" ")
        database = self._shards.database(shard)
        for after, up_to, _ in self._tools.id_blocks(shard, _SCANNED_ROWS):
            rows = self._shards.rows(shard, sql.select_first_since(database, after, up_to, at))
            if rows:
                return int(rows[0][0]) - 1
        return self._store.end_of_shard(shard)


def shard_statuses(store: Datastore, follower: str, missing: str) -> Iterable[ShardStatus]:
    """Yield where a follower is, shard by shard; ``missing`` is said of those that have no row for it."""
    shards = tools_of(store).shards
    looked = FollowerRows(shards).look((follower, shard) for shard in range(store.shard_count))
    for shard in range(store.shard_count):
        row = looked.rows.get((follower, shard))
        if row is None:
            yield ShardStatus(shard, None, fault=str(looked.failed.get(shard) or missing))
        elif row.location >= row.top:
            yield ShardStatus(shard, row)
        else:
            try:
                ages = shards.rows(shard, sql.select_age(shards.database(shard), row.location))
            except SchemalessError as error:
                yield ShardStatus(shard, row, fault=str(error))
            else:
                yield ShardStatus(shard, row, max(0.0, float(ages[0][0])) if ages else 0.0)


def workers_of(store: Datastore, follower: str) -> Iterable[WorkerStatus]:
    """Yield the workers that live and serve a follower."""
    rows = tools_of(store).catalog.run(lambda connection: connection.rows(sql.select_workers(store.name)))
    for worker, followers, lease_s, figures in rows:
        served = tuple(json.loads(followers))
        if follower in served:
            yield WorkerStatus(str(worker), served, float(lease_s), json.loads(figures))
