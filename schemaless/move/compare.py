"""A moved shard compared with what it left behind, once more and from the beginning, for whoever asks. Changes nothing.

The job itself compares each shard (``verify.py``), before it is through.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from schemaless.datastore import Datastore
from schemaless.errors import MoveRefused
from schemaless.events import Advanced, Listener, nobody
from schemaless.internals import internals_of
from schemaless.move import sql
from schemaless.move.fence import session
from schemaless.move.record import MoveRecord
from schemaless.move.run import LeftBehind
from schemaless.move.verify import BLOCK_ROWS, by_id, same_document


@dataclass(slots=True)
class Compared:
    """What a comparison of a shard with what it left behind found.

    Attributes:
        record: the move.
        cells: how many were left behind.
        left_digest: of the cells that were left behind: of their ids, keys, times and bytes.
        digest: of the same cells where the shard is now; the same, unless one was re-encoded since.
        re_encoded: how many have other bytes, and the same document.
        lacking: added_ids of those that are not there.
        differing: added_ids of those with another key, time or document.
        strange: added_ids that are there below the last one that was left behind, and were not left behind.
    """

    record: MoveRecord
    cells: int = 0
    left_digest: str = ""
    digest: str = ""
    re_encoded: int = 0
    lacking: list[int] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    strange: list[int] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether all that was left behind is there, as it was."""
        return not (self.lacking or self.differing or self.strange)


def compare(store: Datastore, left: LeftBehind, *, listener: Listener = nobody) -> Compared:
    """Compare a shard with what a move of it left behind, from the beginning. Changes nothing.

    Args:
        left: what it left, with the table of cells last.
        listener: told of each shard that is through.

    Raises:
        MoveRefused: there is no table of cells left.
        ServerError: a server cannot be reached.
    """
    internals, compared = internals_of(store), Compared(left.record)
    shard, database = left.record.shard, internals.shards.database(left.record.shard)
    if not left.has_cells:
        raise MoveRefused(f"shard {shard} has left no cells behind on {left.node}; was the table dropped by hand?")
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
                if same and same_document(other, internals.stored_cell((added_id, *row[1:]), shard)):
                    compared.re_encoded += 1
                else:
                    compared.differing.append(added_id)
            after = last
    compared.left_digest, compared.digest = (digest.hexdigest() for digest in digests)
    listener(Advanced())
    return compared
