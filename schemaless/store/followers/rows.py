"""A follower's row in each shard: its location and its owner.

The epoch of a row is a fencing token that increases with each owner. Every change by an owner requires its epoch, in
the same statement or transaction: an owner that has lost its lease without noticing changes nothing, and gets
``LeaseLost``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from schemaless.errors import AccessDenied, SchemalessError, ServerError
from schemaless.store.followers import sql
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.parked import Move, ParkedCells
from schemaless.store.followers.states import QUARANTINED
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.errors import DatabaseMissing, Elsewhere
from schemaless.wire.node import Node

T = TypeVar("T")

_ROWS_PER_READ: Final = 64
"""Maximum number of rows or shards read per statement."""

_ROWS_PER_MOVE: Final = 20
"""Maximum number of locations written per statement; a join may have at most 61 tables."""


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

    def back(self) -> Callable[[str], bool] | None:
        """Return a function that tells whether a server has answered since the last ``back`` or is no longer a primary.

        Return None if no server has answered since then.
        """
        answered, self._answered = self._answered, set()
        servers = {str(cluster.primary) for cluster in self._shards.topology.clusters} if answered else answered
        return (lambda node: node in answered or node not in servers) if answered else None

    def look(self, pairs: Iterable[Pair]) -> Looked:
        """Read the rows of pairs of follower and shard, and the highest added_id of each shard."""
        looked = Looked({}, {})

        def select(part: Sequence[Pair]) -> bytes:
            return sql.select_followers((self._shards.database(shard), shard, name) for name, shard in part)

        def take(rows: Rows) -> None:
            for shard, name, location, worker, epoch, state, attempts, retry_s, message, *rest in rows:
                moved_at, top, last_event, erased_event, parked, replays, begun = rest
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
                    int(last_event or 0),
                    int(erased_event),
                    int(parked),
                    int(replays),
                    int(begun),
                )

        self._ask_all(pairs, lambda pair: pair[1], select, take, looked.failed)
        return looked

    def tops(self, shards: Iterable[int]) -> tuple[dict[int, int], dict[int, SchemalessError]]:
        """Read the highest added_id of shards.

        Returns:
            The highest added_id by shard, and the error of each shard that could not be read.
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
        """Claim a row if its epoch is unchanged; return the new epoch, or None if another worker was faster.

        The statement goes through ``Shards``, which verifies the identity of the shard on its current server.
        """
        name, shard = pair
        statement = sql.claim(self._shards.database(shard), name, worker, seen.epoch)
        if self._shards.execute(shard, statement).affected == 1:
            return seen.epoch + 1
        # A repeated statement, after a lost reply, affects no row.
        row = self.look([pair]).rows.get(pair)
        return row.epoch if row is not None and (row.worker, row.epoch) == (worker, seen.epoch + 1) else None

    def release(self, pair: Pair, epoch: int) -> None:
        """Release a row, unless another worker has claimed it."""
        self._shards.execute(pair[1], sql.release(self._shards.database(pair[1]), pair[0], epoch))

    def quarantine(self, pair: Pair, epoch: int, message: str, pause_s: float) -> bool:
        """Quarantine a row whose owner is dead; return False if its epoch has changed."""
        name, shard = pair
        statement = sql.quarantine(self._shards.database(shard), name, epoch, message, pause_s)
        return self._shards.execute(shard, statement).affected == 1

    def end_quarantine(self, pair: Pair, epoch: int) -> None:
        """Release a row to the workers for healthy shards, if it still has the epoch."""
        self._shards.execute(pair[1], sql.end_quarantine(self._shards.database(pair[1]), pair[0], epoch))

    def move(self, moves: Iterable[Move]) -> tuple[set[Pair], dict[Pair, SchemalessError]]:
        """Write locations, with one statement for up to 20 locations on the same server.

        Returns:
            The pairs that other workers have claimed, and the error of each pair whose server failed.
        """
        lost: set[Pair] = set()
        failed: dict[Pair, SchemalessError] = {}
        for node, of_node in self._by_node(moves, lambda move: move.pair[1]).items():
            for part in _parts(of_node, _ROWS_PER_MOVE):
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
        """Write a location, and the attempts at the cell after it.

        Raises:
            LeaseLost: another worker has claimed the row.
        """
        (name, shard), epoch, location = move
        database = self._shards.database(shard)
        self._own(move, sql.note_attempt(database, name, epoch, location, attempts, retry_s, message))

    def stop(self, move: Move, message: str) -> None:
        """Stop a follower in a shard, before its next cell; raises what ``note_attempt`` does."""
        (name, shard), epoch, location = move
        self._own(move, sql.stop(self._shards.database(shard), name, epoch, location, message))

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

    def _own(self, move: Move, statement: bytes) -> None:
        if self._shards.execute(move.pair[1], statement).affected != 1:
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
        take: Callable[[Rows], None],
        failed: dict[int, SchemalessError],
    ) -> None:
        """Read items with few statements per server, or one by one where one item makes a statement fail for all."""
        for node, of_node in self._by_node(items, shard_of).items():
            for part in _parts(of_node, _ROWS_PER_READ):
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
        """Group items by the current server of their shard."""
        self._shards.router.refresh_if_due()
        by_node: dict[Node, list[T]] = {}
        for item in items:
            by_node.setdefault(self._shards.node_of(shard_of(item)), []).append(item)
        return by_node


def _parts(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
