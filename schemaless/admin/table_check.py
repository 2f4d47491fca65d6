"""Whether a shard's tables beside its cells are as the catalog has them: followers, parked cells, and indexes.

By what the server says of its tables and by the rows of followers, so it costs little. What is found is looked at a
second time, behind another reading of the catalog: followers and indexes come and go meanwhile. What entries say is
compared with rows by ``feed/index_check.py``.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemaless.cell import CellKey
from schemaless.cells.sql import select_nothing
from schemaless.datastore import Datastore
from schemaless.errors import AccessDenied, ShardIdentityMismatch, ShardMoving
from schemaless.events import Advanced, Event, Listener, Total, nobody
from schemaless.followers import sql as followers_sql
from schemaless.followers.settings import NEW, Setting, Settings
from schemaless.indexes import sql
from schemaless.indexes.registry import BACKFILLING, READY, IndexEntry
from schemaless.internals import internals_of
from schemaless.triggers.declaration import is_trigger, trigger_name
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing

_CLOCKS_DIFFER_S: Final = 60.0
"""A row may have been made by the clock of another server, from which its shard was moved."""

_WIDTH: Final = re.compile(r"(int)\(\d+\)", re.IGNORECASE)
"""MariaDB says how wide a number is printed, and MySQL does no more."""

_SEEN_BY_FEW: Final = "alembic_version"
"""Who may see this table may see all of a shard's."""

UNKNOWN_TABLES: Final = "index_*"
"""It stands for tables of indexes that no definition has, where those may not be seen."""


@dataclass(frozen=True, slots=True)
class TableFault(Event):
    """A table that is not as the catalog has it, or something in it.

    Attributes:
        kind: ``LocationLost``, ``SchemaMismatch`` and others that calls raise, or a name of its own.
        shard: its number; None where it is about the catalog.
        server: the one that the shard is on.
        table: what it is called.
        name: of the follower or the index that it is about, as the catalog or the table has it.
        message: what is wrong, and what to do next.
        key: the parked cell; None where it is about none.
        added_id: of the parked cell.
    """

    kind: str
    shard: int | None
    server: str
    table: str
    name: str
    message: str
    key: CellKey | None = None
    added_id: int | None = None

    def __str__(self) -> str:
        where = "" if self.shard is None else f"shard {self.shard}, "
        cell = "" if self.key is None else f", cell {self.key}"
        return f"{self.kind}: {where}table {self.table} on {self.server}{cell}: {self.message}"

    @property
    def about(self) -> tuple[object, ...]:
        """What tells it from others of its shard."""
        return self.kind, self.table, self.name, self.added_id


@dataclass(frozen=True, slots=True)
class Unseen:
    """Tables that the account may not see.

    Attributes:
        table: what they are called; ``index_*`` for those of indexes that no definition has.
        shards: in how many shards.
        message: why, and what to do about it.
    """

    server: str
    table: str
    shards: int
    message: str


@dataclass(slots=True)
class TableProof:
    """What was looked at, and found.

    Attributes:
        followers: how many the catalog has.
        indexes: how many the catalog has.
        locations: rows of followers.
        parked_cells: those that were looked for in their shard.
        index_tables: those that were compared with their definition.
        unseen: what the account may not see.
        faults: how many of each kind.
    """

    followers: int = 0
    indexes: int = 0
    shards: int = 0
    locations: int = 0
    parked_cells: int = 0
    index_tables: int = 0
    unseen: list[Unseen] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the catalog has."""

    followers: Mapping[str, Setting]
    indexes: Mapping[int, IndexEntry]

    @property
    def kept(self) -> list[IndexEntry]:
        """The indexes whose tables are complete in every shard."""
        return [entry for entry in self.indexes.values() if entry.state in (BACKFILLING, READY)]

    @property
    def placed(self) -> set[str]:
        """The followers that have a row in every shard."""
        kept = {entry.follower for entry in self.kept}
        return {
            name
            for name, setting in self.followers.items()
            if setting.wanted != NEW and (is_trigger(name) or name in kept)
        }


@dataclass(slots=True)
class _Look:
    faults: list[TableFault] = field(default_factory=list)
    unseen: dict[tuple[str, str], str] = field(default_factory=dict)
    locations: int = 0
    parked_cells: int = 0
    index_tables: int = 0


class TableCheck:
    """A check of a datastore's tables; changes nothing.

    Args:
        store: open with any account; what it may not see is told in the result.
    """

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._known = self._read()

    def run(self, shards: Sequence[int], listener: Listener = nobody) -> TableProof:
        """Hold the tables of followers and indexes of some shards against the catalog.

        Args:
            shards: their numbers.
            listener: told each ``TableFault``, and each shard.

        Raises:
            ServerError: a server cannot be reached.
        """
        proof = TableProof(len(self._known.followers), len(self._known.indexes), len(shards))
        unseen: Counter[tuple[str, str]] = Counter()
        why: dict[tuple[str, str], str] = {}
        listener(Total(len(shards)))

        def tell(faults: Iterable[TableFault]) -> None:
            for fault in faults:
                proof.faults[fault.kind] += 1
                listener(fault)

        tell(self._twice(self._unkept))
        for shard in shards:
            look = _Look()

            def again(shard: int = shard) -> list[TableFault]:
                nonlocal look
                look = self._look(shard)
                return look.faults

            tell(self._twice(again))
            proof.locations += look.locations
            proof.parked_cells += look.parked_cells
            proof.index_tables += look.index_tables
            unseen.update(look.unseen.keys())
            why = look.unseen | why
            listener(Advanced(1))
        proof.unseen = [Unseen(*place, count, why[place]) for place, count in sorted(unseen.items())]
        return proof

    def _read(self) -> _Known:
        followers = Settings(self._store).all()
        return _Known(followers, {entry.number: entry for entry in self._internals.registry.read()})

    def _twice(self, look: Callable[[], Sequence[TableFault]]) -> list[TableFault]:
        """Return the faults that are there again once the catalog was read anew."""
        first = {fault.about for fault in look()}
        if not first:
            return []
        self._known = self._read()
        return [fault for fault in look() if fault.about in first]

    def _unkept(self) -> list[TableFault]:
        server = str(self._internals.catalog.node)
        return [
            TableFault(
                "FollowerMissing",
                None,
                server,
                "follower_setting",
                entry.follower,
                f"the catalog has no follower {entry.follower} for index {entry.name}, so no worker keeps it; "
                + _drop_and_create(entry),
            )
            for entry in self._known.kept
            if entry.follower not in self._known.followers
        ]

    def _look(self, shard: int) -> _Look:
        database = self._shards.database(shard)
        there = select_nothing(database)

        def look(connection: Connection) -> _Look:
            # Before and behind: what is not here may be on its way elsewhere.
            connection.execute(there)
            looked = _Shard(self._known, shard, database, connection).look()
            connection.execute(there)
            return looked

        try:
            return self._shards.run(shard, look)
        except (ShardIdentityMismatch, ShardMoving, DatabaseMissing) as error:
            server = str(self._shards.node_of(shard))
            return _Look([TableFault(type(error).__name__, shard, server, "cell", database, str(error))])


class _Shard:
    """One look at one shard."""

    def __init__(self, known: _Known, shard: int, database: str, connection: Connection) -> None:
        self._known = known
        self._shard = shard
        self._database = database
        self._connection = connection
        self._looked = _Look()

    def look(self) -> _Look:
        self._locations()
        self._parked()
        self._indexes()
        return self._looked

    def _locations(self) -> None:
        rows = self._rows("follower", followers_sql.select_every_location(self._database, _CLOCKS_DIFFER_S))
        if rows is None:
            return
        self._looked.locations = len(rows)
        for name in sorted(self._known.placed - {str(row[0]) for row in rows}):
            self._fault("FollowerMissing", "follower", name, f"{self._called(name)} has no row here, {_remade(name)}")
        for name, location, top, early in rows:
            called = self._called(str(name))
            if name not in self._known.followers:
                self._unknown("follower", str(name))
                continue
            if int(location) > int(top or 0):
                self._fault(
                    "LocationLost",
                    "follower",
                    str(name),
                    f"{called} is at {location}, and the shard's last added_id is {top or 0}: were cells lost by a "
                    f"failover, or is it a backup's? {self._set_back(str(name), int(top or 0))}",
                )
            if early:
                self._fault(
                    "EpochAhead",
                    "follower",
                    str(name),
                    f"the epoch of {called} is ahead of this server's clock, so a row made anew could be behind a "
                    "worker that was given up; set the clock right, or, with no worker running, remove the follower "
                    "and make it again",
                )

    def _parked(self) -> None:
        rows = self._rows("parked", followers_sql.select_every_parked(self._database))
        if rows is None:
            return
        self._looked.parked_cells = len(rows)
        for name in sorted({str(row[0]) for row in rows} - self._known.followers.keys()):
            self._unknown("parked", name)
        for name, added_id, row_key, column_name, ref_key, there in rows:
            if there or name not in self._known.followers:
                continue
            trigger = trigger_name(str(name)) if is_trigger(str(name)) else str(name)
            self._fault(
                "ParkedCellMissing",
                "parked",
                str(name),
                f"it is parked for {self._called(str(name))} as added_id {added_id}, and the shard has no such cell: "
                f"did a failover lose it? 'schemaless trigger skip {trigger} --shards {self._shard} --added-id "
                f"{added_id} --execute' forgets it",
                CellKey(uuid.UUID(bytes=bytes(row_key)), str(column_name), int(ref_key)),
                int(added_id),
            )

    def _indexes(self) -> None:
        rows = self._connection.rows(sql.select_tables(self._database))
        comments = {str(name): str(comment) for name, comment in rows}
        columns: dict[str, list[tuple[str, str, bool]]] = {}
        for table, column, kind, nullable in self._connection.rows(sql.select_index_columns(self._database)):
            kind = _WIDTH.sub(r"\1", str(kind)).upper()
            columns.setdefault(str(table), []).append((str(column), kind, nullable == "YES"))
        keys: dict[str, dict[str, list[str]]] = {}
        for table, key, column in self._connection.rows(sql.select_index_keys(self._database)):
            keys.setdefault(str(table), {}).setdefault(str(key), []).append(str(column))
        for entry in self._known.kept:
            table = entry.layout.table
            if table not in comments:
                self._missing(entry)
                continue
            self._looked.index_tables += 1
            differs = list(_differences(entry, comments[table], columns.get(table, []), keys.get(table, {})))
            if differs:
                self._fault(
                    "SchemaMismatch",
                    table,
                    entry.follower,
                    f"it is not what the definition of index {entry.name} makes: {'; '.join(differs)}. "
                    + _drop_and_create(entry),
                )
        for table in sorted(comments):
            number = sql.INDEX_TABLE.fullmatch(table)
            if number is not None and int(number[1]) not in self._known.indexes:
                self._fault(
                    "IndexTableUnknown",
                    table,
                    f"index:{number[1]}",
                    "the catalog has no such index, so nobody keeps or reads this table; if nobody needs it, DROP "
                    f"TABLE `{self._database}`.{table}",
                )
        if _SEEN_BY_FEW not in comments:
            self._unseen(
                UNKNOWN_TABLES,
                "the account sees only tables that it has privileges on, so none that nobody knows; an account with "
                "the role admin sees all",
            )

    def _missing(self, entry: IndexEntry) -> None:
        table = entry.layout.table
        try:
            self._connection.execute(sql.select_no_entry(self._database, table))
        except AccessDenied as error:
            self._unseen(table, error.message)
        except DatabaseMissing:
            message = f"the table of index {entry.name} is not there; {_drop_and_create(entry)}"
            self._fault("IndexTableMissing", table, entry.follower, message)

    def _rows(self, table: str, statement: bytes) -> Any:
        """Return rows of a table that every shard has; None where it is not to be read."""
        try:
            return self._connection.rows(statement)
        except AccessDenied as error:
            self._unseen(table, error.message)
        except DatabaseMissing as error:
            self._fault(
                "DatabaseMissing",
                table,
                self._database,
                f"{error.message}; restore the table from a backup: no worker and no move can use the shard until then",
            )
        return None

    def _unknown(self, table: str, name: str) -> None:
        self._fault(
            "FollowerUnknown",
            table,
            name,
            f"it has rows of {self._called(name)}, which the catalog does not have: was it restored from an earlier "
            f"backup? If nobody needs them, delete the rows with the name {name!r} from `{self._database}`.{table}",
        )

    def _called(self, name: str) -> str:
        if is_trigger(name):
            return f"trigger {trigger_name(name)}"
        for entry in self._known.indexes.values():
            if entry.follower == name:
                return f"index {entry.name} ({entry.number})"
        return f"follower {name}"

    def _set_back(self, name: str, top: int) -> str:
        if is_trigger(name):
            return (
                f"'schemaless trigger reset {trigger_name(name)} --shards {self._shard} --location {top} --execute' "
                "has it continue there, and a lower location has it called again for cells"
            )
        entry = next((other for other in self._known.indexes.values() if other.follower == name), None)
        index = name if entry is None else entry.name
        return (
            f"With no worker running, delete the row with the name {name!r} from `{self._database}`.follower; "
            f"'schemaless index create' with the fields of {index} makes it anew, workers go over the shard again, and "
            f"'schemaless index check {index}' finds what is left"
        )

    def _unseen(self, table: str, message: str) -> None:
        self._looked.unseen[self._connection.node, table] = message

    def _fault(
        self, kind: str, table: str, name: str, message: str, key: CellKey | None = None, added_id: int | None = None
    ) -> None:
        self._looked.faults.append(
            TableFault(kind, self._shard, self._connection.node, table, name, message, key, added_id)
        )


def _differences(
    entry: IndexEntry, comment: str, columns: Sequence[tuple[str, str, bool]], keys: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    if comment != entry.definition.digest:
        yield "its comment is the digest of another definition"
    wanted = sql.columns_of(entry.layout)
    if list(columns) != wanted:
        shown = ", ".join(" ".join(column[:2]) for column in columns if column not in wanted)
        lacks = ", ".join(" ".join(column[:2]) for column in wanted if column not in columns)
        yield f"columns that it should not have: {shown or 'none'}, and that it lacks: {lacks or 'none'}"
    for key, names in sql.keys_of(entry.layout).items():
        if keys.get(key) != names:
            yield f"its key {key} is of {', '.join(keys.get(key, ())) or 'no column'}, not of {', '.join(names)}"


def _remade(name: str) -> str:
    if is_trigger(name):
        trigger = trigger_name(name)
        return (
            f"so it is not called for the shard's cells; 'schemaless trigger remove {trigger} --execute', then "
            "'schemaless trigger run' make it anew"
        )
    return (
        "so nobody keeps the entries of the shard's rows; 'schemaless index create' with the same fields makes one, "
        "and workers go over the shard again"
    )


def _drop_and_create(entry: IndexEntry) -> str:
    return f"'schemaless index drop {entry.name} --number {entry.number} --execute', then create the index again"
