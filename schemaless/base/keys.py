"""Validation of keys, times and datastore names, and the names of databases."""

from __future__ import annotations

import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, TypeVar

from schemaless.base.type_variables import T
from schemaless.cell import CellKey, RowKey
from schemaless.errors import InvalidCell, InvalidInput

U = TypeVar("U")

MAX_REF_KEY: Final = (1 << 63) - 1
"""Highest ref_key: the maximum of a signed BIGINT."""

# Stored row_keys depend on it; never change.
ROW_KEY_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:schemaless-store:row-key")
"""UUID namespace of ``row_key_for``."""

_COLUMN_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")


def row_key_bytes(row_key: RowKey) -> bytes:
    """Return the 16 bytes of a row_key.

    The length is checked because MySQL would silently pad a shorter value.

    Raises:
        InvalidCell: the row_key is neither a ``uuid.UUID`` nor 16 bytes.
    """
    if isinstance(row_key, uuid.UUID):
        return row_key.bytes
    if isinstance(row_key, bytes):
        if len(row_key) == 16:
            return row_key
        shown = repr(row_key if len(row_key) <= 24 else row_key[:24] + b"...")
        raise InvalidCell(f"row_key must be 16 bytes, got {len(row_key)}: {shown}; pass uuid.bytes, not its text")
    raise InvalidCell(
        f"row_key must be a uuid.UUID or 16 bytes, got {type(row_key).__name__}: {_short(row_key)}"
        + ("; parse text with uuid.UUID(text)" if isinstance(row_key, str) else "")
    )


def new_key() -> uuid.UUID:
    """Return a new, unique row_key: a UUID of version 7, as in RFC 9562.

    It begins with the time in milliseconds, so keys sort by creation and new rows lie beside each other in a table's
    indexes; the other 74 bits are random, so shards fill evenly. Anyone who sees the key learns the time: use
    ``uuid.uuid4()`` where that must not be known.
    """
    unix_ms = time.time_ns() // 1_000_000
    random_bits = secrets.randbits(74)
    high, low = random_bits >> 62, random_bits & (1 << 62) - 1
    return uuid.UUID(int=unix_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low)


def row_key_for(name: str) -> uuid.UUID:
    """Return the row_key for a row that is identified by a name: the uuid5 in ``ROW_KEY_NAMESPACE``.

    ``schemaless load --row-key uuid5:FIELD`` uses this function, whose results will never change.

    >>> row_key_for("N14228")
    UUID('63fb37ab-5ddf-56ce-95b7-56c0358254eb')
    """
    return uuid.uuid5(ROW_KEY_NAMESPACE, name)


def check_column_name(column_name: str) -> str:
    """Return ``column_name`` if it is valid: 1 to 64 characters of ``[A-Za-z0-9_.:-]``.

    Raises:
        InvalidCell: the name is invalid.
    """
    if type(column_name) is str and _COLUMN_NAME.match(column_name):
        return column_name
    raise InvalidCell(f"column_name must be 1 to 64 characters of [A-Za-z0-9_.:-], got {_short(column_name)}")


def check_ref_key(ref_key: int, name: str = "ref_key") -> int:
    """Return ``ref_key``, an argument called ``name``, if it is valid: an int from 0 to 2^63 - 1.

    Raises:
        InvalidCell: the ref_key is invalid.
    """
    if type(ref_key) is int and 0 <= ref_key <= MAX_REF_KEY:
        return ref_key
    raise InvalidCell(f"{name} must be an int from 0 to {MAX_REF_KEY}, got {_short(ref_key)}")


def check_created_at(created_at: object, name: str = "created_at") -> datetime | None:
    """Return an argument called ``name`` in UTC: an aware datetime from the year 1000 on. None is returned unchanged.

    Raises:
        InvalidCell: the time is invalid.
    """
    if created_at is None:
        return None
    if not isinstance(created_at, datetime) or created_at.utcoffset() is None:
        raise InvalidCell(
            f"{name} must be an aware datetime, got {_short(created_at)}; give it a time zone, such as "
            "datetime(2016, 3, 1, tzinfo=UTC)"
        )
    try:
        in_utc = created_at.astimezone(UTC)
    except OverflowError:
        in_utc = None
    if in_utc is None or in_utc.year < 1000:
        raise InvalidCell(f"{name} must be in the years 1000 to 9999, got {_short(created_at)}")
    return in_utc


def check_at(at: object) -> datetime | None:
    """Return the time of a read in UTC; None is returned unchanged.

    Raises:
        InvalidInput: it is not an aware datetime from the year 1000 on.
    """
    try:
        return check_created_at(at, "at")
    except InvalidCell as error:
        raise InvalidInput(str(error)) from None


def check_each(values: Iterable[T], name: str, check: Callable[[T], U]) -> Iterator[U]:
    """Yield ``check(value)`` for each element of an argument called ``name``.

    Raises:
        InvalidInput: the argument is text, bytes, or not iterable at all.
        InvalidInput, InvalidCell: an element is invalid; the message begins with its position, such as ``cells[3]``.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} must be a list or another iterable, got {_short(values)}")
    for position, value in enumerate(values):
        try:
            yield check(value)
        except (InvalidInput, InvalidCell) as error:
            raise type(error)(f"{name}[{position}]: {error}") from None


def check_column_names(columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return distinct names of columns, in order; None is returned unchanged.

    Raises:
        InvalidInput: ``columns`` is not an iterable of names.
        InvalidCell: a name is invalid.
    """
    return None if columns is None else tuple(dict.fromkeys(check_each(columns, "columns", check_column_name)))


def check_type(value: T, kind: type[T], name: str) -> T:
    """Return ``value`` if it is an instance of ``kind``.

    Raises:
        InvalidInput: it is not; the message calls it ``name``.
    """
    if isinstance(value, kind):
        return value
    raise InvalidInput(f"{name} must be of type {kind.__name__}, got {type(value).__name__}: {_short(value)}")


def cell_key(row_key: RowKey, column_name: str, ref_key: int) -> CellKey:
    """Return the validated key of a cell.

    Raises:
        InvalidCell: a part of the key is invalid.
    """
    if not isinstance(row_key, uuid.UUID):
        row_key = uuid.UUID(bytes=row_key_bytes(row_key))
    return CellKey(row_key, check_column_name(column_name), check_ref_key(ref_key))


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


_DATASTORE_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}\Z")


_RESERVED_SUFFIX = re.compile(r".*_([0-9]{4,}|heartbeat)\Z")


def check_datastore_name(name: str) -> str:
    """Return ``name`` if it is a valid name of a datastore.

    The catalog's database has this name, and the names of the shard and heartbeat databases are this name with a
    suffix, so it may not itself end in such a suffix.

    Raises:
        InvalidInput: the name is invalid.
    """
    if not _DATASTORE_NAME.match(name):
        raise InvalidInput(
            f"a datastore name must be 1 to 48 characters of [a-z0-9_] and begin with a letter, got {name!r}"
        )
    if _RESERVED_SUFFIX.match(name):
        raise InvalidInput(
            f"a datastore name may not end in _ and four digits, like a shard's database, or in _heartbeat, "
            f"got {name!r}"
        )
    return name


def shard_database(datastore: str, shard: int) -> str:
    """Return the name of a shard's database.

    >>> shard_database("mezzanine", 17)
    'mezzanine_0017'
    """
    return f"{datastore}_{shard:04d}"


def heartbeat_database(datastore: str) -> str:
    """Return the name of the heartbeat database, which each cluster of a datastore has.

    >>> heartbeat_database("mezzanine")
    'mezzanine_heartbeat'
    """
    return f"{datastore}_heartbeat"
