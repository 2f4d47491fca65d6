"""Read-only comparison of a moved shard with its leftovers on the source, for ``schemaless shards verify``.

The move job itself verifies each shard before it finishes; see ``verify.py``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.errors import MoveRefused
from schemaless.ops.move import sql
from schemaless.ops.move.fence import session
from schemaless.ops.move.record import MoveRecord
from schemaless.ops.move.run import Leftovers
from schemaless.ops.move.verify import BLOCK_ROWS, by_id, same_document
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of


@dataclass(slots=True)
class Compared:
    """Result of comparing a shard with its leftovers.

    Attributes:
        record: the move.
        cells: number of cells in the leftovers.
        left_digest: SHA-256 over the ids, keys, times and bytes of the leftover cells.
        digest: the same over these cells on the shard's present cluster; differs if one was re-encoded or erased.
        re_encoded: number of cells with different bytes but the same document.
        erased: number of cells erased since the move.
        lacking: added_ids missing from the present cluster.
        differing: added_ids whose key, time or document differs.
        strange: added_ids, up to the last leftover one, that exist only on the present cluster.
    """

    record: MoveRecord
    cells: int = 0
    left_digest: str = ""
    digest: str = ""
    re_encoded: int = 0
    erased: int = 0
    lacking: list[int] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    strange: list[int] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """True if the present cluster has the leftover cells and no others up to the last one.

        They may have been re-encoded or erased since.
        """
        return not (self.lacking or self.differing or self.strange)


def compare(store: Datastore, left: Leftovers, *, listener: Listener = ignore_events) -> Compared:
    """Compare a shard with the leftovers of its move, cell by cell, without changing anything.

    Args:
        store: the datastore.
        left: the leftovers, with the cell table last.
        listener: receives one event when the shard has been compared.

    Raises:
        MoveRefused: the leftover cell table is gone.
        ServerError: a server cannot be reached.
    """
    internals, compared = internals_of(store), Compared(left.record)
    shard, database = left.record.shard, internals.shards.database(left.record.shard)
    if not left.has_cells:
        raise MoveRefused(
            f"cannot compare shard {shard}: {left.node} has no leftover cell table; was it dropped by hand?"
        )
    table, after = left.tables[-1], 0
    digests = hashlib.sha256(), hashlib.sha256()
    with session(internals.shards, left.node, shard) as source:
        while block := source.rows(sql.select_ids_and_lengths(database, table, after, BLOCK_ROWS)):
            last = int(block[-1][0])
            statements = (sql.select_digests(database, name, after, last) for name in (table, "cell"))
            before, now = by_id(source.rows(next(statements))), by_id(internals.shards.rows(shard, next(statements)))
            for digest, rows in zip(digests, (before, now), strict=True):
                digest.update(repr(sorted(rows.items())).encode())
            compared.cells += len(before)
            compared.strange += sorted(now.keys() - before.keys())
            compared.lacking += sorted(before.keys() - now.keys())
            for added_id in sorted(before.keys() & now.keys()):
                if before[added_id] == now[added_id]:
                    continue
                (row,) = source.rows(sql.select_rows(database, table, [added_id]))
                (other,) = internals.read_stored(shard, [added_id])
                same = before[added_id][:4] == now[added_id][:4]
                if same and other.erased:
                    compared.erased += 1
                elif same and same_document(other, internals.stored_cell((added_id, *row[1:]), shard)):
                    compared.re_encoded += 1
                else:
                    compared.differing.append(added_id)
            after = last
    compared.left_digest, compared.digest = (digest.hexdigest() for digest in digests)
    listener(Advanced())
    return compared
