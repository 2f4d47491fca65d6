"""Administration of indexes: create them, follow their progress, mark them ready, check and drop them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.logger import log
from schemaless.errors import InvalidInput, JobConflict, ServerError
from schemaless.store.cells.sql import select_nothing
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.caught_up import Progress
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.status import FollowerStatus, follower_status, workers_of
from schemaless.store.indexes import sql
from schemaless.store.indexes.check import ROWS_PER_QUERY, IndexCheck
from schemaless.store.indexes.definition import Definition
from schemaless.store.indexes.entries import Entries
from schemaless.store.indexes.follower import Indexing
from schemaless.store.indexes.registry import (
    BACKFILLING,
    DECLARED,
    DROPPED,
    DROPPING,
    LOOK_S,
    READY,
    IndexEntry,
    Registry,
)
from schemaless.store.indexes.tables import engine_of
from schemaless.topology.moves import refuse_beside_moves, unfinished_moves
from schemaless.wire.connection import Connection
from schemaless.wire.transactions import naming_users

WATCH_S: Final = 1.0
"""Interval at which ``Watch`` reads the progress of indexes, in seconds."""


@dataclass(frozen=True, slots=True)
class IndexStatus(FollowerStatus):
    """Status of an index.

    Attributes:
        entry: the index.
        wanted: desired state of its follower; None if the index has no follower.
    """

    entry: IndexEntry
    wanted: str | None

    @property
    def stands(self) -> bool:
        """True if the index needs action: a shard has no follower row or cannot be read, or a worker reports a wait."""
        follower = self.entry.follower
        waits = (name for worker in self.workers for name, *_ in worker.reported.get("waits", []))
        faults = any(status.fault is not None for status in self.shards)
        return self.entry.state in (BACKFILLING, READY) and (faults or follower in waits)


class Indexes:
    """The indexes of a datastore, for operators and worker processes.

    Args:
        access: the datastore.
        registry: the catalog's list of indexes.
    """

    def __init__(self, access: DatastoreAccess, registry: Registry) -> None:
        self._access = access
        self._shards = access.shards
        self._datastore = access.name
        self._registry = registry
        self._settings = Settings(access)

    def all(self) -> tuple[IndexEntry, ...]:
        """Read all indexes that are not dropped."""
        return self._registry.read()

    def named(self, name: str) -> list[IndexEntry]:
        """Read the indexes with this name: usually one; two while one is replacing the other.

        Raises:
            InvalidInput: there is no index of that name.
        """
        entries = self.all()
        named = [entry for entry in entries if entry.name == name]
        if not named:
            names = ", ".join(sorted({entry.name for entry in entries})) or "none yet"
            raise InvalidInput(f"{self._datastore!r} has no index {name!r}; its indexes: {names}")
        return named

    def ready(self, name: str) -> IndexEntry:
        """Read the index with this name that answers queries.

        Raises:
            InvalidInput: there is none.
        """
        ready = [entry for entry in self.named(name) if entry.state == READY]
        if not ready:
            raise InvalidInput(f"index {name} is not ready; 'schemaless index status {name}' shows its progress")
        return ready[-1]

    def maintained(self, names: Sequence[str] = ()) -> list[IndexEntry]:
        """Read the indexes that workers maintain: those with the given names, or all. Unknown names are ignored."""
        return [
            entry for entry in self.all() if entry.state in (BACKFILLING, READY) and (not names or entry.name in names)
        ]

    def handlers(self, names: Sequence[str] = ()) -> list[Indexing]:
        """Return handlers for the maintained indexes with the given names, or for all of them."""
        return [Indexing(entry, self.entries(entry), self._registry) for entry in self.maintained(names)]

    def entries(self, entry: IndexEntry) -> Entries:
        """Return the entries of an index."""
        return Entries(self._shards, self._access.reader, self._registry, entry)

    def check(self, entry: IndexEntry, *, repair: bool = False, rows_per_query: int = ROWS_PER_QUERY) -> IndexCheck:
        """Return a check of an index; nothing is read before it is run.

        Args:
            entry: the index.
            repair: whether the check repairs faults; the account must be allowed to write entries.
            rows_per_query: number of rows or entries read by one statement.

        Raises:
            InvalidInput: the index is not ready.
        """
        return IndexCheck(self._access, self._registry, entry, repair, rows_per_query)

    def create(self, definition: Definition, listener: Listener = ignore_events) -> tuple[IndexEntry, bool]:
        """Create an index's tables and its follower, or continue an interrupted creation.

        If the index exists, its follower's row is created in each shard that lacks it, and workers read those shards
        from the beginning. If an index of the same name has another definition, the new index is built beside it.

        Args:
            definition: the name and fields of the index.
            listener: receives the progress, in shards.

        Returns:
            The index, and whether this call created it.

        Raises:
            InvalidInput: another index of that name is still being built.
            JobConflict: shards are being moved.
        """
        return self._create(definition, listener, again=False)

    def rebuild(self, name: str, listener: Listener = ignore_events) -> tuple[IndexEntry, bool]:
        """Create the tables and follower of a second index with the same fields, which replaces the first once ready.

        The new tables use the clusters' current storage engines. Safe to repeat after an interruption: an
        index that is still being built is not created again.

        Args:
            name: name of the index.
            listener: receives the progress, in shards.

        Returns:
            The new index, and whether this call created it.

        Raises:
            InvalidInput: the index is not ready.
            JobConflict: shards are being moved.
        """
        return self._create(self.ready(name).definition, listener, again=True)

    def _create(self, definition: Definition, listener: Listener, *, again: bool) -> tuple[IndexEntry, bool]:
        entry = self._existing(definition, again=again)
        if entry is None:
            refuse_beside_moves(self._access.catalog(), self._datastore)
            # Inserts nothing if another process was faster; the index is the same then.
            insert = sql.insert_index(self._datastore, definition.name, definition.text, DECLARED, again=again)
            inserted = bool(self._execute(insert))
            entry = self._existing(definition, again=again)
            if entry is None:
                raise _dropped(definition.name)
            try:
                # A move looks for indexes after it has been registered, so one of the two sees the other.
                refuse_beside_moves(self._access.catalog(), self._datastore)
            except JobConflict:
                if inserted:
                    self._set_state(entry, [DECLARED], DROPPED)
                raise
        if entry.state != DECLARED:
            self._settings.create_missing_rows(entry.follower, lambda shard: 0)
            return entry, False
        refuse_beside_moves(self._access.catalog(), self._datastore)
        return self._build(entry, listener), True

    def _existing(self, definition: Definition, *, again: bool) -> IndexEntry | None:
        """Return the index with this definition, if there is one; ``again`` ignores ready ones.

        Raises:
            InvalidInput: another index of that name is still being built.
        """
        named = [entry for entry in self.all() if entry.name == definition.name and entry.state != DROPPING]
        named = [entry for entry in named if not again or entry.state != READY]
        same = [entry for entry in named if entry.definition == definition]
        if same:
            # While an index is rebuilt, it exists twice, and only the new one may lack tables.
            return min(same, key=lambda entry: entry.state == READY)
        for entry in named:
            if entry.state != READY:
                raise InvalidInput(
                    f"index {definition.name} exists with another definition, and is {entry.state}. Wait until it is "
                    f"ready or gone, or remove it: 'schemaless index drop {definition.name} --number "
                    f"{entry.number} --execute'"
                )
        return None

    def _build(self, entry: IndexEntry, listener: Listener) -> IndexEntry:
        listener(Total(self._access.shard_count))
        for shard in range(self._access.shard_count):
            engine = engine_of(self._shards, shard)
            self._change_tables(shard, sql.create_index_table(self._shards.database(shard), entry.layout, engine))
            listener(Advanced(1))
        self._settings.create(entry.follower, {"index": entry.name}, lambda shard: 0)
        self._set_state(entry, [DECLARED], BACKFILLING)
        current = next((other for other in self.all() if other.number == entry.number), None)
        if current is None or current.state == DROPPING:
            # A concurrent drop may have passed a shard before its table was created here.
            self._settings.remove(entry.follower)
            self._drop_tables(entry, ignore_events)
            raise _dropped(entry.name)
        return current

    def _drop_tables(self, entry: IndexEntry, listener: Listener) -> None:
        listener(Total(self._access.shard_count))
        for shard in range(self._access.shard_count):
            self._change_tables(shard, sql.drop_index_table(self._shards.database(shard), entry.number))
            listener(Advanced(1))

    def backfill(self, entry: IndexEntry) -> Progress:
        """Start tracking the building of an index, up to the current ends of the shards."""
        return Progress(self._access, entry.follower)

    def watch(self, entry: IndexEntry, backfill: Progress) -> bool:
        """Update the progress of building an index; once every shard's end is reached, mark the index ready.

        An older index of the same name is then marked for dropping. While shards are being moved, both stay as they
        are, because a shard cannot be moved while one of its indexes is being dropped.

        Returns:
            True if the index is ready.
        """
        backfill.read()
        if backfill.behind:
            return False
        replaced = [e for e in self.all() if e.name == entry.name and e.number < entry.number and e.state == READY]
        if replaced and unfinished_moves(self._access.catalog(), self._datastore):
            return False
        if entry.state == BACKFILLING:
            self._set_state(entry, [BACKFILLING], READY)
        for old in replaced:
            self._set_state(old, [READY], DROPPING, f"replaced by index {entry.number}")
            self._settings.remove(old.follower)
        return True

    def status(self, entry: IndexEntry) -> IndexStatus:
        """Read the status of an index."""
        setting = self._settings.all().get(entry.follower)
        status = FollowerStatus((), tuple(workers_of(self._access, entry.follower)), {})
        if entry.state in (BACKFILLING, READY):
            missing = "no progress row in this shard; run 'schemaless index create' with the same fields again"
            status = follower_status(self._access, entry.follower, missing)
        wanted = None if setting is None else setting.desired_state
        return IndexStatus(status.shards, status.workers, status.small_caches, entry, wanted)

    def drop(
        self, entry: IndexEntry, listener: Listener = ignore_events, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """Drop an index: queries are refused, workers stop maintaining it, then its tables are dropped.

        An interrupted call can be repeated.

        Args:
            entry: the index.
            listener: receives the progress, in shards.
            wait: waits for the given number of seconds, by which time every worker has read the catalog again; called
                if there are any.

        Raises:
            JobConflict: shards are being moved.
        """
        refuse_beside_moves(self._access.catalog(), self._datastore)
        self._set_state(entry, [DECLARED, BACKFILLING, READY, DROPPING], DROPPING)
        if entry.follower in self._settings.all():
            self._settings.remove(entry.follower)
            # A worker that joins from now on reads that the follower is gone.
            if any(workers_of(self._access, entry.follower)):
                wait(2 * LOOK_S)
        refuse_beside_moves(self._access.catalog(), self._datastore)
        self._drop_tables(entry, listener)
        self._set_state(entry, [DROPPING], DROPPED)

    def _change_tables(self, shard: int, statement: bytes) -> None:
        """Execute DDL in a shard, between two statements that fail if the shard's cells are on another server.

        The DDL alone would succeed on the wrong server.
        """
        database = self._shards.database(shard)
        probe = select_nothing(database)

        def change(connection: Connection) -> None:
            for each in (probe, statement, probe):
                with naming_users(connection, database):
                    connection.execute(each)

        self._shards.run(shard, change, writes=True)

    def _set_state(self, entry: IndexEntry, before: Sequence[str], state: str, message: str | None = None) -> None:
        self._execute(sql.update_index(self._datastore, entry.number, before, state, message))
        # Queries of this process use the list that was read last.
        self.all()

    def _execute(self, statement: bytes) -> int:
        return self._access.catalog().execute(statement).affected


def _dropped(name: str) -> InvalidInput:
    return InvalidInput(f"index {name} was dropped while it was being created; create it again if you still want it")


def _gave_up(backfill: Progress) -> Mapping[int, str] | None:
    """Return the shards that a run that is to end leaves to the next one, and why; None if others are not done."""
    left = backfill.behind | backfill.unerased
    lost = backfill.gave_up(left)
    return lost if lost.keys() == left else None


class Watch:
    """Follows indexes while workers maintain them: marks them ready, and notices when others are created or dropped.

    Each call returns whether the workers should end.

    Args:
        indexes: the datastore's indexes.
        names: names of the indexes that the workers maintain; empty for all.
        listener: receives the number of added_ids processed, out of those to process before the indexes are ready.
        once: whether to end as soon as all cells and erasures present at the start have been processed.

    Attributes:
        gave_up: with ``once``, by index: the shards that failed eight times or killed eight workers, and why. They are
            retried by the next workers.
    """

    def __init__(self, indexes: Indexes, names: Sequence[str], listener: Listener, *, once: bool) -> None:
        self.gave_up: dict[str, Mapping[int, str]] = {}
        self._indexes = indexes
        self._names = names
        self._once = once
        self._listener = listener
        self._next_read_s = 0.0
        self._ids = 0
        self._entries = indexes.maintained(names)
        self._backfills = {
            entry.number: indexes.backfill(entry) for entry in self._entries if once or entry.state == BACKFILLING
        }
        listener(Total(sum(backfill.total for backfill in self._backfills.values())))

    def __call__(self) -> bool:
        """Read the progress, at most once a second, and return whether the workers should end."""
        if time.monotonic() < self._next_read_s:
            return False
        self._next_read_s = time.monotonic() + WATCH_S
        try:
            entries = self._indexes.maintained(self._names)
            if {entry.number for entry in entries} != {entry.number for entry in self._entries}:
                return True
            for entry in entries:
                if entry.number in self._backfills and self._indexes.watch(entry, self._backfills[entry.number]):
                    if not self._once:
                        del self._backfills[entry.number]
                    if entry.state == BACKFILLING:
                        log.warning("index %s (%d) is ready", entry.name, entry.number)
            gave_up = {
                f"{entry.name} ({entry.number})": _gave_up(self._backfills[entry.number])
                for entry in (entries if self._once else ())
            }
        except ServerError as error:
            # Keep the workers running: they continue with the last list of indexes.
            log.warning("cannot read the progress of indexes: %s", error)
            return False
        ids = sum(backfill.done for backfill in self._backfills.values())
        if ids > self._ids:
            self._listener(Advanced(ids - self._ids))
            self._ids = ids
        self.gave_up = {index: shards for index, shards in gave_up.items() if shards}
        return self._once and None not in gave_up.values()
