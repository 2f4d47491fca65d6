"""Replicas of the dictionary table: the catalog has the dictionaries, and each cluster has a copy of its own.

A body that names a dictionary cannot be read without it, so a catalog that is lost must not take it along. A dictionary
is written to every cluster and read back there before anything is written with it, and whoever reads asks the catalog
first, then any cluster. The copies are in the database ``<datastore>_heartbeat``, in a table like the catalog's.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from schemaless.cells import sql
from schemaless.codec.dictionaries import Dictionary
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, SchemalessError, ServerError
from schemaless.keys import heartbeat_database
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.model import Topology
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool

_log = logging.getLogger("schemaless")


class Stored(NamedTuple):
    """A dictionary's row.

    Attributes:
        content: None where it was removed.
        digest: SHA-256 of what was written.
        source: what it was trained on, as JSON text.
        removed_at: when its content was removed, UTC; None while it is there.
    """

    id: int
    content: bytes | None
    digest: bytes
    source: str
    removed_at: datetime | None

    @property
    def removed(self) -> bool:
        """Whether it was removed."""
        return self.removed_at is not None

    @property
    def fault(self) -> str | None:
        """Why it cannot be read with, though it was not removed; None where it can."""
        if self.removed:
            return None
        return "its content is gone" if self.content is None else fault_of(self.id, self.content, self.digest)

    @property
    def dictionary(self) -> Dictionary | None:
        """The dictionary; None where it was removed, or is damaged."""
        return None if self.content is None or self.fault is not None else Dictionary(self.content)


@dataclass(frozen=True, slots=True)
class DictionaryReplica:
    """A table of dictionaries.

    Attributes:
        pool: its server's.
        datastore: whose it is.
        cluster: the cluster whose copy it is; None for the catalog's own.
        in_use: whether cells are there that may need it.
    """

    pool: NodePool
    datastore: str
    cluster: str | None = None
    in_use: bool = True

    def __str__(self) -> str:
        return "the catalog" if self.cluster is None else self.cluster

    @property
    def database(self) -> str:
        """The database that has the table."""
        return self.datastore if self.cluster is None else heartbeat_database(self.datastore)

    def row(self, dictionary_id: int) -> Stored | None:
        """Return a dictionary's row; None where there is none. Raises what ``NodePool.run`` raises."""
        rows = self._rows(sql.select_dictionaries(self.database, dictionary_id))
        return rows[0] if rows else None

    def rows(self) -> dict[int, Stored]:
        """Return all rows by their numbers; raises what ``NodePool.run`` raises."""
        return {row.id: row for row in self._rows(sql.select_dictionaries(self.database))}

    def _rows(self, statement: bytes) -> list[Stored]:
        try:
            rows = self.pool.run(lambda connection: connection.rows(statement))
        except DatabaseMissing:
            if self.cluster is None:
                raise
            return []
        return [
            Stored(int(row[0]), None if row[1] is None else bytes(row[1]), bytes(row[2]), str(row[4]), row[7])
            for row in rows
        ]

    def highest(self) -> int:
        """Return the highest number that a dictionary has here, removed ones included; 0 without any."""
        try:
            rows = self.pool.run(lambda connection: connection.rows(sql.select_highest_dictionary(self.database)))
        except DatabaseMissing:
            return 0
        return int(rows[0][0])

    def put(self, dictionary: Dictionary, source: str) -> bool:
        """Write a copy where it is not there and intact, and read it back; return whether it was written.

        Raises:
            DictionaryDamaged: what was read back is not what was written; or another dictionary has its number there,
                which is not written over, since cells may need it.
            ServerError: the cluster cannot be reached, or refuses.
        """
        row = self.row(dictionary.id)
        other = None if row is None else row.dictionary
        if other == dictionary:
            return False
        if other is not None:
            raise DictionaryDamaged(
                f"{self} has another dictionary under the number {dictionary.id}, and cells may need either; nothing "
                f"was written over it. Look at {self.database}.dictionary on {self.pool.node}"
            )
        make_tables(self.pool, self.datastore)
        self.write(dictionary, source)
        row = self.row(dictionary.id)
        if row is None or row.dictionary != dictionary:
            raise DictionaryDamaged(
                f"dictionary {dictionary.id}: what {self.pool.node} gives back is not what was written there; look at "
                f"{self.database}.dictionary on that server"
            )
        return True

    def write(self, dictionary: Dictionary, source: str) -> None:
        """Write a dictionary, over whatever has its number; raises what ``NodePool.run`` raises."""
        statement = sql.upsert_dictionary(self.database, dictionary.id, dictionary.content, dictionary.digest, source)
        self.pool.run(lambda connection: connection.execute(statement), writes=True)

    def remove(self, dictionary_id: int) -> None:
        """Remove a copy's content, where it is there; its number stays taken. Raises what ``NodePool.run`` raises."""
        row = self.row(dictionary_id)
        if row is not None and not row.removed:
            statement = sql.remove_dictionary(self.database, dictionary_id)
            self.pool.run(lambda connection: connection.execute(statement), writes=True)


class DictionaryReplicas(NamedTuple):
    """All dictionary_replicas of a datastore: the catalog's, and one for each cluster."""

    catalog: DictionaryReplica
    copies: tuple[DictionaryReplica, ...]


def dictionary_replicas_of(
    topology: Topology, catalog: NodePool, pool_for: Callable[[Node], NodePool]
) -> DictionaryReplicas:
    """Return a datastore's dictionary_replicas; no server is asked."""
    return DictionaryReplicas(
        DictionaryReplica(catalog, topology.name),
        tuple(
            DictionaryReplica(
                pool_for(cluster.primary), topology.name, cluster.name, bool(topology.shards_of(cluster.name))
            )
            for cluster in topology.clusters
        ),
    )


def fault_of(dictionary_id: int, content: bytes, digest: bytes) -> str | None:
    """Return why content cannot be read with; None where it can."""
    actual = hashlib.sha256(content).digest()
    if actual != digest:
        return f"SHA-256 of its {len(content)} bytes is {actual.hex()[:16]}..., and was {digest.hex()[:16]}..."
    try:
        named = Dictionary(content).id
    except CorruptBody as error:
        return error.message
    return None if named == dictionary_id else f"its own bytes say {named}"


# ---- what writes copies


def spread(dictionary_replicas: DictionaryReplicas, dictionary: Dictionary, source: str) -> None:
    """Write a dictionary to every cluster, and read it back there; what is there and intact is left alone.

    A cluster without shards that does not take it is passed over: a move of shards to it copies dictionaries first.

    Raises:
        DictionaryDamaged, ServerError: a cluster has not got it; nothing may be written with it yet.
    """
    for replica in dictionary_replicas.copies:
        try:
            replica.put(dictionary, source)
        except ServerError as error:
            if replica.in_use:
                raise _not_on(replica, dictionary.id, error) from error
            _log.warning("%s has no copy of dictionary %d, and no shards: %s", replica, dictionary.id, error)


def prove(dictionary_replicas: DictionaryReplicas, dictionary: Dictionary) -> None:
    """Read a dictionary on every cluster with shards, and check that it is intact there.

    Raises:
        InvalidInput: it is not.
        ServerError: a server cannot be reached, or refuses.
    """
    for replica in dictionary_replicas.copies:
        if not replica.in_use:
            continue
        row = replica.row(dictionary.id)
        if row is None or row.dictionary != dictionary:
            raise InvalidInput(
                f"dictionary {dictionary.id} has no intact copy on {replica} ({replica.pool.node}), so nothing is "
                "written with it: cells would be lost with the catalog; 'schemaless schema upgrade' copies it"
            )


def highest_on(dictionary_replicas: DictionaryReplicas) -> int:
    """Return the highest number that a dictionary has on any cluster, removed ones included; 0 without any.

    Raises:
        ServerError: a cluster with shards cannot be reached, or refuses.
    """
    highest = 0
    for replica in dictionary_replicas.copies:
        try:
            highest = max(highest, replica.highest())
        except ServerError:
            if replica.in_use:
                raise
    return highest


def is_taken(dictionary_replicas: DictionaryReplicas, dictionary: Dictionary) -> bool:
    """Whether another dictionary has its number on some cluster; raises as ``highest_on``."""
    for replica in dictionary_replicas.copies:
        try:
            row = replica.row(dictionary.id)
        except ServerError:
            if replica.in_use:
                raise
            continue
        if row is not None and row.dictionary not in (None, dictionary):
            return True
    return False


def copy_dictionaries(dictionary_replicas: DictionaryReplicas, to: DictionaryReplica) -> int:
    """Copy all dictionaries of a datastore to one cluster, and read each back there; safe to repeat, at any time.

    Whatever brings shards to a cluster calls it before the first cell is there, and once more when the shards have been
    switched over: a dictionary that is made meanwhile is written to the clusters that the catalog names with shards.

    Args:
        dictionary_replicas: the datastore's, such as ``internals_of(store).dictionary_replicas``.
        to: the cluster's: one of ``dictionary_replicas.copies``, or for a cluster that the catalog does not name yet
            ``DictionaryReplica(pool, store.name, cluster)``. The account must be allowed to create and write
            ``<datastore>_heartbeat`` there.

    Returns:
        How many were written; those that were there and intact are not.

    Raises:
        DictionaryDamaged: as ``DictionaryReplica.put``.
        ServerError: the catalog or the cluster cannot be reached, or refuses.
    """
    rows, _ = _gathered(dictionary_replicas)
    known = _known(rows)
    return sum(to.put(dictionary, source) for dictionary, source in known.values())


def level(dictionary_replicas: DictionaryReplicas) -> dict[DictionaryReplica, str]:
    """Have the catalog and every cluster all dictionaries that any of them has, and none that was removed.

    Returns:
        Why a cluster was left as it is, for each that was.

    Raises:
        ServerError: the catalog cannot be reached, or refuses.
    """
    rows, failed = _gathered(dictionary_replicas)
    known = _known(rows)
    for dictionary, source in known.values():
        there = rows[dictionary_replicas.catalog].get(dictionary.id)
        if there is None or there.dictionary != dictionary:
            dictionary_replicas.catalog.write(dictionary, source)
    removed = [row.id for row in rows[dictionary_replicas.catalog].values() if row.removed]
    for replica in rows.keys() - {dictionary_replicas.catalog}:
        try:
            make_tables(replica.pool, replica.datastore)
            for dictionary, source in known.values():
                replica.put(dictionary, source)
            for dictionary_id in removed:
                replica.remove(dictionary_id)
        except (ServerError, DictionaryDamaged) as error:
            failed[replica] = str(error)
    return {replica: why for replica, why in failed.items() if replica.in_use}


def remove_copies(dictionary_replicas: DictionaryReplicas, dictionary_id: int) -> None:
    """Remove a dictionary's content from every cluster, after the catalog's was removed.

    Raises:
        ServerError: a cluster still has it.
    """
    for replica in dictionary_replicas.copies:
        try:
            replica.remove(dictionary_id)
        except ServerError as error:
            if replica.in_use:
                raise type(error)(
                    f"dictionary {dictionary_id} is removed from the catalog, and not from {replica} yet: "
                    f"{error.message}; 'schemaless schema upgrade' removes it there",
                    node=error.node,
                    code=error.code,
                ) from error


def differences(dictionary_replicas: DictionaryReplicas) -> Iterator[str]:
    """Yield what is not as it should be with the dictionaries of the catalog and their copies, for people to read."""
    wanted = dictionary_replicas.catalog.rows()
    for row in wanted.values():
        if row.fault is not None:
            yield f"dictionary {row.id} is damaged in the catalog: {row.fault}; {_MEND}"
    for replica in dictionary_replicas.copies:
        try:
            there = replica.rows()
        except SchemalessError as error:
            yield f"the dictionaries of {replica} cannot be read: {error}"
            continue
        for row in wanted.values():
            copy = there.pop(row.id, None)
            if row.removed:
                if copy is not None and not copy.removed:
                    yield f"dictionary {row.id} is removed, and {replica} still has it; {_MEND}"
            elif copy is None or copy.removed:
                if replica.in_use:
                    yield f"dictionary {row.id} has no copy on {replica} ({replica.pool.node}); {_MEND}"
            elif copy.fault is not None or (row.fault is None and copy.digest != row.digest):
                why = copy.fault or f"its SHA-256 begins with {copy.digest.hex()[:16]}, in the catalog it is another"
                yield f"dictionary {row.id} is damaged on {replica} ({replica.pool.node}): {why}; {_MEND}"
        for row in there.values():
            if not row.removed:
                yield f"dictionary {row.id} is on {replica} ({replica.pool.node}), and not in the catalog; {_MEND}"


_MEND = "'schemaless schema upgrade' mends it, from wherever it is intact"


def _known(rows: Mapping[DictionaryReplica, Mapping[int, Stored]]) -> dict[int, tuple[Dictionary, str]]:
    """Return each dictionary that is intact on some replica and was not removed; the first replica wins."""
    intact: dict[int, tuple[Dictionary, str]] = {}
    gone = {row.id for row in next(iter(rows.values())).values() if row.removed}
    for of_shelf in rows.values():
        for row in of_shelf.values():
            if row.id not in gone and row.id not in intact and (dictionary := row.dictionary) is not None:
                intact[row.id] = dictionary, row.source
    return intact


def _gathered(
    dictionary_replicas: DictionaryReplicas,
) -> tuple[dict[DictionaryReplica, dict[int, Stored]], dict[DictionaryReplica, str]]:
    """Return the rows of every replica, the catalog's first, and why others could not be read."""
    rows = {dictionary_replicas.catalog: dictionary_replicas.catalog.rows()}
    failed: dict[DictionaryReplica, str] = {}
    for replica in dictionary_replicas.copies:
        try:
            rows[replica] = replica.rows()
        except ServerError as error:
            failed[replica] = str(error)
    return rows, failed


def _not_on(replica: DictionaryReplica, dictionary_id: int, error: ServerError) -> ServerError:
    return type(error)(
        f"dictionary {dictionary_id} is in the catalog, and not on {replica} yet: {error.message}; no column can be "
        "set to it before it is there. Run the same command again",
        node=error.node,
        code=error.code,
    )
