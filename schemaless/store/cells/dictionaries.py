"""zstd dictionaries: fetched once per process, verified, and never removed while a cell may need them.

The catalog has the originals; ``dictionary_replicas`` keeps a copy on each cluster.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from schemaless.base.logger import log
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
)
from schemaless.wire.pool import NodePool
from schemaless.wire.runtime import THREADS, Runtime


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
        rows = dictionary_replicas.catalog.pool.rows(statement)
        _, _, removed_at, retired_at = rows[0] if rows else (None,) * 4
        if retired_at is not None and removed_at is None:
            raise InvalidInput(
                f"dictionary {dictionary_id} is retired and cannot be used for new bodies. Choose another one, or put "
                f"it back into use with 'schemaless codec set --dictionary {dictionary_id}'"
            )
        self._cache.pop(dictionary_id, None)
        dictionary = self.get(dictionary_id)
        dictionary_replicas.check(dictionary)
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
                log.debug("cannot read dictionary %d from %s: %s", dictionary_id, replica, error)
                continue
            if copy is not None and (dictionary := copy.dictionary) is not None:
                log.warning("using the copy of dictionary %d on %s: %s", dictionary_id, replica, problem)
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
    rows = pool.rows(sql.select_dictionary_source(name, dictionary_id))
    return dict(json.loads(rows[0][0])) if rows else {}
