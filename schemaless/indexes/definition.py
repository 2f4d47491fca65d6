"""What a secondary index is made of: fields of documents, their types, and the limits; pure, and declared once.

A field is a value somewhere in the documents of one column. What does not fit its type is NULL: an index never stops
because of a document. What does not fit the shard field makes no entry at all, since nobody could ask for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Final

from schemaless.errors import InvalidInput
from schemaless.indexes.sql import Layout
from schemaless.keys import check_column_name
from schemaless.topology.placement import shard_for
from schemaless.wire.sql.parts import blob_hex

MAX_FIELDS: Final = 16
"""InnoDB takes so many columns in a key."""

MAX_KEY_BYTES: Final = 3072
"""InnoDB takes so many bytes in a key."""

_INDEX_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z")
_FIELD_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
_RESERVED: Final = re.compile(r"(row_key|ref_\d+|where|order_by|limit|after|columns|self)\Z")
"""The table's own columns have these names, and the arguments of ``query``."""

_DECLARED: Final = re.compile(
    r'(?:(?P<name>[^="]*)=)?(?:"(?P<quoted>[^"]+)"|(?P<column>[^".][^.]*))\.(?P<path>.+):(?P<type>[^:]+)\Z'
)
_TYPE: Final = re.compile(r"(uuid|int|float|bool|time)\Z|text\((\d{1,4})\)\Z")

Value = uuid.UUID | int | float | bool | datetime | str | None
"""A field has one of these; None stands for a value that is missing, or does not fit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of fields.

    Attributes:
        sql: the column's type in the table.
        key_bytes: how much of a key it takes, at most.
        read: makes a value of what stands in a document, or None.
        literal: writes a value into a statement.
        canonical: what a value is placed by; None where it cannot be a shard field.
    """

    sql: str
    key_bytes: int
    read: Callable[[Any], Value]
    literal: Callable[[Any], bytes]
    canonical: Callable[[Any], bytes] | None


# The rows of a query have the same value of the shard field, and making a UUID of text takes longer than most of a row.
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
    """Read ISO 8601; without an offset it is UTC."""
    try:
        at = datetime.fromisoformat(raw) if isinstance(raw, str) else raw
        if not isinstance(at, datetime):
            return None
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # The server's DATETIME begins there.
    return at if at.year >= 1000 else None


def _read_text(raw: Any) -> str | None:
    if not isinstance(raw, str):
        return None
    try:
        # One surrogate of a pair is JSON, and no UTF-8.
        raw.encode()
    except UnicodeEncodeError:
        return None
    return raw


def _of_time(value: datetime) -> bytes:
    return b"'%b'" % value.replace(tzinfo=None).isoformat(" ", "microseconds").encode()


_KINDS: Final[Mapping[str, Kind]] = {
    "uuid": Kind("BINARY(16)", 17, _read_uuid, lambda value: blob_hex(value.bytes), lambda value: bytes(value.bytes)),
    "int": Kind("BIGINT", 9, _read_int, lambda value: b"%d" % value, lambda value: b"%d" % value),
    # With an exponent: digits and a point alone would be a DECIMAL.
    "float": Kind("DOUBLE", 9, _read_float, lambda value: b"%.17e" % value, None),
    "bool": Kind("TINYINT", 2, _read_bool, lambda value: b"%d" % value, lambda value: b"%d" % value),
    "time": Kind("DATETIME(6)", 9, _read_time, _of_time, lambda value: bytes(_of_time(value))),
}


def _kind(type_name: str) -> Kind:
    size = _TYPE.match(type_name)
    assert size is not None
    if size[2] is None:
        return _KINDS[type_name]
    # Bytes, compared as such: that is the order of code points, on every server, and no blank at the end is ignored.
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
    """A value in the documents of a column.

    Attributes:
        name: the field's.
        column: whose documents it is in.
        path: the keys that lead to it, from the outermost on.
        type: uuid, int, float, bool, time or text(N).
    """

    name: str
    column: str
    path: tuple[str, ...]
    type: str

    def __post_init__(self) -> None:
        if _FIELD_NAME.match(self.name) is None or _RESERVED.match(self.name):
            raise InvalidInput(
                f"a field's name is 1 to 32 of [a-z0-9_], begins with a letter and is no argument of query(), got "
                f"{self.name!r}; another one is given by NAME=COLUMN.PATH:TYPE"
            )
        check_column_name(self.column)
        if not self.path or not all(self.path):
            raise InvalidInput(f"field {self.name}: its path is the keys that lead to it, got {self.path!r}")
        match = _TYPE.match(self.type)
        if match is None or (match[2] is not None and int(match[2]) < 1):
            raise InvalidInput(
                f"field {self.name}: its type is uuid, int, float, bool, time or text(N), got {self.type!r}"
            )

    @cached_property
    def kind(self) -> Kind:
        """What its type means."""
        return _kind(self.type)

    @cached_property
    def cut_at(self) -> int | None:
        """How many characters of a text the table has; None for other types."""
        return int(self.type[5:-1]) if self.type.startswith("text") else None

    def of(self, document: Any) -> Value:
        """Return its value in a document; None where it is missing or does not fit."""
        for key in self.path:
            if type(document) is not dict:
                return None
            document = document.get(key)
        return self.kind.read(document)

    def stored(self, value: Value) -> Value:
        """Return what the table has of a value: a text is cut."""
        return value[: self.cut_at] if isinstance(value, str) else value

    def literal(self, value: Value) -> bytes:
        """Return what the table has of a value, as it stands in a statement."""
        stored = self.stored(value)
        return b"NULL" if stored is None else self.kind.literal(stored)

    def from_table(self, stored: Any) -> Value:
        """Return the value that the table has."""
        if stored is None:
            return None
        if self.type == "uuid":
            return uuid.UUID(bytes=bytes(stored))
        if self.type == "bool":
            return bool(stored)
        if isinstance(stored, datetime):
            return stored.replace(tzinfo=UTC)
        return bytes(stored).decode() if self.cut_at is not None else stored

    def argument(self, given: Any) -> Value:
        """Return a value to ask for.

        Raises:
            InvalidInput: it does not fit the type.
        """
        value = self.kind.read(given)
        if value is None:
            raise InvalidInput(f"field {self.name} is {self.type}, so it is never {given!r}")
        return value


@dataclass(frozen=True)
class Definition:
    """What an index is made of.

    Attributes:
        name: the index's.
        shard_field: which shard an entry is in follows from it; every query names it.
        fields: what else can be asked for and ordered by, in the order of the key.
    """

    name: str
    shard_field: Field
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if _INDEX_NAME.match(self.name) is None:
            raise InvalidInput(f"an index's name is 1 to 32 of [A-Za-z0-9_.-], got {self.name!r}")
        if self.shard_field.kind.canonical is None:
            raise InvalidInput(f"a {self.shard_field.type} is compared, not looked up: take another shard field")
        names = [field.name for field in self.all_fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput(f"two fields of {self.name} have one name: {', '.join(twice)}; give one by NAME=...")
        if len(names) > MAX_FIELDS:
            raise InvalidInput(f"{self.name} has {len(names)} fields, and an index takes {MAX_FIELDS}")
        size = sum(field.kind.key_bytes for field in self.all_fields)
        if size > MAX_KEY_BYTES:
            raise InvalidInput(
                f"the fields of {self.name} take {size:,} bytes of a key, which holds {MAX_KEY_BYTES:,}: a text(N) "
                "takes four for each character; it may be cut shorter, which loses no row"
            )

    @cached_property
    def all_fields(self) -> tuple[Field, ...]:
        """The shard field, then the others."""
        return (self.shard_field, *self.fields)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The columns that entries are made of, in the order in which fields name them."""
        return tuple(dict.fromkeys(field.column for field in self.all_fields))

    @cached_property
    def text(self) -> str:
        """The definition as the catalog keeps it; ``parse`` reads it."""
        parts = [[field.name, field.column, list(field.path), field.type] for field in self.all_fields]
        return json.dumps({"format": 1, "fields": parts})

    @classmethod
    def parse(cls, name: str, text: str) -> Definition:
        """Return the definition that the catalog keeps."""
        fields = [Field(name, column, tuple(path), kind) for name, column, path, kind in json.loads(text)["fields"]]
        return cls(name, fields[0], tuple(fields[1:]))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def layout(self, number: int) -> Layout:
        """Return what the table looks like."""
        columns = [(field.name, field.kind.sql) for field in self.all_fields]
        return Layout(number, columns, len(self.sources), self.digest)

    def field(self, name: str) -> Field:
        """Return a field.

        Raises:
            InvalidInput: there is none of that name.
        """
        for field in self.all_fields:
            if field.name == name:
                return field
        raise InvalidInput(f"{self.name} has no field {name!r}; it has {', '.join(f.name for f in self.all_fields)}")

    def part(self, column: str, document: Any) -> tuple[Value, ...]:
        """Return the values of the fields that are in a column's documents."""
        return tuple(field.of(document) for field in self.all_fields if field.column == column)

    def values(self, documents: Mapping[str, Any]) -> tuple[Value, ...]:
        """Return the values of all fields, by the documents of a row's columns; what is not there is None."""
        values = []
        # As ``Field.of`` does, for many rows.
        for column, path, read in self._places:
            found = documents.get(column)
            for key in path:
                if type(found) is not dict:
                    found = None
                    break
                found = found.get(key)
            values.append(read(found))
        return tuple(values)

    @cached_property
    def _places(self) -> tuple[tuple[str, tuple[str, ...], Callable[[Any], Value]], ...]:
        return tuple((field.column, field.path, field.kind.read) for field in self.all_fields)

    def shard_of(self, value: Value, shard_count: int) -> int | None:
        """Return the shard that entries of a value of the shard field are in; None where it makes none.

        For a UUID that of a row with this row_key; else ``crc32`` of what the table has, written out in bytes.
        """
        if value is None:
            return None
        if isinstance(value, uuid.UUID):
            return shard_for(value.bytes, shard_count)
        assert self.shard_field.kind.canonical is not None
        return zlib.crc32(self.shard_field.kind.canonical(self.shard_field.stored(value))) % shard_count


def parse_field(declared: str) -> Field:
    """Return the field that ``[NAME=]COLUMN.PATH:TYPE`` declares, such as ``BASE.rider.city:text(64)``.

    A column whose name has a dot stands in quotes: ``"v1.BASE".city:int``.

    Raises:
        InvalidInput: it cannot be used.
    """
    match = _DECLARED.match(declared)
    if match is None:
        raise InvalidInput(
            f'a field is declared as [NAME=]COLUMN.PATH:TYPE, such as BASE.city:int or "v1.BASE".city:int; got '
            f"{declared!r}"
        )
    path = tuple(match["path"].split("."))
    return Field(
        path[-1] if match["name"] is None else match["name"], match["quoted"] or match["column"], path, match["type"]
    )


def define(name: str, shard_field: str, fields: Sequence[str]) -> Definition:
    """Return a definition of fields that are declared as text; raises what ``parse_field`` and the limits raise."""
    return Definition(name, parse_field(shard_field), tuple(map(parse_field, fields)))
