"""Administration of indexes: create them, follow their progress, mark them ready, check and drop them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.errors import InvalidInput, JobConflict, ServerError
from schemaless.store.cells.reading import Reader
from schemaless.store.cells.sql import select_nothing
from schemaless.store.followers.caught_up import Patience
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.status import ShardStatus, WorkerStatus
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
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

_log = logging.getLogger("schemaless")

WATCH_S: Final = 1.0
"""Interval at which ``Watch`` reads the progress of indexes, in seconds."""


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """Status of an index.

    Attributes:
        entry: the index.
        wanted: desired state of its follower; None if the index has no follower.
        shards: the follower's status in each shard.
        workers: the live workers that maintain the index.
        small_caches: advice for each server whose table cache is too small for the index's tables.
    """

    entry: IndexEntry
    wanted: str | None
    shards: tuple[ShardStatus, ...]
    workers: tuple[WorkerStatus, ...]
    small_caches: Mapping[str, str]

    @property
    def stands(self) -> bool:
        """True if the index needs action: a shard has no follower row or cannot be read, or a worker reports a wait."""
        follower = self.entry.follower
        waits = (name for worker in self.workers for name, *_ in worker.reported.get("waits", []))
        faults = any(status.fault is not None for status in self.shards)
        return self.entry.state in (BACKFILLING, READY) and (faults or follower in waits)


@dataclass(slots=True)
class Backfill:
    """Progress of building an index.

    Attributes:
        targets: the location that the follower has to reach in each shard.
        erasures: the last event of each shard's log of erased cells when the shard was first read.
        patience: decides which shards a run that is to end no longer waits for.
        rows: the follower's rows; shards that cannot be read are absent.
    """

    targets: dict[Pair, int]
    erasures: dict[Pair, int]
    patience: Patience
    rows: dict[Pair, FollowerRow] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """True if every shard has reached its target."""
        return not self.behind

    @property
    def behind(self) -> set[int]:
        """Shards that have not reached their target."""
        rows = self.rows
        return {pair[1] for pair, target in self.targets.items() if pair not in rows or rows[pair].location < target}

    @property
    def unerased(self) -> set[int]:
        """Shards whose erasures the follower has not handled; queries do not wait for this."""
        rows = self.rows
        return {pair[1] for pair, event in self.erasures.items() if pair not in rows or rows[pair].erased_event < event}

    @property
    def ids(self) -> int:
        """Number of added_ids processed towards the targets, summed over the shards."""
        return sum(min(self.rows[pair].location, target) for pair, target in self.targets.items() if pair in self.rows)


@dataclass(frozen=True, slots=True)
class FollowerAccess:
    """Access to the followers that maintain indexes.

    Attributes:
        settings: the datastore's followers.
        shard_statuses: returns the status of a follower in each shard, given its name and the fault to report for a
            shard where it has no row.
        workers: returns the live workers of a follower, given its name.
        small_table_caches: returns advice for servers whose table cache is too small for followers.
    """

    settings: Settings
    shard_statuses: Callable[[str, str], Iterable[ShardStatus]]
    workers: Callable[[str], Iterable[WorkerStatus]]
    small_table_caches: Callable[[], Mapping[str, str]]


class Indexes:
    """The indexes of a datastore, for operators and worker processes.

    Args:
        shards: the datastore's shards.
        reader: reads cells by their keys.
        registry: the catalog's list of indexes.
        catalog: returns the connections to the catalog's server, which a failover may change.
        followers: access to the followers that maintain the indexes.
    """

    def __init__(
        self,
        shards: Shards,
        reader: Reader,
        registry: Registry,
        catalog: Callable[[], NodePool],
        followers: FollowerAccess,
    ) -> None:
        self._shards = shards
        self._datastore = shards.topology.name
        self._shard_count = shards.topology.shard_count
        self._reader = reader
        self._registry = registry
        self._catalog = catalog
        self._followers = followers
        self._settings = followers.settings
        self._rows = FollowerRows(shards)

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
        return Entries(self._shards, self._reader, self._registry, entry)

    def check(self, entry: IndexEntry, *, repair: bool = False, rows_per_query: int = ROWS_PER_QUERY) -> IndexCheck:
        """Return a check of an index; nothing is read before it is run.

        Args:
            entry: the index.
            repair: whether the check repairs faults; the account must be allowed to write entries.
            rows_per_query: number of rows or entries read by one statement.

        Raises:
            InvalidInput: the index is not ready.
        """
        return IndexCheck(
            entry,
            self.entries(entry),
            self._shards,
            self._registry,
            self._catalog,
            repair=repair,
            rows_per_query=rows_per_query,
        )

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
        ready = [entry for entry in self.named(name) if entry.state == READY]
        if not ready:
            raise InvalidInput(f"index {name} is not ready; 'schemaless index status {name}' shows its progress")
        return self._create(ready[-1].definition, listener, again=True)

    def _create(self, definition: Definition, listener: Listener, *, again: bool) -> tuple[IndexEntry, bool]:
        entry = self._existing(definition, again=again)
        if entry is None:
            refuse_beside_moves(self._catalog(), self._datastore)
            # Inserts nothing if another process was faster; the index is the same then.
            insert = sql.insert_index(self._datastore, definition.name, definition.text, DECLARED, again=again)
            inserted = bool(self._execute(insert))
            entry = self._existing(definition, again=again)
            if entry is None:
                raise _dropped(definition.name)
            try:
                # A move looks for indexes after it has been registered, so one of the two sees the other.
                refuse_beside_moves(self._catalog(), self._datastore)
            except JobConflict:
                if inserted:
                    self._set_state(entry, [DECLARED], DROPPED)
                raise
        if entry.state != DECLARED:
            self._settings.create_missing_rows(entry.follower, lambda shard: 0)
            return entry, False
        refuse_beside_moves(self._catalog(), self._datastore)
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
        listener(Total(self._shard_count))
        for shard in range(self._shard_count):
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
        listener(Total(self._shard_count))
        for shard in range(self._shard_count):
            self._change_tables(shard, sql.drop_index_table(self._shards.database(shard), entry.number))
            listener(Advanced(1))

    def backfill(self, entry: IndexEntry) -> Backfill:
        """Start tracking the building of an index. The targets are the current ends of the shards."""
        rows = self._follower_rows(entry)
        return Backfill(
            {pair: row.top for pair, row in rows.items()},
            {pair: row.last_event for pair, row in rows.items()},
            Patience(entry.follower),
        )

    def watch(self, entry: IndexEntry, backfill: Backfill) -> bool:
        """Update the progress of building an index; once every target is reached, mark the index ready.

        An older index of the same name is then marked for dropping. While shards are being moved, both stay as they
        are, because a shard cannot be moved while one of its indexes is being dropped.

        Returns:
            True if the index is ready.
        """
        rows = backfill.rows = self._follower_rows(entry)
        if len(backfill.targets) < self._shard_count:
            # A shard could not be read when the targets were first recorded.
            backfill.targets = {pair: row.top for pair, row in rows.items()} | backfill.targets
            backfill.erasures = {pair: row.last_event for pair, row in rows.items()} | backfill.erasures
            return False
        if not backfill.done:
            return False
        replaced = [e for e in self.all() if e.name == entry.name and e.number < entry.number and e.state == READY]
        if replaced and unfinished_moves(self._catalog(), self._datastore):
            return False
        if entry.state == BACKFILLING:
            self._set_state(entry, [BACKFILLING], READY)
        for old in replaced:
            self._set_state(old, [READY], DROPPING, f"replaced by index {entry.number}")
            self._settings.remove(old.follower)
        return True

    def gave_up(self, entry: IndexEntry, backfill: Backfill) -> Mapping[int, str] | None:
        """Return the shards that a run that is to end leaves to the next one, and why; None if others are not done."""
        left = backfill.behind | backfill.unerased
        if not left:
            return {}
        rows = {pair[1]: row for pair, row in backfill.rows.items() if pair[1] in left}
        lost = backfill.patience.lost(self._followers.workers(entry.follower), rows, backfill.behind)
        return lost if lost.keys() == left else None

    def status(self, entry: IndexEntry) -> IndexStatus:
        """Read the status of an index."""
        follower = entry.follower
        setting = self._settings.all().get(follower)
        shards: tuple[ShardStatus, ...] = ()
        if entry.state in (BACKFILLING, READY):
            missing = "no progress row in this shard; run 'schemaless index create' with the same fields again"
            shards = tuple(self._followers.shard_statuses(follower, missing))
        workers = tuple(self._followers.workers(follower))
        small_caches = self._followers.small_table_caches() if shards else {}
        return IndexStatus(entry, None if setting is None else setting.desired_state, shards, workers, small_caches)

    def drop(
        self, entry: IndexEntry, listener: Listener = ignore_events, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """Drop an index: queries are refused, workers stop maintaining it, then its tables are dropped.

        An interrupted call can be repeated.

        Args:
            entry: the index.
            listener: receives the progress, in shards.
            wait: waits for the given number of seconds, by which time every process has read the catalog again.

        Raises:
            JobConflict: shards are being moved.
        """
        refuse_beside_moves(self._catalog(), self._datastore)
        self._set_state(entry, [DECLARED, BACKFILLING, READY, DROPPING], DROPPING)
        if entry.follower in self._settings.all():
            self._settings.remove(entry.follower)
            wait(2 * LOOK_S)
        refuse_beside_moves(self._catalog(), self._datastore)
        self._drop_tables(entry, listener)
        self._set_state(entry, [DROPPING], DROPPED)

    def _change_tables(self, shard: int, statement: bytes) -> None:
        """Execute DDL in a shard, between two statements that fail if the shard's cells are on another server.

        The DDL alone would succeed on the wrong server.
        """
        probe = select_nothing(self._shards.database(shard))

        def change(connection: Connection) -> None:
            for each in (probe, statement, probe):
                connection.execute(each)

        self._shards.run(shard, change, writes=True)

    def _follower_rows(self, entry: IndexEntry) -> dict[Pair, FollowerRow]:
        return self._rows.look((entry.follower, shard) for shard in range(self._shard_count)).rows

    def _set_state(self, entry: IndexEntry, before: Sequence[str], state: str, message: str | None = None) -> None:
        self._execute(sql.update_index(self._datastore, entry.number, before, state, message))
        # Queries of this process use the list that was read last.
        self.all()

    def _execute(self, statement: bytes) -> int:
        return self._catalog().run(lambda connection: connection.execute(statement), writes=True).affected


def _dropped(name: str) -> InvalidInput:
    return InvalidInput(f"index {name} was dropped while it was being created; create it again if you still want it")


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
        listener(Total(sum(sum(backfill.targets.values()) for backfill in self._backfills.values())))

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
                        _log.warning("index %s (%d) is ready", entry.name, entry.number)
            gave_up = {
                f"{entry.name} ({entry.number})": self._indexes.gave_up(entry, self._backfills[entry.number])
                for entry in (entries if self._once else ())
            }
        except ServerError as error:
            # Keep the workers running: they continue with the last list of indexes.
            _log.warning("cannot read the progress of indexes: %s", error)
            return False
        ids = sum(backfill.ids for backfill in self._backfills.values())
        if ids > self._ids:
            self._listener(Advanced(ids - self._ids))
            self._ids = ids
        self.gave_up = {index: shards for index, shards in gave_up.items() if shards}
        return self._once and None not in gave_up.values()
