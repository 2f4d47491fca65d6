"""Definition of a secondary index: its fields, their types and the limits; pure functions, without I/O.

A field is a value at some path in the documents of one column. A value that does not fit the field's type is stored as
NULL, so no document can block an index. A row whose shard field does not fit has no entry, because no query could match
it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Final

from schemaless.base.keys import check_column_name, check_each, check_type
from schemaless.errors import InvalidInput
from schemaless.store.indexes.sql import Layout
from schemaless.topology.placement import shard_for
from schemaless.wire.sql.parts import blob_hex

MAX_FIELDS: Final = 16
"""Maximum number of columns in an InnoDB key."""

MAX_KEY_BYTES: Final = 3072
"""Maximum size of an InnoDB key, in bytes."""

_INDEX_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z")
_FIELD_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
_RESERVED: Final = re.compile(r"(row_key|ref_\d+|where|order_by|limit|after|columns|self)\Z")
"""Names taken by columns of the index's table and by arguments of ``Index.query``."""

_DECLARED: Final = re.compile(
    r'(?:(?P<name>[^="]*)=)?(?:"(?P<quoted>[^"]+)"|(?P<column>[^".][^.]*))\.(?P<path>.+):(?P<type>[^:]+)\Z'
)
_TYPE: Final = re.compile(r"(uuid|int|float|bool|time)\Z|text\((\d{1,4})\)\Z")

Value = uuid.UUID | int | float | bool | datetime | str | None
"""A field's value; None if it is missing from the document or does not fit the type."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of field.

    Attributes:
        sql: type of the column in the index's table.
        key_bytes: maximum size in a key, in bytes.
        read: converts a JSON value to a field value; None if it does not fit.
        literal: returns a value as an SQL literal.
        canonical: returns the bytes that decide a value's shard; None for types that cannot be a shard field.
    """

    sql: str
    key_bytes: int
    read: Callable[[Any], Value]
    literal: Callable[[Any], bytes]
    canonical: Callable[[Any], bytes] | None


# Parsing a UUID takes longer than most of a row, and all rows of a query have the same value of the shard field.
_uuid_of: Final = lru_cache(1024)(uuid.UUID)


def _read_uuid(raw: Any) -> uuid.UUID | None:
    if isinstance(raw, uuid.UUID):
        return raw
    try:
        return _uuid_of(raw) if isinstance(raw, str) else None
    except ValueError:
        return None


def _read_int(raw: Any) -> int | None:
    return raw if type(raw) is int and -(1 << 63) <= raw < 1 << 63 else None


def _read_float(raw: Any) -> float | None:
    if type(raw) not in (int, float):
        return None
    try:
        value = float(raw)
    except OverflowError:
        return None
    return value + 0.0 if math.isfinite(value) else None


def _read_bool(raw: Any) -> bool | None:
    return raw if type(raw) is bool else None


def _read_time(raw: Any) -> datetime | None:
    """Parse ISO 8601; a time without an offset is UTC."""
    try:
        at = datetime.fromisoformat(raw) if isinstance(raw, str) else raw
        if not isinstance(at, datetime):
            return None
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # The first year of the server's DATETIME.
    return at if at.year >= 1000 else None


def _read_text(raw: Any) -> str | None:
    if not isinstance(raw, str):
        return None
    try:
        # JSON allows lone surrogates, UTF-8 does not.
        raw.encode()
    except UnicodeEncodeError:
        return None
    return raw


def _of_time(value: datetime) -> bytes:
    return b"'%b'" % value.replace(tzinfo=None).isoformat(" ", "microseconds").encode()


_KINDS: Final[Mapping[str, Kind]] = {
    "uuid": Kind("BINARY(16)", 17, _read_uuid, lambda value: blob_hex(value.bytes), lambda value: bytes(value.bytes)),
    "int": Kind("BIGINT", 9, _read_int, lambda value: b"%d" % value, lambda value: b"%d" % value),
    # With an exponent, because a literal with only a decimal point would be a DECIMAL.
    "float": Kind("DOUBLE", 9, _read_float, lambda value: b"%.17e" % value, None),
    "bool": Kind("TINYINT", 2, _read_bool, lambda value: b"%d" % value, lambda value: b"%d" % value),
    "time": Kind("DATETIME(6)", 9, _read_time, _of_time, lambda value: bytes(_of_time(value))),
}


def _kind(type_name: str) -> Kind:
    size = _TYPE.match(type_name)
    assert size is not None
    if size[2] is None:
        return _KINDS[type_name]
    # VARBINARY compares by code points on every server, and does not ignore trailing blanks.
    width = 4 * int(size[2])
    return Kind(
        f"VARBINARY({width})",
        width + 3,
        _read_text,
        lambda value: blob_hex(value.encode()),
        lambda value: value.encode(),
    )


@dataclass(frozen=True)
class Field:
    """A value at some path in the documents of a column.

    Attributes:
        name: the field's name.
        column: the column whose documents contain the value.
        path: the object keys that lead to the value, outermost first.
        type: uuid, int, float, bool, time or text(N).
    """

    name: str
    column: str
    path: tuple[str, ...]
    type: str

    def __post_init__(self) -> None:
        if _FIELD_NAME.match(self.name) is None or _RESERVED.match(self.name):
            raise InvalidInput(
                "a field name must be 1 to 32 characters of [a-z0-9_], must begin with a letter, and must not be "
                f"row_key, ref_N or an argument of query(), got {self.name!r}; give the field another name with "
                "NAME=COLUMN.PATH:TYPE"
            )
        check_column_name(self.column)
        if not self.path or not all(self.path):
            raise InvalidInput(f"field {self.name}: the path must be one or more object keys, got {self.path!r}")
        match = _TYPE.match(self.type)
        if match is None or (match[2] is not None and int(match[2]) < 1):
            raise InvalidInput(
                f"field {self.name}: the type must be uuid, int, float, bool, time or text(N), got {self.type!r}"
            )

    @cached_property
    def kind(self) -> Kind:
        """Behaviour of the field's type."""
        return _kind(self.type)

    @cached_property
    def max_characters(self) -> int | None:
        """Maximum number of characters that the table stores of a text; None for other types."""
        return int(self.type[5:-1]) if self.type.startswith("text") else None

    def of(self, document: Any) -> Value:
        """Return the field's value in a document; None if it is missing or does not fit the type."""
        for key in self.path:
            if type(document) is not dict:
                return None
            document = document.get(key)
        return self.kind.read(document)

    def stored(self, value: Value) -> Value:
        """Return a value as the table stores it: text is truncated."""
        return value[: self.max_characters] if isinstance(value, str) else value

    def literal(self, value: Value) -> bytes:
        """Return a value as the table stores it, as an SQL literal."""
        stored = self.stored(value)
        return b"NULL" if stored is None else self.kind.literal(stored)

    def from_table(self, stored: Any) -> Value:
        """Convert a value stored in the index's table to the field's value."""
        if stored is None:
            return None
        if self.type == "uuid":
            return uuid.UUID(bytes=bytes(stored))
        if self.type == "bool":
            return bool(stored)
        if isinstance(stored, datetime):
            return stored.replace(tzinfo=UTC)
        return bytes(stored).decode() if self.max_characters is not None else stored

    def argument(self, given: Any) -> Value:
        """Convert an argument of a query to a value of the field.

        Raises:
            InvalidInput: the argument does not fit the field's type.
        """
        value = self.kind.read(given)
        if value is None:
            raise InvalidInput(f"field {self.name} is of type {self.type}, but {given!r} does not fit that type")
        return value


@dataclass(frozen=True)
class Definition:
    """The name and fields of an index.

    Attributes:
        name: the index's name.
        shard_field: the field whose value decides the shard of an entry; every query gives a value for it.
        fields: the other fields that queries can compare and order by, in the order of the key.
    """

    name: str
    shard_field: Field
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if _INDEX_NAME.match(check_type(self.name, str, "an index name")) is None:
            raise InvalidInput(f"an index name must be 1 to 32 characters of [A-Za-z0-9_.-], got {self.name!r}")
        if self.shard_field.kind.canonical is None:
            raise InvalidInput(
                f"a field of type {self.shard_field.type} cannot be the shard field, because queries compare the shard "
                "field for equality; choose a field of another type"
            )
        names = [field.name for field in self.all_fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput(
                f"two fields of index {self.name} have the same name: {', '.join(twice)}; rename one with NAME=..."
            )
        if len(names) > MAX_FIELDS:
            raise InvalidInput(f"index {self.name} has {len(names)} fields; the maximum is {MAX_FIELDS}")
        size = sum(field.kind.key_bytes for field in self.all_fields)
        if size > MAX_KEY_BYTES:
            raise InvalidInput(
                f"the key of index {self.name} would have {size:,} bytes; the maximum is {MAX_KEY_BYTES:,}. text(N) "
                "takes four bytes for each character: choose a smaller N; queries still find every row"
            )

    @cached_property
    def all_fields(self) -> tuple[Field, ...]:
        """The shard field, then the others."""
        return (self.shard_field, *self.fields)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The columns that the fields are taken from, in the order in which the fields name them."""
        return tuple(dict.fromkeys(field.column for field in self.all_fields))

    @cached_property
    def text(self) -> str:
        """The definition as the catalog stores it; ``parse`` reads it."""
        parts = [[field.name, field.column, list(field.path), field.type] for field in self.all_fields]
        return json.dumps({"format": 1, "fields": parts})

    @classmethod
    def parse(cls, name: str, text: str) -> Definition:
        """Return the definition that the catalog stores as ``text``."""
        fields = [Field(name, column, tuple(path), kind) for name, column, path, kind in json.loads(text)["fields"]]
        return cls(name, fields[0], tuple(fields[1:]))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of ``text``, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def layout(self, number: int) -> Layout:
        """Return the layout of the tables of an index with this definition and number."""
        columns = [(field.name, field.kind.sql) for field in self.all_fields]
        return Layout(number, columns, len(self.sources), self.digest)

    def field(self, name: str) -> Field:
        """Return the field with the given name.

        Raises:
            InvalidInput: there is no such field.
        """
        for field in self.all_fields:
            if field.name == name:
                return field
        names = ", ".join(field.name for field in self.all_fields)
        raise InvalidInput(f"index {self.name} has no field {name!r}; its fields: {names}")

    def part(self, column: str, document: Any) -> tuple[Value, ...]:
        """Return the values of the fields that are taken from one column, given its document."""
        return tuple(field.of(document) for field in self.all_fields if field.column == column)

    def values(self, documents: Mapping[str, Any]) -> tuple[Value, ...]:
        """Return the values of all fields, given the documents of a row's columns; missing values are None."""
        values = []
        # ``Field.of``, inlined: this runs for every row of a query.
        for column, path, read in self._readers:
            found = documents.get(column)
            for key in path:
                if type(found) is not dict:
                    found = None
                    break
                found = found.get(key)
            values.append(read(found))
        return tuple(values)

    def stored(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return the values of all fields as the table stores them: text is truncated."""
        return tuple(field.stored(value) for field, value in zip(self.all_fields, values, strict=True))

    def from_table(self, columns: Sequence[Any]) -> tuple[Value, ...]:
        """Return the values of all fields from columns of the index's table; columns after the fields are ignored."""
        fields = self.all_fields
        return tuple(field.from_table(column) for field, column in zip(fields, columns[: len(fields)], strict=True))

    @cached_property
    def _readers(self) -> tuple[tuple[str, tuple[str, ...], Callable[[Any], Value]], ...]:
        return tuple((field.column, field.path, field.kind.read) for field in self.all_fields)

    def shard_of(self, value: Value, shard_count: int) -> int | None:
        """Return the shard of the entries with this value in the shard field; None for None, which is not indexed.

        A UUID is placed like a row with that row_key, any other value by the ``crc32`` of its stored form.
        """
        if value is None:
            return None
        if isinstance(value, uuid.UUID):
            return shard_for(value.bytes, shard_count)
        assert self.shard_field.kind.canonical is not None
        return zlib.crc32(self.shard_field.kind.canonical(self.shard_field.stored(value))) % shard_count


def parse_field(declared: str) -> Field:
    """Parse ``[NAME=]COLUMN.PATH:TYPE``, such as ``BASE.rider.city:text(64)``.

    A column name with a dot is quoted: ``"v1.BASE".city:int``. The name defaults to the last key of the path.

    Raises:
        InvalidInput: the declaration is invalid.
    """
    match = _DECLARED.match(check_type(declared, str, "a field"))
    if match is None:
        raise InvalidInput(
            f'a field must be declared as [NAME=]COLUMN.PATH:TYPE, such as BASE.city:int or "v1.BASE".city:int; got '
            f"{declared!r}"
        )
    path = tuple(match["path"].split("."))
    return Field(
        path[-1] if match["name"] is None else match["name"], match["quoted"] or match["column"], path, match["type"]
    )


def define(name: str, shard_field: str, fields: Iterable[str]) -> Definition:
    """Return the definition of an index, given declarations as accepted by ``parse_field``.

    Raises:
        InvalidInput: a declaration is invalid, or the index exceeds a limit.
    """
    return Definition(name, parse_field(shard_field), tuple(check_each(fields, "fields", parse_field)))
