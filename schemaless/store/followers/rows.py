"""A follower's row in each shard: its location and its owner.

The epoch of a row is a fencing token that increases with each owner. Every change by an owner requires its epoch, in
the same statement or transaction: an owner that has lost its lease without noticing changes nothing, and gets
``LeaseLost``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from schemaless.base.parts import grouped, parts
from schemaless.base.type_variables import T
from schemaless.errors import AccessDenied, LeaseLost, SchemalessError, ServerError
from schemaless.store.followers import sql
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.sql import ParkedRow
from schemaless.store.followers.states import QUARANTINED
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing, Elsewhere
from schemaless.wire.node import Node

_ROWS_PER_READ: Final = 64
"""Maximum number of rows or shards read per statement."""

_ROWS_PER_MOVE: Final = 20
"""Maximum number of locations written per statement; a join may have at most 61 tables."""


REPLAYS_PER_TURN: Final = 100
"""Maximum number of parked cells that a worker tries again before it handles new cells."""


class Move(NamedTuple):
    """A location to write to a follower's row, provided that the row still has this epoch."""

    pair: Pair
    epoch: int
    location: int

    def lost(self) -> LeaseLost:
        """Return the error for a row that another worker has claimed."""
        return LeaseLost(f"{self.pair[0]} in shard {self.pair[1]} was taken over by another worker")


@dataclass(frozen=True, slots=True)
class FollowerRow:
    """A follower's row in a shard.

    Attributes:
        location: all cells up to this added_id have been handled or parked.
        worker: the owner; None if the row was released.
        epoch: fencing token, which increases with each owner.
        state: running, quarantined, or stopped.
        attempts: number of attempts at the first cell after ``location``.
        retry_s: time until the next attempt, in seconds; None if there is no wait.
        message: message of the last attempt.
        moved_at: when ``location`` was last written; UTC, ISO 8601.
        top: the highest added_id of the shard.
        last_event: the last event of the shard's log of erased cells.
        erased_event: the last one that the follower has handled.
        parked: number of parked cells.
        replays: number of parked cells to try again.
        begun: number of those that are being tried, or killed the worker that last tried them.
    """

    location: int
    worker: str | None
    epoch: int
    state: str
    attempts: int
    retry_s: float | None
    message: str | None
    moved_at: str
    top: int
    last_event: int
    erased_event: int
    parked: int
    replays: int
    begun: int = 0

    @property
    def quarantined(self) -> bool:
        """True if one of the shard's cells killed a worker: only workers for quarantined shards may claim it."""
        return self.state == QUARANTINED or self.begun > 0


@dataclass(frozen=True, slots=True)
class Looked:
    """Result of a read of rows.

    Attributes:
        rows: the rows that exist.
        failed: the error of each shard that could not be read.
    """

    rows: dict[Pair, FollowerRow]
    failed: dict[int, SchemalessError]


class FollowerRows:
    """The rows of all followers, on the current servers of their shards.

    Args:
        shards: the datastore's shards.

    Attributes:
        parked: the parked cells of the followers.
    """

    def __init__(self, shards: Shards) -> None:
        self.parked: ParkedCells = ParkedCells(shards)
        self._shards = shards
        self._answered: set[str] = set()

    def take_answered(self) -> set[str]:
        """Return the servers that have answered since the last call."""
        answered, self._answered = self._answered, set()
        return answered

    def look(self, pairs: Iterable[Pair], *, events: bool = True) -> Looked:
        """Read the rows of pairs of follower and shard, and the highest added_id of each shard.

        Without ``events``, ``last_event`` of each row is 0; that saves opening a table in each shard.
        """
        looked = Looked({}, {})

        def select(part: Sequence[Pair]) -> bytes:
            wanted = ((self._shards.database(shard), shard, name) for name, shard in part)
            return sql.select_followers(wanted, events=events)

        rows = self._ask_all(pairs, lambda pair: pair[1], select, looked.failed)
        for shard, name, location, worker, epoch, state, attempts, retry_s, message, moved_at, *rest in rows:
            at = moved_at.replace(" ", "T")
            top, last_event, *counts = rest
            looked.rows[name, shard] = FollowerRow(
                location, worker, epoch, state, attempts, retry_s, message, at, top or 0, last_event or 0, *counts
            )
        return looked

    def tops(self, shards: Iterable[int]) -> tuple[dict[int, int], dict[int, SchemalessError]]:
        """Read the highest added_id of shards.

        Returns:
            The highest added_id by shard, and the error of each shard that could not be read.
        """
        failed: dict[int, SchemalessError] = {}

        def select(part: Sequence[int]) -> bytes:
            return sql.select_tops((self._shards.database(shard), shard) for shard in part)

        rows = self._ask_all(shards, lambda shard: shard, select, failed)
        return {shard: top or 0 for shard, top in rows}, failed

    def claim(self, pair: Pair, worker: str, seen: FollowerRow) -> int | None:
        """Claim a row if its epoch is unchanged; return the new epoch, or None if another worker was faster.

        The statement goes through ``Shards``, which verifies the identity of the shard on its current server.
        """
        if self._change(pair, sql.claim, worker, seen.epoch):
            return seen.epoch + 1
        # A repeated statement, after a lost reply, affects no row.
        row = self.look([pair]).rows.get(pair)
        return row.epoch if row is not None and (row.worker, row.epoch) == (worker, seen.epoch + 1) else None

    def release(self, pair: Pair, epoch: int) -> None:
        """Release a row, unless another worker has claimed it."""
        self._change(pair, sql.release, epoch)

    def quarantine(self, pair: Pair, epoch: int, message: str, pause_s: float) -> bool:
        """Quarantine a row whose owner is dead; return False if its epoch has changed."""
        return self._change(pair, sql.quarantine, epoch, message, pause_s)

    def end_quarantine(self, pair: Pair, epoch: int) -> None:
        """Release a row to the workers for healthy shards, if it still has the epoch."""
        self._change(pair, sql.end_quarantine, epoch)

    def move(self, moves: Iterable[Move]) -> tuple[set[Pair], dict[Pair, SchemalessError]]:
        """Write locations, with one statement for up to 20 locations on the same server.

        Returns:
            The pairs that other workers have claimed, and the error of each pair whose server failed.
        """
        lost: set[Pair] = set()
        failed: dict[Pair, SchemalessError] = {}
        for node, of_node in self._by_node(moves, lambda move: move.pair[1]).items():
            for part in parts(of_node, _ROWS_PER_MOVE):
                try:
                    done = self._on_node(node, part[0].pair[1], self._move(part), Connection.execute, writes=True)
                    if done.affected == len(part):
                        continue
                except (AccessDenied, DatabaseMissing, Elsewhere):
                    pass
                except SchemalessError as error:
                    failed |= {move.pair: _in_shard(error, move.pair[1]) for move in part}
                    continue
                for move in part:
                    try:
                        if self._shards.execute(move.pair[1], self._move([move])).affected != 1:
                            lost.add(move.pair)
                    except SchemalessError as error:
                        failed[move.pair] = error
        return lost, failed

    def note_attempt(self, move: Move, attempts: int, retry_s: float | None, message: str | None) -> None:
        """Write a location, and the attempts at the cell after it.

        Raises:
            LeaseLost: another worker has claimed the row.
        """
        self._change_own(move, sql.note_attempt, attempts, retry_s, message)

    def stop(self, move: Move, message: str) -> None:
        """Stop a follower in a shard, before its next cell; raises what ``note_attempt`` does."""
        self._change_own(move, sql.stop, message)

    def acknowledge(self, pair: Pair, epoch: int, event_id: int, erased_ids: Sequence[int]) -> None:
        """Record that a follower has handled all events of the log of erased cells up to ``event_id``.

        Erased cells that the follower has parked are deleted from its parked cells.

        Raises:
            LeaseLost: another worker has claimed the row.
        """
        name, shard = pair
        database = self._shards.database(shard)

        def operation(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(sql.delete_parked_ids(database, name, epoch, erased_ids))
                if connection.execute(sql.acknowledge(database, name, event_id, epoch)).affected != 1:
                    raise Move(pair, epoch, 0).lost()

        # Safe to repeat: both statements are idempotent.
        self._shards.run(shard, operation, writes=True)

    def _change(self, pair: Pair, statement: Callable[..., bytes], *arguments: Any) -> bool:
        """Send a statement about one row; return False if it affected none, because the epoch has changed."""
        name, shard = pair
        return self._shards.execute(shard, statement(self._shards.database(shard), name, *arguments)).affected == 1

    def _change_own(self, move: Move, statement: Callable[..., bytes], *arguments: Any) -> None:
        if not self._change(move.pair, statement, move.epoch, move.location, *arguments):
            raise move.lost()

    def _move(self, moves: Sequence[Move]) -> bytes:
        return sql.move(
            [(self._shards.database(shard), name, epoch, location) for (name, shard), epoch, location in moves]
        )

    def _on_node(
        self, node: Node, shard: int, statement: bytes, send: Callable[[Connection, bytes], T], *, writes: bool = False
    ) -> T:
        """Send a statement about several shards of a server; ``shard`` is one of them, to be named in errors."""
        known = self._shards.routing
        try:
            return self._shards.pool_for(node).run(
                lambda connection: send(connection, statement), shard=shard, writes=writes, route=known
            )
        except ServerError:
            # Its shards may have moved; the next read goes to their new server.
            self._shards.router.again(known)
            raise

    def _ask_all(
        self,
        items: Iterable[T],
        shard_of: Callable[[T], int],
        select: Callable[[Sequence[T]], bytes],
        failed: dict[int, SchemalessError],
    ) -> list[tuple[Any, ...]]:
        """Read items with few statements per server, or one by one where one item makes a statement fail for all."""
        rows: list[tuple[Any, ...]] = []
        for node, of_node in self._by_node(items, shard_of).items():
            for part in parts(of_node, _ROWS_PER_READ):
                try:
                    rows += self._on_node(node, shard_of(part[0]), select(part), Connection.rows)
                    self._answered.add(str(node))
                except (AccessDenied, DatabaseMissing, Elsewhere):
                    for item in part:
                        try:
                            rows += self._shards.rows(shard_of(item), select([item]))
                        except SchemalessError as error:
                            failed[shard_of(item)] = error
                except SchemalessError as error:
                    failed |= {shard: _in_shard(error, shard) for shard in map(shard_of, part)}
        return rows

    def _by_node(self, items: Iterable[T], shard_of: Callable[[T], int]) -> dict[Node, list[T]]:
        """Group items by the current server of their shard."""
        self._shards.router.refresh_if_due()
        return grouped((self._shards.node_of(shard_of(item)), item) for item in items)


def _in_shard(error: SchemalessError, shard: int) -> SchemalessError:
    """Return the error of a statement about several shards, which names one of them, as the error of this one."""
    error = copy(error)
    if isinstance(error, ServerError):
        error.shard = shard
    return error


class ParkedCells:
    """The parked cells of all followers: those that a trigger has given up on, until they are replayed or skipped.

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
        (name, shard), epoch, location = move
        database = self._shards.database(shard)

        def operation(connection: Connection) -> None:
            with connection.transaction():
                # In this order: if another worker owns the row, nothing is inserted and nothing changes.
                connection.execute(sql.insert_parked(database, name, epoch, row))
                if connection.execute(sql.move([(database, name, epoch, location)])).affected != 1:
                    raise move.lost()

        # Safe to repeat: both statements are idempotent.
        self._shards.run(shard, operation, writes=True)

    def to_replay(self, pair: Pair) -> list[tuple[int, int, int]]:
        """Return added_id, number of attempts and number of replays begun for the first parked cells to try again."""
        statement = sql.select_to_replay(self._shards.database(pair[1]), pair[0], REPLAYS_PER_TURN)
        return [
            (added_id, attempts, replay - 1) for added_id, attempts, replay in self._shards.rows(pair[1], statement)
        ]

    def begin_replay(self, pair: Pair, epoch: int, added_id: int, begun: int) -> None:
        """Count a replay of a parked cell before it is tried; the request to replay it remains."""
        self._execute(pair, sql.note_replay, epoch, added_id, {"replay": begun + 1})

    def end_replay(self, pair: Pair, epoch: int, added_id: int, attempts: int, error: str) -> None:
        """Record the failure of a replay, and clear the request."""
        self._execute(pair, sql.note_replay, epoch, added_id, {"replay": 0, "attempts": attempts, "error": error})

    def delete_replayed(self, pair: Pair, epoch: int, added_id: int) -> None:
        """Delete a parked cell after a successful replay."""
        self._execute(pair, sql.delete_parked_ids, epoch, [added_id])

    def _execute(self, pair: Pair, statement: Callable[..., bytes], *arguments: Any) -> None:
        self._shards.execute(pair[1], statement(self._shards.database(pair[1]), pair[0], *arguments))
