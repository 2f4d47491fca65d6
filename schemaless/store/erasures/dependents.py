"""The cells that are deltas against cells about to be erased: they are made whole first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from schemaless.base.logger import log
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import base_of, whole_body
from schemaless.errors import CorruptBody
from schemaless.store.cells.bases import with_bases
from schemaless.store.cells.reading import PAIR, only_requested
from schemaless.store.cells.sql import Row
from schemaless.store.erasures import sql
from schemaless.wire.connection import Connection

Pair = tuple[bytes, str]
"""row_key and column_name."""

_PAIR: Final = slice(0, 2)


def dependents(
    connection: Connection,
    database: str,
    name: str,
    cells: Sequence[Sequence[Any]],
    cleared: Mapping[Pair, int] = MappingProxyType({}),
) -> list[Row]:
    """Read the cells of a table, other than some, that are deltas against one of them.

    Args:
        connection: a connection to a server that has the table.
        database: the shard's database.
        name: name of the table.
        cells: added_id, row_key, column_name, ref_key and more of each of those cells.
        cleared: ref_keys up to which all versions are known to be erased; reading all of those again for each part of a
            long row would take time with the square of its length.
    """
    if not cells:
        return []
    tops: dict[Pair, int] = {}
    for _, row_key, column, ref_key, *_ in cells:
        tops[row_key, column] = max(ref_key, tops.get((row_key, column), 0))
    ranges = {pair: (cleared.get(pair, -1), top) for pair, top in tops.items()}
    statement = sql.select_dependents(
        database, name, ranges, (cell[3] for cell in cells), (int(cell[0]) for cell in cells)
    )
    rows: Any = connection.rows(statement, only_requested(tops, PAIR))
    bases = {(cell[1], cell[2], cell[3]) for cell in cells}
    return [row for row in rows if (row[1], row[2], base_of(row[4])) in bases]


_MANY: Final = 100
"""Number of versions of a row and column, erased in one transaction, from which it is worth counting the lower ones."""


class Cleared:
    """Knows up to which ref_key all versions of long rows and columns are erased, as far as one eraser has seen.

    Versions may be put below. Therefore each transaction counts the keys again, which reads no rows.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._known: dict[Pair, tuple[int, int]] = {}
        self._latest: Mapping[Pair, tuple[int, int]] = {}
        self._node: object = None

    def tops(self) -> dict[Pair, int]:
        """Return the ref_keys by row and column, which may have changed since."""
        return {pair: top for pair, (top, _) in self._known.items()}

    def forget_earlier(self) -> None:
        """Forget all but what was kept last, of which more versions may follow."""
        self._known = {pair: known for pair, known in self._known.items() if pair in self._latest}

    def verified(self, connection: Connection) -> dict[Pair, int]:
        """Return the ref_keys that hold in the transaction of a connection, and forget the others."""
        if connection.node != self._node:
            self._known.clear()  # A server that was promoted may lack the latest transactions.
            self._node = connection.node
        if self._known:
            tops = self.tops()
            rows = connection.rows(sql.count_versions(self._database, tops), only_requested(tops, _PAIR))
            counts = {(row[0], row[1]): int(row[2]) for row in rows}
            self._known = {pair: known for pair, known in self._known.items() if counts.get(pair) == known[1]}
        return self.tops()

    def after(self, connection: Connection, cells: Sequence[Sequence[Any]]) -> dict[Pair, tuple[int, int]]:
        """Return what is known if the transaction, which has erased cells, is committed: see ``keep``."""
        numbers = Counter((cell[1], cell[2]) for cell in cells)
        long = [pair for pair, number in numbers.items() if number >= _MANY]
        tops = {pair: max(cell[3] for cell in cells if (cell[1], cell[2]) == pair) for pair in long}
        ranges = {pair: (self._known[pair][0] if pair in self._known else -1, top) for pair, top in tops.items()}
        if not ranges:
            return {}
        rows = connection.rows(sql.count_live_versions(self._database, ranges), only_requested(ranges, _PAIR))
        return {
            (row_key, column): (tops[row_key, column], int(count) + self._known.get((row_key, column), (0, 0))[1])
            for row_key, column, count, live in rows
            if not int(live)
        }

    def keep(self, known: Mapping[Pair, tuple[int, int]]) -> None:
        """Keep the result of ``after``."""
        self._known |= known
        self._latest = known


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
