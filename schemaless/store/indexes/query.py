"""``Index``: queries for rows by the contents of their documents.

An entry shows where a matching row may be; only the row shows whether it matches. Entries lag behind the rows, so for
every entry that it finds, a query reads the row from its primary and tests it again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import operator
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from typing import Any, Final, NamedTuple

from schemaless.base.keys import check_column_names, check_each, check_type, row_key_bytes
from schemaless.base.numbers import check_number
from schemaless.cell import Cell, RowKey
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.store.indexes import sql
from schemaless.store.indexes.definition import Definition, Field, Value
from schemaless.store.indexes.registry import IndexEntry, Registry
from schemaless.store.indexes.row_fetch import LatestRow, RowReader
from schemaless.store.indexes.tables import check_tables
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Rows

_MAX_LIMIT: Final = 1_000
_ITER_LIMIT: Final = 200
_FIRST_LIMIT: Final = 4
_MAX_IN: Final = 1_000
_TAG_BYTES: Final = 16
_FIRST_POLL_S: Final = 0.002
_MAX_POLL_S: Final = 0.05

_TESTS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
}
_INCLUSIVE: Final = {"<": "<=", ">": ">="}

Condition = tuple[str, str, Any]
"""A condition: the name of a field, one of ``= != < <= > >= in``, and a value, which may be None with ``=`` and ``!=``;
``in`` takes a list of values."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row found by a query.

    Attributes:
        row_key: the row's key.
        entry: the values of the index's fields when the row was read, by field name.
        cells: the latest cell of each requested column that the row has, by column name.
        damaged: the error for each requested column whose latest cell cannot be decoded, by column name. Such a cell is
            not in ``cells``, and its fields are None.
    """

    row_key: uuid.UUID
    entry: dict[str, Value]
    cells: dict[str, Cell]
    damaged: dict[str, CorruptBody] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexPage:
    """One page of query results.

    Attributes:
        rows: the rows, each once. Even before the last page, there may be fewer than ``limit``, or none.
        next: the cursor for the ``after`` argument of the next query; None on the last page. It may be used in URLs,
            and shows no row_key or value.
    """

    rows: list[IndexRow]
    next: str | None


class Test(NamedTuple):
    """A validated condition."""

    field: Field
    operator: str
    value: Value | tuple[Value, ...]

    def holds(self, value: Value) -> bool:
        """Return True if a row's value satisfies the condition. None satisfies only ``= None``."""
        if self.value is None:
            return (value is None) == (self.operator == "=")
        return value is not None and _TESTS[self.operator](value, self.value)

    @property
    def statement(self) -> bytes:
        """SQL test that matches the entry of every row that satisfies the condition.

        Entries hold truncated text, so the test may be looser than the condition.
        """
        name, comparison = self.field.name, self.operator
        if self.value is None:
            return sql.comparison(name, "<=>" if comparison == "=" else " IS NOT ", b"NULL")
        if isinstance(self.value, tuple):
            return sql.one_of(name, [self.field.literal(value) for value in self.value])
        if isinstance(self.value, str) and len(self.value) >= (self.field.max_characters or 0):
            if comparison == "!=":
                return sql.comparison(name, " IS NOT ", b"NULL")
            comparison = _INCLUSIVE.get(comparison, comparison)
        return sql.comparison(name, comparison, self.field.literal(self.value))


class Query(NamedTuple):
    """A validated query.

    Attributes:
        tests: the conditions, the one on the shard field first.
        descending: whether rows are returned in descending order.
        limit: the maximum number of entries to read.
        columns: the columns to return.
    """

    tests: tuple[Test, ...]
    descending: bool
    limit: int
    columns: tuple[str, ...]

    def digest(self, entry: IndexEntry) -> bytes:
        """Digest of the index and of everything that decides which entries are found, and in which order."""
        tests = [[test.field.name, test.operator, str(test.value)] for test in self.tests]
        index = [entry.number, entry.created_at, self.descending]
        return hashlib.sha256(json.dumps([*tests, index]).encode()).digest()


class Index:
    """A secondary index of an open datastore, as returned by ``Datastore.index``.

    An index finds rows by values in their documents:

        trips = store.index("client_trips")
        for row in trips.iter(client=client_id, where=[("at", ">=", monday)], order_by="-at"):
            print(row.row_key, row.entry["at"], row.cells["BASE"].body)

    Worker processes (``schemaless index run``) keep the index up to date, usually within a fraction of a second of a
    write. A query never returns a row that no longer matches, but it may miss one that was only just written; ``wait``
    waits for such a row.
    """

    def __init__(self, shards: Shards, registry: Registry, rows: RowReader, name: str) -> None:
        self._shards = shards
        self._registry = registry
        self._rows = rows
        self._name = name
        self._entry: IndexEntry | None = None

    def __repr__(self) -> str:
        return f"Index({self._name!r})"

    def query(
        self,
        /,
        *,
        where: Iterable[Condition] = (),
        order_by: str | None = None,
        limit: int = 50,
        after: str | None = None,
        columns: Sequence[str] | None = None,
        **equals: Any,
    ) -> IndexPage:
        """Find rows. Every row is read from its shard's primary and checked against the query before it is returned.

        Args:
            where: conditions, each a tuple of field name, operator (``= != < <= > >=``) and value, or of field name,
                ``in`` and a list of up to 1,000 values. A field that is missing from a document, or has another type
                there, satisfies only ``("field", "=", None)``.
            order_by: the field to order by, which must be the first not compared by ``=``; prefix it with ``-`` for
                descending order. Ties are ordered by the remaining fields, then by row_key.
            limit: maximum number of entries to read, 1 to 1,000.
            after: the ``next`` cursor of the previous page of the same query.
            columns: names of the columns whose latest cells are returned. Defaults to the columns that the index is
                built from.
            **equals: values of fields, compared by ``=``. The value of the shard field is required.

        Returns:
            A page of rows. A row that changes between two queries may be on both pages or on neither.

        Raises:
            InvalidInput: the shard field is missing, or an argument is invalid; nothing was sent.
            UnknownIndex: there is no index of that name.
            IndexNotReady: the index is being built or dropped.
            ServerError: a server failed or refused a statement.
        """
        if self._entry is not None:
            check_shard_field(self._entry.definition, equals)
        entry = self._entry = self._registry.ready(self._name)
        query = check_query(entry.definition, equals, where, order_by, limit, columns)
        tests = [test.statement for test in query.tests]
        if after is not None:
            tests.append(_after_cursor(entry, query, after))
        matches = self._matches(entry, query, tests)
        # Computed while the servers read the rows.
        cursor = cache(lambda: _cursor(entry, query, matches[-1]) if len(matches) == limit else None)
        rows = self._matching_rows(entry.definition, query, [bytes(match[0]) for match in matches], cursor)
        return IndexPage(rows, cursor())

    def iter(
        self,
        /,
        *,
        where: Iterable[Condition] = (),
        order_by: str | None = None,
        limit: int = _ITER_LIMIT,
        after: str | None = None,
        columns: Sequence[str] | None = None,
        **equals: Any,
    ) -> Iterator[IndexRow]:
        """Iterate over all rows that a query finds, page by page.

        Args:
            where: conditions, as in ``query``.
            order_by: the field to order by, as in ``query``.
            limit: maximum number of entries to read at a time.
            after: the ``next`` cursor of a page of the same query, to continue after it.
            columns: names of columns, as in ``query``.
            **equals: values of fields, as in ``query``.

        Raises:
            InvalidInput, UnknownIndex, IndexNotReady, ServerError: while iterating, as for ``query``.
        """
        conditions = list(check_each(where, "where", lambda condition: condition))
        while True:
            page = self.query(where=conditions, order_by=order_by, limit=limit, after=after, columns=columns, **equals)
            yield from page.rows
            after = page.next
            if after is None:
                return

    def first(
        self,
        /,
        *,
        where: Iterable[Condition] = (),
        order_by: str | None = None,
        columns: Sequence[str] | None = None,
        **equals: Any,
    ) -> IndexRow | None:
        """Return the first row that a query finds, or None; arguments and errors are those of ``query``."""
        rows = self.iter(where=where, order_by=order_by, limit=_FIRST_LIMIT, columns=columns, **equals)
        return next(rows, None)

    def wait(self, row_key: RowKey, timeout_s: float = 1.0) -> bool:
        """Wait until the index has caught up with a row, so that a query finds what was just written.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            timeout_s: maximum time to wait, in seconds.

        Returns:
            True if the index has caught up, False on timeout. Returns True at once for a row that has no entry because
            its document has no valid value for the shard field; no query returns such a row.

        Raises:
            InvalidCell: the row_key is invalid.
            InvalidInput: ``timeout_s`` is not a number.
            UnknownIndex, IndexNotReady, ServerError: as for ``query``.
        """
        check_number("timeout_s", timeout_s)
        row, deadline_s, pause_s = row_key_bytes(row_key), time.monotonic() + timeout_s, _FIRST_POLL_S
        while not self._is_current(self._registry.ready(self._name), row):
            if time.monotonic() >= deadline_s:
                return False
            self._shards.runtime.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
            pause_s = min(_MAX_POLL_S, pause_s * 1.5)
        return True

    def _is_current(self, entry: IndexEntry, row: bytes) -> bool:
        definition, shards = entry.definition, self._shards
        (values,) = self._rows.read([row], definition.sources, lambda latest: definition.values(latest.documents))
        shard = definition.shard_of(values[0], shards.topology.shard_count)
        if shard is None:
            return True
        check_tables(shards, self._registry, entry, [shard])
        entries = shards.rows(shard, sql.select_entries(shards.database(shard), entry.layout, shard, [row]))
        return bool(entries) and definition.from_table(entries[0][2:]) == definition.stored(values)

    def _matches(self, entry: IndexEntry, query: Query, tests: Sequence[bytes]) -> Rows:
        """Read row_key and fields of the entries that satisfy the SQL tests."""
        shards = self._shards
        value = query.tests[0].value
        assert not isinstance(value, tuple)
        shard = entry.definition.shard_of(value, shards.topology.shard_count)
        assert shard is not None
        check_tables(shards, self._registry, entry, [shard])
        statement = sql.select_matches(
            shards.database(shard), entry.layout, tests, descending=query.descending, limit=query.limit
        )
        return shards.rows(shard, statement)

    def _matching_rows(
        self, definition: Definition, query: Query, row_keys: Sequence[bytes], while_waiting: Callable[[], object]
    ) -> list[IndexRow]:
        """Read rows and return those that satisfy the query now, in the same order."""
        columns = tuple(dict.fromkeys((*definition.sources, *query.columns)))
        names = [field.name for field in definition.all_fields]
        tests = [(names.index(test.field.name), test.holds) for test in query.tests]

        def matching(row: LatestRow) -> IndexRow | None:
            values = definition.values(row.documents)
            for position, holds in tests:
                if not holds(values[position]):
                    return None
            entry = dict(zip(names, values, strict=True))
            cells = row.cells
            if query.columns != columns:
                cells = {name: cells[name] for name in query.columns if name in cells}
            damaged = row.damaged and {name: row.damaged[name] for name in query.columns if name in row.damaged}
            return IndexRow(row.row_key, entry, cells, damaged)

        return [row for row in self._rows.read(row_keys, columns, matching, while_waiting) if row is not None]


def check_shard_field(definition: Definition, equals: Mapping[str, Any]) -> None:
    """Check that a query gives a value for the shard field; no server is contacted.

    Raises:
        InvalidInput: the value is missing.
    """
    name = definition.shard_field.name
    if equals.get(name) is None:
        raise InvalidInput(
            f"a query of index {definition.name} needs a value for its shard field: query({name}=...). The "
            "value decides which shard has the entries. Nothing was sent"
        )


def check_query(
    definition: Definition,
    equals: Mapping[str, Any],
    where: Iterable[Condition],
    order_by: str | None,
    limit: int,
    columns: Sequence[str] | None,
) -> Query:
    """Validate the arguments of a query; no server is contacted.

    Raises:
        InvalidInput: an argument is invalid.
    """
    check_shard_field(definition, equals)
    if type(limit) is not int or not 1 <= limit <= _MAX_LIMIT:
        raise InvalidInput(f"limit must be an int from 1 to {_MAX_LIMIT:,}, got {limit!r}")
    tests = [_test(definition, (name, "=", value)) for name, value in equals.items()]
    tests += check_each(where, "where", partial(_test, definition))
    tests.sort(key=lambda test: test.field is not definition.shard_field)
    fixed = {test.field.name for test in tests if test.operator == "="}
    free = [field.name for field in definition.fields if field.name not in fixed]
    descending = order_by is not None and check_type(order_by, str, "order_by").startswith("-")
    if order_by is not None and (not free or order_by.removeprefix("-") != free[0]):
        raise InvalidInput(
            f"this query of index {definition.name} can order rows only by {free[0] if free else 'row_key'}, not by "
            f"{order_by!r}. To order by that, give each field before it a condition with '=', or declare an index "
            "with its fields in another order"
        )
    chosen = check_column_names(columns)
    return Query(tuple(tests), descending, limit, definition.sources if chosen is None else chosen)


def _test(definition: Definition, condition: object) -> Test:
    name, comparison = "", ""
    value: Any = None
    if isinstance(condition, (tuple, list)) and len(condition) == 3:
        name, comparison, value = condition
    if comparison not in [*_TESTS] or (value is None and comparison not in ("=", "!=")):
        raise InvalidInput(
            f"a condition is a field, one of {' '.join(_TESTS)}, and a value (None only with = and !=); got "
            f"{condition!r:.200}"
        )
    field = definition.field(name)
    if comparison == "in":
        values = tuple(check_each(value, "values of 'in'", field.argument))
        if len(values) > _MAX_IN:
            raise InvalidInput(f"'in' takes up to {_MAX_IN:,} values, got {len(values):,}; send several queries")
        return Test(field, comparison, values)
    return Test(field, comparison, None if value is None else field.argument(value))


def _cursor(entry: IndexEntry, query: Query, last: Sequence[Any]) -> str:
    """Return the position of an entry as URL-safe text, masked with a key that only the same query has."""
    values = [
        value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, uuid.UUID) else value
        for value in entry.definition.from_table(last[1:])[1:]
    ]
    position = json.dumps([bytes(last[0]).hex(), *values], separators=(",", ":")).encode()
    key = query.digest(entry)
    tag = hmac.digest(key, position, "sha256")[:_TAG_BYTES]
    return base64.urlsafe_b64encode(tag + _masked(position, key + tag)).decode().rstrip("=")


def _after_cursor(entry: IndexEntry, query: Query, cursor: str) -> bytes:
    """Return the SQL test for entries after a cursor."""
    key = query.digest(entry)
    try:
        content = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        tag = content[:_TAG_BYTES]
        position = _masked(content[_TAG_BYTES:], key + tag)
        genuine = hmac.compare_digest(tag, hmac.digest(key, position, "sha256")[:_TAG_BYTES])
    except (ValueError, TypeError):
        genuine = False
    if not genuine:
        raise InvalidInput(
            f"after= must be the 'next' of an earlier page, got {cursor!r:.80}. It is damaged, or belongs to another "
            f"query, or to an earlier index named {entry.name}; start again without it"
        )
    row_key, *values = json.loads(position)
    fields = entry.definition.fields
    literals = [field.literal(field.kind.read(value)) for field, value in zip(fields, values, strict=True)]
    names = [field.name for field in fields]
    return sql.after_entry(names, literals, bytes.fromhex(row_key), descending=query.descending)


def _masked(content: bytes, key: bytes) -> bytes:
    stream = hashlib.shake_256(key).digest(len(content))
    return bytes(one ^ other for one, other in zip(content, stream, strict=True))
