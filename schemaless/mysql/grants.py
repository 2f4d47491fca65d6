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

from schemaless.cluster.topology import Cluster, Node, Topology, heartbeat_database, shard_database
from schemaless.errors import InvalidInput
from schemaless.mysql.connection import Connection
from schemaless.mysql.sql.accounts import UNLOGGED, create_account, grant
from schemaless.mysql.sql.servers import SELECT_ACCOUNT

Role = Literal["app", "tail", "migrate", "measure", "admin"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)

_ON_CATALOG: Final[dict[Role, str]] = {
    "app": "SELECT",
    "tail": "SELECT",
    "migrate": "SELECT",
    "measure": "SELECT",
    "admin": "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, REFERENCES",
}
_ON_SHARD: Final = "SELECT, INSERT, CREATE, ALTER, INDEX"
"""What ``admin`` needs to make a shard and to upgrade it."""

_ON_REVISION: Final = "CREATE, UPDATE"
"""What it needs to stamp one. With CREATE, MySQL grants on a table that is not there yet."""

_ON_HEARTBEAT: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE"
"""What ``admin`` needs to prove a replica, and ``migrate`` to see how far one lags."""

_ON_CELL: Final[dict[Role, str]] = {
    "app": "SELECT, INSERT",
    "tail": "SELECT",
    "migrate": "SELECT, UPDATE (`body`)",
    "measure": "SELECT",
}

CATALOG_WRITERS: Final[dict[str, tuple[Role, ...]]] = {
    "alembic_version": ("admin",),
    "capacity_sample": ("admin", "measure"),
    "cluster": ("admin",),
    "column_codec": ("admin",),
    "datastore": ("admin",),
    "dictionary": ("admin",),
    "job": ("admin", "migrate"),
    "job_cluster": ("admin", "migrate"),
    "job_event": ("admin", "migrate"),
    "job_failure": ("admin", "migrate"),
    "job_shard": ("admin", "migrate"),
    "node": ("admin",),
    "shard_range": ("admin",),
}
"""Each table of the catalog, and who writes it; every role reads all of them."""

_ON_WRITTEN: Final[dict[Role, str]] = {"migrate": "INSERT, UPDATE", "measure": "INSERT, DELETE"}
"""On those tables of the catalog that a role without the whole of it writes."""

_SERVER_WIDE: Final[dict[Role, dict[bool, str]]] = {
    "migrate": {
        False: "PROCESS, REPLICATION CLIENT, SESSION_VARIABLES_ADMIN",
        True: "PROCESS, BINLOG MONITOR, BINLOG ADMIN",
    },
    "measure": {False: "PROCESS", True: "PROCESS"},
    "admin": {False: "PROCESS", True: "PROCESS"},
}
"""What a role can do without, by whether the server is MariaDB.

To see InnoDB's history length and the size of files, to count what goes to the binary log, and to make that less.
"""

_ACCOUNT = re.compile(
    r"""(?P<quote>['"`]?)(?P<name>(?!@)[^'"`\\\x00-\x1f]{1,80}?(?<!@))(?P=quote)
        (?:@(?P<host_quote>['"`]?)(?P<host>[^'"`\\@\x00-\x1f]{1,255})(?P=host_quote))?""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Account:
    """A MySQL account: its name, and where it may come from (``%``: anywhere)."""

    name: str
    host: str = "%"

    def __str__(self) -> str:
        return f"'{self.name}'@'{self.host}'"


@dataclass(frozen=True, slots=True)
class ServerGrants:
    """What is to be run on one server.

    Attributes:
        node: the server.
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
    found = _ACCOUNT.fullmatch(text)
    if found is None:
        raise InvalidInput(f"an account is written 'name'@'host', or name alone for any host; got {text!r}")
    return Account(found["name"], found["host"] or "%")


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
) -> list[ServerGrants]:
    """Return what an account needs for a role, for each server that it has to be run on.

    Args:
        role: ``app`` reads and writes cells once, ``tail`` reads cells and metadata locks, ``migrate`` reads cells,
            replaces bodies, keeps jobs in the catalog and watches servers, ``measure`` reads cells and the sizes of
            files, and keeps measurements in the catalog, ``admin`` creates the datastore, upgrades its tables, proves
            replicas and changes its catalog.
        account: who gets it.
        topology: the datastore. All tables have to be there, except for ``admin``.
        catalog: the server of the catalog.
        create_user: begin with the account itself, locked and without a password.
        replicas: also for replicas, kept out of their binary logs; for those that do not replicate accounts.
        partial_revokes: the servers run with ``partial_revokes``, so database names are taken literally.
        lock_tables: with ``tail``, for servers that do not show metadata locks: writers are held off instead.
        server_wide: for roles that have any, also what is granted on ``*.*`` only, which they can do without.
        mariadb: the servers are MariaDB, where that has other names.
    """
    made = [create_account(account)] if create_user else []
    found = []
    for node, holds, clusters in _servers(topology, catalog, replicas):
        statements = [*made]
        if node.role == "replica":
            statements.insert(0, UNLOGGED)
        if _same_server(node, catalog):
            statements.append(grant(_ON_CATALOG[role], f"{_database(topology.name, partial_revokes)}.*", account))
            if role in _ON_WRITTEN:
                written = [table for table, writers in CATALOG_WRITERS.items() if role in writers]
                statements += [grant(_ON_WRITTEN[role], f"`{topology.name}`.`{table}`", account) for table in written]
        if role in ("admin", "migrate") and clusters:
            database = _database(heartbeat_database(topology.name), partial_revokes)
            statements.append(grant(_ON_HEARTBEAT, f"{database}.*", account))
        for cluster in clusters:
            for shard in topology.shards_of(cluster.name):
                database = shard_database(topology.name, shard)
                statements += _of_shard(role, database, account, partial_revokes)
                if lock_tables and role == "tail":
                    statements.append(grant("LOCK TABLES", f"{_database(database, partial_revokes)}.*", account))
        if role == "tail" and clusters:
            statements.append(grant("SELECT", "`performance_schema`.`metadata_locks`", account))
        if role in _SERVER_WIDE and server_wide:
            statements.append(grant(_SERVER_WIDE[role][mariadb], "*.*", account))
        found.append(ServerGrants(node, holds, tuple(statements)))
    return found


def own_grant(connection: Connection, privileges: str, what: str = "*.*") -> str:
    """Return the GRANT that gives a connection's own account what it lacks."""
    name, _, host = str(connection.rows(SELECT_ACCOUNT)[0][0]).rpartition("@")
    return grant(privileges, what, Account(name, host))


def _of_shard(role: Role, database: str, account: Account, partial_revokes: bool) -> Iterator[str]:
    if role == "admin":
        yield grant(_ON_SHARD, f"{_database(database, partial_revokes)}.*", account)
        yield grant(_ON_REVISION, f"`{database}`.`alembic_version`", account)
    else:
        yield grant(_ON_CELL[role], f"`{database}`.`cell`", account)
        yield grant("SELECT", f"`{database}`.`shard_identity`", account)


def _servers(topology: Topology, catalog: Node, replicas: bool) -> Iterator[tuple[Node, str, Sequence[Cluster]]]:
    """Yield each server once, with what it holds and its clusters: the catalog's first, replicas last."""
    clusters = [cluster for cluster in topology.clusters if topology.shards_of(cluster.name)]
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
    return f"{cluster.name} with shards {spans}"


def _same_server(one: Node, other: Node) -> bool:
    return (one.host, one.port, one.socket) == (other.host, other.port, other.socket)


def _database(name: str, partial_revokes: bool) -> str:
    return f"`{name}`" if partial_revokes else "`" + name.replace("_", r"\_") + "`"
