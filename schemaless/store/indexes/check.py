"""Check and repair of an index: compares every row with its entry, and every entry with its row.

A check runs concurrently with writers and workers. When a row differs from its entry, the check reads the follower's
location and then the row again. If the follower has yet to process the row's latest cells, the entry merely lags. Any
other difference would be permanent, and is reported or repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.parts import grouped
from schemaless.errors import InvalidInput, JobConflict
from schemaless.store.cells.sql import select_ends, select_row_keys
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.indexes import sql
from schemaless.store.indexes.entries import Entries
from schemaless.store.indexes.entry_changes import Entry, PageWrites, RowState, entry_of
from schemaless.store.indexes.registry import READY, IndexEntry, Registry
from schemaless.store.indexes.tables import check_tables
from schemaless.topology.moves import last_move, refuse_beside_moves
from schemaless.topology.placement import shard_for
from schemaless.wire.connection import Rows

ROWS_PER_QUERY: Final = 200
_STEPS: Final = 1 << 9
"""Progress steps for each half of a shard's check; a power of two, so that fractions add up exactly."""

Placed = tuple[int, Entry]
"""The number of the shard that an entry belongs to, and the entry."""


@dataclass(slots=True)
class Found:
    """The result of checking one shard.

    Attributes:
        shard: the shard's number.
        rows: rows of the shard that have cells in source columns.
        entries: entries in the shard, including those of rows in other shards.
        without_entry: rows without an entry because the shard field is missing or does not fit.
        null_fields: other fields of indexed rows that are missing or do not fit.
        lagging: differences that exist because the follower has yet to process a row's latest cells; not faults.
        missing: rows whose entry is missing.
        stale: entries whose values differ from their row's, or that belong in another shard.
        ahead: entries built from versions that the row does not have.
        orphan: entries of rows without cells in source columns.
        repaired: number of faults of the four kinds above that were repaired.
    """

    shard: int
    rows: int = 0
    entries: int = 0
    without_entry: int = 0
    null_fields: int = 0
    lagging: int = 0
    missing: int = 0
    stale: int = 0
    ahead: int = 0
    orphan: int = 0
    repaired: int = 0

    @property
    def faults(self) -> int:
        """Number of faults, including repaired ones."""
        return self.missing + self.stale + self.ahead + self.orphan

    @property
    def counts(self) -> dict[str, int]:
        """All counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(slots=True)
class _Progress:
    """Progress within one shard: its rows are the first half, its entries the second.

    The position of a row_key between the first and the last one is taken as the fraction that has been read, because
    random and time-based keys are spread evenly.

    Attributes:
        listener: receives the progress, in shards.
        ends: the first and the last key of the current half; None if there are none.
    """

    listener: Listener
    ends: tuple[bytes | None, bytes | None] = (None, None)
    _reported: float = 0.0

    def reached(self, base: float, row_key: bytes) -> None:
        """Report progress up to ``row_key``; ``base`` is 0 in the first half of the check and 0.5 in the second."""
        if None in self.ends:
            return
        first, last, here = (int.from_bytes(key or b"", "big") for key in (*self.ends, row_key))
        # A key that was written during the check may lie outside the range.
        fraction = base + min(_STEPS, max(0, _STEPS * (here - first) // max(1, last - first))) / (2 * _STEPS)
        if fraction > self._reported:
            self.listener(Advanced(fraction - self._reported))
            self._reported = fraction

    def ended(self) -> None:
        """Report the remaining progress of a shard that has been checked completely."""
        self.listener(Advanced(1 - self._reported))


class IndexCheck:
    """A check of one index, as returned by ``Indexes.check``.

    Args:
        access: the datastore.
        registry: remembers which of the index's tables were checked.
        entry: the index.
        repair: whether faults are repaired; the account must be allowed to write entries.
        rows_per_query: number of rows or entries read by one statement.

    Raises:
        InvalidInput: the index is not ready.
    """

    def __init__(
        self, access: DatastoreAccess, registry: Registry, entry: IndexEntry, repair: bool, rows_per_query: int
    ) -> None:
        if entry.state != READY:
            raise InvalidInput(
                f"index {entry.name} ({entry.number}) is {entry.state}; only a ready index can be checked"
            )
        self._access = access
        self._shards = access.shards
        self._registry = registry
        self._entry = entry
        self._definition = entry.definition
        self._layout = entry.layout
        self._entries = Entries(access.shards, access.reader, registry, entry)
        self._repair = repair
        self._rows_per_query = rows_per_query

    def run(self, shards: Sequence[int], listener: Listener = ignore_events) -> Iterator[Found]:
        """Check shards one after the other, and yield the result of each.

        Args:
            shards: the numbers of the shards.
            listener: receives the progress, in shards.

        Raises:
            InvalidInput: a shard has no row of the index's follower.
            JobConflict: shards are being moved, or a move began while faults were being repaired: it may have copied
                entries before they were repaired.
        """
        listener(Total(len(shards)))
        for shard in shards:
            before = last_move(self._access.catalog(), self._access.name) if self._repair else 0
            if self._repair:
                refuse_beside_moves(self._access.catalog(), self._access.name)
            check_tables(self._shards, self._registry, self._entry, [shard])
            # Without a follower, every difference would be taken for lag: raise instead.
            self._location(shard)
            found, progress = Found(shard), _Progress(listener)
            self._check_rows(found, progress)
            self._check_entries(found, progress)
            if found.repaired and (move := last_move(self._access.catalog(), self._access.name)) > before:
                raise JobConflict(
                    f"move {move} began while shard {shard} was being repaired, and may have copied entries before "
                    "their repair. Wait until the move has ended, then run this command again for this shard and the "
                    "shards after it",
                    move,
                )
            progress.ended()
            yield found

    # Rows against entries

    def _check_rows(self, found: Found, progress: _Progress) -> None:
        shard, database = found.shard, self._shards.database(found.shard)
        (progress.ends,) = self._shards.rows(shard, select_ends(database))
        for keys in self._pages(lambda after: select_row_keys(database, after, self._rows_per_query), shard):
            rows = self._entries.rows(shard, [bytes(key[0]) for key in keys])
            expected = {row: self._expected(row, state) for row, (state, _) in rows.items()}
            stored = self._stored(expected.values())
            found.rows += sum(max(state.refs) >= 0 for state, _ in rows.values())
            found.without_entry += sum(
                expected[row] is None and max(state.refs) >= 0 for row, (state, _) in rows.items()
            )
            found.null_fields += sum(
                placed[1].values[1:].count(None) for placed in expected.values() if placed is not None
            )
            suspects = [row for row, placed in expected.items() if placed is not None and self._fault(placed, stored)]
            if suspects:
                self._recheck_rows(found, suspects)
            progress.reached(0.0, bytes(keys[-1][0]))

    def _recheck_rows(self, found: Found, suspects: Sequence[bytes]) -> None:
        # The location is read first: entries that are read after it include everything up to it.
        location = self._location(found.shard)
        before = self._entries.rows(found.shard, suspects)
        stored = self._stored(self._expected(row, state) for row, (state, _) in before.items())
        for row, (state, top) in self._entries.rows(found.shard, suspects).items():
            placed = self._expected(row, state)
            if placed is None:
                continue
            kind = self._fault(placed, stored)
            if kind is None:
                continue
            if top > location or state.refs != before[row][0].refs:
                found.lagging += 1
                continue
            setattr(found, kind, getattr(found, kind) + 1)
            if self._repair:
                shard, entry = placed
                if kind == "ahead":
                    self._entries.delete_exactly(shard, [(row, stored[shard, row].refs)])
                self._entries.apply(PageWrites({shard: [entry]}))
                found.repaired += 1

    def _fault(self, placed: Placed, stored: Mapping[tuple[int, bytes], Entry]) -> str | None:
        """Return the kind of fault of a row's stored entry, compared with the expected one; None if they agree."""
        shard, expected = placed
        entry = stored.get((shard, expected.row_key))
        if entry is None:
            return "missing"
        if _has_later_ref(entry.refs, expected.refs):
            return "ahead"
        return None if entry.values == self._definition.stored(expected.values) else "stale"

    # Entries against rows

    def _check_entries(self, found: Found, progress: _Progress) -> None:
        shard, database = found.shard, self._shards.database(found.shard)
        (progress.ends,) = self._shards.rows(shard, sql.select_ends_of_entries(database, self._layout))
        for page in self._pages(
            lambda after: sql.select_entries_after(database, self._layout, after, self._rows_per_query), shard
        ):
            entries = [self._parsed(row) for row in page]
            found.entries += len(entries)
            by_home = grouped((shard_for(entry.row_key, self._access.shard_count), entry) for entry in entries)
            for home, of_home in by_home.items():
                rows = self._entries.rows(home, [entry.row_key for entry in of_home])
                suspects = [entry for entry in of_home if not self._belongs(shard, entry, rows[entry.row_key][0])]
                if suspects:
                    self._recheck_entries(found, home, suspects)
            progress.reached(0.5, bytes(page[-1][0]))

    def _recheck_entries(self, found: Found, home: int, suspects: Sequence[Entry]) -> None:
        location = self._location(home)
        keys = [entry.row_key for entry in suspects]
        statement = sql.select_entries(self._shards.database(found.shard), self._layout, found.shard, keys)
        remaining = [self._parsed(row[1:]) for row in self._shards.rows(found.shard, statement)]
        rows = self._entries.rows(home, keys)
        for entry in remaining:
            state, top = rows[entry.row_key]
            if self._belongs(found.shard, entry, state):
                continue
            if top > location:
                found.lagging += 1
                continue
            if max(state.refs) < 0:
                found.orphan += 1
            elif _has_later_ref(entry.refs, state.refs):
                found.ahead += 1
            else:
                found.stale += 1
            if self._repair:
                # Match the refs exactly, so that an entry written in the meantime is kept.
                self._entries.delete_exactly(found.shard, [(entry.row_key, entry.refs)])
                found.repaired += 1

    def _belongs(self, shard: int, entry: Entry, state: RowState) -> bool:
        """Return True if this shard is the right one for the row's entry; ``_check_rows`` compares the values."""
        placed = self._expected(entry.row_key, state)
        return placed is not None and placed[0] == shard

    # Reading

    def _expected(self, row: bytes, state: RowState) -> Placed | None:
        """Return the entry that a row should have; None if it should have none."""
        shard, entry = entry_of(self._definition, self._access.shard_count, row, state)
        return None if shard is None else (shard, entry)

    def _stored(self, expected: Iterable[Placed | None]) -> dict[tuple[int, bytes], Entry]:
        """Read the stored entries of rows, from the shards that they belong to."""
        by_shard = grouped((placed[0], placed[1].row_key) for placed in expected if placed is not None)
        entries = {}
        for shard, keys in by_shard.items():
            statement = sql.select_entries(self._shards.database(shard), self._layout, shard, keys)
            for row in self._shards.rows(shard, statement):
                entry = self._parsed(row[1:])
                entries[shard, entry.row_key] = entry
        return entries

    def _parsed(self, row: Sequence[Any]) -> Entry:
        refs = tuple(int(ref) for ref in row[1 + len(self._definition.all_fields) :])
        return Entry(bytes(row[0]), self._definition.from_table(row[1:]), refs)

    def _location(self, shard: int) -> int:
        pair = self._entry.follower, shard
        followers = FollowerRows(self._shards).look([pair])
        if shard in followers.failed:
            raise followers.failed[shard]
        if pair not in followers.rows:
            raise InvalidInput(
                f"shard {shard} has no row of the follower that maintains index {self._entry.name}, so no worker keeps "
                "the index up to date there. Run 'schemaless index create' with the same fields again: it creates the "
                "row, and workers then read the shard from the beginning"
            )
        return followers.rows[pair].location

    def _pages(self, select: Callable[[bytes], bytes], shard: int) -> Iterator[Rows]:
        """Yield what ``select`` finds in a shard, page by page, in the order of the first column."""
        after = b""
        while page := self._shards.rows(shard, select(after)):
            yield page
            after = bytes(page[-1][0])


def _has_later_ref(refs: Sequence[int], others: Sequence[int]) -> bool:
    return any(ref > other for ref, other in zip(refs, others, strict=True))
