"""Removes a dictionary from the catalog and every cluster, if no cell, column or job needs it.

Removal takes two steps, an hour apart. No write that starts after the first step, the retirement, uses the dictionary,
and earlier writes end within the hour. In the second step, the servers scan all cells for uses of it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.cell import CellKey
from schemaless.errors import DictionaryInUse, InvalidInput
from schemaless.ops.admin.sql import select_unfinished_specs
from schemaless.schema.sql import select_moved_tables
from schemaless.store.cells import sql as cells_sql
from schemaless.store.cells.dictionary_replicas import DictionaryReplicas
from schemaless.store.cells.sql import select_named
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.lost_primaries import lost_primaries
from schemaless.wire.connection import Connection

GRACE_S: Final = 3600
"""Minimum time between the two steps, in seconds; far longer than ``columns.REFRESH_S`` and the longest write."""

MOVE: Final = "move"
"""Kind of the jobs that move shards."""

_BLOCK_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Retired:
    """Result of one call of ``remove``.

    Attributes:
        removed: whether the dictionary was removed; if not, it was only retired.
        wait_s: time until it can be removed, in seconds.
        cells: number of scanned cells.
    """

    removed: bool
    wait_s: float = 0.0
    cells: int = 0


def remove(
    store: Datastore, dictionary_id: int, *, grace_s: float = GRACE_S, listener: Listener = ignore_events
) -> Retired:
    """Retire a dictionary, or remove it if it was retired at least an hour ago and no cell needs it.

    The number of a removed dictionary is never used again.

    Args:
        store: the datastore; its account needs the role ``admin``.
        dictionary_id: number of the dictionary.
        grace_s: minimum time between retiring and removing it, in seconds.
        listener: receives progress events, in scanned cells.

    Raises:
        InvalidInput: the catalog does not have the dictionary.
        DictionaryInUse: a column, an unfinished job or a cell uses it; or cells that may need it are being moved, are
            left over from a move, or were lost in a failover that is not settled yet.
        ServerError: a server cannot be reached, so it is unknown whether its cells need the dictionary, and nothing is
            removed. A server that fails after the removal from the catalog keeps its copy, and the error's message says
            so.
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
                    f"for example with 'schemaless migrate run --execute --column {column_name} --from msgpack+zstd'"
                )
            cells += rows
            listener(Advanced(rows))

    def second_step(connection: Connection) -> None:
        retired_at, _ = _locked(connection, store.name, dictionary_id)
        if retired_at != retired[0]:
            raise DictionaryInUse(f"dictionary {dictionary_id} came back into use during the scan; nothing was removed")
        connection.execute(cells_sql.remove_dictionary(store.name, dictionary_id))

    internals.catalog.run_once(second_step)
    internals.dictionary_replicas.remove(dictionary_id)
    return Retired(removed=True, cells=cells)


def _refuse_moved(dictionary_replicas: DictionaryReplicas, dictionary_id: int) -> None:
    """Refuse the removal while a move's leftovers exist, because their cells may be restored.

    Raises:
        DictionaryInUse: a cluster has leftovers.
    """
    statement = select_moved_tables(dictionary_replicas.catalog.datastore)
    for replica in dictionary_replicas.copies:
        leftovers = replica.pool.rows(statement)
        if leftovers:
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: the cells of {leftovers[0][0]}.{leftovers[0][1]} on {replica.pool.node}, "
                "which a move of shards left there, may need it; run 'schemaless shards drop-moved' first"
            )


def _refuse_lost(dictionary_replicas: DictionaryReplicas, dictionary_id: int) -> None:
    """Refuse the removal while a failover's losses are not settled, because lost cells may be loaded again.

    Raises:
        DictionaryInUse: the losses of a failover are not settled.
    """
    for replica in dictionary_replicas.copies:
        for cluster, server in lost_primaries(replica.pool, replica.datastore):
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: {server}, a former primary of {cluster}, may have cells that a failover "
                "lost and that may need it; list these cells with 'schemaless topology lost --from URL', load them, "
                "and then run that command with --settled"
            )


def _locked(connection: Connection, name: str, dictionary_id: int) -> tuple[datetime | None, float]:
    """Lock a dictionary's row, and return when it was retired, and how long ago that was in seconds.

    Raises:
        InvalidInput: the catalog does not have the dictionary.
        DictionaryInUse: a column or an unfinished job uses it.
    """
    rows = connection.rows(cells_sql.lock_dictionary_times(name, dictionary_id))
    if not rows or rows[0][1] is not None:
        raise InvalidInput(
            f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' shows the existing ones"
        )
    columns = [str(column) for (column,) in connection.rows(cells_sql.select_columns_with(name, dictionary_id))]
    if columns:
        raise DictionaryInUse(
            f"dictionary {dictionary_id}: new cells of {', '.join(columns)} are written with it; set another "
            f"codec first with 'schemaless codec set --column {columns[0]}'"
        )
    for job_id, kind, spec in connection.rows(select_unfinished_specs(name)):
        if kind == MOVE:
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: move job {job_id} copies cells that may need it; let the job finish, or "
                "abort it"
            )
        if json.loads(spec).get("dictionary") == dictionary_id:
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: migrate job {job_id} writes with it; let the job finish, or cancel it"
            )
    retired_at, _, age_s = rows[0]
    return retired_at, float(age_s or 0)
