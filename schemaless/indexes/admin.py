"""What people do to indexes: create them, see how far they are, have them become ready, and drop them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemaless.cells.sql import select_nothing
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, JobConflict, ServerError
from schemaless.events import Advanced, Listener, Total, nobody
from schemaless.followers.handler import Dealer
from schemaless.followers.membership import Pair
from schemaless.followers.rows import FollowerRow, FollowerRows
from schemaless.followers.settings import Settings
from schemaless.followers.status import ShardStatus, WorkerStatus, shard_statuses, workers_of
from schemaless.followers.table_cache import small_table_caches
from schemaless.indexes import sql
from schemaless.indexes.definition import Definition
from schemaless.indexes.follower import Indexing
from schemaless.indexes.registry import BACKFILLING, DECLARED, DROPPED, DROPPING, LOOK_S, READY, IndexEntry
from schemaless.internals import internals_of
from schemaless.topology.moves import refuse_beside_moves, unfinished_moves
from schemaless.wire.connection import Connection

_log = logging.getLogger("schemaless")

_WATCH_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """Where an index is.

    Attributes:
        small_caches: what to do on servers that keep too few tables open for it.
    """

    entry: IndexEntry
    wanted: str | None
    shards: tuple[ShardStatus, ...]
    workers: tuple[WorkerStatus, ...]
    small_caches: Mapping[str, str]

    @property
    def stands(self) -> bool:
        """Whether somebody has to do something: a shard has no row for it, cannot be asked, or is waited for."""
        follower = self.entry.follower
        waits = (name for worker in self.workers for name, *_ in worker.told.get("waits", []))
        faults = any(status.fault is not None for status in self.shards)
        return self.entry.state in (BACKFILLING, READY) and (faults or follower in waits)


@dataclass(slots=True)
class Backfill:
    """How far the filling of an index is.

    Attributes:
        targets: the location that each shard's follower has to reach.
        reached: how far it is; shards that cannot be asked are absent.
    """

    targets: dict[Pair, int]
    reached: dict[Pair, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether every shard is there."""
        return all(self.reached.get(pair, -1) >= target for pair, target in self.targets.items())

    @property
    def ids(self) -> int:
        """How many added_ids are behind it, of those that are to be."""
        return sum(min(self.reached.get(pair, 0), target) for pair, target in self.targets.items())


@dataclass(frozen=True, slots=True)
class KeepIndexes:
    """Workers keep indexes.

    Attributes:
        names: of the indexes; all that are there where it begins, if there are none.
    """

    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return f"index {', '.join(self.names)}" if self.names else "each index"

    def dealers(self, store: Datastore) -> Sequence[Dealer]:
        """Return what keeps them."""
        return [Indexing(internals_of(store), entry) for entry in Indexes(store).kept(self.names)]

    def followers(self, store: Datastore) -> Sequence[str]:
        """Return the names of their followers."""
        return [entry.follower for entry in Indexes(store).kept(self.names)]


class Indexes:
    """The indexes of a datastore, for who runs it."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._settings = Settings(store)
        self._rows = FollowerRows(self._shards)

    def all(self) -> tuple[IndexEntry, ...]:
        """Return all indexes that are not dropped."""
        return self._internals.registry.read()

    def named(self, name: str) -> list[IndexEntry]:
        """Return the indexes of a name: one, and another that is built beside it or was replaced by it.

        Raises:
            InvalidInput: there is none.
        """
        every = self.all()
        of_name = [entry for entry in every if entry.name == name]
        if not of_name:
            there = ", ".join(sorted({entry.name for entry in every})) or "none yet"
            raise InvalidInput(f"{self._store.name!r} has no index {name!r}; its indexes: {there}")
        return of_name

    def create(self, definition: Definition, listener: Listener = nobody) -> tuple[IndexEntry, bool]:
        """Make an index's tables and its follower, or go on where that was interrupted.

        Where it is there, what is missing of its follower is made: those shards are gone over from the beginning.

        Where there is one of the name with another definition, the new one is built beside it.

        Args:
            definition: what it is made of.
            listener: told of each shard.

        Returns:
            The index, and whether it was made just now.

        Raises:
            InvalidInput: another one of that name is being built already.
            JobConflict: shards are being moved.
        """
        entry = self._like(definition)
        if entry is None:
            refuse_beside_moves(self._internals.catalog, self._store.name)
            # None where another program was faster, whose index this then is as well.
            insert = sql.insert_index(self._store.name, definition.name, definition.text, DECLARED)
            mine = bool(self._execute(insert))
            entry = self._like(definition)
            if entry is None:
                raise _dropped(definition.name)
            try:
                # Who begins a move looks for indexes behind that, so one of the two sees the other.
                refuse_beside_moves(self._internals.catalog, self._store.name)
            except JobConflict:
                if mine:
                    self._put(entry, [DECLARED], DROPPED)
                raise
        if entry.state != DECLARED:
            self._settings.mend(entry.follower, lambda shard: 0)
            return entry, False
        refuse_beside_moves(self._internals.catalog, self._store.name)
        return self._make(entry, listener), True

    def _like(self, definition: Definition) -> IndexEntry | None:
        """Return the index of a definition; None where there is none.

        Raises:
            InvalidInput: another one of that name is being built already.
        """
        for entry in self.all():
            if entry.name != definition.name or entry.state == DROPPING:
                continue
            if entry.definition == definition:
                return entry
            if entry.state != READY:
                raise InvalidInput(
                    f"index {definition.name} is {entry.state} with another definition; 'schemaless index drop "
                    f"{definition.name} --number {entry.number} --execute' removes that one"
                )
        return None

    def _make(self, entry: IndexEntry, listener: Listener) -> IndexEntry:
        listener(Total(self._store.shard_count))
        for shard in range(self._store.shard_count):
            self._change_tables(shard, sql.create_index_table(self._shards.database(shard), entry.layout))
            listener(Advanced(1))
        self._settings.make(entry.follower, {"index": entry.name}, lambda shard: 0)
        self._put(entry, [DECLARED], BACKFILLING)
        now = next((other for other in self.all() if other.number == entry.number), None)
        if now is None or now.state == DROPPING:
            # Who dropped it may have been in a shard before its table was made there.
            self._settings.remove(entry.follower)
            self._drop_tables(entry, nobody)
            raise _dropped(entry.name)
        return now

    def _drop_tables(self, entry: IndexEntry, listener: Listener) -> None:
        listener(Total(self._store.shard_count))
        for shard in range(self._store.shard_count):
            self._change_tables(shard, sql.drop_index_table(self._shards.database(shard), entry.number))
            listener(Advanced(1))

    def kept(self, names: Sequence[str] = ()) -> list[IndexEntry]:
        """Return the indexes of some names, or all, that workers keep; those that are not there are absent."""
        return [
            entry for entry in self.all() if entry.state in (BACKFILLING, READY) and (not names or entry.name in names)
        ]

    def backfill(self, entry: IndexEntry) -> Backfill:
        """Begin to watch the filling of an index: it is to reach what is there now."""
        return Backfill({pair: row.top for pair, row in self._look(entry).items()})

    def watch(self, entry: IndexEntry, filling: Backfill) -> bool:
        """See how far the filling is, and have the index become ready where it is through; return whether it is.

        The index that had the name until now is to be dropped then. Beside a move of shards, both stay as they are.
        """
        now = self._look(entry)
        filling.reached = {pair: row.location for pair, row in now.items()}
        if len(filling.targets) < self._store.shard_count:
            # A shard could not be asked when this began.
            filling.targets |= {pair: row.top for pair, row in now.items() if pair not in filling.targets}
            return False
        if not filling.done:
            return False
        replaced = [e for e in self.all() if e.name == entry.name and e.number < entry.number and e.state == READY]
        if replaced and unfinished_moves(self._internals.catalog, self._store.name):
            # Shards with an index that is being dropped are not moved, and beside a move none is dropped.
            return False
        if entry.state == BACKFILLING:
            self._put(entry, [BACKFILLING], READY)
        for old in replaced:
            self._put(old, [READY], DROPPING, f"index {entry.number} has the name now")
            self._settings.remove(old.follower)
        return True

    def status(self, entry: IndexEntry) -> IndexStatus:
        """Return where an index is."""
        follower = entry.follower
        setting = self._settings.all().get(follower)
        shards: tuple[ShardStatus, ...] = ()
        if entry.state in (BACKFILLING, READY):
            missing = "it has no progress row here; run 'schemaless index create' with the same fields again"
            shards = tuple(shard_statuses(self._store, follower, missing))
        workers = tuple(workers_of(self._store, follower))
        small_caches = small_table_caches(self._internals) if shards else {}
        return IndexStatus(entry, None if setting is None else setting.wanted, shards, workers, small_caches)

    def drop(
        self, entry: IndexEntry, listener: Listener = nobody, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """Refuse an index's queries, have its workers let go, then drop its tables.

        Run again where it was interrupted, it goes on.

        Args:
            entry: the index.
            listener: told of each shard.
            wait: waits so many seconds, until every process has looked at the catalog again.

        Raises:
            JobConflict: shards are being moved.
        """
        refuse_beside_moves(self._internals.catalog, self._store.name)
        self._put(entry, [DECLARED, BACKFILLING, READY, DROPPING], DROPPING)
        if entry.follower in self._settings.all():
            self._settings.remove(entry.follower)
            wait(2 * LOOK_S)
        refuse_beside_moves(self._internals.catalog, self._store.name)
        self._drop_tables(entry, listener)
        self._put(entry, [DROPPING], DROPPED)

    def _change_tables(self, shard: int, statement: bytes) -> None:
        """Change a shard's tables where its cells are: the statement itself is no question of where that is."""
        there = select_nothing(self._shards.database(shard))

        def change(connection: Connection) -> None:
            for sent in (there, statement, there):
                connection.execute(sent)

        self._shards.run(shard, change, writes=True)

    def _look(self, entry: IndexEntry) -> dict[Pair, FollowerRow]:
        follower = entry.follower
        return self._rows.look((follower, shard) for shard in range(self._store.shard_count)).rows

    def _put(self, entry: IndexEntry, before: Sequence[str], state: str, message: str | None = None) -> None:
        self._execute(sql.update_index(self._store.name, entry.number, before, state, message))
        # Queries of this process go by what was read last.
        self.all()

    def _execute(self, statement: bytes) -> int:
        return self._internals.catalog.run(lambda connection: connection.execute(statement), writes=True).affected


def _dropped(name: str) -> InvalidInput:
    return InvalidInput(f"index {name} was dropped while it was created; create it again, if it is to be")


class Watch:
    """Looks after indexes while workers keep them: has them become ready, and sees when there are others.

    Called again and again, it returns whether these workers are to end.

    Args:
        indexes: of the datastore.
        names: of those that are kept; all, if there are none.
        once: end when everything is dealt with that is there now.
        listener: told how many added_ids are dealt with, of those that are to be before an index is ready.
    """

    def __init__(self, indexes: Indexes, names: Sequence[str], listener: Listener, *, once: bool) -> None:
        self._indexes = indexes
        self._names = names
        self._once = once
        self._listener = listener
        self._again_s = 0.0
        self._ids = 0
        self._entries = indexes.kept(names)
        self._fillings = {
            entry.number: indexes.backfill(entry) for entry in self._entries if once or entry.state == BACKFILLING
        }
        listener(Total(sum(sum(filling.targets.values()) for filling in self._fillings.values())))

    def __call__(self) -> bool:
        """Look, once a second."""
        if time.monotonic() < self._again_s:
            return False
        self._again_s = time.monotonic() + _WATCH_S
        try:
            now = self._indexes.kept(self._names)
            if {entry.number for entry in now} != {entry.number for entry in self._entries}:
                return True
            for entry in now:
                if entry.number in self._fillings and self._indexes.watch(entry, self._fillings[entry.number]):
                    if not self._once:
                        del self._fillings[entry.number]
                    if entry.state == BACKFILLING:
                        _log.warning("index %s (%d) is ready", entry.name, entry.number)
        except ServerError as error:
            # Workers go on with what they know, and so does this.
            _log.warning("this cannot see now how far indexes are: %s", error)
            return False
        ids = sum(filling.ids for filling in self._fillings.values())
        if ids > self._ids:
            self._listener(Advanced(ids - self._ids))
            self._ids = ids
        return self._once and all(filling.done for filling in self._fillings.values())
