"""Completes rows whose bodies are deltas with the versions that they depend on.

The statements go to the connection that the rows were read from, so that they see a server that has the row. A delta's
base may have been erased, and the delta re-encoded, since the row was read: then the row is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from schemaless.codec.deltas import MAX_CHAIN, Version, Versions, payload_bytes
from schemaless.codec.envelope import base_of, is_delta, is_erased
from schemaless.errors import CorruptBody
from schemaless.store.cells.sql import Row, select_bases, select_cells
from schemaless.wire.connection import Connection, Rows

_VERSIONS: Final = 33
"""Number of versions to read at once: as many as half of all chains have, and one."""

_CHAINS_PER_SELECT: Final = 100


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
    deltas = [row for row in rows if _is_delta(row)]
    if not deltas:
        return rows
    known = {_version(row): row[4] for row in rows if row[4] is not None}  # type: ignore[redundant-expr]
    lost = _read_bases(connection, database, name, known, map(_version, deltas))
    if lost:
        again: Any = connection.rows(select_cells(database, [(*pair, ref_key) for pair, ref_key in lost], name))
        current: dict[Version, Row] = {_version(row): row for row in again}
        rows = [current.get(_version(row), row) for row in rows]
        deltas = [row for row in rows if _is_delta(row)]
        # What was read before may have changed with the row.
        known = {version: row[4] for version, row in current.items()}
        _read_bases(connection, database, name, known, map(_version, deltas))
    versions = Versions({_version(row): row[4] for row in deltas} | known)
    return [(*row[:4], versions.body(_version(row)), row[5]) if _is_delta(row) else row for row in rows]


def _is_delta(row: Row) -> bool:
    body: bytes | None = row[4]
    return body is not None and is_delta(body)


def _version(row: Row) -> Version:
    return (row[1], row[2]), row[3]


def _read_bases(
    connection: Connection, database: str, name: str, known: dict[Version, bytes], deltas: Iterable[Version]
) -> list[Version]:
    """Add the versions that deltas depend on to ``known``; return the deltas for which one is missing."""
    chains: dict[Version, Version] = {version: version for version in deltas}
    lost: list[Version] = []
    absent: set[Version] = set()
    for _ in range(MAX_CHAIN // (_VERSIONS - 1)):
        missing: dict[Any, int] = {}  # the lowest version by row_key and column_name
        followed: dict[Version, Version | None] = {}
        for delta, at in list(chains.items()):
            end = _end(known, at, followed)
            if end is None:
                del chains[delta]
            elif end in known or end in absent:  # it was erased, or does not exist
                del chains[delta]
                lost.append(delta)
            else:
                chains[delta] = end
                missing[end[0]] = min(end[1], missing.get(*end))
        if not missing:
            break
        wanted = list(missing.items())
        for start in range(0, len(wanted), _CHAINS_PER_SELECT):
            part = dict(wanted[start : start + _CHAINS_PER_SELECT])
            for row_key, column_name, ref_key, body in _versions(connection, database, name, part):
                known.setdefault(((row_key, column_name), ref_key), body)
        absent.update(version for version in wanted if version not in known)
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


def _versions(connection: Connection, database: str, name: str, lowest: Mapping[Any, int]) -> Rows:
    """Read the next versions of some rows and columns, from the lowest one on that is wanted."""

    def check(rows: Rows) -> str | None:
        for row_key, column_name, ref_key, _ in rows:
            if lowest.get((row_key, column_name), ref_key + 1) > ref_key:
                return f"requested {lowest!r:.200}, got version {ref_key} of {column_name} of {row_key!r}"
        return None

    return connection.rows(
        select_bases(database, [(*pair, low) for pair, low in lowest.items()], _VERSIONS, name), check
    )


def within_budget(rows: Sequence[Row], max_bytes: int) -> Sequence[Row]:
    """Return as many rows, and at least one, as have deltas with payloads of ``max_bytes`` at most in total."""
    total = 0
    for count, row in enumerate(rows):
        if is_delta(row[4]):
            total += payload_bytes(row[4])
            if total > max_bytes and count:
                return rows[:count]
    return rows
