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
from typing import Any

from schemaless.codec.dictionaries import Dictionary
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, UnknownDictionary
from schemaless.mysql.connection import Connection
from schemaless.mysql.pool import NodePool
from schemaless.mysql.sql import catalog as sql


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
        _, _, removed_at, retired_at = self._row(dictionary_id) or (None,) * 4
        if retired_at is not None and removed_at is None:
            raise InvalidInput(
                f"dictionary {dictionary_id} is retired, so nothing begins to write with it; take another one, or "
                f"take it back with 'schemaless codec set --dictionary {dictionary_id}'"
            )
        self._kept.pop(dictionary_id, None)
        return self.get(dictionary_id)

    def _row(self, dictionary_id: int) -> tuple[Any, ...] | None:
        statement = sql.select_dictionary(self._name, dictionary_id)
        rows = self._catalog().run(lambda connection: connection.rows(statement))
        return rows[0] if rows else None

    def _fetch(self, dictionary_id: int) -> Dictionary:
        row = self._row(dictionary_id)
        if row is None or row[0] is None:
            what = "does not have it" if row is None else f"had it until {row[2]} UTC, when it was removed"
            raise UnknownDictionary(
                f"compressed with zstd dictionary {dictionary_id}, and the catalog of {self._name!r} {what}; bring it "
                "back with 'schemaless codec import' from an export, a dump, an archive or a backup"
            )
        content, digest = bytes(row[0]), bytes(row[1])
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
    rows = pool.run(lambda connection: connection.rows(sql.select_dictionaries(name)))
    return [_entry(*row) for row in rows]


def _entry(
    dictionary_id: int,
    content: bytes | None,
    digest: bytes,
    size_bytes: int,
    source: str,
    created_at: datetime,
    retired_at: datetime | None,
    removed_at: datetime | None,
) -> DictionaryEntry:
    fault = None
    if removed_at is None:
        fault = "its content is gone" if content is None else _fault_of(dictionary_id, bytes(content), bytes(digest))
    return DictionaryEntry(
        dictionary_id,
        bytes(digest),
        size_bytes,
        json.loads(source),
        _utc(created_at),
        None if retired_at is None else _utc(retired_at),
        None if removed_at is None else _utc(removed_at),
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
    return pool.run_once(lambda connection: _found_or_inserted(connection, name, dictionary, source))


def bring(pool: NodePool, name: str, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Write a dictionary that comes from elsewhere into the catalog; return it under the id that it has there.

    That is its own id, unless another dictionary has it: then it is found, or gets a new one. One that is lost, damaged
    or removed here is restored by this.

    Raises:
        AccessDenied: the account may not; the role ``admin`` may. Not raised for one that is there already.
        OutcomeUnknown: the reply was lost; the same call again settles it.
        ServerError: the catalog's server cannot be reached, or refuses.
    """

    def write(connection: Connection) -> Dictionary:
        rows = connection.rows(sql.select_dictionary(name, dictionary.id))
        if not rows:
            return _insert(connection, name, dictionary, source, dictionary.id)
        there, digest = None if rows[0][0] is None else bytes(rows[0][0]), bytes(rows[0][1])
        if there == dictionary.content and digest == dictionary.digest:
            return dictionary
        if digest == dictionary.digest or there == dictionary.content:
            connection.execute(sql.update_dictionary(name, dictionary.id, dictionary.content, dictionary.digest))
            return dictionary
        return _found_or_inserted(connection, name, dictionary, source)

    return pool.run_once(write)


def _found_or_inserted(connection: Connection, name: str, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Return an intact dictionary that differs in nothing but its id, or insert this one."""
    for dictionary_id, content in connection.rows(sql.select_dictionaries_of_size(name, len(dictionary.content))):
        same = dictionary.renumbered(int(dictionary_id))
        if same.content == bytes(content):
            return same
    return _insert(connection, name, dictionary, source, None)


def _insert(
    connection: Connection, name: str, dictionary: Dictionary, source: dict[str, Any], dictionary_id: int | None
) -> Dictionary:
    statement = sql.insert_dictionary(name, len(dictionary.content), json.dumps(source), dictionary_id)
    made = connection.execute(statement).last_id
    kept = dictionary.renumbered(made if dictionary_id is None else dictionary_id)
    connection.execute(sql.update_dictionary(name, kept.id, kept.content, kept.digest))
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
    rows = pool.run(lambda connection: connection.rows(sql.select_dictionary_source(name, dictionary_id)))
    return dict(json.loads(rows[0][0])) if rows else {}
