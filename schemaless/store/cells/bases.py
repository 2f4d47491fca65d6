"""Completes rows whose bodies are deltas with the versions that they depend on.

The statements go to the connection that the rows were read from, so that they see a server that has the row. A delta's
base may have been erased, and the delta re-encoded, since the row was read: then the row is read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from schemaless.base.parts import parts
from schemaless.codec.deltas import MAX_CHAIN, Version, Versions, payload_bytes
from schemaless.codec.envelope import DELTA_HEADERS, ChainedBody, base_of, is_delta, is_erased
from schemaless.errors import CorruptBody
from schemaless.store.cells.sql import Row, select_bases, select_cells
from schemaless.wire.connection import Connection, Rows

_VERSIONS: Final = 33
"""Number of versions of a row and column to read at once: as many as half of all chains have, and one."""

_CHAINS_PER_SELECT: Final = 100
_ATTEMPTS: Final = 5
"""How often versions are read that erasures change at the same time."""


def with_bases(connection: Connection, database: str, rows: Sequence[Row], name: str = "cell") -> Sequence[Row]:
    """Return complete rows of a table of cells in which every delta has what it takes to decode it.

    No statement is sent if there is none among the bodies, or if the rows have what is needed. Whatever is wrong with
    the versions that a delta depends on is raised when its body is decoded.

    Args:
        connection: the connection that the rows were read from.
        database: the shard's database.
        rows: the rows; bodies may be None.
        name: name of the table.
    """
    # Without a call per row, which would take a twentieth of the time that decoding takes.
    if not [row for row in rows if (row[4] or b"")[:2] in DELTA_HEADERS]:
        return rows
    known: dict[Version, bytes] = {}
    for attempt in range(_ATTEMPTS):
        known = {_version(row): row[4] for row in rows if row[4] is not None}  # type: ignore[redundant-expr]
        deltas = [_version(row) for row in rows if _is_delta(row)]
        if not _read_bases(connection, database, name, known, deltas) or attempt == _ATTEMPTS - 1:
            break
        # All of them, so that each is as old as what is read for it next.
        again: Any = connection.rows(select_cells(database, [(*pair, ref_key) for pair, ref_key in deltas], name))
        current: dict[Version, Row] = {_version(row): row for row in again}
        rows = [current.get(_version(row), row) for row in rows]
    versions = Versions(known)
    return [(*row[:4], versions.body(_version(row)), row[5]) if _is_delta(row) else row for row in rows]


def _is_delta(row: Row) -> bool:
    body: bytes | None = row[4]
    return body is not None and is_delta(body)


def _version(row: Row) -> Version:
    return (row[1], row[2]), row[3]


def _read_bases(
    connection: Connection, database: str, name: str, known: dict[Version, bytes], deltas: Iterable[Version]
) -> bool:
    """Add the versions that deltas depend on to ``known``; return whether one is missing."""
    ends = set(deltas)
    absent: set[Version] = set()
    lost = False
    for _ in range(MAX_CHAIN):
        followed: dict[Version, Version | None] = {}
        missing = {end for end in (_end(known, at, followed) for at in ends) if end is not None}
        ends = {end for end in missing if end not in known and end not in absent}
        lost = lost or len(ends) < len(missing)  # it was erased, or does not exist
        if not ends:
            break
        chains = Counter(pair for pair, _ in ends)
        # Of a row and column with many chains, as many versions are read in total: chains may lie far apart.
        wanted = [(*pair, ref_key, 1 + (_VERSIONS - 1) // chains[pair]) for pair, ref_key in sorted(ends)]
        for part in parts(wanted, _CHAINS_PER_SELECT):
            for row_key, column_name, ref_key, body in _versions(connection, database, name, part):
                known.setdefault(((row_key, column_name), ref_key), body)
        absent.update(end for end in ends if end not in known)
    return lost


def _end(known: Mapping[Version, bytes], version: Version, followed: dict[Version, Version | None]) -> Version | None:
    """Return the first version of a chain that is not known or was erased; None if there is none.

    A chain also ends at a version that is damaged, which ``Versions`` reports. ``followed`` has the result for each
    version that was passed, because the chains of a page overlap.
    """
    passed: list[Version] = []
    while version not in followed:
        passed.append(version)
        body = known.get(version)
        if body is None or is_erased(body):
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


def _versions(connection: Connection, database: str, name: str, wanted: Sequence[tuple[bytes, str, int, int]]) -> Rows:
    """Read versions, and the next ones up to a number; each is given by its key and that number."""
    lowest: dict[Any, int] = {}
    for row_key, column_name, ref_key, _ in wanted:
        lowest.setdefault((row_key, column_name), ref_key)

    def check(rows: Rows) -> str | None:
        for row_key, column_name, ref_key, _ in rows:
            if lowest.get((row_key, column_name), ref_key + 1) > ref_key:
                return f"requested {lowest!r:.200}, got version {ref_key} of {column_name} of {row_key!r}"
        return None

    return connection.rows(select_bases(database, wanted, name), check)


def within_budget(rows: Sequence[Row], max_bytes: int) -> Sequence[Row]:
    """Return as many rows, and at least one, as have deltas with payloads of ``max_bytes`` at most in total."""
    if not [row for row in rows if type(row[4]) is ChainedBody]:
        return rows
    total = 0
    for count, row in enumerate(rows):
        if is_delta(row[4]):
            total += payload_bytes(row[4])
            if total > max_bytes and count:
                return rows[:count]
    return rows
