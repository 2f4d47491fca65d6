"""The cells that are deltas against cells about to be erased: they are made whole first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import base_of, whole_body
from schemaless.errors import CorruptBody
from schemaless.store.cells.bases import with_bases
from schemaless.store.cells.reading import PAIR, only_requested
from schemaless.store.cells.sql import Row
from schemaless.store.erasures import sql
from schemaless.topology.shards import log
from schemaless.wire.connection import Connection


def dependents(connection: Connection, database: str, name: str, cells: Sequence[Sequence[Any]]) -> list[Row]:
    """Read the cells of a table, other than some, that are deltas against one of them.

    Args:
        connection: a connection to a server that has the table.
        database: the shard's database.
        name: name of the table.
        cells: added_id, row_key, column_name, ref_key and more of each of those cells.
    """
    if not cells:
        return []
    tops: dict[tuple[bytes, str], int] = {}
    for _, row_key, column, ref_key, *_ in cells:
        tops[row_key, column] = max(ref_key, tops.get((row_key, column), 0))
    statement = sql.select_dependents(
        database, name, tops, (cell[3] for cell in cells), (int(cell[0]) for cell in cells)
    )
    rows: Any = connection.rows(statement, only_requested(tops, PAIR))
    bases = {(cell[1], cell[2], cell[3]) for cell in cells}
    return [row for row in rows if (row[1], row[2], base_of(row[4])) in bases]


def whole_bodies(
    connection: Connection, database: str, rows: Sequence[Row], dictionaries: Dictionaries, name: str = "cell"
) -> dict[int, bytes]:
    """Return the bodies of rows of a table by added_id, whole; a delta that does not decode is left out and logged."""
    bodies: dict[int, bytes] = {}
    for row in with_bases(connection, database, rows, name):
        try:
            bodies[row[0]] = whole_body(row[4], dictionaries, compressed=True)
        except CorruptBody as error:
            log.warning("%s: added_id %d does not decode, and stays a delta: %s", database, row[0], error)
    return bodies


def erase_in_copy(
    connection: Connection,
    database: str,
    name: str,
    ids: Sequence[int],
    tombstone: bytes,
    current: Callable[[Sequence[int]], Mapping[int, bytes]],
) -> int:
    """Replace bodies with a tombstone in a copy of the cells; return how many were replaced. Safe to repeat.

    Args:
        connection: a connection to the server that has the copy.
        database: the shard's database.
        name: name of the copy.
        ids: added_ids of the erased cells.
        tombstone: the new body.
        current: returns the whole bodies of cells by added_id, from the table that the copy was made from: the copy may
            lack what they depend on.
    """
    erased = connection.rows(sql.select_keys_by_id(database, name, ids))
    found = [row[0] for row in dependents(connection, database, name, erased)]
    for added_id, body in (current(found) if found else {}).items():
        connection.execute(sql.replace_body(database, name, added_id, body))
    return connection.execute(sql.replace_bodies(database, name, ids, tombstone)).affected
