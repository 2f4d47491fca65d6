"""Dictionaries in the catalog: fetched once by each process, verified, and never removed while a cell may need one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, update

from schemaless.codec.dictionaries import Dictionary
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, UnknownDictionary
from schemaless.mysql.pool import NodePool
from schemaless.mysql.sql.catalog import select_dictionary
from schemaless.mysql.tables import dictionary as table

_NO_DIGEST: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class DictionaryEntry:
    """A dictionary as the catalog has it.

    Attributes:
        id: what bodies name it by.
        digest: SHA-256 of its content.
        size_bytes: of its content.
        source: what it was trained on; JSON values.
        created_at: UTC.
        retired_at: since when nothing begins to write with it, UTC; None while it is in use.
        removed_at: when its content was removed, UTC; None while it is there.
        fault: why it cannot be read with, though it was not removed; None where it can.
    """

    id: int
    digest: bytes
    size_bytes: int
    source: dict[str, Any]
    created_at: datetime
    retired_at: datetime | None
    removed_at: datetime | None
    fault: str | None


class StoredDictionaries:
    """The catalog's dictionaries, each fetched once and kept: a ``codec.dictionaries.Dictionaries``.

    Safe to share between threads and across ``fork``.
    """

    def __init__(self, catalog: Callable[[], NodePool], name: str) -> None:
        self._catalog = catalog
        self._name = name
        self._kept: dict[int, Dictionary] = {}
        # By process: a lock that a fork leaves taken is nobody's in the child.
        self._locks: dict[int, threading.Lock] = {}

    def get(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary.

        Raises:
            UnknownDictionary: the catalog does not have it, or not any more.
            DictionaryDamaged: what the catalog has under its id is not what was written there.
            ServerError: the catalog's server cannot be reached, and this process has not read it before.
        """
        kept = self._kept.get(dictionary_id)
        if kept is None:
            with self._locks.setdefault(os.getpid(), threading.Lock()):
                kept = self._kept.get(dictionary_id)
                if kept is None:
                    kept = self._kept[dictionary_id] = self._fetch(dictionary_id)
        return kept

    def to_write_with(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary as it stands in the catalog now, for what begins to write with it.

        Raises:
            UnknownDictionary, DictionaryDamaged, ServerError: as ``get``.
            InvalidInput: it is retired.
        """
        with self._catalog().sqlalchemy_connection(self._name) as connection:
            found = connection.execute(
                select(table.c.retired_at, table.c.removed_at).where(table.c.dictionary_id == dictionary_id)
            ).first()
        if found is not None and found.retired_at is not None and found.removed_at is None:
            raise InvalidInput(
                f"dictionary {dictionary_id} is retired, so nothing begins to write with it; take another one, or "
                f"take it back with 'schemaless codec set --dictionary {dictionary_id}'"
            )
        self._kept.pop(dictionary_id, None)
        return self.get(dictionary_id)

    def _fetch(self, dictionary_id: int) -> Dictionary:
        sql = select_dictionary(self._name, dictionary_id)
        rows = self._catalog().run(lambda connection: connection.rows(sql))
        if not rows or rows[0][0] is None:
            what = "does not have it" if not rows else f"had it until {rows[0][2]} UTC, when it was removed"
            raise UnknownDictionary(
                f"compressed with zstd dictionary {dictionary_id}, and the catalog of {self._name!r} {what}; bring it "
                "back with 'schemaless codec import' from an export, a dump, an archive or a backup"
            )
        content, digest = bytes(rows[0][0]), bytes(rows[0][1])
        fault = _fault_of(dictionary_id, content, digest)
        if fault is not None:
            raise DictionaryDamaged(
                f"compressed with zstd dictionary {dictionary_id}, which is damaged in the catalog of {self._name!r}: "
                f"{fault}; restore it with 'schemaless codec import' from an export, a dump, an archive or a backup"
            )
        return Dictionary(content)


def _fault_of(dictionary_id: int, content: bytes, digest: bytes) -> str | None:
    found = hashlib.sha256(content).digest()
    if found != digest:
        return f"SHA-256 of its {len(content)} bytes is {found.hex()[:16]}..., and was {digest.hex()[:16]}..."
    try:
        named = Dictionary(content).id
    except CorruptBody as error:
        return error.message
    return None if named == dictionary_id else f"its own bytes say {named}"


def entries(pool: NodePool, name: str) -> list[DictionaryEntry]:
    """Return every dictionary that the catalog has or had, each looked into.

    Raises:
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    with pool.sqlalchemy_connection(name) as connection:
        rows = connection.execute(select(table).order_by(table.c.dictionary_id)).all()
    return [_entry(row) for row in rows]


def _entry(row: Any) -> DictionaryEntry:
    fault = None
    if row.removed_at is None:
        fault = "its content is gone" if row.content is None else None
        if row.content is not None:
            fault = _fault_of(row.dictionary_id, bytes(row.content), bytes(row.digest))
    return DictionaryEntry(
        row.dictionary_id,
        bytes(row.digest),
        row.size_bytes,
        json.loads(row.source),
        _utc(row.created_at),
        None if row.retired_at is None else _utc(row.retired_at),
        None if row.removed_at is None else _utc(row.removed_at),
        fault,
    )


def _utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC)


def keep(pool: NodePool, name: str, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Write a new dictionary into the catalog, and return it under the id that it has there.

    The same bytes, whatever their id, are kept once.

    Raises:
        AccessDenied: the account may not; the role ``admin`` may.
        OutcomeUnknown: the reply was lost; the same call again settles it.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    with pool.sqlalchemy_connection(name, writes=True) as connection:
        found = _same_content(connection, dictionary)
        if found is not None:
            return dictionary.renumbered(found)
        return _insert(connection, dictionary, source, None)


def bring(pool: NodePool, name: str, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Write a dictionary that comes from elsewhere into the catalog; return it under the id that it has there.

    That is its own id, unless another dictionary has it: then it is found, or gets a new one. One that is lost, damaged
    or removed here is restored by this.

    Raises:
        AccessDenied: the account may not; the role ``admin`` may. Not raised for one that is there already.
        OutcomeUnknown: the reply was lost; the same call again settles it.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    own = table.c.dictionary_id == dictionary.id
    with pool.sqlalchemy_connection(name, writes=True) as connection:
        row = connection.execute(select(table.c.digest, table.c.content).where(own)).first()
        if row is None:
            return _insert(connection, dictionary, source, dictionary.id)
        there = None if row.content is None else bytes(row.content)
        if there == dictionary.content and bytes(row.digest) == dictionary.digest:
            return dictionary
        if bytes(row.digest) == dictionary.digest or there == dictionary.content:
            connection.execute(
                update(table)
                .where(own)
                .values(
                    content=dictionary.content,
                    digest=dictionary.digest,
                    size_bytes=len(dictionary.content),
                    removed_at=None,
                )
            )
            return dictionary
        found = _same_content(connection, dictionary)
        return dictionary.renumbered(found) if found is not None else _insert(connection, dictionary, source, None)


def _same_content(connection: Connection, dictionary: Dictionary) -> int | None:
    """Return the id of an intact dictionary that differs in nothing but that."""
    rows = connection.execute(
        select(table.c.dictionary_id, table.c.content, table.c.digest)
        .where(func.length(table.c.content) == len(dictionary.content), table.c.retired_at.is_(None))
        .order_by(table.c.dictionary_id)
    ).all()
    for row in rows:
        if dictionary.renumbered(row.dictionary_id).content == bytes(row.content):
            return int(row.dictionary_id)
    return None


def _insert(
    connection: Connection, dictionary: Dictionary, source: dict[str, Any], dictionary_id: int | None
) -> Dictionary:
    values: dict[str, Any] = {"digest": _NO_DIGEST, "size_bytes": len(dictionary.content), "source": json.dumps(source)}
    if dictionary_id is not None:
        values["dictionary_id"] = dictionary_id
    made = connection.execute(insert(table).values(**values))
    assert made.inserted_primary_key is not None
    kept = dictionary.renumbered(int(made.inserted_primary_key[0]))
    connection.execute(
        update(table).where(table.c.dictionary_id == kept.id).values(content=kept.content, digest=kept.digest)
    )
    return kept


# ---- outside the catalog


def dictionary_line(dictionary: Dictionary, source: dict[str, Any]) -> bytes:
    """Return a dictionary as one line of JSON, without its line end: what exports, dumps and archives have of it."""
    fields = {
        "dictionary": dictionary.id,
        "sha256": dictionary.digest.hex(),
        "source": source,
        "content": base64.b64encode(dictionary.content).decode("ascii"),
    }
    return json.dumps(fields).encode()


def is_dictionary_line(fields: object) -> bool:
    """Whether a line's JSON value is of a dictionary, and not of a cell."""
    return isinstance(fields, dict) and "dictionary" in fields and "row_key" not in fields


def parse_dictionary_line(fields: dict[str, Any]) -> tuple[Dictionary, dict[str, Any]]:
    """Return what ``dictionary_line`` wrote, from the line's JSON value.

    Raises:
        InvalidInput: it is not as it was written.
    """
    try:
        dictionary = Dictionary(base64.b64decode(fields["content"], validate=True))
        intact = dictionary.digest.hex() == fields["sha256"] and dictionary.id == fields["dictionary"]
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput(f"not the line of a dictionary: {error!r}") from None
    except CorruptBody as error:
        raise InvalidInput(f"dictionary {fields.get('dictionary')}: {error.message}") from None
    if not intact:
        raise InvalidInput(f"dictionary {fields['dictionary']}: its bytes are not those that its sha256 is of")
    source = fields.get("source")
    return dictionary, source if isinstance(source, dict) else {}


def source_of(pool: NodePool, name: str, dictionary_id: int) -> dict[str, Any]:
    """Return what a dictionary was trained on; empty where the catalog does not have it."""
    with pool.sqlalchemy_connection(name) as connection:
        found = connection.execute(select(table.c.source).where(table.c.dictionary_id == dictionary_id)).first()
    return {} if found is None else dict(json.loads(found.source))
