"""``schemaless grants``."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from schemaless.cli.options import datastore_option
from schemaless.errors import InvalidInput
from schemaless.ops.admin.grants import ROLES, Role, ServerGrants, parse_account
from schemaless.ops.admin.grants import grants as grants_of
from schemaless.store.indexes.registry import BACKFILLING, READY, Registry
from schemaless.topology.catalog import find_catalog, read_catalog
from schemaless.topology.configuration import datastore_url
from schemaless.topology.model import Topology, new_topology
from schemaless.ui.terminal.output import ReadOnlyCommand, json_option, out, print_result
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.urls import parse_url

_DESCRIPTIONS: dict[Role, str] = {
    "app": "reads cells and writes new ones; cannot change or delete any",
    "tail": "reads cells and metadata locks, for the change feed",
    "follow": "reads the change feed, and runs triggers and indexes",
    "migrate": "reads cells, replaces only their bodies, and stores jobs",
    "erase": "replaces bodies with tombstones, deletes what was derived from them, and writes the ledger",
    "move": "moves shards between servers; the only role that can drop cell tables",
    "measure": "reads cells and file sizes, and stores measurements",
    "admin": "creates the datastore, upgrades its tables, and writes its catalog",
}


@click.command(cls=ReadOnlyCommand)
@click.option("--role", type=click.Choice(ROLES), required=True, help="The role to grant, from the list above.")
@click.option(
    "--account",
    metavar="NAME[@HOST]",
    help="The account, such as app@'10.0.%'.  [default: the role's name, from any host]",
)
@datastore_option(required=False)
@click.option(
    "--name", metavar="NAME", help="Instead of --url: name of a datastore to be created; for the role admin only."
)
@click.option("--shards", type=int, metavar="N", help="With --name: the number of shards, as for create.")
@click.option("--cluster", "clusters", multiple=True, metavar="URL", help="With --name: the clusters, as for create.")
@click.option("--create-user", is_flag=True, help="Start with CREATE USER; the account is locked and has no password.")
@click.option("--server", metavar="SERVER", help="Print only the SQL for this server, such as db-1:3306.")
@click.option(
    "--replicas", is_flag=True, help="Also print SQL for replicas, which usually replicate accounts from their primary."
)
@click.option(
    "--lock-tables", is_flag=True, help="With tail and follow: grant LOCK TABLES, for servers without metadata locks."
)
@click.option(
    "--no-server-wide",
    is_flag=True,
    help="With follow, migrate, move, measure, admin: grant nothing on *.*; docs/operations.md says what that costs.",
)
@click.option("--partial-revokes", is_flag=True, help="Print SQL for servers that run with partial_revokes=ON.")
@json_option
def grants(
    role: Role,
    account: str | None,
    url: str | None,
    name: str | None,
    shards: int | None,
    clusters: tuple[str, ...],
    create_user: bool,
    server: str | None,
    no_server_wide: bool,
    **options: bool,
) -> None:
    """Print the SQL that gives an account a role.

    \b
      app      reads cells and writes new ones; cannot change or delete any
      tail     reads cells and metadata locks, for the change feed
      follow   reads the change feed, and runs triggers and indexes
      migrate  reads cells, replaces only their bodies, and stores jobs
      erase    replaces bodies with tombstones, and writes the ledger of erasures
      move moves shards between servers; the only role that can drop cell tables
      measure  reads cells and file sizes, and stores measurements
      admin    creates the datastore, upgrades its tables, and writes its catalog

    The command does not run the SQL. Run it with mysql on each server that it names, as an account with GRANT OPTION.
    You can run it all again at any time, and must do so when a server gets shards or indexes. For every role but admin,
    the tables must already exist.

    \b
    Examples:
      schemaless grants --role admin --name trips --shards 16 \\
          --cluster mysql://db-1/ --cluster mysql://db-2/
      schemaless grants --role app --account app@'10.0.%' --create-user
      schemaless grants --role app --server db-1:3306 | mysql -h db-1 -u root -p
    """
    if name is not None:
        mariadb = False  # no server is asked; on MariaDB, 'topology show' names what admin then lacks
        topology, catalog = _planned(role, name, shards, clusters)
        indexes: tuple[int, ...] = ()
    else:
        topology, catalog, mariadb, indexes = _existing(url, shards, clusters)
    who = parse_account(account or role)
    parts = grants_of(
        role,
        who,
        topology,
        catalog,
        create_user=create_user,
        **options,
        server_wide=not no_server_wide,
        mariadb=mariadb,
        indexes=indexes,
    )
    if server is not None:
        names = [str(part.node) for part in parts]
        if server not in names:
            raise InvalidInput(f"--server {server!r} is not one of {', '.join(names)}")
        parts = [part for part in parts if str(part.node) == server]
    print_result({"datastore": topology.name, "role": role, "account": str(who), "servers": _json(parts)})
    console = out()
    console.print(f"-- Role {role} of datastore {topology.name} for {who}: {_DESCRIPTIONS[role]}.")
    if any("\\_" in statement for part in parts for statement in part.statements):
        console.print("-- If SELECT @@partial_revokes returns 1, use the SQL that --partial-revokes prints instead.")
    if any(" ON *.* " in statement for part in parts for statement in part.statements):
        console.print("-- Grants on *.* are optional: --no-server-wide omits them.")
    for part in parts:
        console.print(f"\n-- {_printable(str(part.node))}: {_printable(part.holds)}")
        for statement in part.statements:
            console.print(f"{statement};")
    if create_user:
        console.print("\n-- The account is locked and has no password. Run on each server, with your own password:")
        console.print(f"--   ALTER USER {who} IDENTIFIED BY '...' ACCOUNT UNLOCK;")


def _planned(role: Role, name: str, shards: int | None, clusters: tuple[str, ...]) -> tuple[Topology, Node]:
    if role != "admin":
        raise InvalidInput(
            f"--role {role} is granted on tables, but {name!r} has none yet; create the datastore, then use --url"
        )
    if shards is None or not clusters:
        raise InvalidInput("--name needs --shards and --cluster, with the same values as for create")
    nodes = [parse_url(url).node for url in clusters]
    return new_topology(name, shards, nodes), nodes[0]


def _existing(
    url: str | None, shards: int | None, clusters: tuple[str, ...]
) -> tuple[Topology, Node, bool, tuple[int, ...]]:
    if url is None:
        raise InvalidInput("give a datastore with --url or SCHEMALESS_URL, or one to be created with --name")
    if shards is not None or clusters:
        raise InvalidInput("--shards and --cluster go with --name; for an existing datastore, they are in its catalog")
    parsed, name = datastore_url(url)
    with closing(Pools(parsed.credentials, PoolOptions())) as pools:
        node = find_catalog(parsed, name, pools.pool_for).node
        pool = pools.pool_for(node)
        topology = read_catalog(pool, name).topology
        return topology, node, pool.run(lambda connection: connection.is_mariadb), _indexes(pool, name)


def _indexes(pool: NodePool, name: str) -> tuple[int, ...]:
    """Return the numbers of the indexes that have tables; empty if the catalog has not been upgraded yet."""
    try:
        entries = Registry(lambda: pool, name).read()
    except DatabaseMissing:
        return ()
    return tuple(entry.number for entry in entries if entry.state in (BACKFILLING, READY))


def _json(parts: list[ServerGrants]) -> list[dict[str, Any]]:
    return [
        {"server": str(part.node), "role": part.node.role, "holds": part.holds, "statements": list(part.statements)}
        for part in parts
    ]


def _printable(text: str) -> str:
    """Replace unprintable characters: text from the catalog must not end a comment in SQL that root runs."""
    return "".join(character if character.isprintable() else "?" for character in text)
