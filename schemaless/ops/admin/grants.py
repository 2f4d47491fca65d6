"""Generates the GRANT statements of each role, server by server; they are printed, not executed.

Privileges are granted on the tables (and one column) of each shard by name: a wildcard would include datastores whose
names begin the same way, and thousands of grants cost a server little (docs/operations.md). Privileges on whole
databases are granted only to ``admin``, which creates databases before their tables; to ``move`` and ``erase``, whose
tables may have random names; for LOCK TABLES; and on the catalog and heartbeat databases, which may get new tables. In
database names, ``_`` is a wildcard that needs a backslash, unless ``partial_revokes`` is on, which makes names literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from schemaless.base.keys import heartbeat_database, shard_database
from schemaless.errors import InvalidInput
from schemaless.ops.admin.sql import UNLOGGED, create_account
from schemaless.store.indexes.sql import READ_COUNTERS, index_table
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.sql.replicas import READ_FOR_THREADS
from schemaless.wire.accounts import Account
from schemaless.wire.node import Node
from schemaless.wire.sql.sessions import grant
from schemaless.wire.sql.transactions import READ_FOR_TRANSACTIONS

Role = Literal["app", "tail", "follow", "migrate", "erase", "move", "measure", "backup", "admin"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)

_ON_CATALOG: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, REFERENCES"
"""Privileges of ``admin`` on the whole catalog; all other roles read it."""

_ON_CLUSTER: Final[dict[Role, str]] = dict.fromkeys(
    ("admin", "erase", "migrate", "move"), "SELECT, INSERT, UPDATE, DELETE, CREATE"
)
"""Privileges on a heartbeat database: ``admin`` and ``move`` copy dictionaries, ``erase`` and ``migrate`` measure lag.

All other roles read it, because it has the primary's claim and copies of the dictionaries.
"""

_JOBS: Final = ("job", "job_cluster", "job_event", "job_failure", "job_shard")
_IN_CATALOG: Final[dict[Role, dict[str, str]]] = {
    "follow": dict.fromkeys(("follower_setting", "follower_worker", "secondary_index"), "INSERT, UPDATE, DELETE"),
    "erase": dict.fromkeys(
        (
            *("erasure", "erasure_follower", "erasure_key", "erasure_shard", "legal_hold", "retention_policy"),
            *_JOBS,
        ),
        "INSERT, UPDATE",
    ),
    "migrate": dict.fromkeys(_JOBS, "INSERT, UPDATE"),
    "move": {
        **dict.fromkeys((*_JOBS, "shard_move"), "INSERT, UPDATE"),
        "datastore": "UPDATE (`topology_token`)",
        "shard_range": "INSERT, DELETE",
    },
    "measure": {"capacity_sample": "INSERT, DELETE", "cluster": "UPDATE (`semi_sync`)"},
}
"""Privileges on the catalog's tables that roles other than ``admin`` write to; every role reads all tables."""

_ON_PERFORMANCE: Final[dict[Role, tuple[str, ...]]] = {
    "admin": (*READ_FOR_THREADS, "replication_group_members", *READ_FOR_TRANSACTIONS),
    "backup": ("keyring_component_status", "log_status", "replication_group_members"),
    "erase": READ_FOR_TRANSACTIONS,
    "follow": READ_FOR_TRANSACTIONS,
    "measure": (*READ_FOR_THREADS, *READ_FOR_TRANSACTIONS, READ_COUNTERS),
    "move": READ_FOR_TRANSACTIONS,
    "tail": READ_FOR_TRANSACTIONS,
}
"""Tables of performance_schema that roles read, for replication threads, for received transactions and group members,
for open transactions, for positions in logs (by xtrabackup), for the use of indexes, and, for the change feed, metadata
locks."""

_ON_MARIADB: Final = ("metadata_locks", "threads", READ_COUNTERS)
"""Those of them that are read on MariaDB too."""

_ON_SHARD: Final[dict[Role, str]] = {
    "admin": "SELECT, INSERT, CREATE, ALTER, INDEX",
    "move": "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, LOCK TABLES",
    "erase": "SELECT, UPDATE",
    "backup": "SELECT",
}
"""Privileges on a shard's whole database; those of ``move``, ``erase`` and ``backup`` on all servers, because moves
create tables with random names. No role but ``move`` can drop tables of cells."""

_READS: Final[dict[Role, str]] = dict.fromkeys(("app", "tail", "follow", "migrate", "measure"), "SELECT")
_ON_FOLLOWERS: Final[dict[Role, str]] = {"follow": "SELECT, INSERT, UPDATE, DELETE", "measure": "SELECT"}
_IN_SHARD: Final[dict[str, dict[Role, str]]] = {
    "cell": {**_READS, "app": "SELECT, INSERT", "migrate": "SELECT, UPDATE (`body`)"},
    "shard_identity": _READS,
    "erased_cell": {**_READS, "migrate": "SELECT, INSERT, UPDATE (`body_bytes`)", "erase": "INSERT"},
    "cold_file": {**_READS, "migrate": "SELECT, INSERT, UPDATE", "erase": "INSERT"},
    "follower": _ON_FOLLOWERS,
    "parked": {**_ON_FOLLOWERS, "erase": "DELETE"},
    "alembic_version": {"admin": "CREATE, UPDATE"},
}
"""Privileges on each table of a shard, on the server that has the shard; with CREATE, MySQL accepts a grant on
``alembic_version`` before the table exists."""

_ON_ACCOUNTS: Final[dict[Role, tuple[str, ...]]] = {"move": ("tables_priv", "db"), "admin": ("db",)}
"""Tables of the database ``mysql`` that roles read, to check that a new server grants accounts the same access."""

_ON_INDEX: Final[dict[Role, str]] = {"app": "SELECT", "follow": "SELECT, INSERT, UPDATE, DELETE", "admin": "DROP"}
"""Privileges on each existing index table; to drop an index, ``admin`` also deletes its follower's rows."""

_PERFORMANCE: Final = "performance_schema"

_ON_EVERY_SERVER: Final[tuple[Role, ...]] = ("admin", "backup", "erase", "move")
"""Roles that need privileges even on clusters without shards."""

_SERVER_WIDE: Final[dict[Role, dict[bool, str]]] = {
    "move": {False: "PROCESS", True: "PROCESS"},
    "migrate": {
        False: "PROCESS, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN",
        True: "PROCESS, BINLOG MONITOR, BINLOG ADMIN",
    },
    "erase": {False: "PROCESS", True: "PROCESS"},
    "measure": {False: "PROCESS", True: "PROCESS, SLAVE MONITOR"},
    "admin": {False: "PROCESS", True: "PROCESS, SLAVE MONITOR"},
    "backup": {
        False: "BACKUP_ADMIN, LOCK TABLES, PROCESS, RELOAD, REPLICATION CLIENT",
        True: "BINLOG MONITOR, LOCK TABLES, PROCESS, RELOAD",
    },
}
"""Optional privileges on ``*.*`` by role, for MySQL (False) and MariaDB (True).

They give access to InnoDB's history length and file sizes, and to MariaDB's replication threads, and allow the binary
log's volume to be measured and reduced, and servers' files to be copied.
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
            ``backup`` reads everything, and copies servers' files;
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
    name, servers = topology.name, []
    for node, holds, clusters in _servers(topology, catalog, replicas, with_empty=role in _ON_EVERY_SERVER):
        given = _Grants(account, partial_revokes)
        if node.role == "replica":
            given.statements.append(UNLOGGED)
        if create_user:
            given.statements.append(create_account(account))
        if _same_server(node, catalog):
            given.on_database(_ON_CATALOG if role == "admin" else "SELECT", name)
            given.on_tables(_IN_CATALOG.get(role, {}), name)
        if clusters:
            given.on_database(_ON_CLUSTER.get(role, "SELECT"), heartbeat_database(name))
            tables = [each for each in _ON_PERFORMANCE.get(role, ()) if not mariadb or each in _ON_MARIADB]
            given.on_tables(dict.fromkeys(tables, "SELECT"), _PERFORMANCE)
        for shard, is_home in _shards(topology, clusters, everywhere=role in ("backup", "erase", "move")):
            database = shard_database(name, shard)
            _add_shard(given, role, database, indexes, is_home=is_home)
            if lock_tables and role in ("tail", "follow"):
                given.on_database("LOCK TABLES", database)
        if clusters:
            given.on_tables(dict.fromkeys(_ON_ACCOUNTS.get(role, ()), "SELECT"), "mysql")
            given.on_tables(
                {"heartbeat_token": "INSERT, UPDATE"} if role == "measure" else {}, heartbeat_database(name)
            )
        if server_wide:
            given.everywhere(_SERVER_WIDE[role][mariadb] if role in _SERVER_WIDE else None)
            given.everywhere(_LISTENS if role == "follow" and clusters else None)
        servers.append(ServerGrants(node, holds, tuple(given.statements)))
    return servers


class _Grants:
    """Statements for one server."""

    def __init__(self, account: Account, partial_revokes: bool) -> None:
        self.statements: list[str] = []
        self._account = account
        self._partial_revokes = partial_revokes

    def everywhere(self, privileges: str | None) -> None:
        if privileges is not None:
            self.statements.append(grant(privileges, "*.*", self._account))

    def on_database(self, privileges: str | None, database: str) -> None:
        if privileges is not None:
            name = database if self._partial_revokes else database.replace("_", r"\_")
            self.statements.append(grant(privileges, f"`{name}`.*", self._account))

    def on_tables(self, privileges: Mapping[str, str], database: str) -> None:
        for table, each in privileges.items():
            self.statements.append(grant(each, f"`{database}`.`{table}`", self._account))


def _add_shard(given: _Grants, role: Role, database: str, indexes: Sequence[int], *, is_home: bool) -> None:
    given.on_database(_ON_SHARD.get(role), database)
    if is_home:
        given.on_tables({table: roles[role] for table, roles in _IN_SHARD.items() if role in roles}, database)
    if role in _ON_INDEX:
        given.on_tables({index_table(number): _ON_INDEX[role] for number in indexes}, database)
        if role == "admin" and indexes:
            given.on_tables({"follower": "DELETE", "parked": "DELETE"}, database)


def _shards(topology: Topology, clusters: Sequence[Cluster], *, everywhere: bool) -> Iterator[tuple[int, bool]]:
    """Yield the shards that a server needs grants for, and whether each is on it now; any shard may be moved there."""
    for cluster in clusters:
        for shard in range(topology.shard_count) if everywhere else topology.shards_of(cluster.name):
            yield shard, topology.cluster_of(shard).name == cluster.name


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
