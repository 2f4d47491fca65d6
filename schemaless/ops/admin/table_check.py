"""Checks each shard's followers, parked cells, index tables and storage engines against the catalog.

It also looks for tables of cells on servers that should not have them.

The check reads table definitions and follower rows, so it is cheap. Every fault is verified after reading the catalog
again, because followers and indexes may be created or removed during the check. ``store/indexes/check.py`` compares
index entries with rows.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemaless.base.events import Advanced, Event, Listener, Total, ignore_events
from schemaless.cell import CellKey
from schemaless.errors import AccessDenied, ServerError, ShardIdentityMismatch, ShardMoving
from schemaless.schema.sql import select_tables_elsewhere
from schemaless.store.cells.sql import select_nothing
from schemaless.store.datastore import Datastore
from schemaless.store.followers import sql as followers_sql
from schemaless.store.followers.settings import NEW, Setting, Settings
from schemaless.store.indexes import sql
from schemaless.store.indexes.registry import BACKFILLING, READY, IndexEntry
from schemaless.store.internals import internals_of
from schemaless.store.triggers.declaration import is_trigger, trigger_name
from schemaless.topology.model import Cluster
from schemaless.topology.moves import stray_tables, strays_text
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing

_CLOCKS_DIFFER_S: Final = 60.0
"""Tolerated clock difference, in seconds: a row's time may come from another server, before a move."""

_WIDTH: Final = re.compile(r"(int)\(\d+\)", re.IGNORECASE)
"""Display width of integer types, which MariaDB reports and current MySQL versions do not."""

_MARKER_TABLE: Final = "alembic_version"
"""Table that an account can see only if it can see all tables of a shard."""

UNKNOWN_TABLES: Final = "index_*"
"""Placeholder for index tables that are not in the catalog and that the account cannot see."""


@dataclass(frozen=True, slots=True)
class TableFault(Event):
    """A table or row that contradicts the catalog.

    Attributes:
        kind: kind of fault: an error class such as ``LocationLost``, or another name such as ``FollowerMissing``.
        shard: number of the shard; None for the catalog.
        server: address of the shard's server.
        table: name of the table.
        name: name of the follower or index, as in the catalog or the table.
        message: the fault and the next step.
        key: key of the parked cell, or None.
        added_id: added_id of the parked cell, or None.
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
        """Identity of the fault within its shard."""
        return self.kind, self.table, self.name, self.added_id


@dataclass(frozen=True, slots=True)
class Unseen:
    """A table that the account cannot read.

    Attributes:
        server: address of the server.
        table: name of the table; ``index_*`` stands for index tables without a definition.
        shards: number of affected shards.
        message: the reason, and what to do about it.
    """

    server: str
    table: str
    shards: int
    message: str


@dataclass(slots=True)
class TableCheckReport:
    """Result of a check.

    Attributes:
        followers: number of followers in the catalog.
        indexes: number of indexes in the catalog.
        shards: number of checked shards.
        locations: number of checked follower rows.
        parked_cells: number of parked cells that were looked up in their shard.
        index_tables: number of index tables that were compared with their definition.
        unseen: tables that the account cannot read.
        faults: number of faults by kind.
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
class _CatalogState:
    followers: Mapping[str, Setting]
    indexes: Mapping[int, IndexEntry]

    @property
    def kept(self) -> list[IndexEntry]:
        """Indexes that should have a table in every shard."""
        return [entry for entry in self.indexes.values() if entry.state in (BACKFILLING, READY)]

    @property
    def placed(self) -> set[str]:
        """Followers that should have a row in every shard."""
        kept = {entry.follower for entry in self.kept}
        return {
            name
            for name, setting in self.followers.items()
            if setting.desired_state != NEW and (is_trigger(name) or name in kept)
        }


class TableCheck:
    """Read-only check of a datastore's follower and index tables.

    Args:
        store: the datastore, with any account; the result lists tables that the account cannot read.
    """

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._catalog = self._read()

    def run(self, shards: Sequence[int], listener: Listener = ignore_events) -> TableCheckReport:
        """Check the follower and index tables of some shards against the catalog.

        Args:
            shards: numbers of the shards.
            listener: receives the total, each ``TableFault`` and progress events, in shards.

        Raises:
            ServerError: a server cannot be reached.
        """
        report = TableCheckReport(len(self._catalog.followers), len(self._catalog.indexes), len(shards))
        unseen: Counter[tuple[str, str]] = Counter()
        reasons: dict[tuple[str, str], str] = {}
        listener(Total(len(shards)))

        def add(faults: Iterable[TableFault]) -> None:
            for fault in faults:
                report.faults[fault.kind] += 1
                listener(fault)

        add(self._confirmed(self._indexes_without_follower))
        report.unseen += self._strays(set(shards), add)
        for shard in shards:
            checks: list[_ShardCheck] = []

            def check(shard: int = shard, checks: list[_ShardCheck] = checks) -> list[TableFault]:
                checks.append(self._check(shard))
                return checks[-1].faults

            add(self._confirmed(check))
            report.locations += checks[-1].locations
            report.parked_cells += checks[-1].parked_cells
            report.index_tables += checks[-1].index_tables
            unseen.update(checks[-1].unseen.keys())
            reasons = checks[-1].unseen | reasons
            listener(Advanced(1))
        report.unseen += (Unseen(*place, count, reasons[place]) for place, count in sorted(unseen.items()))
        return report

    def _read(self) -> _CatalogState:
        followers = Settings(self._internals.follower_access).all()
        return _CatalogState(followers, {entry.number: entry for entry in self._internals.registry.read()})

    def _confirmed(self, check: Callable[[], Sequence[TableFault]]) -> list[TableFault]:
        """Return the faults that a second check, after reading the catalog again, also finds."""
        first = {fault.about for fault in check()}
        if not first:
            return []
        self._catalog = self._read()
        return [fault for fault in check() if fault.about in first]

    def _indexes_without_follower(self) -> list[TableFault]:
        server = str(self._internals.catalog.node)
        return [
            TableFault(
                "FollowerMissing",
                None,
                server,
                "follower_setting",
                entry.follower,
                f"the catalog has no follower {entry.follower} for index {entry.name}, so no worker updates it; run "
                + _drop_and_create(entry),
            )
            for entry in self._catalog.kept
            if entry.follower not in self._catalog.followers
        ]

    def _strays(self, shards: Collection[int], report: Callable[[Iterable[TableFault]], None]) -> list[Unseen]:
        """Report tables of cells on servers that should not have them; return the servers that cannot be read."""
        unread = []
        for cluster in self._shards.topology.clusters:
            for node in cluster.nodes:
                pool_of = self._shards.pool_for
                try:
                    found = stray_tables(self._internals.catalog, self._store.name, pool_of, cluster, node)
                except ServerError as error:
                    unread.append(Unseen(str(node), "cell", len(shards), str(error)))
                    continue
                report(
                    TableFault("StrayTable", table.shard, str(node), table.name, table.database, text)
                    for table, text in ((table, strays_text([table], node.role)) for table in found)
                    if table.shard in shards
                )
        return unread

    def _check(self, shard: int) -> _ShardCheck:
        shards = self._shards
        check = _ShardCheck(self._catalog, shard, shards.database(shard), shards.topology.cluster_of(shard))
        try:
            shards.run(shard, check.run)
        except (ShardIdentityMismatch, ShardMoving, DatabaseMissing) as error:
            check.clear()
            server, database = str(shards.node_of(shard)), shards.database(shard)
            check.faults.append(TableFault(type(error).__name__, shard, server, "cell", database, str(error)))
        return check


class _ShardCheck:
    """Check of one shard.

    Attributes:
        faults: faults found.
        unseen: reasons for tables that the account cannot read, by server and table.
        locations: number of checked follower rows.
        parked_cells: number of parked cells that were looked up.
        index_tables: number of index tables that were compared with their definition.
    """

    def __init__(self, catalog: _CatalogState, shard: int, database: str, cluster: Cluster) -> None:
        self._catalog = catalog
        self._shard = shard
        self._database = database
        self._cluster = cluster
        self.clear()

    def clear(self) -> None:
        self.faults: list[TableFault] = []
        self.unseen: dict[tuple[str, str], str] = {}
        self.locations = self.parked_cells = self.index_tables = 0

    def run(self, connection: Connection) -> None:
        """Check the shard on a connection to its primary; safe to repeat."""
        self.clear()
        self._connection = connection
        # The probe before and after fails if the shard is being moved, whose missing tables are no faults.
        connection.execute(select_nothing(self._database))
        self._locations()
        self._parked()
        self._indexes()
        self._engines()
        connection.execute(select_nothing(self._database))

    def _locations(self) -> None:
        rows = self._rows("follower", followers_sql.select_every_location(self._database, _CLOCKS_DIFFER_S))
        if rows is None:
            return
        self.locations = len(rows)
        for name in sorted(self._catalog.placed - {str(row[0]) for row in rows}):
            self._fault(
                "FollowerMissing", "follower", name, f"{self._described(name)} has no row here, {_recreation(name)}"
            )
        for name, location, top, early in rows:
            described = self._described(str(name))
            if name not in self._catalog.followers:
                self._unknown("follower", str(name))
                continue
            if int(location) > int(top or 0):
                self._fault(
                    "LocationLost",
                    "follower",
                    str(name),
                    f"the location of {described} is {location}, but the shard's last added_id is {top or 0}: did a "
                    "failover lose cells, or was the shard restored from a backup? "
                    + self._rewinding(str(name), int(top or 0)),
                )
            if early:
                self._fault(
                    "EpochAhead",
                    "follower",
                    str(name),
                    f"the epoch of {described} is ahead of this server's clock, so the epoch of a new row could be "
                    "below that of a worker that lost its lease; correct the clock, or remove the follower and create "
                    "it again while no worker is running",
                )

    def _parked(self) -> None:
        rows = self._rows("parked", followers_sql.select_every_parked(self._database))
        if rows is None:
            return
        self.parked_cells = len(rows)
        for name in sorted({str(row[0]) for row in rows} - self._catalog.followers.keys()):
            self._unknown("parked", name)
        for name, added_id, row_key, column_name, ref_key, there in rows:
            if there or name not in self._catalog.followers:
                continue
            trigger = trigger_name(str(name)) if is_trigger(str(name)) else str(name)
            self._fault(
                "ParkedCellMissing",
                "parked",
                str(name),
                f"it is parked for {self._described(str(name))} as added_id {added_id}, but the shard has no such "
                f"cell: did a failover lose it? Discard the parked cell with 'schemaless trigger skip {trigger} "
                f"--shards {self._shard} --added-id {added_id} --execute'",
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
        for entry in self._catalog.kept:
            table = entry.layout.table
            if table not in comments:
                self._missing(entry)
                continue
            self.index_tables += 1
            differs = list(_differences(entry, comments[table], columns.get(table, []), keys.get(table, {})))
            if differs:
                self._fault(
                    "SchemaMismatch",
                    table,
                    entry.follower,
                    f"it does not match the definition of index {entry.name}: {'; '.join(differs)}. Run "
                    + _drop_and_create(entry),
                )
        for table in sorted(comments):
            number = sql.INDEX_TABLE.fullmatch(table)
            if number is not None and int(number[1]) not in self._catalog.indexes:
                self._fault(
                    "IndexTableUnknown",
                    table,
                    f"index:{number[1]}",
                    "the catalog has no such index, so this table is neither updated nor read; if it is not needed, "
                    f"DROP TABLE `{self._database}`.{table}",
                )
        if _MARKER_TABLE not in comments:
            self._unseen(
                UNKNOWN_TABLES,
                "the account sees only tables that it has privileges on, and therefore no unknown index tables; an "
                "account with the role admin sees all tables",
            )

    def _engines(self) -> None:
        if not self._connection.is_mariadb:
            return
        statement = select_tables_elsewhere([self._database], self._cluster.engine)
        by_table = {entry.layout.table: entry for entry in self._catalog.kept}
        for name, found, _ in self._connection.rows(statement):
            entry = by_table.get(str(name))
            rebuild = "" if entry is None else f"'schemaless index rebuild {entry.name} --execute' or "
            self._fault(
                "EngineMismatch",
                str(name),
                self._database if entry is None else entry.follower,
                f"it uses the storage engine {found}, but the catalog records {self._cluster.engine} for "
                f"{self._cluster.name}. It can still be used; {rebuild}a move of the shard converts it",
            )

    def _missing(self, entry: IndexEntry) -> None:
        table = entry.layout.table
        try:
            self._connection.execute(sql.select_no_entry(self._database, table))
        except AccessDenied as error:
            self._unseen(table, error.message)
        except DatabaseMissing:
            message = f"the table of index {entry.name} is missing; run {_drop_and_create(entry)}"
            self._fault("IndexTableMissing", table, entry.follower, message)

    def _rows(self, table: str, statement: bytes) -> Any:
        """Return rows of a table that every shard has; record a fault and return None if it cannot be read."""
        try:
            return self._connection.rows(statement)
        except AccessDenied as error:
            self._unseen(table, error.message)
        except DatabaseMissing as error:
            self._fault(
                "DatabaseMissing",
                table,
                self._database,
                f"{error.message}; restore the table from a backup: until then, neither workers nor moves can use the "
                "shard",
            )
        return None

    def _unknown(self, table: str, name: str) -> None:
        self._fault(
            "FollowerUnknown",
            table,
            name,
            f"it has rows of {self._described(name)}, which is not in the catalog: was the catalog restored from an "
            f"older backup? If they are not needed, delete the rows with the name {name!r} from "
            f"`{self._database}`.{table}",
        )

    def _described(self, name: str) -> str:
        if is_trigger(name):
            return f"trigger {trigger_name(name)}"
        for entry in self._catalog.indexes.values():
            if entry.follower == name:
                return f"index {entry.name} ({entry.number})"
        return f"follower {name}"

    def _rewinding(self, name: str, top: int) -> str:
        if is_trigger(name):
            return (
                f"'schemaless trigger reset {trigger_name(name)} --shards {self._shard} --location {top} --execute' "
                "lets it continue from the last cell; with a lower --location, the trigger is called again for the "
                "cells after that"
            )
        entry = next((other for other in self._catalog.indexes.values() if other.follower == name), None)
        index = name if entry is None else entry.name
        return (
            f"While no worker is running, delete the row with the name {name!r} from `{self._database}`.follower, and "
            f"run 'schemaless index create' with the fields of {index} to create it again. Workers then process the "
            f"whole shard again, and 'schemaless index check {index}' finds entries that are still wrong"
        )

    def _unseen(self, table: str, message: str) -> None:
        self.unseen[self._connection.node, table] = message

    def _fault(
        self, kind: str, table: str, name: str, message: str, key: CellKey | None = None, added_id: int | None = None
    ) -> None:
        self.faults.append(TableFault(kind, self._shard, self._connection.node, table, name, message, key, added_id))


def _differences(
    entry: IndexEntry, comment: str, columns: Sequence[tuple[str, str, bool]], keys: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    if comment != entry.definition.digest:
        yield "its comment is the digest of a different definition"
    wanted = sql.columns_of(entry.layout)
    if list(columns) != wanted:
        shown = ", ".join(" ".join(column[:2]) for column in columns if column not in wanted)
        lacks = ", ".join(" ".join(column[:2]) for column in wanted if column not in columns)
        differences = f"unexpected columns: {shown or 'none'}, missing columns: {lacks or 'none'}"
        yield f"its columns differ in name, type, order or nullability ({differences})"
    for key, names in sql.keys_of(entry.layout).items():
        if keys.get(key) != names:
            actual = ", ".join(keys.get(key, ())) or "none"
            yield f"its key {key} should have the columns {', '.join(names)}, but has {actual}"


def _recreation(name: str) -> str:
    if is_trigger(name):
        trigger = trigger_name(name)
        return (
            f"so it is not called for the shard's cells; run 'schemaless trigger remove {trigger} --execute', then "
            "'schemaless trigger run' to create the row"
        )
    return (
        "so index entries of the shard's rows are not updated; run 'schemaless index create' with the same fields to "
        "create the row; workers then process the whole shard again"
    )


def _drop_and_create(entry: IndexEntry) -> str:
    return f"'schemaless index drop {entry.name} --number {entry.number} --execute', then create the index again"
