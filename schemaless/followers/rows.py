"""A follower's row in each shard: how far it is, whose it is, and how both are changed.

A shard has one owner, by an epoch that rises with each. Every change that an owner makes asks for its epoch, in the
same statement or transaction: one who was given up, and does not know it, changes nothing, and ``LeaseLost`` tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from schemaless.errors import AccessDenied, LeaseLost, SchemalessError, ServerError
from schemaless.followers import sql
from schemaless.followers.membership import Pair
from schemaless.followers.sql import ParkedRow
from schemaless.followers.states import QUARANTINED
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.errors import DatabaseMissing, Elsewhere
from schemaless.wire.node import Node
from schemaless.wire.sql.parts import Value

T = TypeVar("T")

_LOOKED_AT_ONCE: Final = 64
_MOVED_AT_ONCE: Final = 20
"""A join takes 61 tables at most."""


@dataclass(frozen=True, slots=True)
class FollowerRow:
    """What a shard says of a follower.

    Attributes:
        location: all cells up to here are dealt with, or parked.
        worker: whose it is; None where it was given back.
        epoch: rises with each owner.
        state: running, quarantined, or stopped.
        attempts: of the first cell behind ``location``.
        retry_s: seconds until the next one; None where nothing is waited for.
        message: what the last one said.
        moved_at: when ``location`` was last written down; UTC, ISO 8601.
        top: the highest added_id there is.
        parked: how many cells are parked.
        replays: how many parked cells are to be tried again.
        begun: how many of these are being tried, or killed the worker that tried them last.
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
    parked: int
    replays: int
    begun: int = 0

    @property
    def quarantined(self) -> bool:
        """Whether a worker died of one of its cells: only workers for quarantined shards may claim it."""
        return self.state == QUARANTINED or self.begun > 0


class Move(NamedTuple):
    """A location to be written down, for who owns the row in that epoch."""

    pair: Pair
    epoch: int
    location: int


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look found.

    Attributes:
        rows: of those that have one.
        failed: why a shard could not be asked.
    """

    rows: dict[Pair, FollowerRow]
    failed: dict[int, SchemalessError]


class FollowerRows:
    """The rows of all followers, on whichever servers their shards are at the moment."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._answered: set[str] = set()

    def back(self) -> Callable[[str], bool] | None:
        """Return what says whether a server has answered a look since this was asked last, or is none of them any more.

        None where no server has answered since.
        """
        answered, self._answered = self._answered, set()
        servers = {str(cluster.primary) for cluster in self._shards.topology.clusters} if answered else answered
        return (lambda node: node in answered or node not in servers) if answered else None

    def look(self, pairs: Iterable[Pair]) -> Looked:
        """Read the rows of some followers in some shards, and whether there are new cells: 64 a statement."""
        looked = Looked({}, {})

        def select(part: Sequence[Pair]) -> bytes:
            return sql.select_followers((self._shards.database(shard), shard, name) for name, shard in part)

        def take(rows: Rows) -> None:
            for shard, name, location, worker, epoch, state, attempts, retry_s, message, *rest in rows:
                moved_at, top, parked, replays, begun = rest
                looked.rows[str(name), int(shard)] = FollowerRow(
                    int(location),
                    worker,
                    int(epoch),
                    str(state),
                    int(attempts),
                    None if retry_s is None else float(retry_s),
                    message,
                    str(moved_at).replace(" ", "T"),
                    int(top or 0),
                    int(parked),
                    int(replays),
                    int(begun),
                )

        self._ask_all(pairs, lambda pair: pair[1], select, take, looked.failed)
        return looked

    def tops(self, shards: Iterable[int]) -> tuple[dict[int, int], dict[int, SchemalessError]]:
        """Read the highest added_id of shards, 64 a statement.

        Returns:
            What was read, and why a shard could not be asked.
        """
        tops: dict[int, int] = {}
        failed: dict[int, SchemalessError] = {}

        def select(part: Sequence[int]) -> bytes:
            return sql.select_tops((self._shards.database(shard), shard) for shard in part)

        def take(rows: Rows) -> None:
            tops.update((int(shard), int(top or 0)) for shard, top in rows)

        self._ask_all(shards, lambda shard: shard, select, take, failed)
        return tops, failed

    def claim(self, pair: Pair, worker: str, seen: FollowerRow) -> int | None:
        """Take a row, if it is as it was seen; return the new epoch, or None where somebody else was faster.

        By the one way to a shard that proves that it is the right one, and on the server that has it now.
        """
        name, shard = pair
        statement = sql.claim(self._shards.database(shard), name, worker, seen.epoch)
        if self._shards.execute(shard, statement).affected == 1:
            return seen.epoch + 1
        # The reply may have been lost, and the statement repeated.
        row = self.look([pair]).rows.get(pair)
        return row.epoch if row is not None and (row.worker, row.epoch) == (worker, seen.epoch + 1) else None

    def release(self, pair: Pair, epoch: int) -> None:
        """Give a row back; one that is somebody else's by now stays his."""
        self._shards.execute(pair[1], sql.release(self._shards.database(pair[1]), pair[0], epoch))

    def quarantine(self, pair: Pair, epoch: int, message: str, pause_s: float) -> bool:
        """Quarantine a row whose owner is dead; return whether it still had that epoch."""
        name, shard = pair
        statement = sql.quarantine(self._shards.database(shard), name, epoch, message, pause_s)
        return self._shards.execute(shard, statement).affected == 1

    def end_quarantine(self, pair: Pair, epoch: int) -> None:
        """Release a row to the workers that serve healthy shards; a row with another epoch is left as it is."""
        self._shards.execute(pair[1], sql.end_quarantine(self._shards.database(pair[1]), pair[0], epoch))

    def move(self, moves: Iterable[Move]) -> tuple[set[Pair], dict[Pair, SchemalessError]]:
        """Write locations down, those of a server in one step.

        Returns:
            The pairs that are somebody else's by now, and those whose server failed, with its reason.
        """
        lost: set[Pair] = set()
        failed: dict[Pair, SchemalessError] = {}
        for node, of_node in self._by_node(moves, lambda move: move.pair[1]).items():
            for part in _parts(of_node, _MOVED_AT_ONCE):
                try:
                    done = self._on_node(node, part[0].pair[1], self._move(part), Connection.execute, writes=True)
                    if done.affected == len(part):
                        continue
                except (AccessDenied, DatabaseMissing, Elsewhere):
                    pass
                except SchemalessError as error:
                    failed |= {move.pair: error for move in part}
                    continue
                for move in part:
                    try:
                        if self._shards.execute(move.pair[1], self._move([move])).affected != 1:
                            lost.add(move.pair)
                    except SchemalessError as error:
                        failed[move.pair] = error
        return lost, failed

    def note_attempt(self, move: Move, attempts: int, retry_s: float | None, message: str | None) -> None:
        """Write a location down, and how the cell behind it went so far.

        Raises:
            LeaseLost: the row is somebody else's by now.
        """
        (name, shard), epoch, location = move
        database = self._shards.database(shard)
        self._own(move, sql.note_attempt(database, name, epoch, location, attempts, retry_s, message))

    def stop(self, move: Move, message: str) -> None:
        """Have a follower stand still in a shard, before a cell; raises what ``note_attempt`` does."""
        (name, shard), epoch, location = move
        self._own(move, sql.stop(self._shards.database(shard), name, epoch, location, message))

    def park(self, move: Move, row: ParkedRow) -> None:
        """Write a cell down as parked and go past it, both or neither.

        Raises:
            LeaseLost: the follower's row is somebody else's by now; nothing was parked.
        """
        (name, shard), epoch, _ = move
        database = self._shards.database(shard)

        def operation(connection: Connection) -> None:
            with connection.transaction():
                # In this order: the row of somebody else gives nothing to insert, and nothing to change.
                connection.execute(sql.insert_parked(database, name, epoch, row))
                if connection.execute(self._move([move])).affected != 1:
                    raise _lost(move)

        # Safe to repeat: both say what is to be, whatever was.
        self._shards.run(shard, operation, writes=True)

    def to_replay(self, pair: Pair) -> list[tuple[int, int, int]]:
        """Return added_id and attempts of the parked cells that are to be tried again, and how often that began."""
        statement = sql.select_parked(self._shards.database(pair[1]), pair[0], replay=True)
        return [(int(row[0]), int(row[4]), int(row[7]) - 1) for row in self._shards.rows(pair[1], statement)]

    def begin_replay(self, pair: Pair, epoch: int, added_id: int, begun: int) -> None:
        """Write down how often it was begun to try a parked cell again; the wish stays, whatever becomes of that."""
        statement = sql.note_replay(self._shards.database(pair[1]), pair[0], epoch, added_id, {"replay": begun + 1})
        self._shards.execute(pair[1], statement)

    def end_replay(self, pair: Pair, epoch: int, added_id: int, attempts: int, error: str) -> None:
        """Take the wish from a parked cell, and write down how it went."""
        changes: dict[str, Value] = {"replay": 0, "attempts": attempts, "error": error}
        statement = sql.note_replay(self._shards.database(pair[1]), pair[0], epoch, added_id, changes)
        self._shards.execute(pair[1], statement)

    def delete_replayed(self, pair: Pair, epoch: int, added_id: int) -> None:
        """Take a parked cell out that was dealt with."""
        database = self._shards.database(pair[1])
        self._shards.execute(pair[1], sql.delete_replayed(database, pair[0], epoch, added_id))

    def _own(self, move: Move, statement: bytes) -> None:
        if self._shards.execute(move.pair[1], statement).affected != 1:
            raise _lost(move)

    def _move(self, moves: Sequence[Move]) -> bytes:
        return sql.move(
            [(self._shards.database(shard), name, epoch, location) for (name, shard), epoch, location in moves]
        )

    def _on_node(
        self, node: Node, shard: int, statement: bytes, send: Callable[[Connection, bytes], T], *, writes: bool = False
    ) -> T:
        """Send a statement about many shards of a server, of which one is asked after where the server has failed."""
        known = self._shards.routing
        try:
            return self._shards.pool_for(node).run(
                lambda connection: send(connection, statement), shard=shard, writes=writes, route=known
            )
        except ServerError:
            # Its shards may be elsewhere by now: the next look goes there.
            self._shards.again(known)
            raise

    def _ask_all(
        self,
        items: Iterable[T],
        shard_of: Callable[[T], int],
        select: Callable[[Sequence[T]], bytes],
        take: Callable[[Rows], None],
        failed: dict[int, SchemalessError],
    ) -> None:
        """Ask the servers about items, many in a statement; one by one where one of them spoils it for the others."""
        for node, of_node in self._by_node(items, shard_of).items():
            for part in _parts(of_node, _LOOKED_AT_ONCE):
                try:
                    take(self._on_node(node, shard_of(part[0]), select(part), Connection.rows))
                    self._answered.add(str(node))
                except (AccessDenied, DatabaseMissing, Elsewhere):
                    for item in part:
                        try:
                            take(self._shards.rows(shard_of(item), select([item])))
                        except SchemalessError as error:
                            failed[shard_of(item)] = error
                except SchemalessError as error:
                    failed.update((shard_of(item), error) for item in part)

    def _by_node(self, items: Iterable[T], shard_of: Callable[[T], int]) -> dict[Node, list[T]]:
        """Group items by the server that has their shard now."""
        self._shards.look_now_and_then()
        by_node: dict[Node, list[T]] = {}
        for item in items:
            by_node.setdefault(self._shards.node_of(shard_of(item)), []).append(item)
        return by_node


def _parts(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _lost(move: Move) -> LeaseLost:
    name, shard = move.pair
    return LeaseLost(f"{name} in shard {shard} was taken over by another worker")
