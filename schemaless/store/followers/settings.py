"""The followers of a datastore, in the catalog: which exist, whether each is to run, and the creation of their rows.

Only this module creates follower rows; workers never do. A worker that finds no row waits: the shard may be
moving to another server, and a new row would start at the wrong location.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemaless.errors import InvalidInput
from schemaless.store.followers import sql
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.states import PAUSED, RUNNING
from schemaless.wire.pool import NodePool

NEW: Final = "new"
"""State of a follower whose rows are still being created."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A follower.

    Attributes:
        name: its name in the tables.
        desired_state: new, running or paused.
        spec: its parameters, as JSON.
    """

    name: str
    desired_state: str
    spec: Mapping[str, Any]


class Settings:
    """The followers of a datastore.

    Args:
        access: the datastore.
    """

    def __init__(self, access: DatastoreAccess) -> None:
        self._access = access
        self._shards = access.shards
        self._catalog = access.name

    @property
    def _pool(self) -> NodePool:
        # Not kept: a failover may have moved the catalog to another server.
        return self._access.catalog()

    def all(self) -> dict[str, Setting]:
        """Return all followers by name."""
        rows = self._pool.rows(sql.select_settings(self._catalog))
        return {str(name): Setting(str(name), str(wanted), json.loads(spec)) for name, wanted, spec in rows}

    def get(self, name: str) -> Setting:
        """Return a follower.

        Raises:
            InvalidInput: the follower does not exist.
        """
        settings = self.all()
        if name not in settings:
            kind, _, own = name.partition(":")
            others = ", ".join(key.partition(":")[2] for key in settings if key.startswith(f"{kind}:")) or "none"
            raise InvalidInput(f"{self._catalog!r} has no {kind} {own}; existing names: {others}")
        return settings[name]

    def create(self, name: str, spec: Mapping[str, Any], start_of: Callable[[int], int]) -> bool:
        """Create a follower with a row in each shard, or complete an interrupted creation.

        Args:
            name: its name.
            spec: its parameters, which replace existing ones.
            start_of: returns the location at which a new row starts in a shard.

        Returns:
            True if this call completed the creation.
        """
        self._execute(sql.insert_setting(self._catalog, name, NEW, json.dumps(spec)))
        setting = self.get(name)
        if setting.desired_state == NEW:
            self.create_missing_rows(name, start_of)
        state = RUNNING if setting.desired_state == NEW else setting.desired_state
        if (state, dict(spec)) != (setting.desired_state, setting.spec):
            self._execute(sql.update_setting(self._catalog, name, state, json.dumps(spec)))
        return setting.desired_state == NEW

    def create_missing_rows(self, name: str, start_of: Callable[[int], int]) -> None:
        """Create a follower's row in each shard that has none; ``start_of`` as in ``create``."""
        for shard in range(self._access.shard_count):
            database = self._shards.database(shard)
            if not self._shards.rows(shard, sql.select_followers([(database, shard, name)])):
                self._shards.execute(shard, sql.insert_follower(database, name, start_of(shard)))

    def set_desired_state(self, name: str, state: str) -> None:
        """Resume or pause a follower.

        Raises:
            InvalidInput: the follower does not exist, or its creation was interrupted.
        """
        setting = self.get(name)
        if setting.desired_state == NEW:
            raise InvalidInput(
                f"the creation of {name.replace(':', ' ', 1)} was interrupted; repeat the command that creates it"
            )
        assert state in (RUNNING, PAUSED)
        self._execute(sql.update_setting(self._catalog, name, state, json.dumps(setting.spec)))

    def remove(self, name: str) -> None:
        """Delete a follower, its rows and its parked cells; its workers end by themselves.

        An interrupted removal can be repeated.
        """
        for shard in range(self._access.shard_count):
            database = self._shards.database(shard)
            self._shards.execute(shard, sql.delete_follower(database, name))
            self._shards.execute(shard, sql.delete_parked(database, name))
        self._execute(sql.delete_setting(self._catalog, name))

    def _execute(self, statement: bytes) -> None:
        self._pool.execute(statement)
