"""Replicas of the dictionaries: the catalog has the originals, and each cluster has a copy.

A body cannot be read without its dictionary, so losing the catalog must not lose the dictionaries. A dictionary is
written to every cluster and read back before any body is compressed with it. Readers try the catalog first, then the
clusters. The copies are in the database ``<datastore>_heartbeat``, in a table like the catalog's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from schemaless.base.keys import heartbeat_database
from schemaless.base.logger import log
from schemaless.base.type_variables import T
from schemaless.codec.dictionaries import Dictionary
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, SchemalessError, ServerError
from schemaless.store.cells import sql
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.model import Topology
from schemaless.topology.sql import catalog as catalog_sql
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing, reworded
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool


class Stored(NamedTuple):
    """A row of a dictionary table.

    Attributes:
        id: the number by which bodies refer to the dictionary.
        content: the dictionary's bytes; None if they were removed.
        digest: SHA-256 of the content as it was written.
        size_bytes: size of the content.
        source: description of the training data, as JSON text.
        created_at: UTC.
        retired_at: time at which it was retired from use in new bodies, UTC; None while it is in use.
        removed_at: time at which the content was removed, UTC; None if it was not removed.
    """

    id: int
    content: bytes | None
    digest: bytes
    size_bytes: int
    source: str
    created_at: datetime
    retired_at: datetime | None
    removed_at: datetime | None

    @property
    def removed(self) -> bool:
        """True if the content was removed."""
        return self.removed_at is not None

    @property
    def description(self) -> dict[str, Any]:
        """Description of the training data; JSON values."""
        return dict(json.loads(self.source))

    @property
    def fault(self) -> str | None:
        """Description of the damage; None if the content is intact or was removed."""
        if self.removed:
            return None
        return "its content is missing" if self.content is None else fault_of(self.id, self.content, self.digest)

    @property
    def dictionary(self) -> Dictionary | None:
        """The dictionary; None if it was removed or is damaged."""
        return None if self.content is None or self.fault is not None else Dictionary(self.content)


@dataclass(frozen=True, slots=True)
class DictionaryReplica:
    """A table of dictionaries: the catalog's, or the copy on a cluster.

    Attributes:
        pool: connections to its server.
        datastore: name of the datastore.
        cluster: name of the cluster; None for the catalog.
        in_use: whether the cluster has shards, whose cells may need the dictionaries.
    """

    pool: NodePool
    datastore: str
    cluster: str | None = None
    in_use: bool = True

    def __str__(self) -> str:
        return "the catalog" if self.cluster is None else self.cluster

    @property
    def database(self) -> str:
        """Name of the database that has the table."""
        return self.datastore if self.cluster is None else heartbeat_database(self.datastore)

    def row(self, dictionary_id: int) -> Stored | None:
        """Read a dictionary's row; None if there is none. Raises as ``NodePool.run`` does."""
        rows = self._rows(sql.select_dictionaries(self.database, dictionary_id))
        return rows[0] if rows else None

    def rows(self) -> dict[int, Stored]:
        """Read all rows, keyed by id. Raises as ``NodePool.run`` does."""
        return {row.id: row for row in self._rows(sql.select_dictionaries(self.database))}

    def _rows(self, statement: bytes) -> list[Stored]:
        try:
            rows = self.pool.rows(statement)
        except DatabaseMissing:
            if self.cluster is None:
                raise
            return []
        return [
            Stored(number, content, digest, size, source, *(at and at.replace(tzinfo=UTC) for at in times))
            for number, content, digest, size, source, *times in rows
        ]

    def highest(self) -> int:
        """Read the highest id in this table, including removed dictionaries; 0 if it is empty."""
        try:
            rows = self.pool.rows(sql.select_highest_dictionary(self.database))
        except DatabaseMissing:
            return 0
        return int(rows[0][0])

    def put(self, dictionary: Dictionary, source: str) -> bool:
        """Write a copy unless there is an intact one, and read it back.

        Returns:
            Whether the copy was written.

        Raises:
            DictionaryDamaged: the copy that was read back differs, or another dictionary has the same id. That one is
                not overwritten, because cells may need it.
            ServerError: the cluster is unreachable or rejects a statement.
        """
        row = self.row(dictionary.id)
        existing = None if row is None else row.dictionary
        if existing == dictionary:
            return False
        if existing is not None:
            raise DictionaryDamaged(
                f"{self} has another dictionary with the id {dictionary.id}, and cells may need either of them. It was "
                f"not overwritten; examine {self.database}.dictionary on {self.pool.node}"
            )
        make_tables(self.pool, self.datastore)
        self.write(dictionary, source)
        row = self.row(dictionary.id)
        if row is None or row.dictionary != dictionary:
            raise DictionaryDamaged(
                f"dictionary {dictionary.id}: the copy read back from {self.pool.node} differs from the one written; "
                f"examine {self.database}.dictionary on that server"
            )
        return True

    def write(self, dictionary: Dictionary, source: str) -> None:
        """Write a dictionary, replacing any other with the same id. Raises as ``NodePool.run`` does."""
        statement = sql.upsert_dictionary(self.database, dictionary.id, dictionary.content, dictionary.digest, source)
        self.pool.execute(statement)

    def remove(self, dictionary_id: int) -> None:
        """Remove a copy's content, if there is any; the id stays reserved. Raises as ``NodePool.run`` does."""
        row = self.row(dictionary_id)
        if row is not None and not row.removed:
            self.pool.execute(sql.remove_dictionary(self.database, dictionary_id))


class DictionaryReplicas(NamedTuple):
    """The dictionary tables of a datastore: the catalog's, and one per cluster."""

    catalog: DictionaryReplica
    copies: tuple[DictionaryReplica, ...]

    @classmethod
    def of(cls, topology: Topology, catalog: NodePool, pool_for: Callable[[Node], NodePool]) -> DictionaryReplicas:
        """Return the dictionary tables of a datastore; no server is contacted."""
        copies = (
            DictionaryReplica(
                pool_for(cluster.primary), topology.name, cluster.name, bool(topology.shards_of(cluster.name))
            )
            for cluster in topology.clusters
        )
        return cls(DictionaryReplica(catalog, topology.name), tuple(copies))

    def keep(self, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
        """Store a new dictionary in the catalog and on every cluster, and return it with its final id.

        Equal content is stored only once, regardless of its id. A new id is higher than any id on any cluster, so that
        a catalog that has lost its newest dictionary in a failover does not reuse the number.

        Raises:
            AccessDenied: the account lacks the privileges of the role ``admin``.
            OutcomeUnknown: the reply was lost; repeat the call.
            ServerError: a server is unreachable or rejects a statement; repeat the call.
        """
        highest = self.highest_id()
        kept = self.catalog.pool.run_once(
            lambda connection: self._found_or_inserted(connection, dictionary, source, highest)
        )
        self.copy(kept, json.dumps(source))
        return kept

    def bring(self, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
        """Import a dictionary into the catalog and every cluster, and return it with its final id.

        The id is kept unless another dictionary has it; then the id of an equal dictionary is used, or a new one. A
        dictionary that was lost, damaged or removed here is restored.

        Raises:
            AccessDenied: the account lacks the privileges of the role ``admin``. Not raised if the dictionary is
                already stored.
            OutcomeUnknown: the reply was lost; repeat the call.
            ServerError: a server is unreachable or rejects a statement; repeat the call.
        """
        name = self.catalog.database
        highest = self.highest_id()
        taken = self.is_taken(dictionary)

        def write(connection: Connection) -> Dictionary:
            rows = connection.rows(sql.select_dictionary(name, dictionary.id))
            if not rows and not taken:
                return _insert(connection, name, dictionary, source)
            same = [rows[0][0] == dictionary.content, rows[0][1] == dictionary.digest] if rows else []
            if any(same):
                return dictionary if all(same) else _filled(connection, name, dictionary)
            return self._found_or_inserted(connection, dictionary, source, highest)

        kept = self.catalog.pool.run_once(write)
        self.copy(kept, json.dumps(source))
        return kept

    def _found_or_inserted(
        self, connection: Connection, dictionary: Dictionary, source: dict[str, Any], highest: int
    ) -> Dictionary:
        """Return a stored dictionary with equal content, or insert this one with an id above ``highest``."""
        name = self.catalog.database
        for dictionary_id, content in connection.rows(sql.select_dictionaries_of_size(name, len(dictionary.content))):
            same = dictionary.renumbered(int(dictionary_id))
            if same.content == bytes(content):
                return same
        # Serialised, because two inserts above the same number would choose the same id.
        connection.rows(catalog_sql.lock_datastore(name))
        new_id = connection.execute(
            sql.insert_dictionary(name, len(dictionary.content), json.dumps(source), None)
        ).last_id
        if new_id > highest:
            return _filled(connection, name, dictionary.renumbered(new_id))
        connection.execute(sql.delete_dictionary(name, new_id))
        return _insert(connection, name, dictionary.renumbered(highest + 1), source)

    def copy(self, dictionary: Dictionary, source: str) -> None:
        """Write a dictionary to every cluster that has no intact copy, and read it back.

        A failure on a cluster without shards is ignored, because a move to it copies the dictionaries before any shard.

        Raises:
            DictionaryDamaged, ServerError: a cluster has no copy; no body may be compressed with the dictionary yet.
        """
        for replica in self.copies:
            try:
                replica.put(dictionary, source)
            except ServerError as error:
                if replica.in_use:
                    raise _not_on(replica, dictionary.id, error) from error
                log.warning("%s, which has no shards, has no copy of dictionary %d: %s", replica, dictionary.id, error)

    def check(self, dictionary: Dictionary) -> None:
        """Check that every cluster with shards has an intact copy of a dictionary.

        Raises:
            InvalidInput: a cluster has no intact copy.
            ServerError: a server is unreachable or rejects a statement.
        """
        for replica in self.copies:
            if not replica.in_use:
                continue
            row = replica.row(dictionary.id)
            if row is None or row.dictionary != dictionary:
                raise InvalidInput(
                    f"dictionary {dictionary.id} has no intact copy on {replica} ({replica.pool.node}) and cannot be "
                    "used: losing the catalog would make cells unreadable. Run 'schemaless schema upgrade' to copy it"
                )

    def highest_id(self) -> int:
        """Return the highest dictionary id on any cluster, including removed dictionaries; 0 if there are none.

        Raises:
            ServerError: a cluster that has shards is unreachable or rejects a statement.
        """
        return max(self._from_copies(DictionaryReplica.highest), default=0)

    def is_taken(self, dictionary: Dictionary) -> bool:
        """Return True if another dictionary has the same id on some cluster; raises as ``highest_id`` does."""
        rows = self._from_copies(lambda replica: replica.row(dictionary.id))
        return any(row is not None and row.dictionary not in (None, dictionary) for row in rows)

    def copy_all(self, to: DictionaryReplica) -> int:
        """Copy all dictionaries of a datastore to one cluster, and read each of them back. Safe to repeat.

        A move of shards to a cluster calls this before the first cell is copied, and again after the shards have been
        switched over: a dictionary created in the meantime is written only to clusters that have shards according to
        the catalog.

        Args:
            to: the cluster's table: one of ``copies`` or, for a cluster that is not in the catalog yet,
                ``DictionaryReplica(pool, store.name, cluster)``. The account must be allowed to create and write
                ``<datastore>_heartbeat`` there.

        Returns:
            Number of copies written; intact copies are left unchanged.

        Raises:
            DictionaryDamaged: as for ``DictionaryReplica.put``.
            ServerError: the catalog or the cluster is unreachable or rejects a statement.
        """
        rows, _ = self._all_rows()
        return sum(to.put(dictionary, source) for dictionary, source in _intact(rows).values())

    def level(self) -> dict[DictionaryReplica, str]:
        """Reconcile all tables: copy each intact dictionary to every table, and remove the content of removed ones.

        Returns:
            The error of each cluster that has shards and could not be reconciled.

        Raises:
            ServerError: the catalog is unreachable or rejects a statement.
        """
        rows, failed = self._all_rows()
        intact = _intact(rows)
        for dictionary, source in intact.values():
            row = rows[self.catalog].get(dictionary.id)
            if row is None or row.dictionary != dictionary:
                self.catalog.write(dictionary, source)
        removed = [row.id for row in rows[self.catalog].values() if row.removed]
        for replica in rows.keys() - {self.catalog}:
            try:
                make_tables(replica.pool, replica.datastore)
                for dictionary, source in intact.values():
                    replica.put(dictionary, source)
                for dictionary_id in removed:
                    replica.remove(dictionary_id)
            except (ServerError, DictionaryDamaged) as error:
                failed[replica] = str(error)
        return {replica: reason for replica, reason in failed.items() if replica.in_use}

    def remove(self, dictionary_id: int) -> None:
        """Remove a dictionary's content from every cluster, after it was removed from the catalog.

        Raises:
            ServerError: a cluster with shards still has the content.
        """
        for replica in self.copies:
            try:
                replica.remove(dictionary_id)
            except ServerError as error:
                if replica.in_use:
                    raise reworded(
                        error,
                        f"dictionary {dictionary_id} was removed from the catalog but not yet from {replica}: "
                        f"{error.message}. Run 'schemaless schema upgrade' to remove it there",
                    ) from error

    def differences(self) -> Iterator[str]:
        """Yield a message for each difference between the catalog's dictionaries and their copies."""
        originals = self.catalog.rows()
        for row in originals.values():
            if row.fault is not None:
                yield f"dictionary {row.id} is damaged in the catalog: {row.fault}; {_REPAIR}"
        for replica in self.copies:
            try:
                copies = replica.rows()
            except SchemalessError as error:
                yield f"cannot read the dictionaries of {replica}: {error}"
                continue
            for row in originals.values():
                yield from _difference(row, copies.pop(row.id, None), replica)
            for row in copies.values():
                if not row.removed:
                    yield f"dictionary {row.id} is on {replica} ({replica.pool.node}) but not in the catalog; {_REPAIR}"

    def _from_copies(self, read: Callable[[DictionaryReplica], T]) -> Iterator[T]:
        """Yield what ``read`` finds on each cluster; errors of clusters without shards are ignored."""
        for replica in self.copies:
            try:
                yield read(replica)
            except ServerError:
                if replica.in_use:
                    raise

    def _all_rows(
        self,
    ) -> tuple[dict[DictionaryReplica, dict[int, Stored]], dict[DictionaryReplica, str]]:
        """Read the rows of every table, the catalog's first; return them and the errors of clusters that failed."""
        rows = {self.catalog: self.catalog.rows()}
        failed: dict[DictionaryReplica, str] = {}
        for replica in self.copies:
            try:
                rows[replica] = replica.rows()
            except ServerError as error:
                failed[replica] = str(error)
        return rows, failed


def fault_of(dictionary_id: int, content: bytes, digest: bytes) -> str | None:
    """Return a description of the damage to a dictionary's content; None if it is intact."""
    actual = hashlib.sha256(content).digest()
    if actual != digest:
        return f"the SHA-256 of its {len(content)} bytes is {actual.hex()[:16]}... instead of {digest.hex()[:16]}..."
    try:
        own_id = Dictionary(content).id
    except CorruptBody as error:
        return error.message
    return None if own_id == dictionary_id else f"its content has the id {own_id}"


def _difference(row: Stored, copy: Stored | None, replica: DictionaryReplica) -> Iterator[str]:
    if row.removed:
        if copy is not None and not copy.removed:
            yield f"dictionary {row.id} was removed, but {replica} still has it; {_REPAIR}"
    elif copy is None or copy.removed:
        if replica.in_use:
            yield f"dictionary {row.id} has no copy on {replica} ({replica.pool.node}); {_REPAIR}"
    elif copy.fault is not None or (row.fault is None and copy.digest != row.digest):
        reason = copy.fault or f"its SHA-256 {copy.digest.hex()[:16]}... differs from that in the catalog"
        yield f"dictionary {row.id} is damaged on {replica} ({replica.pool.node}): {reason}; {_REPAIR}"


_REPAIR = "'schemaless schema upgrade' repairs this from any intact copy"


def _intact(rows: Mapping[DictionaryReplica, Mapping[int, Stored]]) -> dict[int, tuple[Dictionary, str]]:
    """Return each dictionary that was not removed and has an intact copy, from the first table that has one."""
    intact: dict[int, tuple[Dictionary, str]] = {}
    removed = {row.id for row in next(iter(rows.values())).values() if row.removed}
    for of_replica in rows.values():
        for row in of_replica.values():
            if row.id not in removed and row.id not in intact and (dictionary := row.dictionary) is not None:
                intact[row.id] = dictionary, row.source
    return intact


def _not_on(replica: DictionaryReplica, dictionary_id: int, error: ServerError) -> ServerError:
    return reworded(
        error,
        f"dictionary {dictionary_id} is in the catalog but not yet on {replica}: {error.message}. No column can be set "
        "to use it until every cluster has a copy; run the same command again",
    )


def _insert(connection: Connection, name: str, dictionary: Dictionary, source: dict[str, Any]) -> Dictionary:
    connection.execute(sql.insert_dictionary(name, len(dictionary.content), json.dumps(source), dictionary.id))
    return _filled(connection, name, dictionary)


def _filled(connection: Connection, name: str, dictionary: Dictionary) -> Dictionary:
    connection.execute(sql.update_dictionary(name, dictionary.id, dictionary.content, dictionary.digest))
    return dictionary
