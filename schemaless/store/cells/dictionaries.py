"""zstd dictionaries: fetched once per process, verified, and never removed while a cell may need them.

The catalog has the originals; ``dictionary_replicas`` keeps a copy on each cluster.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from schemaless.codec.dictionaries import Dictionaries, Dictionary, not_at_hand
from schemaless.errors import (
    CorruptBody,
    DictionaryDamaged,
    InvalidInput,
    SchemalessError,
    ServerError,
    UnknownDictionary,
)
from schemaless.store.cells import sql
from schemaless.store.cells.dictionary_replicas import (
    DictionaryReplica,
    DictionaryReplicas,
    Stored,
    check_copies,
    copy_to_clusters,
    highest_id,
    is_id_taken,
)
from schemaless.topology.sql import catalog as catalog_sql
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool
from schemaless.wire.runtime import THREADS, Runtime

_log = logging.getLogger("schemaless")


class StoredDictionaries:
    """Cache of a datastore's dictionaries, which implements ``codec.dictionaries.Dictionaries``.

    Thread-safe and fork-safe.
    """

    def __init__(self, dictionary_replicas: Callable[[], DictionaryReplicas], runtime: Runtime = THREADS) -> None:
        self._replicas = dictionary_replicas
        self._runtime = runtime
        self._cache: dict[int, Dictionary] = {}
        # By process, because a forked child would never get a lock that another thread held during the fork.
        self._locks: dict[int, AbstractContextManager[Any]] = {}

    def get(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary from the cache, the catalog or, if the catalog has no intact copy, from any cluster.

        Raises:
            UnknownDictionary: the dictionary was removed, or neither the catalog nor any reachable cluster has it.
            DictionaryDamaged: the catalog's copy is damaged, and no reachable cluster has an intact one.
            ServerError: the catalog's server is unreachable, and no reachable cluster has an intact copy.
        """
        dictionary = self._cache.get(dictionary_id)
        if dictionary is None:
            with self._locks.setdefault(os.getpid(), self._runtime.lock()):
                dictionary = self._cache.get(dictionary_id)
                if dictionary is None:
                    dictionary = self._cache[dictionary_id] = self._fetch(dictionary_id)
        return dictionary

    @property
    def in_memory(self) -> Dictionaries:
        """The dictionaries in the cache; no server is contacted."""
        return _InMemory(self._cache)

    def for_new_bodies(self, dictionary_id: int) -> Dictionary:
        """Read a dictionary from the catalog again, for new bodies.

        Raises:
            UnknownDictionary, DictionaryDamaged, ServerError: as for ``get``.
            InvalidInput: the dictionary is retired, or a cluster has no intact copy.
        """
        dictionary_replicas = self._replicas()
        statement = sql.select_dictionary(dictionary_replicas.catalog.database, dictionary_id)
        rows = dictionary_replicas.catalog.pool.run(lambda connection: connection.rows(statement))
        _, _, removed_at, retired_at = rows[0] if rows else (None,) * 4
        if retired_at is not None and removed_at is None:
            raise InvalidInput(
                f"dictionary {dictionary_id} is retired and cannot be used for new bodies. Choose another one, or put "
                f"it back into use with 'schemaless codec set --dictionary {dictionary_id}'"
            )
        self._cache.pop(dictionary_id, None)
        dictionary = self.get(dictionary_id)
        check_copies(dictionary_replicas, dictionary)
        return dictionary

    def _fetch(self, dictionary_id: int) -> Dictionary:
        dictionary_replicas = self._replicas()
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
                _log.debug("cannot read dictionary %d from %s: %s", dictionary_id, replica, error)
                continue
            if copy is not None and (dictionary := copy.dictionary) is not None:
                _log.warning("using the copy of dictionary %d on %s: %s", dictionary_id, replica, problem)
                return dictionary
        raise problem

    @staticmethod
    def _problem(catalog: DictionaryReplica, dictionary_id: int, row: Stored | None) -> SchemalessError:
        if row is None or row.removed_at is not None:
            reason = "is not in" if row is None else f"was removed on {row.removed_at:%Y-%m-%d %H:%M:%S} UTC from"
            return UnknownDictionary(
                f"compressed with zstd dictionary {dictionary_id}, which {reason} the catalog of {catalog.datastore!r}"
                "; restore it with 'schemaless codec import' from an export, a dump, an archive or a backup"
            )
        return DictionaryDamaged(
            f"compressed with zstd dictionary {dictionary_id}, which is damaged in the catalog of "
            f"{catalog.datastore!r}: {row.fault}; restore it with 'schemaless codec import' from an export, a dump, an "
            "archive or a backup"
        )


class _InMemory:
    def __init__(self, cache: Mapping[int, Dictionary]) -> None:
        self._cache = cache

    def get(self, dictionary_id: int) -> Dictionary:
        dictionary = self._cache.get(dictionary_id)
        if dictionary is None:
            raise not_at_hand(dictionary_id)
        return dictionary


def keep(dictionary_replicas: DictionaryReplicas, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Store a new dictionary in the catalog and on every cluster, and return it with its final id.

    Equal content is stored only once, regardless of its id. A new id is higher than any id on any cluster, so that a
    catalog that has lost its newest dictionary in a failover does not reuse the number.

    Raises:
        AccessDenied: the account lacks the privileges of the role ``admin``.
        OutcomeUnknown: the reply was lost; repeat the call.
        ServerError: a server is unreachable or rejects a statement; repeat the call.
    """
    highest = highest_id(dictionary_replicas)
    kept = dictionary_replicas.catalog.pool.run_once(
        lambda connection: _found_or_inserted(connection, dictionary_replicas, dictionary, source, highest)
    )
    copy_to_clusters(dictionary_replicas, kept, source)
    return kept


def bring(dictionary_replicas: DictionaryReplicas, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    """Import a dictionary into the catalog and every cluster, and return it with its final id.

    The id is kept unless another dictionary has it; then the id of an equal dictionary is used, or a new one. A
    dictionary that was lost, damaged or removed here is restored.

    Raises:
        AccessDenied: the account lacks the privileges of the role ``admin``. Not raised if the dictionary is already
            stored.
        OutcomeUnknown: the reply was lost; repeat the call.
        ServerError: a server is unreachable or rejects a statement; repeat the call.
    """
    name = dictionary_replicas.catalog.database
    highest = highest_id(dictionary_replicas)
    taken = is_id_taken(dictionary_replicas, dictionary)

    def write(connection: Connection) -> Dictionary:
        rows = connection.rows(sql.select_dictionary(name, dictionary.id))
        if not rows and not taken:
            return _insert(connection, name, dictionary, source)
        if not rows:
            return _found_or_inserted(connection, dictionary_replicas, dictionary, source, highest)
        content, digest = None if rows[0][0] is None else bytes(rows[0][0]), bytes(rows[0][1])
        if content == dictionary.content and digest == dictionary.digest:
            return dictionary
        if digest == dictionary.digest or content == dictionary.content:
            connection.execute(sql.update_dictionary(name, dictionary.id, dictionary.content, dictionary.digest))
            return dictionary
        return _found_or_inserted(connection, dictionary_replicas, dictionary, source, highest)

    kept = dictionary_replicas.catalog.pool.run_once(write)
    copy_to_clusters(dictionary_replicas, kept, source)
    return kept


def _found_or_inserted(
    connection: Connection,
    dictionary_replicas: DictionaryReplicas,
    dictionary: Dictionary,
    source: dict[str, Any],
    highest: int,
) -> Dictionary:
    """Return a stored dictionary with equal content, or insert this one with an id above ``highest``."""
    name = dictionary_replicas.catalog.database
    for dictionary_id, content in connection.rows(sql.select_dictionaries_of_size(name, len(dictionary.content))):
        same = dictionary.renumbered(int(dictionary_id))
        if same.content == bytes(content):
            return same
    # Serialised, because two inserts above the same number would choose the same id.
    connection.rows(catalog_sql.lock_datastore(name))
    new_id = connection.execute(sql.insert_dictionary(name, len(dictionary.content), json.dumps(source), None)).last_id
    if new_id > highest:
        return _filled(connection, name, dictionary.renumbered(new_id))
    connection.execute(sql.delete_dictionary(name, new_id))
    return _insert(connection, name, dictionary.renumbered(highest + 1), source)


def _insert(connection: Connection, name: str, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    connection.execute(sql.insert_dictionary(name, len(dictionary.content), json.dumps(source), dictionary.id))
    return _filled(connection, name, dictionary)


def _filled(connection: Connection, name: str, dictionary: Dictionary) -> Dictionary:
    connection.execute(sql.update_dictionary(name, dictionary.id, dictionary.content, dictionary.digest))
    return dictionary


# ---- export and import


def dictionary_line(dictionary: Dictionary, source: dict[str, Any]) -> bytes:
    """Return a dictionary as a line of JSON, without a line ending, as in exports, dumps and archives."""
    fields = {
        "dictionary": dictionary.id,
        "sha256": dictionary.digest.hex(),
        "source": source,
        "content": base64.b64encode(dictionary.content).decode("ascii"),
    }
    return json.dumps(fields).encode()


def is_dictionary_line(fields: object) -> bool:
    """Return True if the JSON value of a line is a dictionary, not a cell."""
    return isinstance(fields, dict) and "dictionary" in fields and "row_key" not in fields


def parse_dictionary_line(fields: dict[str, Any]) -> tuple[Dictionary, dict[str, Any]]:
    """Return the dictionary and its source from the JSON value of a ``dictionary_line``.

    Raises:
        InvalidInput: the line is malformed, or the dictionary is damaged.
    """
    try:
        dictionary = Dictionary(base64.b64decode(fields["content"], validate=True))
        intact = dictionary.digest.hex() == fields["sha256"] and dictionary.id == fields["dictionary"]
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidInput(f"not a valid dictionary line: {error!r}") from None
    except CorruptBody as error:
        raise InvalidInput(f"dictionary {fields.get('dictionary')}: {error.message}") from None
    if not intact:
        raise InvalidInput(f"dictionary {fields['dictionary']}: the content does not match its id and sha256")
    source = fields.get("source")
    return dictionary, source if isinstance(source, dict) else {}


def source_of(pool: NodePool, name: str, dictionary_id: int) -> dict[str, Any]:
    """Read the description of a dictionary's training data; return {} if the catalog lacks the dictionary."""
    rows = pool.run(lambda connection: connection.rows(sql.select_dictionary_source(name, dictionary_id)))
    return dict(json.loads(rows[0][0])) if rows else {}
