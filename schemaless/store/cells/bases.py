"""Completes rows whose bodies are deltas with the versions that they depend on.

The statements go to the connection that the rows were read from, so that they see a server that has the row. A delta's
base may have been erased, and the delta re-encoded, since the row was read: then the row is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, overload

from schemaless.base.parts import parts
from schemaless.codec.deltas import MAX_CHAIN, Payloads, Version, Versions, payload_bytes
from schemaless.codec.envelope import (
    DELTA_HEADERS,
    REFERENCE_HEAD,
    ChainedBody,
    base_of,
    is_delta,
    is_erased,
    is_reference,
)
from schemaless.codec.references import text_bytes
from schemaless.errors import CorruptBody
from schemaless.store.cells.sql import Row, select_bases, select_cells
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.sql.parts import CELLS

CHAINED_HEADERS: Final = DELTA_HEADERS | {REFERENCE_HEAD}
"""The first two bytes of bodies that depend on other versions or on cold files."""

FIRST_STEPS: Final = 2
"""How many versions of a chain are read at once: as many as it has if they were all made deltas together."""

_MORE_STEPS: Final = 16
_CHAINS_PER_SELECT: Final = 100
_ATTEMPTS: Final = 5
"""How often versions are read that erasures change at the same time."""


class ChainedRows(Sequence[Row]):
    """Rows of one shard, some of whose bodies depend on other versions or on cold files.

    A row is completed when it is accessed. Completing all at once would create objects that live as long as the page,
    and garbage collections take longer than decoding if there are many.

    Attributes:
        stored: the rows with their bodies as they are stored, from which deltas cannot be decoded.
        versions: the bodies of the rows, and of the versions that they depend on.
    """

    def __init__(self, stored: Sequence[Row], versions: Versions) -> None:
        self.stored = stored
        self.versions = versions

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> ChainedRows: ...

    def __getitem__(self, index: int | slice) -> Row | ChainedRows:
        if isinstance(index, slice):
            return ChainedRows(self.stored[index], self.versions)
        return self._completed(self.stored[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._completed, self.stored)

    def chained(self) -> list[Row]:
        """Return the rows whose bodies depend on something, with their bodies as they are stored."""
        return [row for row in self.stored if (row[4] or b"")[:2] in CHAINED_HEADERS]

    def references(self) -> dict[Version, bytes]:
        """Return the references among the bodies, whose documents are in cold files."""
        return {place: body for place, body in self.versions.bodies.items() if is_reference(body)}

    def updated(self, rows: Sequence[Row]) -> ChainedRows:
        """Return the rows with those in ``rows`` in place of the ones with the same key."""
        current = {row[1:4]: row for row in stored_rows(rows)}
        versions = rows.versions if isinstance(rows, ChainedRows) else Versions({})
        # What does not exist any more keeps what it depends on.
        stored = [current[row[1:4]] if row[1:4] in current else self._completed(row) for row in self.stored]
        return ChainedRows(stored, versions)

    def first(self, count: int) -> ChainedRows:
        """Return the first rows. What only the others depend on is dropped, from here too, unless there are deltas."""
        if not [row for row in self.stored if is_delta(row[4])]:
            for row in self.stored[count:]:
                self.versions.bodies.pop((row[1:3], row[3]), None)
        return self[:count]

    def _completed(self, row: Row) -> Row:
        body = row[4] or b""
        if body[:2] not in CHAINED_HEADERS or type(body) is ChainedBody:
            return row
        place = row[1:3], row[3]
        completed = self.versions.body(place) if is_delta(body) else self.versions.bodies.get(place, body)
        return *row[:4], completed, row[5]


def stored_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Return rows with their bodies as they are stored."""
    return rows.stored if isinstance(rows, ChainedRows) else rows


def with_bases(
    connection: Connection,
    database: str,
    rows: Sequence[Row],
    name: str = CELLS,
    payloads: Payloads | None = None,
    known: Mapping[Version, bytes] = MappingProxyType({}),
) -> Sequence[Row]:
    """Return complete rows of a table of cells in which every delta has what it takes to decode it.

    They are ``ChainedRows`` if a body depends on anything; ``ColdBodies`` adds the texts of references to cold files.

    No statement is sent if there is none among the bodies, or if the rows have what is needed. Whatever is wrong with
    the versions that a delta depends on is raised when its body is decoded.

    Args:
        connection: the connection that the rows were read from.
        database: the shard's database.
        rows: the rows; bodies may be None.
        name: name of the table.
        payloads: what is known of bases, and is added to while the bodies are decoded; for reads of the same datastore
            only.
        known: bodies that the statement has read besides the rows.
    """
    # Without a call per row, which would take a twentieth of the time that decoding takes.
    if not [row for row in rows if (row[4] or b"")[:2] in CHAINED_HEADERS]:
        return rows
    if payloads is not None:
        payloads = payloads.on(connection.server)
    versions = Versions({}, payloads)
    for attempt in range(_ATTEMPTS):
        places = [((row[1], row[2]), row[3]) for row in rows]
        bodies = {place: row[4] for place, row in zip(places, rows, strict=True) if row[4] is not None}  # type: ignore[redundant-expr]
        deltas = {place for place, body in bodies.items() if body[:2] in DELTA_HEADERS}
        versions = Versions({**known, **bodies}, payloads)
        bases = {(pair, base_of(bodies[pair, ref_key])) for pair, ref_key in deltas if len(bodies[pair, ref_key]) > 14}
        if not _read_bases(connection, database, name, versions, bases) or attempt == _ATTEMPTS - 1:
            break
        # All of them, so that each is as old as what is read for it next.
        again: Any = connection.rows(select_cells(database, [(*pair, ref_key) for pair, ref_key in deltas], name))
        current: dict[Version, Row] = {((row[1], row[2]), row[3]): row for row in again}
        rows, known = [current.get(place, row) for place, row in zip(places, rows, strict=True)], {}
    return ChainedRows(rows, versions)


def split(rows: Iterable[tuple[Any, ...]]) -> tuple[Sequence[Row], dict[Version, bytes]]:
    """Return the rows of ``select_with_bases``, and the bodies that follow each."""
    made: list[Any] = []
    known: dict[Version, bytes] = {}
    for row in rows:
        made.append(row[:6])
        pair = row[1], row[2]
        known |= {(pair, n): body for n, body in zip(row[6::2], row[7::2], strict=True) if n is not None}
    return made, known


def _read_bases(connection: Connection, database: str, name: str, versions: Versions, bases: Iterable[Version]) -> bool:
    """Add bases, and what they depend on, to ``versions``; return whether one is missing."""
    known = versions.bodies
    ends = set(bases)
    absent: set[Version] = set()
    lost = False
    steps = FIRST_STEPS
    for _ in range(MAX_CHAIN):
        followed: dict[Version, Version | None] = {}
        missing = {end for end in (_end(versions, at, followed) for at in ends) if end is not None}
        ends = {end for end in missing if end not in known and end not in absent}
        lost = lost or len(ends) < len(missing)  # it was erased, or does not exist
        if not ends:
            break
        for part in parts(sorted(ends), _CHAINS_PER_SELECT):
            for version, body in _chains(connection, database, name, part, steps):
                known.setdefault(version, body)
        absent.update(end for end in ends if end not in known)
        steps = _MORE_STEPS
    return lost


def _end(versions: Versions, version: Version, followed: dict[Version, Version | None]) -> Version | None:
    """Return the first version of a chain that is not known or was erased; None if there is none.

    A chain also ends at a version that is damaged, which ``Versions`` reports. ``followed`` has the result for each
    version that was passed, because the chains of a page overlap.
    """
    passed: list[Version] = []
    while version not in followed:
        passed.append(version)
        body = versions.bodies.get(version)
        if versions.hold(version):
            followed[version] = None
        elif body is None or is_erased(body):
            followed[version] = version
        elif not is_delta(body):
            followed[version] = None
        else:
            try:
                base = base_of(body)
            except CorruptBody:
                base = 0
            if base > version[1]:
                version = version[0], base
            else:
                followed[version] = None
    end = followed[version]
    followed.update(dict.fromkeys(passed, end))
    return end


def _chains(
    connection: Connection, database: str, name: str, wanted: Sequence[Version], steps: int
) -> Iterator[tuple[Version, bytes]]:
    """Read versions, and what they depend on, up to a number of steps."""
    requested = set(wanted)

    def check(rows: Rows) -> str | None:
        for row_key, column_name, *chain in rows:
            ref_keys = [ref_key for ref_key in chain[::2] if ref_key is not None]
            if ((row_key, column_name), ref_keys[0]) not in requested or ref_keys != sorted(set(ref_keys)):
                return f"requested {wanted!r:.200}, got versions {ref_keys} of {column_name} of {row_key!r}"
        return None

    sql = select_bases(database, [(*pair, ref_key) for pair, ref_key in wanted], steps, name)
    for row_key, column_name, *chain in connection.rows(sql, check):
        for ref_key, body in zip(chain[::2], chain[1::2], strict=True):
            if ref_key is not None:
                yield ((row_key, column_name), ref_key), body


def within_budget(rows: Sequence[Row], max_bytes: int) -> Sequence[Row]:
    """Return as many rows, and at least one, as have deltas and references with ``max_bytes`` at most in total."""
    if type(rows) is not ChainedRows:
        return rows
    total = 0
    for count, row in enumerate(rows.stored):
        total += payload_bytes(row[4]) if is_delta(row[4]) else text_bytes(row[4])
        if total > max_bytes and count:
            return rows.first(count)
    return rows


def mean_bytes(rows: Sequence[Row]) -> int:
    """Return the mean size of the bodies, where a reference counts as its document's JSON text."""
    if type(rows) is ChainedRows:
        sizes = [text_bytes(row[4]) or len(row[4]) for row in rows.stored]
    else:
        sizes = [len(row[4]) for row in rows]
    return sum(sizes) // len(sizes)
