"""Typed columns: values taken from documents, exact or null, with the reason for each null."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from schemaless.base.keys import check_column_name, check_each, check_type
from schemaless.errors import InvalidInput
from schemaless.store.indexes.definition import parse_field

KEY_COLUMNS: Final = ("row_key", "column_name", "ref_key", "added_id", "shard", "created_at", "body")
"""Columns of every batch, before the typed ones."""

MISSING: Final = "missing"
NULL: Final = "null"
WRONG_TYPE: Final = "wrong type"
OUT_OF_RANGE: Final = "out of range"
NOT_FINITE: Final = "not finite"
INEXACT: Final = "inexact"
INVALID: Final = "invalid"
TOO_LONG: Final = "too long"
NOT_UNICODE: Final = "not unicode"
ERASED: Final = "erased"

REASONS: Final = (MISSING, NULL, WRONG_TYPE, OUT_OF_RANGE, NOT_FINITE, INEXACT, INVALID, TOO_LONG, NOT_UNICODE, ERASED)
"""Why a typed column is null: no such key; JSON null; another JSON type; an integer beyond 64 bits; NaN, an
infinity, or a number such as 1e400; a number or a time with more digits than the type holds; text that is not a UUID
or a time; text over the limit; a lone surrogate; an erased cell."""

_LONG_FRACTION: Final = re.compile(r"[.,]\d{6}\d*[1-9]")
_ANY_LENGTH: Final = "text"
_MAX_DIGITS: Final = "(9999)"

Read = Callable[[Any], Any]
"""Function that converts a JSON value to the column's type, or raises ``Unfit``."""


class Unfit(Exception):
    """A JSON value that the column's type cannot represent exactly; ``args[0]`` is one of ``REASONS``."""


def _int(value: Any) -> int:
    if type(value) is not int:
        raise Unfit(WRONG_TYPE)
    if not -(1 << 63) <= value < 1 << 63:
        raise Unfit(OUT_OF_RANGE)
    return value


def _float(value: Any) -> float:
    if type(value) is float:
        if not math.isfinite(value):
            raise Unfit(NOT_FINITE)
        return value
    if type(value) is not int:
        raise Unfit(WRONG_TYPE)
    try:
        number = float(value)
    except OverflowError:
        raise Unfit(OUT_OF_RANGE) from None
    if number != value:
        raise Unfit(INEXACT)
    return number


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise Unfit(WRONG_TYPE)
    return value


def _uuid(value: Any) -> str:
    if type(value) is not str:
        raise Unfit(WRONG_TYPE)
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise Unfit(INVALID) from None


def _time(value: Any) -> datetime:
    """Parse ISO 8601; a time without an offset is UTC."""
    if type(value) is not str:
        raise Unfit(WRONG_TYPE)
    try:
        at = datetime.fromisoformat(value)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Unfit(INVALID) from None
    if _LONG_FRACTION.search(value) is not None:
        raise Unfit(INEXACT)
    return at


def _text(max_characters: int | None) -> Read:
    def read(value: Any) -> str:
        if type(value) is not str:
            raise Unfit(WRONG_TYPE)
        if max_characters is not None and len(value) > max_characters:
            raise Unfit(TOO_LONG)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Unfit(NOT_UNICODE) from None
        return value

    return read


_READERS: Final[dict[str, Read]] = {"int": _int, "float": _float, "bool": _bool, "uuid": _uuid, "time": _time}


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A typed column, read from the documents of one column of the datastore.

    Attributes:
        name: the column's name.
        source: the datastore's column whose documents have the value.
        path: the object keys that lead to the value, outermost first.
        type: uuid, int, float, bool, time, text or text(N).
    """

    name: str
    source: str
    path: tuple[str, ...]
    type: str

    @property
    def read(self) -> Read:
        """Function that converts a JSON value to the column's type."""
        if self.type in _READERS:
            return _READERS[self.type]
        return _text(None if self.type == _ANY_LENGTH else int(self.type[5:-1]))

    @property
    def declared(self) -> str:
        """The declaration, in the form that ``typed_columns`` accepts."""
        source = f'"{self.source}"' if "." in self.source else self.source
        return f"{self.name}={source}.{'.'.join(self.path)}:{self.type}"


def typed_columns(declarations: Iterable[str], columns: Sequence[str] | None) -> tuple[TypedColumn, ...]:
    """Parse declarations in the syntax of index fields, ``[NAME=][COLUMN.]PATH:TYPE``.

    Args:
        declarations: such as ``total=BASE.fare.total:float``.
        columns: the exported columns of the datastore, or None for all. If there is exactly one, a declaration may omit
            its name: ``total=fare.total:float``.

    Raises:
        InvalidInput: a declaration is invalid, or two have the same name.
    """
    parsed = tuple(check_each(declarations, "fields", lambda declared: _parse(declared, columns)))
    names = [column.name for column in parsed]
    for name in names:
        if name in KEY_COLUMNS:
            raise InvalidInput(f"every batch has a column {name}; give the typed column another name with NAME=")
        if names.count(name) > 1:
            raise InvalidInput(f"two typed columns have the name {name}; rename one with NAME=")
    return parsed


def _parse(declared: str, columns: Sequence[str] | None) -> TypedColumn:
    any_length = check_type(declared, str, "a typed column").endswith(f":{_ANY_LENGTH}")
    limited = declared + _MAX_DIGITS if any_length else declared
    only = columns[0] if columns is not None and len(columns) == 1 else None
    name, equals, place = limited.rpartition("=")
    if only is not None and not place.startswith((f"{only}.", f'"{only}".')):
        place = f'"{check_column_name(only)}".{place}'
    field = parse_field(f"{name}{equals}{place}")
    if columns is not None and field.column not in columns:
        raise InvalidInput(
            f"typed column {field.name} is read from column {field.column}, which is not exported; the columns are "
            f"{', '.join(columns)}"
        )
    return TypedColumn(field.name, field.column, field.path, _ANY_LENGTH if any_length else field.type)


class TypedValues:
    """Collects the values of typed columns, cell by cell, and counts the nulls.

    Args:
        columns: the typed columns.

    Attributes:
        values: the values of each column, with None for nulls.
        nulls: for each column, the number of nulls by reason; cells of other columns of the datastore do not count.
    """

    def __init__(self, columns: Sequence[TypedColumn]) -> None:
        self.values: list[list[Any]] = [[] for _ in columns]
        self.nulls: list[dict[str, int]] = [{} for _ in columns]
        self._readers = [
            (column.source, column.path, column.read, values, nulls)
            for column, values, nulls in zip(columns, self.values, self.nulls, strict=True)
        ]

    def add_erased(self, column_name: str) -> None:
        """Append a null to each column, for a cell that was erased."""
        for source, _, _, values, nulls in self._readers:
            values.append(None)
            if source == column_name:
                nulls[ERASED] = nulls.get(ERASED, 0) + 1

    def add(self, column_name: str, document: Any) -> None:
        """Append one value to each column."""
        for source, path, read, values, nulls in self._readers:
            if source != column_name:
                values.append(None)
                continue
            value = document
            try:
                for key in path:
                    if type(value) is not dict or key not in value:
                        raise Unfit(MISSING)
                    value = value[key]
                if value is None:
                    raise Unfit(NULL)
                values.append(read(value))
            except Unfit as unfit:
                values.append(None)
                reason = unfit.args[0]
                nulls[reason] = nulls.get(reason, 0) + 1
