"""Whether an index says what its rows say: every row against its entry, every entry against its row; and repair.

Beside writers. What differs is looked at a second time, with the follower's location read first: a row whose cells the
follower has still to deal with lags, and is no fault. What still differs then stays so, unless it is repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, JobConflict
from schemaless.events import Advanced, Listener, Total, nobody
from schemaless.followers.rows import FollowerRows
from schemaless.indexes import sql
from schemaless.indexes.entries import Entries
from schemaless.indexes.entry_changes import Entry, PageWrites, RowState, values_of
from schemaless.indexes.query import values_of as values_in_table
from schemaless.indexes.registry import READY, IndexEntry
from schemaless.indexes.tables import check_tables
from schemaless.internals import internals_of
from schemaless.topology.moves import last_move, refuse_beside_moves
from schemaless.topology.placement import shard_for
from schemaless.wire.connection import Rows

_ROWS_AT_ONCE: Final = 200
_STEPS: Final = 1 << 9

Placed = tuple[int, Entry]
"""This is the number of a shard, and an entry that is in it."""


@dataclass(slots=True)
class Found:
    """What a check of a shard found.

    Attributes:
        rows: rows of the shard with cells in the index's columns.
        entries: entries in the shard, of rows of any shard.
        without_entry: rows that make none: the shard field is missing, or does not fit.
        null_fields: other fields, of rows that make one, that are missing or do not fit.
        lagging: differences of rows whose cells the follower has still to deal with; no fault.
        missing: rows without the entry that they make.
        stale: entries that say something else than the row, or are in a shard that it has left.
        ahead: entries made of versions that the row does not have.
        orphan: entries without any cell of the row.
        repaired: how many of the last four are none any more.
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
        """How many there are, repaired ones among them."""
        return self.missing + self.stale + self.ahead + self.orphan

    @property
    def counts(self) -> dict[str, int]:
        """All of it, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class _Share:
    """How much of a shard was looked at: by where a row_key lies between the first and the last one.

    First its rows are, then its entries; each is a half. Keys that are drawn, or made of the time, are spread evenly.

    Attributes:
        first, last: of what is looked at now; None where there is nothing.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._done = 0.0
        self.first: bytes | None = None
        self.last: bytes | None = None

    def reached(self, before: float, row_key: bytes) -> None:
        """Tell that everything was looked at up to a row_key; the halves ``before`` it as well."""
        if self.first is None or self.last is None:
            return
        first, last, here = (int.from_bytes(key, "big") for key in (self.first, self.last, row_key))
        # In steps that add up exactly. What is written meanwhile may lie outside.
        share = before + min(_STEPS, max(0, _STEPS * (here - first) // max(1, last - first))) / (2 * _STEPS)
        if share > self._done:
            self._listener(Advanced(share - self._done))
            self._done = share

    def ended(self) -> None:
        """Tell that all of it was looked at."""
        self._listener(Advanced(1 - self._done))


class IndexCheck:
    """A check of one index.

    Args:
        store: the datastore, open with an account that may write entries where they are to be repaired.
        entry: the index.
        repair: whether faults are mended.
        rows_at_once: so many rows, or entries, are read by one statement.
    """

    def __init__(
        self, store: Datastore, entry: IndexEntry, *, repair: bool = False, rows_at_once: int = _ROWS_AT_ONCE
    ) -> None:
        if entry.state != READY:
            raise InvalidInput(
                f"index {entry.name} ({entry.number}) is {entry.state}; one that is ready can be checked"
            )
        self._store = store
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._shard_count = store.shard_count
        self._entry = entry
        self._definition = entry.definition
        self._layout = entry.layout
        self._entries = Entries(self._internals, entry)
        self._followers = FollowerRows(self._shards)
        self._repair = repair
        self._rows_at_once = rows_at_once

    def run(self, shards: Sequence[int], listener: Listener = nobody) -> Iterator[Found]:
        """Check shards one after the other, and yield what was found in each; ``listener`` counts them.

        Raises:
            InvalidInput: a shard has no row of the index's follower.
            JobConflict: faults are to be mended, and shards are being moved, or began to be meanwhile: a move cannot
                know of that.
        """
        listener(Total(len(shards)))
        for shard in shards:
            before = last_move(self._internals.catalog, self._store.name) if self._repair else 0
            if self._repair:
                refuse_beside_moves(self._internals.catalog, self._store.name)
            check_tables(self._internals, self._entry, [shard])
            # Raises where nobody keeps the entries of its rows: all that differs would be said to lag.
            self._location(shard)
            tally, shown = Found(shard), _Share(listener)
            self._forward(tally, shown)
            self._backward(tally, shown)
            if tally.repaired and (began := last_move(self._internals.catalog, self._store.name)) > before:
                raise JobConflict(
                    f"move {began} began while shard {shard} was repaired, and may have copied entries as they were "
                    "before; run this again for this shard and those behind it, once the move has ended",
                    began,
                )
            shown.ended()
            yield tally

    # Rows against entries

    def _forward(self, tally: Found, shown: _Share) -> None:
        shard, database = tally.shard, self._shards.database(tally.shard)
        ((shown.first, shown.last),) = self._shards.rows(shard, sql.select_ends(database))
        for keys in self._runs(lambda after: sql.select_row_keys(database, after, self._rows_at_once), shard):
            rows = self._entries.rows(shard, [bytes(key[0]) for key in keys])
            made = {row: self._makes(row, state) for row, (state, _) in rows.items()}
            there = self._there(made.values())
            tally.rows += sum(max(state.refs) >= 0 for state, _ in rows.values())
            tally.without_entry += sum(made[row] is None and max(state.refs) >= 0 for row, (state, _) in rows.items())
            tally.null_fields += sum(placed[1].values[1:].count(None) for placed in made.values() if placed is not None)
            suspects = [row for row, placed in made.items() if placed is not None and self._differs(placed, there)]
            if suspects:
                self._second_look(tally, suspects, there)
            shown.reached(0.0, bytes(keys[-1][0]))

    def _second_look(self, tally: Found, suspects: Sequence[bytes], seen: Mapping[tuple[int, bytes], Entry]) -> None:
        # In this order: the follower has dealt with what is up to the location, so the entries, read later, have it.
        location = self._location(tally.shard)
        made_before = self._entries.rows(tally.shard, suspects)
        there = self._there(self._makes(row, state) for row, (state, _) in made_before.items())
        for row, (state, top) in self._entries.rows(tally.shard, suspects).items():
            placed = self._makes(row, state)
            if placed is None:
                continue
            kind = self._differs(placed, there)
            if kind is None:
                continue
            if top > location or state.refs != made_before[row][0].refs:
                tally.lagging += 1
                continue
            setattr(tally, kind, getattr(tally, kind) + 1)
            if self._repair:
                shard, entry = placed
                if kind == "ahead":
                    self._entries.delete_exactly(shard, [(row, there[shard, row].refs)])
                self._entries.apply(PageWrites({shard: [entry]}))
                tally.repaired += 1

    def _differs(self, placed: Placed, there: Mapping[tuple[int, bytes], Entry]) -> str | None:
        shard, entry = placed
        old = there.get((shard, entry.row_key))
        if old is None:
            return "missing"
        if any(one > other for one, other in zip(old.refs, entry.refs, strict=True)):
            return "ahead"
        stored = tuple(
            field.stored(value) for field, value in zip(self._definition.all_fields, entry.values, strict=True)
        )
        return None if stored == old.values else "stale"

    # Entries against rows

    def _backward(self, tally: Found, shown: _Share) -> None:
        shard, database = tally.shard, self._shards.database(tally.shard)
        ((shown.first, shown.last),) = self._shards.rows(shard, sql.select_ends_of_entries(database, self._layout))
        for some in self._runs(
            lambda after: sql.select_entries_after(database, self._layout, after, self._rows_at_once), shard
        ):
            entries = [self._parsed(row) for row in some]
            tally.entries += len(entries)
            by_home: dict[int, list[Entry]] = {}
            for entry in entries:
                by_home.setdefault(shard_for(entry.row_key, self._shard_count), []).append(entry)
            for home, of_home in by_home.items():
                rows = self._entries.rows(home, [entry.row_key for entry in of_home])
                suspects = [entry for entry in of_home if not self._belongs(shard, entry, rows[entry.row_key][0])]
                if suspects:
                    self._strays(tally, home, suspects)
            shown.reached(0.5, bytes(some[-1][0]))

    def _strays(self, tally: Found, home: int, suspects: Sequence[Entry]) -> None:
        location = self._location(home)
        keys = [entry.row_key for entry in suspects]
        statement = sql.select_entries(self._shards.database(tally.shard), self._layout, tally.shard, keys)
        still = [self._parsed(row[1:]) for row in self._shards.rows(tally.shard, statement)]
        rows = self._entries.rows(home, keys)
        for entry in still:
            state, top = rows[entry.row_key]
            if self._belongs(tally.shard, entry, state):
                continue
            if top > location:
                tally.lagging += 1
                continue
            if max(state.refs) < 0:
                tally.orphan += 1
            elif any(one > other for one, other in zip(entry.refs, state.refs, strict=True)):
                tally.ahead += 1
            else:
                tally.stale += 1
            if self._repair:
                # Of these very versions: one that was written since stays.
                self._entries.delete_exactly(tally.shard, [(entry.row_key, entry.refs)])
                tally.repaired += 1

    def _belongs(self, shard: int, entry: Entry, state: RowState) -> bool:
        """Whether a row's entry is in this shard; whether it says what it should is seen from the row's side."""
        placed = self._makes(entry.row_key, state)
        return placed is not None and placed[0] == shard

    # What is read

    def _makes(self, row: bytes, state: RowState) -> Placed | None:
        """Return the entry that a row makes; None where it makes none."""
        values = values_of(self._definition, state.parts)
        shard = self._definition.shard_of(values[0], self._shard_count)
        return None if shard is None else (shard, Entry(row, values, state.refs))

    def _there(self, made: Iterable[Placed | None]) -> dict[tuple[int, bytes], Entry]:
        """Read the entries that rows have in the shards where they belong."""
        by_shard: dict[int, list[bytes]] = {}
        for placed in made:
            if placed is not None:
                by_shard.setdefault(placed[0], []).append(placed[1].row_key)
        entries = {}
        for shard, keys in by_shard.items():
            statement = sql.select_entries(self._shards.database(shard), self._layout, shard, keys)
            for row in self._shards.rows(shard, statement):
                entry = self._parsed(row[1:])
                entries[shard, entry.row_key] = entry
        return entries

    def _parsed(self, row: Sequence[Any]) -> Entry:
        refs = tuple(int(ref) for ref in row[1 + len(self._definition.all_fields) :])
        return Entry(bytes(row[0]), values_in_table(self._definition, row[1:]), refs)

    def _location(self, shard: int) -> int:
        pair = self._entry.follower, shard
        looked = self._followers.look([pair])
        if shard in looked.failed:
            raise looked.failed[shard]
        if pair not in looked.rows:
            raise InvalidInput(
                f"shard {shard} has no row of the follower that keeps index {self._entry.name}, so no worker keeps "
                "it there: 'schemaless index create' with the same fields makes one, and workers read the shard again"
            )
        return looked.rows[pair].location

    def _runs(self, select: Callable[[bytes], bytes], shard: int) -> Iterator[Rows]:
        """Yield rows in the order of their first column, from the beginning, so many at once."""
        after = b""
        while some := self._shards.rows(shard, select(after)):
            yield some
            after = bytes(some[-1][0])
