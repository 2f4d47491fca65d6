"""``schemaless grants``."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from schemaless.base.numbers import counted
from schemaless.cli.command import JSONCommand, optional_datastore
from schemaless.cli.option import option
from schemaless.errors import InvalidInput, ServerError
from schemaless.ops.admin.grants import ROLES, Role, ServerGrants, parse_account
from schemaless.ops.admin.grants import grants as grants_of
from schemaless.ops.admin.sql import count_accounts
from schemaless.store.indexes.registry import BACKFILLING, READY, Registry
from schemaless.topology.catalog import find_catalog, read_catalog
from schemaless.topology.configuration import datastore_url
from schemaless.topology.model import Topology, new_topology
from schemaless.ui.terminal.files import write_whole
from schemaless.ui.terminal.output import EXIT_FAILED, note, out, print_result
from schemaless.wire.accounts import Account
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.urls import Credentials, parse_url

_DESCRIPTIONS: dict[Role, str] = {
    "app": "reads cells and writes new ones; cannot change or delete any",
    "tail": "reads cells and metadata locks, for the change feed",
    "follow": "reads the change feed, and runs triggers and indexes",
    "migrate": "reads cells, replaces only their bodies, and stores jobs",
    "erase": "replaces bodies with tombstones, deletes what was derived from them, and writes the ledger",
    "move": "moves shards between servers; the only role that can drop cell tables",
    "measure": "reads cells and file sizes, and stores measurements",
    "backup": "reads all tables, and copies servers' files",
    "admin": "creates the datastore, upgrades its tables, and writes its catalog",
}


@click.command(cls=JSONCommand)
@option("--role", "The role to grant, from the list above.", type=click.Choice(ROLES), required=True)
@option("--account NAME[@HOST]", "The account, such as app@'10.0.%'.  [default: the role's name, from any host]")
@optional_datastore
@option("--name NAME", "Instead of --url: name of a datastore to be created; for the role admin only.")
@option("--shards N", "With --name: the number of shards, as for create.", type=int)
@option("--cluster URL", "With --name: the clusters, as for create.", name="clusters", multiple=True)
@option("--create-user", "Start with CREATE USER; the account is locked and has no password.", is_flag=True)
@option("--server SERVER", "Print only the SQL for this server, such as db-1:3306.")
@option("--replicas", "Also print SQL for replicas, which usually replicate accounts from their primary.", is_flag=True)
@option("--lock-tables", "With tail and follow: grant LOCK TABLES, for servers without metadata locks.", is_flag=True)
@option(
    "--to DIR",
    "Write one file per server, such as db-1_3306.sql, for servers that have the account or are to get it.",
    name="folder",
    type=click.Path(file_okay=False, path_type=Path),
)
@option("--apply", "Run the SQL on these servers, as the account of --url or --cluster.", name="applies", is_flag=True)
@option("--no-server-wide", "Grant nothing on *.*; docs/operations.md says what that costs.", is_flag=True)
@option("--partial-revokes", "Print SQL for servers that run with partial_revokes=ON.", is_flag=True)
def grants(
    role: Role,
    account: str | None,
    url: str | None,
    name: str | None,
    shards: int | None,
    clusters: tuple[str, ...],
    create_user: bool,
    server: str | None,
    folder: Path | None,
    applies: bool,
    no_server_wide: bool,
    **options: bool,
) -> int:
    """Print the SQL that gives an account a role.

    \b
      app      reads cells and writes new ones; cannot change or delete any
      tail     reads cells and metadata locks, for the change feed
      follow   reads the change feed, and runs triggers and indexes
      migrate  reads cells, replaces only their bodies, and stores jobs
      erase    replaces bodies with tombstones, and writes the ledger of erasures
      move     moves shards; the only role that can drop tables of cells
      measure  reads cells and file sizes, and stores measurements
      backup   reads all tables, and copies servers' files
      admin    creates the datastore, upgrades its tables, and writes its catalog

    Without --apply, the command does not run the SQL: run it with mysql on each server that it names. That takes an
    account with GRANT OPTION. You can run it all again at any time, and must do so when a server gets shards or
    indexes. For every role but admin, the tables must already exist.

    \b
    Examples:
      schemaless grants --role admin --name trips --shards 16 \\
          --cluster mysql://db-1/ --cluster mysql://db-2/
      schemaless grants --role app --account app@'10.0.%' --create-user
      schemaless grants --role app --server db-1:3306 | mysql -h db-1 -u root -p
      schemaless grants --role app --apply --url mysql://root@db-1/mezzanine
    """
    if name is not None:
        topology, catalog, credentials = _planned(role, name, shards, clusters)
        # Without --apply, no server is asked; on MariaDB, 'topology show' names what admin then lacks.
        mariadb = applies and _is_mariadb(catalog, credentials)
        indexes: tuple[int, ...] = ()
    else:
        topology, catalog, credentials, mariadb, indexes = _existing(url, shards, clusters)
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
    if folder is not None or applies:
        with closing(Pools(credentials, PoolOptions())) as pools:
            parts = [part for part in parts if create_user or _has_account(pools, part, who)]
            for part in parts if applies else ():
                _apply(pools, part)
    print_result({"datastore": topology.name, "role": role, "account": str(who), "servers": _json(parts)})
    texts = {part.node: _text(part) for part in parts}
    head = _head(role, topology.name, who, parts)
    if create_user:
        foot = (
            "\n-- The account is locked and has no password. Run on each server, with your own password:\n"
            f"--   ALTER USER {who} IDENTIFIED BY '...' ACCOUNT UNLOCK;\n"
        )
    else:
        foot = ""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for node, text in texts.items():
            path = folder / f"{re.sub('[^A-Za-z0-9.-]+', '_', str(node)).strip('_')}.sql"
            write_whole(path, head + text + foot)
            out().print(f"{path}", soft_wrap=True)
    elif not applies:
        out().print(head + "".join(texts.values()) + foot, end="", soft_wrap=True)
    if create_user and applies:
        note(
            f"accounts that were created now are locked; on each server, with your own password: ALTER USER {who} "
            "IDENTIFIED BY '...' ACCOUNT UNLOCK"
        )
    return 0 if parts else EXIT_FAILED


def _head(role: Role, datastore: str, who: Account, parts: list[ServerGrants]) -> str:
    lines = [f"-- Role {role} of datastore {datastore} for {who}: {_DESCRIPTIONS[role]}."]
    if any("\\_" in statement for part in parts for statement in part.statements):
        lines.append("-- If SELECT @@partial_revokes returns 1, use the SQL that --partial-revokes prints instead.")
    if any(" ON *.* " in statement for part in parts for statement in part.statements):
        lines.append("-- Grants on *.* are optional: --no-server-wide omits them.")
    return "".join(f"{line}\n" for line in lines)


def _text(part: ServerGrants) -> str:
    statements = "".join(f"{statement};\n" for statement in part.statements)
    return f"\n-- {_printable(str(part.node))}: {_printable(part.holds)}\n{statements}"


def _is_mariadb(node: Node, credentials: Credentials) -> bool:
    with closing(Pools(credentials, PoolOptions())) as pools:
        return pools.pool_for(node).run(lambda connection: connection.is_mariadb)


def _has_account(pools: Pools, part: ServerGrants, who: Account) -> bool:
    """Return False if a server lacks the account; True also if it does not say."""
    try:
        rows = pools.pool_for(part.node).run(lambda connection: connection.rows(count_accounts(who.name, who.host)))
    except ServerError:
        return True
    if not rows[0][0]:
        note(f"{part.node} is left out, because it has no account {who}; --create-user creates it")
    return bool(rows[0][0])


def _apply(pools: Pools, part: ServerGrants) -> None:
    """Run the statements on a server, which is safe to repeat."""

    def operation(connection: Connection) -> None:
        for statement in part.statements:
            connection.execute(statement.encode())

    pools.pool_for(part.node).run(operation)
    out().print(f"{part.node}: {counted(len(part.statements), 'statement')} run")


def _planned(
    role: Role, name: str, shards: int | None, clusters: tuple[str, ...]
) -> tuple[Topology, Node, Credentials]:
    if role != "admin":
        raise InvalidInput(
            f"--role {role} is granted on tables, but {name!r} has none yet; create the datastore, then use --url"
        )
    if shards is None or not clusters:
        raise InvalidInput("--name needs --shards and --cluster, with the same values as for create")
    parsed = [parse_url(url) for url in clusters]
    nodes = [each.node for each in parsed]
    return new_topology(name, shards, nodes), nodes[0], parsed[0].credentials


def _existing(
    url: str | None, shards: int | None, clusters: tuple[str, ...]
) -> tuple[Topology, Node, Credentials, bool, tuple[int, ...]]:
    if url is None:
        raise InvalidInput("give a datastore with --url or SCHEMALESS_URL, or one to be created with --name")
    if shards is not None or clusters:
        raise InvalidInput("--shards and --cluster go with --name; for an existing datastore, they are in its catalog")
    parsed, name = datastore_url(url)
    with closing(Pools(parsed.credentials, PoolOptions())) as pools:
        node = find_catalog(parsed, name, pools.pool_for).node
        pool = pools.pool_for(node)
        topology = read_catalog(pool, name).topology
        mariadb = pool.run(lambda connection: connection.is_mariadb)
        return topology, node, parsed.credentials, mariadb, _indexes(pool, name)


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
