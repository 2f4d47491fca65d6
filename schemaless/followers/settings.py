"""Followers as a whole, in the catalog: which there are, whether each is to run, and how its rows are made.

A follower's row in a shard is made here and nowhere else, when the follower is. A worker that finds none waits: the
shard may be on its way to another server, and a row made anew would stand at a place where the follower never was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.followers import sql
from schemaless.followers.states import PAUSED, RUNNING
from schemaless.internals import internals_of
from schemaless.wire.pool import NodePool

NEW: Final = "new"
"""Its rows are still being made."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A follower.

    Attributes:
        name: in the tables.
        wanted: new, running or paused.
        spec: what it is told to do; JSON.
    """

    name: str
    wanted: str
    spec: Mapping[str, Any]


class Settings:
    """A datastore's followers."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._shards = internals_of(store).shards
        self._catalog = store.name

    @property
    def _pool(self) -> NodePool:
        # Asked for each time: the catalog may be on another server by now.
        return internals_of(self._store).catalog

    def all(self) -> dict[str, Setting]:
        """Return all followers by their names."""
        rows = self._pool.run(lambda connection: connection.rows(sql.select_settings(self._catalog)))
        return {str(name): Setting(str(name), str(wanted), json.loads(spec)) for name, wanted, spec in rows}

    def get(self, name: str) -> Setting:
        """Return a follower.

        Raises:
            InvalidInput: there is none of that name.
        """
        settings = self.all()
        if name not in settings:
            kind, _, own = name.partition(":")
            others = ", ".join(key.partition(":")[2] for key in settings if key.startswith(f"{kind}:")) or "none yet"
            raise InvalidInput(f"{self._catalog!r} has no {kind} {own}; it has: {others}")
        return settings[name]

    def make(self, name: str, spec: Mapping[str, Any], start_of: Callable[[int], int]) -> bool:
        """Make a follower with a row in each shard, or go on with one whose making was interrupted.

        Args:
            name: its name.
            spec: what it is told to do, which takes the place of what it was told before.
            start_of: gives the location that a new row begins at, of a shard.

        Returns:
            Whether it was made just now.
        """
        self._execute(sql.insert_setting(self._catalog, name, NEW, json.dumps(spec)))
        setting = self.get(name)
        if setting.wanted == NEW:
            self.mend(name, start_of)
        wanted = RUNNING if setting.wanted == NEW else setting.wanted
        if (wanted, dict(spec)) != (setting.wanted, setting.spec):
            self._execute(sql.update_setting(self._catalog, name, wanted, json.dumps(spec)))
        return setting.wanted == NEW

    def mend(self, name: str, start_of: Callable[[int], int]) -> None:
        """Make a follower's row in each shard that has none; ``start_of`` as for ``make``."""
        for shard in range(self._store.shard_count):
            database = self._shards.database(shard)
            if not self._shards.rows(shard, sql.select_followers([(database, shard, name)])):
                self._shards.execute(shard, sql.insert_follower(database, name, start_of(shard)))

    def want(self, name: str, wanted: str) -> None:
        """Have a follower run, or be paused.

        Raises:
            InvalidInput: there is none of that name, or its making was interrupted.
        """
        setting = self.get(name)
        if setting.wanted == NEW:
            raise InvalidInput(
                f"creating {name.replace(':', ' ', 1)} was interrupted; run the command that creates it again"
            )
        assert wanted in (RUNNING, PAUSED)
        self._execute(sql.update_setting(self._catalog, name, wanted, json.dumps(setting.spec)))

    def remove(self, name: str) -> None:
        """Take a follower away, with its rows and its parked cells; its workers end by themselves.

        Run again where it was interrupted, it goes on.
        """
        for shard in range(self._store.shard_count):
            database = self._shards.database(shard)
            self._shards.execute(shard, sql.delete_follower(database, name))
            self._shards.execute(shard, sql.delete_parked(database, name))
        self._execute(sql.delete_setting(self._catalog, name))

    def _execute(self, statement: bytes) -> None:
        self._pool.run(lambda connection: connection.execute(statement), writes=True)
