"""Generates the GRANT statements of each role, server by server; they are printed, not executed.

Privileges are granted on the tables (and one column) of each shard by name: a wildcard would include datastores whose
names begin the same way, and thousands of grants cost a server little (docs/operations.md). Privileges on whole
databases are granted only to ``admin``, which creates databases before their tables; to ``move`` and ``erase``, whose
tables may have random names; for LOCK TABLES; and on the catalog and heartbeat databases, which may get new tables. In
database names, ``_`` is a wildcard that needs a backslash, unless ``partial_revokes`` is on, which makes names literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from schemaless.base.keys import heartbeat_database, shard_database
from schemaless.errors import InvalidInput
from schemaless.ops.admin.sql import UNLOGGED, create_account
from schemaless.store.indexes.sql import index_table
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.sql.replicas import READ_FOR_THREADS
from schemaless.wire.accounts import Account
from schemaless.wire.node import Node
from schemaless.wire.sql.sessions import grant

Role = Literal["app", "tail", "follow", "migrate", "erase", "move", "measure", "admin"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)

_ON_CATALOG: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, REFERENCES"
"""Privileges of ``admin`` on the whole catalog; all other roles read it."""

_ON_SHARD: Final = "SELECT, INSERT, CREATE, ALTER, INDEX"
"""Privileges of ``admin`` on a shard's database, to create and upgrade it."""

_ON_REVISION: Final = "CREATE, UPDATE"
"""Privileges of ``admin`` on ``alembic_version``; with CREATE, MySQL accepts a grant before the table exists."""

_WRITES_CLUSTER: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE"
_ON_CLUSTER: Final[dict[Role, str]] = {
    "admin": _WRITES_CLUSTER,
    "erase": _WRITES_CLUSTER,
    "migrate": _WRITES_CLUSTER,
    "move": _WRITES_CLUSTER,
}
"""Privileges on a heartbeat database: ``admin`` and ``move`` copy dictionaries, ``erase`` and ``migrate`` measure lag.

All other roles read it, because it has the primary's claim and copies of the dictionaries.
"""

_ON_CELL: Final[dict[Role, str]] = {
    "app": "SELECT, INSERT",
    "tail": "SELECT",
    "follow": "SELECT",
    "migrate": "SELECT, UPDATE (`body`)",
    "measure": "SELECT",
}

CATALOG_WRITERS: Final[dict[str, tuple[Role, ...]]] = {
    "alembic_version": ("admin",),
    "capacity_sample": ("admin", "measure"),
    "cluster": ("admin",),
    "column_codec": ("admin",),
    "datastore": ("admin", "move"),
    "dictionary": ("admin",),
    "follower_setting": ("admin", "follow"),
    "follower_worker": ("admin", "follow"),
    "erasure": ("admin", "erase"),
    "erasure_follower": ("admin", "erase"),
    "erasure_key": ("admin", "erase"),
    "erasure_shard": ("admin", "erase"),
    "job": ("admin", "erase", "migrate", "move"),
    "job_cluster": ("admin", "erase", "migrate", "move"),
    "job_event": ("admin", "erase", "migrate", "move"),
    "job_failure": ("admin", "erase", "migrate", "move"),
    "job_shard": ("admin", "erase", "migrate", "move"),
    "legal_hold": ("admin", "erase"),
    "node": ("admin",),
    "retention_policy": ("admin", "erase"),
    "secondary_index": ("admin", "follow"),
    "shard_move": ("admin", "move"),
    "shard_range": ("admin", "move"),
}
"""Roles that write to each table of the catalog; every role reads all tables."""

_ON_WRITTEN: Final[dict[Role, str]] = {
    "follow": "INSERT, UPDATE, DELETE",
    "erase": "INSERT, UPDATE",
    "migrate": "INSERT, UPDATE",
    "move": "INSERT, UPDATE",
    "measure": "INSERT, DELETE",
}
"""Privileges of roles other than ``admin`` on the catalog tables that they write to."""

_ON_ROUTING: Final = {"datastore": "UPDATE (`topology_token`)", "shard_range": "INSERT, DELETE"}
"""Privileges of ``move`` on the catalog tables that assign shards to clusters."""

_ON_PERFORMANCE: Final[dict[Role, tuple[str, ...]]] = {
    "admin": (*READ_FOR_THREADS, "replication_group_members"),
    "measure": READ_FOR_THREADS,
    "move": ("events_transactions_current", "threads"),
}
"""Tables of MySQL's performance_schema that roles read, for replication threads, for received transactions and group
members, and for open transactions."""

_ON_MOVED: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, LOCK TABLES"
"""Privileges of ``move`` on a shard's database on all servers; no other role can drop tables of cells."""

_ON_ERASED: Final = "SELECT, UPDATE"
"""Privileges of ``erase``, on all servers, on a shard's whole database, where moves create tables with random names."""

_ON_ACCOUNTS: Final = ("tables_priv", "db")
"""Tables of the database ``mysql`` that ``move`` reads, to check that the target grants accounts the same access."""

_ON_FOLLOWERS: Final[dict[Role, str]] = {"follow": "SELECT, INSERT, UPDATE, DELETE", "measure": "SELECT"}
"""Privileges on a shard's tables ``follower`` and ``parked``."""

_ON_INDEX: Final[dict[Role, str]] = {"app": "SELECT", "follow": "SELECT, INSERT, UPDATE, DELETE", "admin": "DROP"}
"""Privileges on each existing index table; to drop an index, ``admin`` also deletes its follower's rows."""

_ON_EVERY_SERVER: Final[tuple[Role, ...]] = ("admin", "erase", "move")
"""Roles that need privileges even on clusters without shards."""

_SEES_WRITERS: Final[tuple[Role, ...]] = ("tail", "follow", "move")
"""Roles that read the change feed, and therefore need to see metadata locks."""

_SERVER_WIDE: Final[dict[Role, dict[bool, str]]] = {
    "move": {False: "PROCESS", True: "PROCESS"},
    "migrate": {
        False: "PROCESS, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN",
        True: "PROCESS, BINLOG MONITOR, BINLOG ADMIN",
    },
    "erase": {False: "PROCESS", True: "PROCESS"},
    "measure": {False: "PROCESS", True: "PROCESS, SLAVE MONITOR"},
    "admin": {False: "PROCESS", True: "PROCESS, SLAVE MONITOR"},
}
"""Optional privileges on ``*.*`` by role, for MySQL (False) and MariaDB (True).

They give access to InnoDB's history length and file sizes, and to MariaDB's replication threads, and allow the binary
log's volume to be measured and reduced.
"""

_LISTENS: Final = "REPLICATION SLAVE"
"""Optional privilege of ``follow`` for notifications from the binary log; it exposes the changes to all databases."""

_ACCOUNT = re.compile(
    r"""(?P<quote>['"`]?)(?P<name>(?!@)[^'"`\\\x00-\x1f]{1,80}?(?<!@))(?P=quote)
        (?:@(?P<host_quote>['"`]?)(?P<host>[^'"`\\@\x00-\x1f]{1,255})(?P=host_quote))?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ServerGrants:
    """Statements to run on one server.

    Attributes:
        node: the server.
        holds: description of the part of the datastore on this server.
        statements: SQL statements without semicolons.
    """

    node: Node
    holds: str
    statements: tuple[str, ...]


def parse_account(text: str) -> Account:
    """Parse an account in MySQL's notation: ``'app'@'10.0.%'``, ``app@localhost``, or ``app`` for any host.

    Raises:
        InvalidInput: the text is not an account.
    """
    account = _ACCOUNT.fullmatch(text)
    if account is None:
        raise InvalidInput(f"an account must have the form 'name'@'host', or just 'name' for any host; got {text!r}")
    return Account(account["name"], account["host"] or "%")


def grants(
    role: Role,
    account: Account,
    topology: Topology,
    catalog: Node,
    *,
    create_user: bool = False,
    replicas: bool = False,
    partial_revokes: bool = False,
    lock_tables: bool = False,
    server_wide: bool = True,
    mariadb: bool = False,
    indexes: Sequence[int] = (),
) -> list[ServerGrants]:
    """Return the statements that grant a role to an account, for each server.

    Args:
        role: ``app`` reads cells and writes new ones; ``tail`` reads cells and metadata locks; ``follow`` does the
            same, and also stores followers' locations and index entries; ``migrate`` reads cells, replaces bodies,
            stores jobs in the catalog and monitors servers; ``erase`` erases cells and keeps the ledger of erasures;
            ``move`` moves shards between servers, rebuilds their tables, and is the only role that can drop them;
            ``measure`` reads cells, file sizes and followers' locations, and stores measurements in the catalog;
            ``admin`` creates the datastore, upgrades its tables, checks replicas and changes its catalog.
        account: the account.
        topology: topology of the datastore. Except for ``admin``, all tables must exist.
        catalog: the server of the catalog.
        create_user: start with CREATE USER; the account is locked and has no password.
        replicas: include replicas, for servers that do not replicate accounts; their statements stay out of the binary
            log.
        partial_revokes: whether the servers run with ``partial_revokes``, so that database names are literal.
        lock_tables: with ``tail`` and ``follow``, grant LOCK TABLES for servers that do not show metadata locks, where
            the feed blocks writers instead.
        server_wide: include the role's optional privileges on ``*.*``.
        mariadb: whether the servers are MariaDB, where these privileges have other names.
        indexes: numbers of the indexes whose tables exist.
    """
    servers = []
    for node, holds, clusters in _servers(topology, catalog, replicas, with_empty=role in _ON_EVERY_SERVER):
        statements = [UNLOGGED] if node.role == "replica" else []
        if create_user:
            statements.append(create_account(account))
        if _same_server(node, catalog):
            statements += _of_catalog(role, topology.name, account, partial_revokes)
        if clusters:
            database = _database(heartbeat_database(topology.name), partial_revokes)
            statements.append(grant(_ON_CLUSTER.get(role, "SELECT"), f"{database}.*", account))
            for table in () if mariadb else _ON_PERFORMANCE.get(role, ()):
                statements.append(grant("SELECT", f"`performance_schema`.`{table}`", account))
        for shard, is_home in _shards(topology, clusters, everywhere=role in ("erase", "move")):
            database = shard_database(topology.name, shard)
            statements += _of_shard(role, database, account, partial_revokes, is_home=is_home)
            statements += _of_indexes(role, database, account, indexes)
            if lock_tables and role in ("tail", "follow"):
                statements.append(grant("LOCK TABLES", f"{_database(database, partial_revokes)}.*", account))
        if clusters:
            statements += _of_server(role, account)
        if server_wide:
            statements += _server_wide(role, account, mariadb=mariadb, with_clusters=bool(clusters))
        servers.append(ServerGrants(node, holds, tuple(statements)))
    return servers


def _of_catalog(role: Role, datastore: str, account: Account, partial_revokes: bool) -> Iterator[str]:
    whole = _ON_CATALOG if role == "admin" else "SELECT"
    yield grant(whole, f"{_database(datastore, partial_revokes)}.*", account)
    if role in _ON_WRITTEN:
        for table in (table for table, writers in CATALOG_WRITERS.items() if role in writers):
            privileges = _ON_WRITTEN[role] if role != "move" else _ON_ROUTING.get(table, _ON_WRITTEN[role])
            yield grant(privileges, f"`{datastore}`.`{table}`", account)


def _shards(topology: Topology, clusters: Sequence[Cluster], *, everywhere: bool) -> Iterator[tuple[int, bool]]:
    """Yield the shards that a server needs grants for, and whether each is on it now; any shard may be moved there."""
    for cluster in clusters:
        for shard in range(topology.shard_count) if everywhere else topology.shards_of(cluster.name):
            yield shard, topology.cluster_of(shard).name == cluster.name


def _of_server(role: Role, account: Account) -> Iterator[str]:
    if role == "move":
        for table in _ON_ACCOUNTS:
            yield grant("SELECT", f"`mysql`.`{table}`", account)
    if role in _SEES_WRITERS:
        yield grant("SELECT", "`performance_schema`.`metadata_locks`", account)


def _server_wide(role: Role, account: Account, *, mariadb: bool, with_clusters: bool) -> Iterator[str]:
    if role in _SERVER_WIDE:
        yield grant(_SERVER_WIDE[role][mariadb], "*.*", account)
    if role == "follow" and with_clusters:
        yield grant(_LISTENS, "*.*", account)


def _of_shard(role: Role, database: str, account: Account, partial_revokes: bool, *, is_home: bool) -> Iterator[str]:
    if role == "admin":
        yield grant(_ON_SHARD, f"{_database(database, partial_revokes)}.*", account)
        yield grant(_ON_REVISION, f"`{database}`.`alembic_version`", account)
    elif role == "move":
        yield grant(_ON_MOVED, f"{_database(database, partial_revokes)}.*", account)
    elif role == "erase":
        yield grant(_ON_ERASED, f"{_database(database, partial_revokes)}.*", account)
        if is_home:
            yield grant("INSERT", f"`{database}`.`erased_cell`", account)
            yield grant("DELETE", f"`{database}`.`parked`", account)
    else:
        yield grant(_ON_CELL[role], f"`{database}`.`cell`", account)
        yield grant("SELECT", f"`{database}`.`shard_identity`", account)
        if role != "migrate":
            yield grant("SELECT", f"`{database}`.`erased_cell`", account)
        if role in _ON_FOLLOWERS:
            yield grant(_ON_FOLLOWERS[role], f"`{database}`.`follower`", account)
            yield grant(_ON_FOLLOWERS[role], f"`{database}`.`parked`", account)


def _of_indexes(role: Role, database: str, account: Account, indexes: Sequence[int]) -> Iterator[str]:
    if role in _ON_INDEX:
        for number in indexes:
            yield grant(_ON_INDEX[role], f"`{database}`.`{index_table(number)}`", account)
        if role == "admin" and indexes:
            yield grant("DELETE", f"`{database}`.`follower`", account)
            yield grant("DELETE", f"`{database}`.`parked`", account)


def _servers(
    topology: Topology, catalog: Node, replicas: bool, *, with_empty: bool
) -> Iterator[tuple[Node, str, Sequence[Cluster]]]:
    """Yield each server once with a description and its clusters; the catalog's server first, replicas last."""
    clusters = [cluster for cluster in topology.clusters if with_empty or topology.shards_of(cluster.name)]
    own = [cluster for cluster in clusters if _same_server(cluster.primary, catalog)]
    yield catalog, ", ".join(["the catalog", *(_description(topology, cluster) for cluster in own)]), own
    for cluster in clusters:
        if cluster not in own:
            yield cluster.primary, _description(topology, cluster), [cluster]
    for cluster in clusters if replicas else ():
        for replica in cluster.replicas:
            yield replica, f"a replica of {cluster.primary}, {_description(topology, cluster)}", [cluster]


def _description(topology: Topology, cluster: Cluster) -> str:
    parts = sorted((part.first, part.last) for part in topology.ranges if part.cluster == cluster.name)
    spans = ", ".join(f"{first} to {last}" if first != last else str(first) for first, last in parts)
    return f"{cluster.name} with shards {spans}" if parts else f"{cluster.name} without shards"


def _same_server(one: Node, other: Node) -> bool:
    return (one.host, one.port, one.socket) == (other.host, other.port, other.socket)


def _database(name: str, partial_revokes: bool) -> str:
    return f"`{name}`" if partial_revokes else "`" + name.replace("_", r"\_") + "`"
