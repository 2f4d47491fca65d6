"""A mover's sessions, the locks they hold, and the table renames that fence and cut over a shard.

On both servers a mover holds two named locks for the shard's database: ``move.``, through which a successor finds and
kills the previous mover's session, and ``upgrade.``, which excludes schema upgrades. A mover's sessions never reconnect
or retry: a lost session loses its locks, and the mover stops.

The names of a move's tables contain a random token, and each runner draws a new one. A runner that was presumed dead
finds, when it resumes, that its tables have other names.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Self

from schemaless.errors import AccessDenied, MoveRefused, ServerError, ServerRefused, ServerTimeout, ServerUnavailable
from schemaless.ops.move import sql
from schemaless.schema.sql import show_tables
from schemaless.store.feed.sql import UNLOCK_TABLES
from schemaless.store.indexes.sql import INDEX_TABLE
from schemaless.topology.shards import Shards
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing, reworded
from schemaless.wire.node import Node
from schemaless.wire.pool import PoolOptions
from schemaless.wire.sql.sessions import kill, set_session, take_lock
from schemaless.wire.transactions import naming_users, users_of

_IDLE_TIMEOUT_S: Final = 7 * 24 * 3600
"""Idle timeout of a session while cells are copied, in seconds."""

_FENCED_IDLE_TIMEOUT_S: Final = 5
"""Idle timeout of the session that holds the fence, in seconds; limits how long a hung mover holds it."""

_LOCK_WAIT_S: Final = 1
"""Time that a statement waits for a table lock, in seconds."""

_UPGRADE_WAIT_S: Final = 10
_KILLED_WAIT_S: Final = 30.0
_POLL_S: Final = 0.05
_FAST_RENAME_S: Final = 0.05
_MAX_RENAMES: Final = 20
_NO_SUCH_THREAD: Final = 1094
_OPTIONS: Final = PoolOptions(read_timeout_s=600, write_timeout_s=600, pool_size=1)
_MOVE_TABLE: Final = re.compile(
    r"(?P<table>cell|cold_file|follower|parked|erased_cell|index_\d+)_(?P<kind>moved|incoming|probe|noted)_([0-9a-f]{8}){1,2}_?"
)
"""Names of a move's tables, and of tables that a failover sets aside; the latter have shorter tokens."""


def new_token() -> str:
    """Return a random token for the table names of one runner."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Side:
    """A shard's tables on one server.

    Attributes:
        plain: tables without a token in their names.
        moved: leftovers of moves, by table.
        incoming: copies made by a move to this server, by table.
        probes: probe tables of a mover that died.
        saved_locations: tables with the locations to which index followers must be rewound.
    """

    plain: frozenset[str]
    moved: Mapping[str, Sequence[str]] = field(default_factory=dict)
    incoming: Mapping[str, Sequence[str]] = field(default_factory=dict)
    probes: Sequence[str] = ()
    saved_locations: Sequence[str] = ()

    @property
    def copies(self) -> list[str]:
        """Names of the cell tables of moves."""
        return [*self.moved.get("cell", ()), *self.incoming.get("cell", ())]

    @property
    def has_cell(self) -> bool:
        """Whether this server has the table ``cell``, and with it the shard."""
        return "cell" in self.plain


def index_tables(names: Iterable[str]) -> list[str]:
    """Return the names of index tables, sorted."""
    return sorted(name for name in names if INDEX_TABLE.fullmatch(name))


def side_of(connection: Connection, database: str) -> Side:
    """Read which tables of a shard a server has; an empty ``Side`` if the database does not exist."""
    try:
        names = sorted(str(row[0]) for row in connection.rows(show_tables(database)))
    except DatabaseMissing:
        return Side(frozenset())
    found: dict[str, dict[str, list[str]]] = {"moved": {}, "incoming": {}, "probe": {}, "noted": {}}
    plain = set()
    for name in names:
        match = _MOVE_TABLE.fullmatch(name)
        if match is None:
            plain.add(name)
        else:
            found[match["kind"]].setdefault(match["table"], []).append(name)
    probes, saved_locations = found["probe"].get("cell", ()), found["noted"].get("follower", ())
    return Side(frozenset(plain), found["moved"], found["incoming"], probes, saved_locations)


@contextmanager
def session(shards: Shards, node: Node, shard: int) -> Iterator[Connection]:
    """Open a connection that never reconnects, and close it at the end of the block."""
    pool = shards.pools.new_pool(node, _OPTIONS)
    try:
        with pool.connection(shard) as connection:
            connection.unfinished = True
            connection.execute(set_session({"lock_wait_timeout": _LOCK_WAIT_S, "wait_timeout": _IDLE_TIMEOUT_S}))
            yield connection
    finally:
        pool.close()


def take_locks(connection: Connection, database: str, shard: int) -> None:
    """Take a shard's named locks on one server for this session, killing the session of a previous mover.

    The locks last as long as the session. A successor kills it, so that no further statement of this mover runs.

    Raises:
        ServerTimeout: an upgrade is running on the database, or the previous mover's session does not end.
        AccessDenied: the previous mover's session belongs to another account.
    """
    give_up_s = time.monotonic() + _KILLED_WAIT_S
    name = f"move.{database}"
    while connection.rows(take_lock(name, 0))[0][0] != 1:
        holder = connection.rows(sql.select_lock_holder(name))[0][0]
        if holder is not None:
            _kill(connection, int(holder))
        if time.monotonic() > give_up_s:
            raise ServerTimeout(
                f"connection {holder} of an earlier mover still holds the shard's lock after it was killed; end it "
                "there with KILL, then run the same command again",
                node=connection.node,
                shard=shard,
            )
        time.sleep(_POLL_S)
    if connection.rows(take_lock(f"upgrade.{database}", _UPGRADE_WAIT_S))[0][0] != 1:
        raise ServerTimeout(
            f"a schema upgrade is changing the tables of {database!r}; run the same command again when it has finished",
            node=connection.node,
            shard=shard,
        )


def _kill(connection: Connection, thread: int) -> None:
    try:
        connection.execute(kill(thread))
    except AccessDenied as error:
        raise reworded(
            error,
            f"connection {thread} holds this shard's lock under another account, and this account may not "
            f"kill it ({error.message}); run KILL {thread} as that account or an administrator, then run the same "
            "command again",
        ) from error
    except ServerRefused as error:
        if error.code != _NO_SUCH_THREAD:
            raise


def rename_time_s(connection: Connection, database: str, name: str) -> float:
    """Rename a table back and forth until that is fast; return the last duration in seconds.

    A server does not rename a table's file while it flushes the table's pages. After such a wait, the server flushes no
    more pages for a moment. The table is renamed away and back in one statement.

    Raises:
        ServerTimeout: DDL is blocked.
    """
    took_s = 0.0
    for _ in range(_MAX_RENAMES):
        began_s = time.monotonic()
        for statement in sql.rename(database, [(name, f"{name}_"), (f"{name}_", name)]):
            connection.execute(statement)
        took_s = time.monotonic() - began_s
        if took_s < _FAST_RENAME_S:
            break
    return took_s


class Fence:
    """A mover's sessions on the source and the target, with their locks; a context manager.

    Args:
        shards: the datastore's shards.
        shard: number of the shard.
        source: the server that has the shard.
        target: the server that it moves to.
        needs_target: whether an unreachable target is an error.

    Attributes:
        source: the session that locks and renames on the source.
        target: the session that writes on the target.
        reader: a second session on the source, which reads the renamed tables.
        unreachable: error that kept ``target`` from being opened, or None.
        users: which sessions used the shard's tables when ``lock`` last failed, in words; the empty string before.
    """

    source: Connection
    target: Connection
    reader: Connection

    def __init__(self, shards: Shards, shard: int, source: Node, target: Node, *, needs_target: bool = True) -> None:
        self.unreachable: ServerUnavailable | None = None
        self.users: str = ""
        self._needs_target = needs_target
        self.database: str = shards.database(shard)
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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

    # State of the two servers

    def sides(self) -> tuple[Side, Side]:
        """Read the shard's tables on the source and the target; empty for an unreachable target."""
        target = Side(frozenset()) if self.unreachable is not None else side_of(self.target, self.database)
        return side_of(self.source, self.database), target

    def take_over(self, token: str) -> tuple[Side, Side]:
        """Rename all tables of the move to names with this runner's token; complete or undo a half-done rename.

        The other tables follow ``cell``: they are fenced if it is, and otherwise get their plain names back.

        Returns:
            The tables on the source and the target afterwards.

        Raises:
            MoveRefused: there are tables that a single move cannot have left.
            ServerTimeout: something such as a backup blocks a server. If the blocked server is the target and the
                cutover is not complete, the source's tables have been given their plain names back.
        """
        source, target = self.sides()
        for side, node in zip((source, target), self._nodes, strict=True):
            for kind, by_table in (("moved", side.moved), ("incoming", side.incoming)):
                several = [names for names in by_table.values() if len(names) > 1]
                if several or (kind == "moved" and side is target and by_table):
                    names = ", ".join(next(iter(several or by_table.values())))
                    raise MoveRefused(
                        f"{self.database} on {node} has {names}, which a single move cannot have left; check "
                        "'schemaless shards status --all', and drop the tables that are not needed"
                    )
        renamed: list[tuple[str, str]] = []
        fenced = bool(source.moved.get("cell"))
        tables = self._fenced(source, target)
        for table in reversed(tables):
            leftovers = list(source.moved.get(table, ()))
            if fenced:
                # A plain cell table beside a fenced one is a contradiction that the caller reports.
                unfenced = source.plain & {table} - {"cell"}
                renamed += [(name, moving.moved(table, token)) for name in (*leftovers, *unfenced)]
            else:
                renamed += [(name, table) for name in leftovers]
        self._drop(self.source, source.probes)
        self._rename(self.source, renamed)
        renamed = []
        if not target.has_cell:
            for table in reversed(tables):
                copies = [*target.incoming.get(table, ()), *(target.plain & {table})]
                renamed += [(name, moving.incoming(table, token)) for name in copies]
        try:
            if self.unreachable is None:
                self._rename(self.target, renamed)
        except ServerTimeout:
            # A backup may block the target for hours, during which the source has to serve the shard.
            if fenced and not source.has_cell and not target.has_cell:
                self.rename_back(token)
            raise
        return self.sides()

    @staticmethod
    def _fenced(*sides: Side) -> list[str]:
        """Return the tables to rename, in order: existing index tables first, ``cell`` last."""
        names = {name for side in sides for name in (*side.plain, *side.moved, *side.incoming)}
        return [*index_tables(names), *sql.FENCED]

    def _rename(self, connection: Connection, names: Sequence[tuple[str, str]]) -> None:
        for pair in (pair for pair in names if pair[0] != pair[1]):
            for statement in sql.rename(self.database, [pair]):
                with naming_users(connection, self.database):
                    connection.execute(statement)

    # The cut

    def probe(self, token: str) -> None:
        """Create, rename and drop a table on the source, to find out before the pause whether a backup blocks DDL.

        ``target_renames_fast`` finds it out on the target.

        Raises:
            ServerTimeout: DDL is blocked.
        """
        first, second = sql.probe(token), f"{sql.probe(token)}_"
        self.source.execute(sql.create_probe(self.database, first))
        self._rename(self.source, [(first, second)])
        self.source.execute(sql.drop_table(self.database, second))

    def target_renames_fast(self, token: str, max_s: float) -> bool:
        """Rename the copied tables back and forth until that is fast; return whether the last round beat ``max_s``.

        Raises:
            ServerTimeout: DDL is blocked.
        """
        tables = [*index_tables(side_of(self.target, self.database).incoming), "cell"]
        names = [moving.incoming(table, token) for table in tables]
        return sum(rename_time_s(self.target, self.database, name) for name in names) < max_s

    def lock(self, budget_s: float) -> bool:
        """Lock the shard's tables against readers and writers; return False if that takes longer than ``budget_s``."""
        wait_s = max(_LOCK_WAIT_S, math.ceil(budget_s))
        self._locked = self._fenced(side_of(self.source, self.database))
        self.source.execute(set_session({"wait_timeout": _FENCED_IDLE_TIMEOUT_S, "lock_wait_timeout": wait_s}))
        kills: list[ServerError | None] = []

        def interrupt() -> None:
            try:
                self._killer.execute(kill(self._thread, query=True))
                kills.append(None)
            except ServerError as error:
                kills.append(error)

        timer = threading.Timer(budget_s, interrupt)
        timer.daemon = True
        timer.start()
        locked = False
        try:
            with suppress(ServerTimeout):
                self.source.execute(sql.lock_fenced(self.database, self._locked))
                locked = True
        finally:
            timer.cancel()
            timer.join()
        if locked and not kills:
            return True
        self.unlock()
        self.users = users_of(self.source, self.database)
        if kills and kills[0] is not None:
            raise kills[0]
        return False

    def unlock(self) -> None:
        """Release the table locks."""
        try:
            self.source.execute(UNLOCK_TABLES)
        except ServerTimeout:
            # The KILL QUERY meant for LOCK TABLES may arrive late and hit this statement.
            self.source.execute(UNLOCK_TABLES)
        self.source.execute(set_session({"wait_timeout": _IDLE_TIMEOUT_S, "lock_wait_timeout": _LOCK_WAIT_S}))

    def rename_source(self, token: str) -> None:
        """Rename the locked tables on the source to their ``_moved_`` names, ``cell`` last."""
        names = [(table, moving.moved(table, token)) for table in self._locked]
        for statement in sql.rename(self.database, names, locked_mariadb=self.source.is_mariadb):
            self.source.execute(statement)

    def rename_target(self, token: str) -> None:
        """Rename the copied tables on the target to their plain names; ``cell``, the last one, is the commit point."""
        tables = self._fenced(side_of(self.source, self.database), side_of(self.target, self.database))
        names = [(moving.incoming(table, token), table) for table in tables]
        for statement in sql.rename(self.database, names):
            self.target.execute(statement)

    def rename_back(self, token: str) -> None:
        """Give the tables on the source their plain names back, ``cell`` last."""
        tables = [*index_tables(side_of(self.source, self.database).moved), *sql.FENCED]
        self._rename(self.source, [(moving.moved(table, token), table) for table in tables])

    def drop_incoming(self, target: Side) -> None:
        """Drop the copied tables on the target."""
        self.drop_indexes(target)
        for names in target.incoming.values():
            self._drop(self.target, names)

    def drop_indexes(self, target: Side) -> None:
        """Drop the copied index tables, then the saved locations of their followers."""
        for names in (*(target.incoming[table] for table in index_tables(target.incoming)), target.saved_locations):
            if names:
                self._drop(self.target, names)

    def _drop(self, connection: Connection, names: Sequence[str]) -> None:
        for name in names:
            connection.execute(sql.drop_table(self.database, name))
