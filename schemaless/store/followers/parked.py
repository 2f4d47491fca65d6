"""Parked cells of followers: those that a trigger has given up on, until they are replayed or skipped."""

from __future__ import annotations

from typing import NamedTuple

from schemaless.errors import LeaseLost
from schemaless.store.followers import sql
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.sql import ParkedRow
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import Value


class Move(NamedTuple):
    """A location to write to a follower's row, provided that the row still has this epoch."""

    pair: Pair
    epoch: int
    location: int

    def statement(self, database: str) -> bytes:
        """Return the statement that writes the location; it affects no row if the epoch has changed."""
        (name, _), epoch, location = self
        return sql.move([(database, name, epoch, location)])

    def lost(self) -> LeaseLost:
        """Return the error for a row that another worker has claimed."""
        name, shard = self.pair
        return LeaseLost(f"{name} in shard {shard} was taken over by another worker")


REPLAYS_PER_TURN = 100
"""Maximum number of parked cells that a worker tries again before it handles new cells."""


class ParkedCells:
    """The parked cells of all followers.

    Args:
        shards: the datastore's shards.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def park(self, move: Move, row: ParkedRow) -> None:
        """Park a cell and move the location past it, in one transaction.

        Raises:
            LeaseLost: another worker has claimed the follower's row; nothing was parked.
        """
        (name, shard), epoch, _ = move
        database = self._shards.database(shard)

        def operation(connection: Connection) -> None:
            with connection.transaction():
                # In this order: if another worker owns the row, nothing is inserted and nothing changes.
                connection.execute(sql.insert_parked(database, name, epoch, row))
                if connection.execute(move.statement(database)).affected != 1:
                    raise move.lost()

        # Safe to repeat: both statements are idempotent.
        self._shards.run(shard, operation, writes=True)

    def to_replay(self, pair: Pair) -> list[tuple[int, int, int]]:
        """Return added_id, number of attempts and number of replays begun for the first parked cells to try again."""
        statement = sql.select_to_replay(self._shards.database(pair[1]), pair[0], REPLAYS_PER_TURN)
        rows = self._shards.rows(pair[1], statement)
        return [(int(added_id), int(attempts), int(replay) - 1) for added_id, attempts, replay in rows]

    def begin_replay(self, pair: Pair, epoch: int, added_id: int, begun: int) -> None:
        """Count a replay of a parked cell before it is tried; the request to replay it remains."""
        statement = sql.note_replay(self._shards.database(pair[1]), pair[0], epoch, added_id, {"replay": begun + 1})
        self._shards.execute(pair[1], statement)

    def end_replay(self, pair: Pair, epoch: int, added_id: int, attempts: int, error: str) -> None:
        """Record the failure of a replay, and clear the request."""
        changes: dict[str, Value] = {"replay": 0, "attempts": attempts, "error": error}
        statement = sql.note_replay(self._shards.database(pair[1]), pair[0], epoch, added_id, changes)
        self._shards.execute(pair[1], statement)

    def delete_replayed(self, pair: Pair, epoch: int, added_id: int) -> None:
        """Delete a parked cell after a successful replay."""
        database = self._shards.database(pair[1])
        self._shards.execute(pair[1], sql.delete_replayed(database, pair[0], epoch, added_id))
