"""``Index``: rows by what is in their documents. An entry says where to look; the row itself says whether it matches.

An entry may be late. So what is found by entries is read again, on the primary, and tested again: a row that a query
gives satisfied it when it was read.
"""

from __future__ import annotations

import hashlib
import json
import operator
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

from schemaless.cell import Cell, RowKey
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.indexes import sql
from schemaless.indexes.definition import Definition, Field, Value
from schemaless.indexes.registry import IndexEntry
from schemaless.indexes.row_fetch import LatestRow
from schemaless.indexes.tables import check_tables
from schemaless.internals import Internals
from schemaless.keys import check_column_name, row_key_bytes
from schemaless.wire.connection import Rows

_MOST_ROWS: Final = 1_000
_FIRST_LOOK_S: Final = 0.002
_MOST_LOOK_S: Final = 0.05

_TESTS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LOOSER: Final = {"<": "<=", ">": ">="}

Condition = tuple[str, str, Any]
"""A condition is a field's name, one of ``= != < <= > >=``, and a value; None goes with ``=`` and ``!=`` only."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row that a query found.

    Attributes:
        entry: the values of the index's fields, by their names, as of the row's read.
        cells: the latest cells of the columns that were asked for, by their names.
        damaged: why a column's latest cell is not among them: its body does not decode, and counts as a document
            without fields.
    """

    row_key: uuid.UUID
    entry: dict[str, Value]
    cells: dict[str, Cell]
    damaged: dict[str, CorruptBody] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexPage:
    """Some of the rows that satisfy a query.

    Attributes:
        rows: no row twice; may be fewer than ``limit``, or none, before the end.
        next: for ``after``, where more may come; None at the end.
    """

    rows: list[IndexRow]
    next: str | None


class Test(NamedTuple):
    """A condition, checked."""

    field: Field
    operator: str
    value: Value

    def holds(self, value: Value) -> bool:
        """Whether a row's value satisfies it; None satisfies no comparison but those with None."""
        if self.value is None:
            return (value is None) == (self.operator == "=")
        return value is not None and _TESTS[self.operator](value, self.value)

    @property
    def statement(self) -> bytes:
        """What every entry satisfies whose row may satisfy it: entries have texts cut."""
        name, way = self.field.name, self.operator
        if self.value is None:
            return sql.comparison(name, "<=>" if way == "=" else " IS NOT ", b"NULL")
        if isinstance(self.value, str) and len(self.value) >= (self.field.cut_at or 0):
            if way == "!=":
                return sql.comparison(name, " IS NOT ", b"NULL")
            way = _LOOSER.get(way, way)
        return sql.comparison(name, way, self.field.literal(self.value))


class Asked(NamedTuple):
    """A query, checked.

    Attributes:
        tests: all of them, that of the shard field first.
    """

    tests: tuple[Test, ...]
    descending: bool
    limit: int
    columns: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Digest of all that decides which entries come, and in which order."""
        said = [[test.field.name, test.operator, str(test.value)] for test in self.tests]
        return hashlib.sha256(json.dumps([*said, [self.descending]]).encode()).hexdigest()[:16]


class Index:
    """A secondary index of an open datastore; made by ``Datastore.index``."""

    def __init__(self, internals: Internals, name: str) -> None:
        self._internals = internals
        self._name = name
        self._seen = internals.registry.ready(name)

    def __repr__(self) -> str:
        return f"Index({self._name!r})"

    @property
    def definition(self) -> Definition:
        """What it is made of."""
        return self._seen.definition

    def query(
        self,
        *,
        where: Iterable[Condition] = (),
        order_by: str | None = None,
        limit: int = 50,
        after: str | None = None,
        columns: Sequence[str] | None = None,
        **equals: Any,
    ) -> IndexPage:
        """Return rows that satisfy a query, each as it was read on its primary just now.

        Args:
            where: conditions, each of a field's name, one of ``= != < <= > >=``, and a value. A field that a document
                lacks, or has in another type, satisfies none but ``("field", "=", None)``.
            order_by: the first field that is not asked for by ``=``, with ``-`` before it for the highest first; the
                fields behind it, and the row_key, decide where it is equal.
            limit: so many entries are looked at, at most; 1 to 1,000.
            after: a page's ``next``, with the same query: go on behind it.
            columns: the cells to return; the columns that the index is made of unless given.
            **equals: the shard field's value, which every query names, and those of others, as if by ``=``.

        Returns:
            A page. A row that changes meanwhile may be on two pages, or on none.

        Raises:
            InvalidInput: the shard field is missing, or something cannot be asked; nothing was sent.
            IndexNotReady, UnknownIndex: the index is not there any more, or another one under its name is not ready.
            ServerError: as every call.
        """
        check_shard_field(self._seen.definition, equals)
        entry = self._seen = self._internals.registry.ready(self._name)
        asked = check_query(entry.definition, equals, where, order_by, limit, columns)
        tests = [test.statement for test in asked.tests]
        if after is not None:
            tests.append(_behind(entry, asked, after))
        matches = self._entries(entry, asked, tests)
        token = cache(lambda: _token(entry, asked, matches[-1]) if len(matches) == limit else None)
        rows = self._read_again(entry.definition, asked, [bytes(row[0]) for row in matches], token)
        return IndexPage(rows, token())

    def wait(self, row_key: RowKey, timeout_s: float = 1.0) -> bool:
        """Wait until the index says of a row what the row says itself: to find by a query what was just written.

        Returns:
            Whether it does, within the time given. At once for a row that has no entry, since its document has no
            value that fits the shard field: what is left of earlier versions no query gives.

        Raises:
            InvalidInput, IndexNotReady, UnknownIndex, ServerError: as ``query``.
        """
        row, give_up_s, pause_s = row_key_bytes(row_key), time.monotonic() + timeout_s, _FIRST_LOOK_S
        while not self._agrees(self._internals.registry.ready(self._name), row):
            if time.monotonic() >= give_up_s:
                return False
            time.sleep(min(pause_s, max(0.0, give_up_s - time.monotonic())))
            pause_s = min(_MOST_LOOK_S, pause_s * 1.5)
        return True

    def _agrees(self, entry: IndexEntry, row: bytes) -> bool:
        definition, shards = entry.definition, self._internals.shards
        (values,) = self._internals.rows.read([row], definition.sources, lambda now: definition.values(now.documents))
        shard = definition.shard_of(values[0], shards.topology.shard_count)
        if shard is None:
            return True
        check_tables(self._internals, entry, [shard])
        entries = shards.rows(shard, sql.select_entries(shards.database(shard), entry.layout, shard, [row]))
        stored = tuple(field.stored(value) for field, value in zip(definition.all_fields, values, strict=True))
        return bool(entries) and values_of(definition, entries[0][2:]) == stored

    def _entries(self, entry: IndexEntry, asked: Asked, tests: Sequence[bytes]) -> Rows:
        shards = self._internals.shards
        shard = entry.definition.shard_of(asked.tests[0].value, shards.topology.shard_count)
        assert shard is not None
        check_tables(self._internals, entry, [shard])
        statement = sql.select_matches(
            shards.database(shard), entry.layout, tests, descending=asked.descending, limit=asked.limit
        )
        return shards.rows(shard, statement)

    def _read_again(
        self, definition: Definition, asked: Asked, rows: Sequence[bytes], meanwhile: Callable[[], object]
    ) -> list[IndexRow]:
        """Return those rows that satisfy the query now, in the order given; do something else while servers work."""
        wanted = tuple(dict.fromkeys((*definition.sources, *asked.columns)))
        names = [field.name for field in definition.all_fields]
        tests = [(names.index(test.field.name), test.holds) for test in asked.tests]

        def matching(row: LatestRow) -> IndexRow | None:
            values = definition.values(row.documents)
            for place, holds in tests:
                if not holds(values[place]):
                    return None
            entry = dict(zip(names, values, strict=True))
            cells = row.cells
            if asked.columns != wanted:
                cells = {name: cells[name] for name in asked.columns if name in cells}
            damaged = row.damaged and {name: row.damaged[name] for name in asked.columns if name in row.damaged}
            return IndexRow(row.row_key, entry, cells, damaged)

        return [row for row in self._internals.rows.read(rows, wanted, matching, meanwhile) if row is not None]


def check_shard_field(definition: Definition, equals: Mapping[str, Any]) -> None:
    """Check that a query names a value of the shard field; asks no server.

    Raises:
        InvalidInput: it does not.
    """
    name = definition.shard_field.name
    if equals.get(name) is None:
        raise InvalidInput(
            f"a query of {definition.name} names {name}, which says in which shard to look: query({name}=...); nothing "
            "was sent"
        )


def check_query(
    definition: Definition,
    equals: Mapping[str, Any],
    where: Iterable[Condition],
    order_by: str | None,
    limit: int,
    columns: Sequence[str] | None,
) -> Asked:
    """Return a query that can be asked; asks no server.

    Raises:
        InvalidInput: it cannot be.
    """
    check_shard_field(definition, equals)
    if type(limit) is not int or not 1 <= limit <= _MOST_ROWS:
        raise InvalidInput(f"limit must be a number from 1 to {_MOST_ROWS:,}, got {limit!r}")
    tests = [_test(definition, name, "=", value) for name, value in equals.items()]
    tests += [_test(definition, *condition) for condition in where]
    tests.sort(key=lambda test: test.field is not definition.shard_field)
    fixed = {test.field.name for test in tests if test.operator == "="}
    free = [field.name for field in definition.fields if field.name not in fixed]
    descending = order_by is not None and order_by.startswith("-")
    if order_by is not None and (not free or order_by.removeprefix("-") != free[0]):
        raise InvalidInput(
            f"{definition.name} gives rows in the order of {free[0] if free else 'nothing but row_key'} here, not of "
            f"{order_by!r}: ask for the fields before that by '=', or declare an index with the fields in another order"
        )
    for name in columns or ():
        check_column_name(name)
    chosen = definition.sources if columns is None else tuple(columns)
    return Asked(tuple(tests), descending, limit, chosen)


def _test(definition: Definition, name: str, way: str, value: Any) -> Test:
    field = definition.field(name)
    if way not in _TESTS or (value is None and way not in ("=", "!=")):
        raise InvalidInput(
            f"a condition is a field, one of {' '.join(_TESTS)}, and a value; got {(name, way, value)!r}"
        )
    return Test(field, way, None if value is None else field.argument(value))


def values_of(definition: Definition, columns: Sequence[Any]) -> tuple[Value, ...]:
    """Return the values of an entry, as the table has them; what stands behind them is left out."""
    fields = definition.all_fields
    return tuple(field.from_table(column) for field, column in zip(fields, columns[: len(fields)], strict=True))


def _token(entry: IndexEntry, asked: Asked, last: Sequence[Any]) -> str:
    values = values_of(entry.definition, last[1:])[1:]
    said = [
        value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, uuid.UUID) else value
        for value in values
    ]
    return json.dumps([entry.number, asked.digest, bytes(last[0]).hex(), *said], separators=(",", ":"))


def _behind(entry: IndexEntry, asked: Asked, after: str) -> bytes:
    try:
        number, digest, row_key, *values = json.loads(after)
        if (number, digest) != (entry.number, asked.digest):
            raise InvalidInput(f"after is of another query, or of an earlier index {entry.name}: begin without it")
        row = bytes.fromhex(row_key)
        fields = entry.definition.fields
        literals = [field.literal(field.kind.read(value)) for field, value in zip(fields, values, strict=True)]
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"after takes a page's next, got {after!r:.80}") from error
    return sql.behind([field.name for field in fields], literals, row, descending=asked.descending)
