"""Sizes of tables on disk, free disk space, and page layouts, as reported by the servers."""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from schemaless.base.type_variables import T
from schemaless.errors import AccessDenied, InvalidInput
from schemaless.planning.sampling.lsm_sizes import in_myrocks, lsm_layout, lsm_sizes, other_lsm_sizes
from schemaless.planning.sampling.page_model import MARIADB, MYSQL_COPIED, PAGE_BYTES, Layout
from schemaless.planning.sampling.sql import (
    SELECT_DATA_FOLDER,
    SELECT_PAGE_LAYOUT,
    SELECT_REBUILD_LOG_BYTES,
    analyze_cells,
    select_other_tablespaces,
    select_table_lengths,
    select_tablespaces,
)
from schemaless.schema.engines import INNODB, ROCKSDB
from schemaless.schema.sql import select_tables_elsewhere
from schemaless.store.cells.sql import FRESH_STATISTICS
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of a table's tablespace.

    Attributes:
        file_bytes: apparent size of its file.
        allocated_bytes: space that the file system has allocated for it.
        measured: False if the account cannot read these; both are then sums of InnoDB's statistics, which omit a few MB
            and may be outdated.
    """

    file_bytes: int
    allocated_bytes: int
    measured: bool = True

    def __add__(self, other: TableSize) -> TableSize:
        return TableSize(
            self.file_bytes + other.file_bytes,
            self.allocated_bytes + other.allocated_bytes,
            self.measured and other.measured,
        )


def cell_table_sizes(pool: NodePool, databases: Sequence[str]) -> dict[str, TableSize]:
    """Return the size of each shard database's ``cell`` table.

    Args:
        pool: pool of the databases' server.
        databases: names of the databases; the result omits those that do not exist.

    Raises:
        AccessDenied: the account lacks the PROCESS privilege, which InnoDB requires for this.
    """
    return _by_database(pool, databases, _tablespaces)


def other_table_sizes(pool: NodePool, databases: Sequence[str]) -> dict[str, TableSize]:
    """Return the sizes of all tables other than ``cell`` by name, summed over these shards.

    They include followers' tables, index tables and leftovers of moves.

    Args:
        pool: pool of the databases' server.
        databases: names of the shards' databases.

    Raises:
        AccessDenied: the account lacks the PROCESS privilege, which InnoDB requires for this.
    """
    sizes: dict[str, TableSize] = {}

    def ask(connection: Connection, databases: Sequence[str]) -> dict[str, TableSize]:
        rows = connection.rows(select_other_tablespaces(databases, mariadb=connection.is_mariadb))
        found = {str(name): TableSize(int(size), int(allocated)) for name, size, allocated in rows}
        for name, stored in other_lsm_sizes(connection, databases).items():
            found[name] = TableSize(stored, stored) + found.get(name, TableSize(0, 0))
        return found

    for part in _in_parts(pool, databases, ask):
        sizes |= {name: size + sizes.get(name, TableSize(0, 0)) for name, size in part.items()}
    return sizes


def tables_elsewhere(pool: NodePool, databases: Sequence[str], engine: str) -> list[tuple[str, str, int]]:
    """Return the tables of cells and index entries that are not in their cluster's storage engine.

    Args:
        pool: pool of the databases' server.
        databases: names of the shards' databases.
        engine: storage engine that the catalog records.

    Returns:
        The name, engine and number of shards of each such table; an empty list on MySQL, which is not queried.
    """

    def ask(connection: Connection, databases: Sequence[str]) -> list[tuple[str, str, int]]:
        rows = connection.rows(select_tables_elsewhere(databases, engine)) if connection.is_mariadb else ()
        return [(str(table), str(found), int(shards)) for table, found, shards in rows]

    counts: Counter[tuple[str, str]] = Counter()
    for part in _in_parts(pool, databases, ask):
        counts.update({(table, found): shards for table, found, shards in part})
    return [(table, found, shards) for (table, found), shards in sorted(counts.items())]


def known_table_sizes(pool: NodePool, databases: Sequence[str]) -> dict[str, TableSize]:
    """Return the result of ``cell_table_sizes`` or, if the account lacks the privilege, sizes from statistics."""
    try:
        return cell_table_sizes(pool, databases)
    except AccessDenied:
        return _by_database(pool, databases, functools.partial(_lengths, indexes=True, free=True))


def shard_table_sizes(store: Datastore, shards: Iterable[int]) -> dict[int, TableSize]:
    """Return the sizes of shards' ``cell`` tables by shard, without those that are unknown."""
    internals = internals_of(store)
    sizes: dict[int, TableSize] = {}
    for node, names in internals.databases_by_node(shards).items():
        known = known_table_sizes(internals.shards.pool_for(node), list(names))
        sizes |= {shard: known[name] for name, shard in names.items() if name in known}
    return sizes


def used_page_bytes(pool: NodePool, databases: Sequence[str]) -> dict[str, int]:
    """Return the bytes of the pages that each ``cell`` table uses, after recalculating InnoDB's statistics.

    This omits the space that a file keeps free for the next pages. Bodies stored outside their row are included.
    """

    def ask(connection: Connection, databases: Sequence[str]) -> dict[str, TableSize]:
        connection.rows(analyze_cells(databases))
        return _lengths(connection, databases, indexes=True)

    return {name: size.file_bytes for name, size in _by_database(pool, databases, ask).items()}


def obsolete_bytes(pool: NodePool, databases: Sequence[str]) -> int:
    """Return the estimated size of obsolete versions of cells in MyRocks, in bytes; 0 for tables in InnoDB."""

    def ask(connection: Connection, databases: Sequence[str]) -> int:
        names = in_myrocks(connection, databases)
        return sum(size.obsolete_bytes for size in lsm_sizes(connection, names).values()) if names else 0

    return sum(_in_parts(pool, databases, ask))


def table_weights(store: Datastore, shards: Iterable[int]) -> dict[int, int]:
    """Return the estimated data length of each shard's ``cell`` table in bytes, at least 1, for weighting progress."""
    internals = internals_of(store)
    weights: dict[int, int] = {}
    for node, names in internals.databases_by_node(shards).items():
        sizes = _by_database(internals.shards.pool_for(node), list(names), _lengths)
        weights |= {shard: max(1, sizes[name].file_bytes) if name in sizes else 1 for name, shard in names.items()}
    return weights


def _by_database(pool: NodePool, databases: Sequence[str], ask: Callable[..., dict[str, T]]) -> dict[str, T]:
    return {name: answer for part in _in_parts(pool, databases, ask) for name, answer in part.items()}


def _in_parts(pool: NodePool, databases: Sequence[str], ask: Callable[..., T]) -> Iterator[T]:
    for start in range(0, len(databases), _AT_ONCE):
        yield pool.run(functools.partial(ask, databases=databases[start : start + _AT_ONCE]))


def _tablespaces(connection: Connection, databases: Sequence[str]) -> dict[str, TableSize]:
    rows = connection.rows(select_tablespaces(databases, mariadb=connection.is_mariadb))
    sizes = {str(name).partition("/")[0]: TableSize(int(size), int(allocated)) for name, size, allocated in rows}
    return sizes | _in_myrocks(connection, [name for name in databases if name not in sizes])


def _lengths(connection: Connection, databases: Sequence[str], **parts: bool) -> dict[str, TableSize]:
    """Return sizes from the server's statistics; MySQL caches these for up to a day unless asked not to."""
    if not connection.is_mariadb:
        connection.ensure(FRESH_STATISTICS)
    rows = connection.rows(select_table_lengths(databases, **parts))
    sizes = {str(name): TableSize(int(size), int(size), measured=False) for name, size in rows if size is not None}
    return sizes | _in_myrocks(connection, databases)


def _in_myrocks(connection: Connection, databases: Sequence[str]) -> dict[str, TableSize]:
    """Return the sizes of the tables that are in MyRocks, whose own table statistics are useless."""
    names = in_myrocks(connection, databases) if databases else []
    if not names:
        return {}
    sizes = lsm_sizes(connection, names).items()
    return {name: TableSize(size.stored_bytes, size.stored_bytes) for name, size in sizes}


def layout_of(pool: NodePool, engine: str = INNODB.name) -> Layout:
    """Return how a server's storage engine lays out rebuilt cells: its pages, or how its blocks are compressed.

    Raises:
        InvalidInput: the server's pages do not have InnoDB's default size.
    """

    def operation(connection: Connection) -> Layout:
        if engine == ROCKSDB.name:
            return lsm_layout(connection)
        page_bytes, fill_factor = connection.rows(SELECT_PAGE_LAYOUT)[0]
        if int(page_bytes) != PAGE_BYTES:
            raise InvalidInput(
                f"{connection.node} has pages of {page_bytes} bytes (innodb_page_size), but sizes can be predicted "
                f"only for pages of {PAGE_BYTES} bytes"
            )
        return replace(MARIADB, fill_factor=int(fill_factor)) if connection.is_mariadb else MYSQL_COPIED

    return pool.run(operation)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The file system of a server's data folder.

    Attributes:
        total_bytes: size of the file system.
        free_bytes: free space for unprivileged users.
        used_bytes: used space; with ``free_bytes`` less than ``total_bytes``, of which some may be reserved.
    """

    total_bytes: int
    free_bytes: int
    used_bytes: int


def disk_space_of(pool: NodePool, database: str) -> DiskSpace | None:
    """Return the size and free space of the disk that a server's database is on, or None if they cannot be read.

    Requires what ``database_folder`` does.
    """
    if pool.node.socket is None:
        return None
    folder = pool.run(lambda connection: database_folder(connection, database))
    return None if folder is None else disk_space_in(folder)


def database_folder(connection: Connection, database: str) -> Path | None:
    """Return the folder of a database on a server that is connected through its socket; None if it cannot be seen.

    The folder's path alone does not prove that the server is on this machine, because any machine may have this path.
    """
    folder = Path(str(connection.rows(SELECT_DATA_FOLDER)[0][0]), database)
    try:
        return folder if folder.is_dir() else None
    except OSError:
        return None


def disk_space_in(folder: Path) -> DiskSpace | None:
    """Return the size and free space of the disk of a folder; None if they cannot be read."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return DiskSpace(usage.total, usage.free, usage.used)


def rebuild_log_bytes(pool: NodePool) -> int:
    """Return the maximum size of a server's log of writes to a table that is being rebuilt, in bytes."""
    return pool.run(lambda connection: int(connection.rows(SELECT_REBUILD_LOG_BYTES)[0][0]))
