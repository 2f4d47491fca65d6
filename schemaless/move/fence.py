"""The sessions of a mover: what they hold, the names that they give to tables, and who may take them away.

A mover holds two named locks of the shard's database on both servers: ``move.``, by which a successor finds and ends
whoever had the shard before, and ``upgrade.``, by which upgrades of the schema and moves keep out of each other's way.
These sessions are never opened again and never asked twice: when one is lost, so are the locks, and the work ends.

Tables that a move makes or leaves behind have a token in their names that is drawn anew by each runner. A runner that
was thought dead and wakes up meets names that are not there any more.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from schemaless.errors import AccessDenied, MoveRefused, ServerError, ServerRefused, ServerTimeout, ServerUnavailable
from schemaless.feed.sql import UNLOCK_TABLES
from schemaless.indexes.sql import INDEX_TABLE
from schemaless.move import sql
from schemaless.schema.sql import show_tables
from schemaless.topology.shards import Shards
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.pool import PoolOptions
from schemaless.wire.sql.sessions import set_session, take_lock

_LIFE_S: Final = 7 * 24 * 3600
"""A session may be silent so long while others copy."""

_FENCED_LIFE_S: Final = 5
"""A session that holds others off is ended by its server when its mover has been silent so long."""

_LOCK_WAIT_S: Final = 1
"""A statement waits so long for a table."""

_TURN_WAIT_S: Final = 10
_KILLED_WAIT_S: Final = 30.0
_POLL_S: Final = 0.05
_SETTLED_S: Final = 0.05
_SETTLING_TRIES: Final = 20
_NO_SUCH_THREAD: Final = 1094
_OPTIONS: Final = PoolOptions(read_timeout_s=600, write_timeout_s=600, pool_size=1)
_OWN_NAME: Final = re.compile(
    r"(?P<table>cell|follower|parked|index_\d+)_(?P<kind>moved|incoming|probe|noted)_([0-9a-f]{8}){1,2}_?"
)
"""A move's tables are called so, and those that a failover puts aside, whose tokens are shorter."""


def new_token() -> str:
    """Return a token that no other runner has."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Side:
    """What one server has of a shard.

    Attributes:
        plain: the tables that have no token in their names.
        moved: by table, what moves have left behind.
        incoming: by table, what is on its way here.
        probes: tables that a mover left when it died.
        notes: tables that say from where on followers of indexes are to go over this shard's again.
    """

    plain: frozenset[str]
    moved: Mapping[str, Sequence[str]] = field(default_factory=dict)
    incoming: Mapping[str, Sequence[str]] = field(default_factory=dict)
    probes: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def has_cell(self) -> bool:
        """Whether clients find the shard here."""
        return "cell" in self.plain


def index_tables(names: Iterable[str]) -> list[str]:
    """Return those that are the tables of secondary indexes."""
    return sorted(name for name in names if INDEX_TABLE.fullmatch(name))


def side_of(connection: Connection, database: str) -> Side:
    """Look at what a server has of a shard; nothing where the database is not there."""
    try:
        names = sorted(str(row[0]) for row in connection.rows(show_tables(database)))
    except DatabaseMissing:
        return Side(frozenset())
    by_kind: dict[str, dict[str, list[str]]] = {"moved": {}, "incoming": {}}
    plain = set()
    others: dict[str, list[str]] = {"probe": [], "noted": []}
    for name in names:
        own = _OWN_NAME.fullmatch(name)
        if own is None:
            plain.add(name)
        elif own["kind"] in others:
            others[own["kind"]].append(name)
        else:
            by_kind[own["kind"]].setdefault(own["table"], []).append(name)
    return Side(frozenset(plain), by_kind["moved"], by_kind["incoming"], others["probe"], others["noted"])


@contextmanager
def session(shards: Shards, node: Node, shard: int) -> Iterator[Connection]:
    """Give a connection that is opened once, and is closed at the end of the block."""
    pool = shards.new_pool(node, _OPTIONS)
    try:
        with pool.connection(shard) as connection:
            connection.unfinished = True
            connection.execute(set_session({"lock_wait_timeout": _LOCK_WAIT_S, "wait_timeout": _LIFE_S}))
            yield connection
    finally:
        pool.close()


def take_locks(connection: Connection, database: str, shard: int) -> None:
    """Take the locks on a shard's database on a server for this session, from whoever had them before.

    They end with the session, and whoever wants them ends it: what it has not yet begun does not happen then.

    Raises:
        ServerTimeout: an upgrade is at the database, or a mover does not end.
        AccessDenied: the mover before has another account.
    """
    give_up_s = time.monotonic() + _KILLED_WAIT_S
    name = f"move.{database}"
    while connection.rows(take_lock(name, 0))[0][0] != 1:
        holder = connection.rows(sql.select_lock_holder(name))[0][0]
        if holder is not None:
            _end(connection, int(holder), shard)
        if time.monotonic() > give_up_s:
            raise ServerTimeout(
                f"connection {holder} of an earlier mover holds the shard's lock and does not end; end it there with "
                "KILL, then run the same command again",
                node=connection.node,
                shard=shard,
            )
        time.sleep(_POLL_S)
    if connection.rows(take_lock(f"upgrade.{database}", _TURN_WAIT_S))[0][0] != 1:
        raise ServerTimeout(
            f"an upgrade is changing the tables of {database!r}; the move has to wait for its end",
            node=connection.node,
            shard=shard,
        )


def _end(connection: Connection, thread: int, shard: int) -> None:
    try:
        connection.execute(sql.kill(thread))
    except AccessDenied as error:
        raise AccessDenied(
            f"connection {thread} holds this shard's lock under another account, though its mover may be gone "
            f"({error.message}); end it there with KILL, then run the same command again",
            node=error.node,
            shard=shard,
            code=error.code,
        ) from error
    except ServerRefused as error:
        if error.code != _NO_SUCH_THREAD:
            raise


class Fence:
    """Both sessions of a mover, with their locks. A context manager.

    Args:
        shards: of the datastore.
        shard: its number.
        source: the server that the shard is on.
        target: the one that it goes to.
        needs_target: whether nothing can be done while the target cannot be reached.

    Attributes:
        source: the session that locks and renames there.
        target: the session that writes there.
        reader: another one to the source, which reads what was renamed.
        unreachable: why there is no ``target``; None where there is one.
    """

    source: Connection
    target: Connection
    reader: Connection

    def __init__(self, shards: Shards, shard: int, source: Node, target: Node, *, needs_target: bool = True) -> None:
        self.unreachable: ServerUnavailable | None = None
        self._needs_target = needs_target
        self.database = shards.database(shard)
        self._shards = shards
        self._shard = shard
        self._nodes = source, target
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        source, target = self._nodes
        try:
            self.source, self._killer, self.reader = (self._open(source) for _ in range(3))
            self._thread = int(self.source.rows(sql.SELECT_THREAD)[0][0])
            take_locks(self.source, self.database, self._shard)
            self._open_target(target)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self, node: Node) -> Connection:
        return self._stack.enter_context(session(self._shards, node, self._shard))

    def _open_target(self, node: Node) -> None:
        try:
            self.target = self._open(node)
        except ServerUnavailable as error:
            if self._needs_target:
                raise
            self.unreachable = error
        else:
            take_locks(self.target, self.database, self._shard)

    # What there is

    def sides(self) -> tuple[Side, Side]:
        """Look at both servers; nothing is on one that cannot be reached."""
        nothing = Side(frozenset())
        here = nothing if self.unreachable is not None else side_of(self.target, self.database)
        return side_of(self.source, self.database), here

    def take_over(self, token: str) -> tuple[Side, Side]:
        """Give all tables of the move this token's names; what came half through a rename goes with its ``cell``.

        Returns:
            What there is now.

        Raises:
            MoveRefused: there is more than one move can have left.
            ServerTimeout: something holds a server. Where it is the target, and the cut is not through, the source's
                tables have their names again.
        """
        source, target = self.sides()
        for side, node in zip((source, target), self._nodes, strict=True):
            for kind, by_table in (("moved", side.moved), ("incoming", side.incoming)):
                several = [names for names in by_table.values() if len(names) > 1]
                if several or (kind == "moved" and side is target and by_table):
                    names = ", ".join(next(iter(several or by_table.values())))
                    raise MoveRefused(
                        f"{self.database} on {node} has {names}, which are not tables of this move; "
                        "look at 'schemaless shards status --all', and drop what nobody needs"
                    )
        renamed: list[tuple[str, str]] = []
        fenced = bool(source.moved.get("cell"))
        tables = self._fenced(source, target)
        for table in reversed(tables):
            left = list(source.moved.get(table, ()))
            if fenced:
                # Nothing is done to a table that is called cell again: that is a contradiction for who calls.
                also = source.plain & {table} - {"cell"}
                renamed += [(name, moving.moved(table, token)) for name in (*left, *also)]
            else:
                renamed += [(name, table) for name in left]
        self._drop(self.source, source.probes)
        self._rename(self.source, renamed)
        renamed = []
        if not target.has_cell:
            for table in reversed(tables):
                before = [*target.incoming.get(table, ()), *(target.plain & {table})]
                renamed += [(name, moving.incoming(table, token)) for name in before]
        try:
            if self.unreachable is None:
                self._drop(self.target, target.probes)
                self._rename(self.target, renamed)
        except ServerTimeout:
            # A backup may hold the target for hours, in which the shard is to be had where it was.
            if fenced and not source.has_cell and not target.has_cell:
                self.rename_back(token)
            raise
        return self.sides()

    @staticmethod
    def _fenced(*sides: Side) -> list[str]:
        """Return what is renamed, in this order: the tables of indexes that there are, then those of each shard."""
        names = {name for side in sides for name in (*side.plain, *side.moved, *side.incoming)}
        return [*index_tables(names), *sql.FENCED]

    def _rename(self, connection: Connection, names: Sequence[tuple[str, str]]) -> None:
        for pair in (pair for pair in names if pair[0] != pair[1]):
            for statement in sql.rename(self.database, [pair]):
                connection.execute(statement)

    # The cut

    def probe(self, token: str) -> None:
        """Make, rename and drop a table on both servers: a backup that holds such things off is met here.

        Raises:
            ServerTimeout: it is held off.
        """
        for connection in (self.source, self.target):
            first, second = sql.probe(token), f"{sql.probe(token)}_"
            connection.execute(sql.make_probe(self.database, first))
            self._rename(connection, [(first, second)])
            connection.execute(sql.drop_table(self.database, second))

    def target_settles(self, token: str, most_s: float) -> bool:
        """Wait until the target renames what was copied at once; return whether the last try took less than ``most_s``.

        A server renames a table's file only while it writes none of its pages to the disk. Right behind such a wait it
        begins with the next pages only a moment later. Each table gets another name and its own again in one statement.

        Raises:
            ServerTimeout: it is held off.
        """
        tables = [*index_tables(side_of(self.target, self.database).incoming), "cell"]
        return sum(self._settled_in_s(moving.incoming(table, token)) for table in tables) < most_s

    def _settled_in_s(self, name: str) -> float:
        """Rename a table to and fro until that takes no time; return how long it took last."""
        took_s = 0.0
        for _ in range(_SETTLING_TRIES):
            began_s = time.monotonic()
            for statement in sql.rename(self.database, [(name, f"{name}_"), (f"{name}_", name)]):
                self.target.execute(statement)
            took_s = time.monotonic() - began_s
            if took_s < _SETTLED_S:
                break
        return took_s

    def lock(self, budget_s: float) -> bool:
        """Hold off readers and writers of the shard; return whether that was to be had within the budget."""
        wait_s = max(_LOCK_WAIT_S, math.ceil(budget_s))
        self._locked = self._fenced(side_of(self.source, self.database))
        self.source.execute(set_session({"wait_timeout": _FENCED_LIFE_S, "lock_wait_timeout": wait_s}))
        done = threading.Event()
        ended: list[ServerError | None] = []

        def end() -> None:
            if not done.wait(budget_s):
                try:
                    self._killer.execute(sql.kill(self._thread, query=True))
                    ended.append(None)
                except ServerError as error:
                    ended.append(error)

        timer = threading.Thread(target=end, name=f"fence of {self.database}", daemon=True)
        timer.start()
        had = False
        try:
            self.source.execute(sql.lock_fenced(self.database, self._locked))
            had = True
        except ServerTimeout:
            pass
        finally:
            done.set()
            timer.join()
        if had and not ended:
            return True
        self.unlock()
        if ended and ended[0] is not None:
            raise ended[0]
        return False

    def unlock(self) -> None:
        """Let everybody go on."""
        for last in (False, True):
            try:
                self.source.execute(UNLOCK_TABLES)
                break
            except ServerTimeout:
                # What was to end the wait came late, and met this.
                if last:
                    raise
        self.source.execute(set_session({"wait_timeout": _LIFE_S, "lock_wait_timeout": _LOCK_WAIT_S}))

    def rename_source(self, token: str) -> None:
        """Take the shard's tables away on the source, ``cell`` last, while this session holds them."""
        names = [(table, moving.moved(table, token)) for table in self._locked]
        for statement in sql.rename(self.database, names, locked_mariadb=self.source.is_mariadb):
            self.source.execute(statement)

    def rename_target(self, token: str) -> None:
        """Give the tables on the target the names that clients look for, ``cell`` last: from then on it is moved."""
        tables = self._fenced(side_of(self.source, self.database), side_of(self.target, self.database))
        names = [(moving.incoming(table, token), table) for table in tables]
        for statement in sql.rename(self.database, names):
            self.target.execute(statement)

    def rename_back(self, token: str) -> None:
        """Give the tables on the source their names again, ``cell`` last."""
        tables = [*index_tables(side_of(self.source, self.database).moved), *sql.FENCED]
        self._rename(self.source, [(moving.moved(table, token), table) for table in tables])

    def drop_incoming(self, target: Side) -> None:
        """Drop what was copied to the target."""
        self.drop_indexes(target)
        for names in target.incoming.values():
            self._drop(self.target, names)

    def drop_indexes(self, target: Side) -> None:
        """Drop what was copied of indexes, then what was noted before."""
        for names in (*(target.incoming[table] for table in index_tables(target.incoming)), target.notes):
            if names:
                self._drop(self.target, names)

    def _drop(self, connection: Connection, names: Sequence[str]) -> None:
        for name in names:
            connection.execute(sql.drop_table(self.database, name))
