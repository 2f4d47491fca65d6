"""Dictionaries: fetched once by each process, verified, and never removed while a cell may need one.

They are the catalog's; ``shelves.py`` has the copies that each cluster keeps.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from schemaless.cells import sql
from schemaless.cells.dictionary_replicas import (
    DictionaryReplica,
    DictionaryReplicas,
    Stored,
    fault_of,
    highest_on,
    is_taken,
    prove,
    spread,
)
from schemaless.codec.dictionaries import Dictionaries, Dictionary, not_at_hand
from schemaless.errors import (
    CorruptBody,
    DictionaryDamaged,
    InvalidInput,
    SchemalessError,
    ServerError,
    UnknownDictionary,
)
from schemaless.topology.sql import catalog as catalog_sql
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

_log = logging.getLogger("schemaless")


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
    """A datastore's dictionaries, each fetched once and kept: a ``codec.dictionaries.Dictionaries``.

    Safe to share between threads and across ``fork``.
    """

    def __init__(self, dictionary_replicas: Callable[[], DictionaryReplicas]) -> None:
        self._shelves = dictionary_replicas
        self._kept: dict[int, Dictionary] = {}
        # By process: a lock that a fork leaves taken is nobody's in the child.
        self._locks: dict[int, threading.Lock] = {}

    def get(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary: from the catalog, or where that has not got it intact, from any cluster.

        Raises:
            UnknownDictionary: the catalog does not have it, or not any more, and no cluster that answers has it.
            DictionaryDamaged: what the catalog has under its id is not what was written there, nor elsewhere.
            ServerError: the catalog's server cannot be reached, no cluster that answers has it, and this process has
                not read it before.
        """
        kept = self._kept.get(dictionary_id)
        if kept is None:
            with self._locks.setdefault(os.getpid(), threading.Lock()):
                kept = self._kept.get(dictionary_id)
                if kept is None:
                    kept = self._kept[dictionary_id] = self._fetch(dictionary_id)
        return kept

    @property
    def in_memory(self) -> Dictionaries:
        """Those of them that were fetched before: no server is asked."""
        return _AtHand(self._kept)

    def to_write_with(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary as it stands in the catalog now, for what begins to write with it.

        Raises:
            UnknownDictionary, DictionaryDamaged, ServerError: as ``get``.
            InvalidInput: it is retired, or a cluster has no intact copy.
        """
        dictionary_replicas = self._shelves()
        statement = sql.select_dictionary(dictionary_replicas.catalog.database, dictionary_id)
        rows = dictionary_replicas.catalog.pool.run(lambda connection: connection.rows(statement))
        _, _, removed_at, retired_at = rows[0] if rows else (None,) * 4
        if retired_at is not None and removed_at is None:
            raise InvalidInput(
                f"dictionary {dictionary_id} is retired, so nothing begins to write with it; take another one, or "
                f"take it back with 'schemaless codec set --dictionary {dictionary_id}'"
            )
        self._kept.pop(dictionary_id, None)
        dictionary = self.get(dictionary_id)
        prove(dictionary_replicas, dictionary)
        return dictionary

    def _fetch(self, dictionary_id: int) -> Dictionary:
        dictionary_replicas = self._shelves()
        try:
            row = dictionary_replicas.catalog.row(dictionary_id)
        except ServerError as error:
            problem: SchemalessError = error
        else:
            if row is not None and (dictionary := row.dictionary) is not None:
                return dictionary
            problem = self._problem(dictionary_replicas.catalog, dictionary_id, row)
            if row is not None and row.removed_at is not None:
                raise problem
        for replica in dictionary_replicas.copies:
            try:
                copy = replica.row(dictionary_id)
            except ServerError as error:
                _log.debug("%s does not say whether it has dictionary %d: %s", replica, dictionary_id, error)
                continue
            if copy is not None and (dictionary := copy.dictionary) is not None:
                _log.warning("dictionary %d is read from %s: %s", dictionary_id, replica, problem)
                return dictionary
        raise problem

    @staticmethod
    def _problem(catalog: DictionaryReplica, dictionary_id: int, row: Stored | None) -> SchemalessError:
        if row is None or row.removed_at is not None:
            what = "does not have it" if row is None else f"had it until {row.removed_at} UTC, when it was removed"
            return UnknownDictionary(
                f"compressed with zstd dictionary {dictionary_id}, and the catalog of {catalog.datastore!r} {what}; "
                "bring it back with 'schemaless codec import' from an export, a dump, an archive or a backup"
            )
        return DictionaryDamaged(
            f"compressed with zstd dictionary {dictionary_id}, which is damaged in the catalog of "
            f"{catalog.datastore!r}: {row.fault}; restore it with 'schemaless codec import' from an export, a dump, an "
            "archive or a backup"
        )


class _AtHand:
    def __init__(self, kept: Mapping[int, Dictionary]) -> None:
        self._kept = kept

    def get(self, dictionary_id: int) -> Dictionary:
        kept = self._kept.get(dictionary_id)
        if kept is None:
            raise not_at_hand(dictionary_id)
        return kept


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
        fault = "its content is gone" if content is None else fault_of(dictionary_id, bytes(content), bytes(digest))
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


def keep(dictionary_replicas: DictionaryReplicas, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Write a new dictionary into the catalog and to every cluster, and return it under the id that it has there.

    The same bytes, whatever their id, are kept once. The id is above all that any cluster has, so that a catalog which
    lost the last one in a failover gives its number to no other.

    Raises:
        AccessDenied: the account may not; the role ``admin`` may.
        OutcomeUnknown: the reply was lost; the same call again settles it.
        ServerError: a server cannot be reached, or refuses; the same call again goes on.
    """
    highest = highest_on(dictionary_replicas)
    kept = dictionary_replicas.catalog.pool.run_once(
        lambda connection: _found_or_inserted(connection, dictionary_replicas, dictionary, source, highest)
    )
    spread(dictionary_replicas, kept, json.dumps(source))
    return kept


def bring(dictionary_replicas: DictionaryReplicas, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Write a dictionary that comes from elsewhere into the catalog and to every cluster; return it as it is there.

    That is its own id, unless another dictionary has it: then it is found, or gets a new one. One that is lost, damaged
    or removed here is restored by this.

    Raises:
        AccessDenied: the account may not; the role ``admin`` may. Not raised for one that is there already.
        OutcomeUnknown: the reply was lost; the same call again settles it.
        ServerError: a server cannot be reached, or refuses; the same call again goes on.
    """
    name = dictionary_replicas.catalog.database
    highest = highest_on(dictionary_replicas)
    taken = is_taken(dictionary_replicas, dictionary)

    def write(connection: Connection) -> Dictionary:
        rows = connection.rows(sql.select_dictionary(name, dictionary.id))
        if not rows and not taken:
            return _insert(connection, name, dictionary, source)
        if not rows:
            return _found_or_inserted(connection, dictionary_replicas, dictionary, source, highest)
        there, digest = None if rows[0][0] is None else bytes(rows[0][0]), bytes(rows[0][1])
        if there == dictionary.content and digest == dictionary.digest:
            return dictionary
        if digest == dictionary.digest or there == dictionary.content:
            connection.execute(sql.update_dictionary(name, dictionary.id, dictionary.content, dictionary.digest))
            return dictionary
        return _found_or_inserted(connection, dictionary_replicas, dictionary, source, highest)

    kept = dictionary_replicas.catalog.pool.run_once(write)
    spread(dictionary_replicas, kept, json.dumps(source))
    return kept


def _found_or_inserted(
    connection: Connection,
    dictionary_replicas: DictionaryReplicas,
    dictionary: Dictionary,
    source: dict[str, Any],
    highest: int,
) -> Dictionary:
    """Return an intact dictionary that differs in its id at most, or insert this one, with an id over ``highest``."""
    name = dictionary_replicas.catalog.database
    for dictionary_id, content in connection.rows(sql.select_dictionaries_of_size(name, len(dictionary.content))):
        same = dictionary.renumbered(int(dictionary_id))
        if same.content == bytes(content):
            return same
    # By turns: two that begin above the same number would take the same one.
    connection.rows(catalog_sql.lock_datastore(name))
    made = connection.execute(sql.insert_dictionary(name, len(dictionary.content), json.dumps(source), None)).last_id
    if made > highest:
        return _filled(connection, name, dictionary.renumbered(made))
    connection.execute(sql.delete_dictionary(name, made))
    return _insert(connection, name, dictionary.renumbered(highest + 1), source)


def _insert(connection: Connection, name: str, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    connection.execute(sql.insert_dictionary(name, len(dictionary.content), json.dumps(source), dictionary.id))
    return _filled(connection, name, dictionary)


def _filled(connection: Connection, name: str, dictionary: Dictionary) -> Dictionary:
    connection.execute(sql.update_dictionary(name, dictionary.id, dictionary.content, dictionary.digest))
    return dictionary


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
