"""Reads triggers and indexes: lag, parked cells, shard states and workers, with a bounded number of statements."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from schemaless.admin.indexes import indexes_of
from schemaless.datastore import Datastore
from schemaless.errors import SchemalessError
from schemaless.followers import sql
from schemaless.followers.rows import FollowerRow, FollowerRows, Looked
from schemaless.followers.settings import Settings
from schemaless.followers.status import ShardStatus
from schemaless.indexes.registry import BACKFILLING, READY
from schemaless.internals import internals_of
from schemaless.status.model import FollowerView
from schemaless.triggers.declaration import is_trigger, trigger_name

_AGES: Final = 16
"""Maximum number of shards of a follower whose oldest unhandled cell is looked at."""


class FollowerReader:
    """Reads all followers: a statement for every 64 rows, and at most 16 for the ages of each follower.

    Args:
        store: the datastore.
    """

    def __init__(self, store: Datastore) -> None:
        internals = internals_of(store)
        self._access = internals.follower_access
        self._shards = internals.shards
        self._settings = Settings(self._access)
        self._rows = FollowerRows(internals.shards)
        self._indexes = indexes_of(store)

    def __call__(self) -> tuple[FollowerView, ...]:
        """Return triggers, then indexes."""
        settings = self._settings.all()
        entries = [entry for entry in self._indexes.all() if entry.state in (BACKFILLING, READY)]
        names = [name for name in settings if is_trigger(name)]
        followers = [*names, *(entry.follower for entry in entries)]
        count = self._shards.topology.shard_count
        looked = self._rows.look((name, shard) for name in followers for shard in range(count))
        workers = self._workers() if followers else Counter()
        views = [
            self._view("trigger", trigger_name(name), name, settings[name].desired_state, looked, workers)
            for name in names
        ]
        views += [self._view("index", entry.name, entry.follower, entry.state, looked, workers) for entry in entries]
        return tuple(views)

    def _view(
        self, kind: str, name: str, follower: str, state: str, looked: Looked, workers: Counter[str]
    ) -> FollowerView:
        rows = {shard: looked.rows.get((follower, shard)) for shard in range(self._shards.topology.shard_count)}
        states = Counter(ShardStatus(shard, row).state for shard, row in rows.items())
        behind = [(shard, row) for shard, row in rows.items() if row is not None and row.top > row.location]
        return FollowerView(
            kind=kind,
            name=name,
            state=state,
            ids_behind=sum(row.top - row.location for _, row in behind),
            behind_s=self._behind_s(behind),
            parked=sum(row.parked for row in rows.values() if row is not None),
            shards=dict(states),
            workers=workers[follower],
        )

    def _behind_s(self, behind: Sequence[tuple[int, FollowerRow]]) -> float:
        """Return the age of the oldest unhandled cell, in the shards that are likely to have it."""
        longest = sorted(behind, key=lambda each: each[1].moved_at)[: _AGES // 2]
        most = sorted(behind, key=lambda each: each[1].location - each[1].top)[: _AGES // 2]
        ages = [0.0]
        for shard, location in {(shard, row.location) for shard, row in [*longest, *most]}:
            try:
                rows = self._shards.rows(shard, sql.select_age(self._shards.database(shard), location))
            except SchemalessError:  # the state of its server is reported with the servers
                continue
            ages += [float(age) for (age,) in rows]
        return max(ages)

    def _workers(self) -> Counter[str]:
        statement = sql.select_workers(self._access.name)
        rows = self._access.catalog().run(lambda connection: connection.rows(statement))
        return Counter(name for _, served, _, _ in rows for name in json.loads(served))
