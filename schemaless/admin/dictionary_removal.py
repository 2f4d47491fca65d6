"""Dictionaries taken out of the catalog and of every cluster: only where no cell, no column and no job may need one.

It takes two steps, an hour apart. A dictionary is retired first: nothing begins to write with it from then on, and what
had begun has ended when that hour is over. Then all cells are looked through, by the servers themselves.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemaless.admin.sql import select_unfinished_specs
from schemaless.cell import CellKey
from schemaless.cells import sql as cells_sql
from schemaless.cells.dictionary_replicas import DictionaryReplicas, remove_copies
from schemaless.cells.sql import select_named
from schemaless.datastore import Datastore
from schemaless.errors import DictionaryInUse, InvalidInput
from schemaless.events import Advanced, Listener, nobody
from schemaless.internals import internals_of
from schemaless.schema.sql import select_moved_tables
from schemaless.topology.lost_primaries import lost_primaries
from schemaless.wire.connection import Connection

GRACE_S: Final = 3600
"""So long lies between the steps; ``columns.REFRESH_S`` and the longest write are far below."""

MOVE: Final = "move"
"""This is the kind of a job that moves shards."""

_BLOCK_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Retired:
    """What a first step, or a second one, came to.

    Attributes:
        removed: whether its content is gone; otherwise it is retired.
        wait_s: how long until it can be removed.
        cells: how many were looked at.
    """

    removed: bool
    wait_s: float = 0.0
    cells: int = 0


def remove(store: Datastore, dictionary_id: int, *, grace_s: float = GRACE_S, listener: Listener = nobody) -> Retired:
    """Retire a dictionary, or remove one that was retired an hour ago and that no cell needs. Its number stays taken.

    Args:
        store: the datastore; its account has the role ``admin``.
        dictionary_id: which one.
        grace_s: how long it has to be retired first.
        listener: told each advance, in cells that were looked at.

    Raises:
        InvalidInput: the catalog does not have it.
        DictionaryInUse: a column is set to it, an unfinished job writes with it, a cell names it, or shards are being
            moved, or were and have left tables behind, or a lost primary may have cells that need it.
        ServerError: a server cannot be reached: whether its cells need it is not known, so nothing is removed. One that
            is lost only then keeps its copy, which the message says.
    """
    internals = internals_of(store)

    def first_step(connection: Connection) -> tuple[datetime, float] | None:
        retired_at, age_s = _locked(connection, store.name, dictionary_id)
        if retired_at is not None:
            return retired_at, age_s
        connection.execute(cells_sql.retire_dictionary(store.name, dictionary_id))
        return None

    _refuse_moved(internals.dictionary_replicas, dictionary_id)
    _refuse_lost(internals.dictionary_replicas, dictionary_id)
    retired = internals.catalog.run_once(first_step)
    if retired is None or retired[1] < grace_s:
        return Retired(removed=False, wait_s=grace_s - (0.0 if retired is None else retired[1]))
    cells = 0
    for shard in range(store.shard_count):
        database = internals.shards.database(shard)
        for after, up_to, rows in internals.id_blocks(shard, _BLOCK_ROWS):
            needing = internals.shards.rows(shard, select_named(database, dictionary_id, after, up_to))
            if needing:
                row_key, column_name, ref_key, _ = needing[0]
                key = CellKey(uuid.UUID(bytes=bytes(row_key)), column_name, int(ref_key))
                raise DictionaryInUse(
                    f"dictionary {dictionary_id}: cell {key} in shard {shard} needs it; re-encode such cells first, "
                    f"such as by 'schemaless migrate run --execute --column {column_name} --from msgpack+zstd'"
                )
            cells += rows
            listener(Advanced(rows))

    def second_step(connection: Connection) -> None:
        again, _ = _locked(connection, store.name, dictionary_id)
        if again != retired[0]:
            raise DictionaryInUse(f"dictionary {dictionary_id} was taken back meanwhile; nothing was removed")
        connection.execute(cells_sql.remove_dictionary(store.name, dictionary_id))

    internals.catalog.run_once(second_step)
    remove_copies(internals.dictionary_replicas, dictionary_id)
    return Retired(removed=True, cells=cells)


def _refuse_moved(dictionary_replicas: DictionaryReplicas, dictionary_id: int) -> None:
    """Refuse while a table is left that a move of shards has put aside: its cells may be read from again.

    Raises:
        DictionaryInUse: one is.
    """
    statement = select_moved_tables(dictionary_replicas.catalog.datastore)
    for replica in dictionary_replicas.copies:
        left = replica.pool.run(lambda connection: connection.rows(statement))
        if left:
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: {left[0][0]}.{left[0][1]} on {replica.pool.node} is what a move of "
                "shards left there, and its cells may need it; drop what was moved first"
            )


def _refuse_lost(dictionary_replicas: DictionaryReplicas, dictionary_id: int) -> None:
    """Refuse while a former primary may have cells that a failover lost: they are read to be written again.

    Raises:
        DictionaryInUse: one may.
    """
    for replica in dictionary_replicas.copies:
        for cluster, server in lost_primaries(replica.pool, replica.datastore):
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: {server}, once the primary of {cluster}, may have cells that a failover "
                "lost, and they may need it; have 'schemaless topology lost --from URL' list them, load them, and run "
                "the same command with --settled"
            )


def _locked(connection: Connection, name: str, dictionary_id: int) -> tuple[datetime | None, float]:
    """Return since when a dictionary is retired, and how long that is, in seconds; nobody else changes it meanwhile.

    Raises:
        InvalidInput: the catalog does not have it.
        DictionaryInUse: a column is set to it, or an unfinished job writes with it.
    """
    rows = connection.rows(cells_sql.lock_dictionary_times(name, dictionary_id))
    if not rows or rows[0][1] is not None:
        raise InvalidInput(f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' shows them")
    columns = [str(column) for (column,) in connection.rows(cells_sql.select_columns_with(name, dictionary_id))]
    if columns:
        raise DictionaryInUse(
            f"dictionary {dictionary_id}: new cells of column {', '.join(columns)} are written with it; "
            f"'schemaless codec set --column {columns[0]}' another codec first"
        )
    for job_id, kind, spec in connection.rows(select_unfinished_specs(name)):
        if kind == MOVE:
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: move job {job_id} copies cells that may need it; let it end, or abort it"
            )
        if json.loads(spec).get("dictionary") == dictionary_id:
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: migrate job {job_id} writes with it; let it end, or abort it"
            )
    retired_at, _, age_s = rows[0]
    return retired_at, float(age_s or 0)
