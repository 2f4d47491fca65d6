"""Dictionaries taken out of the catalog: only where no cell, no column and no job may need one.

It takes two steps, an hour apart. A dictionary is retired first: nothing begins to write with it from then on, and what
had begun has ended when that hour is over. Then all cells are looked through, by the servers themselves.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select, text, update

from schemaless.cell import CellKey
from schemaless.errors import DictionaryInUse, InvalidInput
from schemaless.mysql import tables
from schemaless.mysql.sql.bodies import select_named
from schemaless.store.datastore import Datastore

GRACE_S: Final = 3600
"""Between the steps; ``columns.REFRESH_S`` and the longest write are far below."""

_BLOCK_ROWS: Final = 20_000
_OWN: Final = tables.dictionary.c


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


def remove(
    store: Datastore,
    dictionary_id: int,
    *,
    grace_s: float = GRACE_S,
    on_rows: Callable[[int], None] = lambda more: None,
) -> Retired:
    """Retire a dictionary, or remove one that was retired an hour ago and that no cell needs. Its number stays taken.

    Args:
        store: the datastore; its account has the role ``admin``.
        dictionary_id: which one.
        grace_s: how long it has to be retired first.
        on_rows: called with how many more cells were looked at.

    Raises:
        InvalidInput: the catalog does not have it.
        DictionaryInUse: a column is set to it, an unfinished job writes with it, or a cell names it.
        ServerError: a server cannot be reached: whether its cells need it is not known, so nothing is removed.
    """
    with store.catalog.sqlalchemy_connection(store.name, writes=True) as connection:
        row = _locked(connection, dictionary_id)
        _refuse_if_used(connection, dictionary_id)
        if row.retired_at is None:
            connection.execute(
                update(tables.dictionary)
                .where(_OWN.dictionary_id == dictionary_id)
                .values(retired_at=func.utc_timestamp(6))
            )
            return Retired(removed=False, wait_s=grace_s)
        if row.age_s < grace_s:
            return Retired(removed=False, wait_s=grace_s - float(row.age_s))
    cells = 0
    for shard in range(store.shard_count):
        database = store.shards.database(shard)
        for after, up_to, rows in store.id_blocks(shard, _BLOCK_ROWS):
            found = store.shards.rows(shard, select_named(database, dictionary_id, after, up_to))
            if found:
                row_key, column_name, ref_key, _ = found[0]
                key = CellKey(uuid.UUID(bytes=bytes(row_key)), column_name, int(ref_key))
                raise DictionaryInUse(
                    f"dictionary {dictionary_id}: cell {key} in shard {shard} needs it; re-encode such cells first, "
                    f"such as by 'schemaless migrate run --execute --column {column_name} --from msgpack+zstd'"
                )
            cells += rows
            on_rows(rows)
    with store.catalog.sqlalchemy_connection(store.name, writes=True) as connection:
        again = _locked(connection, dictionary_id)
        _refuse_if_used(connection, dictionary_id)
        if again.retired_at != row.retired_at:
            raise DictionaryInUse(f"dictionary {dictionary_id} was taken back meanwhile; nothing was removed")
        connection.execute(
            update(tables.dictionary)
            .where(_OWN.dictionary_id == dictionary_id)
            .values(content=None, removed_at=func.utc_timestamp(6))
        )
    return Retired(removed=True, cells=cells)


def _locked(connection: Connection, dictionary_id: int) -> Any:
    age_s = text("TIMESTAMPDIFF(MICROSECOND, retired_at, UTC_TIMESTAMP(6)) / 1000000 AS age_s")
    row = connection.execute(
        select(_OWN.retired_at, _OWN.removed_at, age_s).where(_OWN.dictionary_id == dictionary_id).with_for_update()
    ).first()
    if row is None or row.removed_at is not None:
        raise InvalidInput(f"the catalog has no dictionary {dictionary_id}; 'schemaless codec list' shows them")
    return row


def _refuse_if_used(connection: Connection, dictionary_id: int) -> None:
    columns = connection.execute(
        select(tables.column_codec.c.column_name).where(tables.column_codec.c.dictionary_id == dictionary_id)
    ).scalars()
    names = sorted(columns)
    if names:
        raise DictionaryInUse(
            f"dictionary {dictionary_id}: new cells of column {', '.join(names)} are written with it; "
            f"'schemaless codec set --column {names[0]}' another codec first"
        )
    jobs = connection.execute(
        select(tables.job.c.job_id, tables.job.c.spec).where(tables.job.c.state.in_(("running", "paused")))
    ).all()
    for job in jobs:
        if json.loads(job.spec).get("dictionary") == dictionary_id:
            raise DictionaryInUse(
                f"dictionary {dictionary_id}: migrate job {job.job_id} writes with it; let it end, or abort it"
            )
