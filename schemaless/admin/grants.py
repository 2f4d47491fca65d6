"""Least privilege: the statements that give an account what its role needs, server by server. None of it is sent here.

Privileges are on tables (and one column) of each shard by its name: a wildcard would cover datastores whose names
begin alike, and thousands of grants cost a server little (docs/operations.md). On databases there are those of
``admin``, since what it is to create has no tables yet, and reading the catalog, which may get new ones. In these, and
only in these, ``_`` is a wildcard, unless ``partial_revokes`` is on, where a backslash is a part of the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from schemaless.admin.sql import UNLOGGED, create_account
from schemaless.errors import InvalidInput
from schemaless.indexes.sql import index_table
from schemaless.keys import heartbeat_database, shard_database
from schemaless.topology.model import Cluster, Topology
from schemaless.wire.accounts import Account
from schemaless.wire.node import Node
from schemaless.wire.sql.sessions import grant

Role = Literal["app", "tail", "follow", "migrate", "move", "measure", "admin"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)

_ON_CATALOG: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, REFERENCES"
"""``admin`` needs these on the whole catalog; all other roles read it."""

_ON_SHARD: Final = "SELECT, INSERT, CREATE, ALTER, INDEX"
"""``admin`` needs these to make a shard and to upgrade it."""

_ON_REVISION: Final = "CREATE, UPDATE"
"""It needs these to stamp one. With CREATE, MySQL grants on a table that is not there yet."""

_WRITES_CLUSTER: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE"
_ON_CLUSTER: Final[dict[Role, str]] = {
    "admin": _WRITES_CLUSTER,
    "migrate": _WRITES_CLUSTER,
    "move": _WRITES_CLUSTER,
}
"""On a cluster's own database, ``admin`` and ``move`` copy dictionaries, ``migrate`` sees how far a replica lags.

All other roles read it: a dictionary that the catalog has lost is there, and the claim that a primary has to have.
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
    "job": ("admin", "migrate", "move"),
    "job_cluster": ("admin", "migrate", "move"),
    "job_event": ("admin", "migrate", "move"),
    "job_failure": ("admin", "migrate", "move"),
    "job_shard": ("admin", "migrate", "move"),
    "node": ("admin",),
    "secondary_index": ("admin", "follow"),
    "shard_move": ("admin", "move"),
    "shard_range": ("admin", "move"),
}
"""These roles write each table of the catalog; every role reads all of them."""

_ON_WRITTEN: Final[dict[Role, str]] = {
    "follow": "INSERT, UPDATE, DELETE",
    "migrate": "INSERT, UPDATE",
    "move": "INSERT, UPDATE",
    "measure": "INSERT, DELETE",
}
"""A role without the whole catalog gets these on the tables that it writes."""

_ON_PLACES: Final = {"datastore": "UPDATE (`topology_token`)", "shard_range": "INSERT, DELETE"}
"""``move`` gets these on the tables that say where a shard is."""

_ON_REPLICATION: Final = ("replication_connection_status", "replication_group_members")
"""``admin`` reads these tables of MySQL's, to see what a server has received and what its group has decided."""

_ON_MOVED: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, LOCK TABLES"
"""``move`` needs these on a shard's database, where it is and where it goes; no other role may drop anything."""

_ON_ACCOUNTS: Final = ("tables_priv", "db")
"""``move`` reads these tables of the server's own, to see that nobody is locked out where a shard goes."""

_ON_FOLLOWERS: Final[dict[Role, str]] = {"follow": "SELECT, INSERT, UPDATE, DELETE", "measure": "SELECT"}
"""A role needs these on a shard's ``follower`` and ``parked``."""

_ON_INDEX: Final[dict[Role, str]] = {"app": "SELECT", "follow": "SELECT, INSERT, UPDATE, DELETE", "admin": "DROP"}
"""A role needs these on the table of each secondary index, which has to be there.

To drop one, ``admin`` deletes its follower's rows besides.
"""

_SEES_WRITERS: Final[tuple[Role, ...]] = ("tail", "follow", "move")
"""These roles read the change feed."""

_SERVER_WIDE: Final[dict[Role, dict[bool, str]]] = {
    "move": {False: "PROCESS", True: "PROCESS"},
    "migrate": {
        False: "PROCESS, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN",
        True: "PROCESS, BINLOG MONITOR, BINLOG ADMIN",
    },
    "measure": {False: "PROCESS", True: "PROCESS"},
    "admin": {False: "PROCESS", True: "PROCESS"},
}
"""A role can do without these, by whether the server is MariaDB.

They let it see InnoDB's history length and the size of files, count what goes to the binary log, and make that less.
"""

_LISTENS: Final = "REPLICATION SLAVE"
"""``follow`` hears of new cells by this, and can do without: it shows the changes of every database of the server."""

_ACCOUNT = re.compile(
    r"""(?P<quote>['"`]?)(?P<name>(?!@)[^'"`\\\x00-\x1f]{1,80}?(?<!@))(?P=quote)
        (?:@(?P<host_quote>['"`]?)(?P<host>[^'"`\\@\x00-\x1f]{1,255})(?P=host_quote))?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ServerGrants:
    """What is to be run on one server.

    Attributes:
        holds: what it has of the datastore, in words.
        statements: SQL, without the semicolon.
    """

    node: Node
    holds: str
    statements: tuple[str, ...]


def parse_account(text: str) -> Account:
    """Parse an account as MySQL writes it: ``'app'@'10.0.%'``, ``app@localhost``, or ``app`` for any host.

    Raises:
        InvalidInput: it is none.
    """
    account = _ACCOUNT.fullmatch(text)
    if account is None:
        raise InvalidInput(f"an account is written 'name'@'host', or name alone for any host; got {text!r}")
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
    """Return what an account needs for a role, for each server that it has to be run on.

    Args:
        role: ``app`` reads and writes cells once, ``tail`` reads cells and metadata locks, ``follow`` does too and
            keeps followers' locations and indexes' entries, ``migrate`` reads cells, replaces bodies, keeps jobs in
            the catalog and watches servers, ``move`` moves shards from server to server, and alone may drop their
            tables, ``measure`` reads cells, the sizes of files and how far followers are, and keeps measurements in
            the catalog, ``admin`` creates the datastore, upgrades its tables, proves replicas and changes its catalog.
        account: who gets it.
        topology: the datastore. All tables have to be there, except for ``admin``.
        catalog: the server of the catalog.
        create_user: begin with the account itself, locked and without a password.
        replicas: also for replicas, kept out of their binary logs; for those that do not replicate accounts.
        partial_revokes: the servers run with ``partial_revokes``, so database names are taken literally.
        lock_tables: with ``tail`` and ``follow``, for servers that do not show metadata locks: writers are held off.
        server_wide: for roles that have any, also what is granted on ``*.*`` only, which they can do without.
        mariadb: the servers are MariaDB, where that has other names.
        indexes: the numbers of the secondary indexes whose tables are there.
    """
    made = [create_account(account)] if create_user else []
    servers = []
    for node, holds, clusters in _servers(topology, catalog, replicas, with_empty=role in ("admin", "move")):
        statements = [*made]
        if node.role == "replica":
            statements.insert(0, UNLOGGED)
        if _same_server(node, catalog):
            whole = _ON_CATALOG if role == "admin" else "SELECT"
            statements.append(grant(whole, f"{_database(topology.name, partial_revokes)}.*", account))
            if role in _ON_WRITTEN:
                written = [table for table, writers in CATALOG_WRITERS.items() if role in writers]
                for table in written:
                    privileges = _ON_WRITTEN[role] if role != "move" else _ON_PLACES.get(table, _ON_WRITTEN[role])
                    statements.append(grant(privileges, f"`{topology.name}`.`{table}`", account))
        if clusters:
            database = _database(heartbeat_database(topology.name), partial_revokes)
            statements.append(grant(_ON_CLUSTER.get(role, "SELECT"), f"{database}.*", account))
            if role == "admin" and not mariadb:
                tables = (f"`performance_schema`.`{table}`" for table in _ON_REPLICATION)
                statements += [grant("SELECT", table, account) for table in tables]
        for cluster in clusters:
            # A shard that is to be moved may go to each of the servers.
            of_all = role == "move"
            for shard in range(topology.shard_count) if of_all else topology.shards_of(cluster.name):
                database = shard_database(topology.name, shard)
                statements += _of_shard(role, database, account, partial_revokes)
                statements += _of_indexes(role, database, account, indexes)
                if lock_tables and role in ("tail", "follow"):
                    statements.append(grant("LOCK TABLES", f"{_database(database, partial_revokes)}.*", account))
        if role == "move" and clusters:
            statements += [grant("SELECT", f"`mysql`.`{table}`", account) for table in _ON_ACCOUNTS]
        if role in _SEES_WRITERS and clusters:
            statements.append(grant("SELECT", "`performance_schema`.`metadata_locks`", account))
        if role in _SERVER_WIDE and server_wide:
            statements.append(grant(_SERVER_WIDE[role][mariadb], "*.*", account))
        if role == "follow" and clusters and server_wide:
            statements.append(grant(_LISTENS, "*.*", account))
        servers.append(ServerGrants(node, holds, tuple(statements)))
    return servers


def _of_shard(role: Role, database: str, account: Account, partial_revokes: bool) -> Iterator[str]:
    if role == "admin":
        yield grant(_ON_SHARD, f"{_database(database, partial_revokes)}.*", account)
        yield grant(_ON_REVISION, f"`{database}`.`alembic_version`", account)
    elif role == "move":
        yield grant(_ON_MOVED, f"{_database(database, partial_revokes)}.*", account)
    else:
        yield grant(_ON_CELL[role], f"`{database}`.`cell`", account)
        yield grant("SELECT", f"`{database}`.`shard_identity`", account)
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
    """Yield each server once, with what it holds and its clusters: the catalog's first, replicas last."""
    clusters = [cluster for cluster in topology.clusters if with_empty or topology.shards_of(cluster.name)]
    own = [cluster for cluster in clusters if _same_server(cluster.primary, catalog)]
    yield catalog, ", ".join(["the catalog", *(_held(topology, cluster) for cluster in own)]), own
    for cluster in clusters:
        if cluster not in own:
            yield cluster.primary, _held(topology, cluster), [cluster]
    for cluster in clusters if replicas else ():
        for replica in cluster.replicas:
            yield replica, f"a replica of {cluster.primary}, {_held(topology, cluster)}", [cluster]


def _held(topology: Topology, cluster: Cluster) -> str:
    parts = sorted((part.first, part.last) for part in topology.ranges if part.cluster == cluster.name)
    spans = ", ".join(f"{first} to {last}" if first != last else str(first) for first, last in parts)
    return f"{cluster.name} with shards {spans}" if parts else f"{cluster.name} without shards"


def _same_server(one: Node, other: Node) -> bool:
    return (one.host, one.port, one.socket) == (other.host, other.port, other.socket)


def _database(name: str, partial_revokes: bool) -> str:
    return f"`{name}`" if partial_revokes else "`" + name.replace("_", r"\_") + "`"
