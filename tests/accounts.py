"""The suite's accounts: one for each role of ``schemaless grants``, with its privileges and no others.

They are made once on each server, by root or by the account that ``SERVER`` gives. A datastore's privileges come when
it is made, by the statements that operators get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest
from sqlalchemy import make_url

import schemaless
from schemaless.ops.admin.grants import ROLES, Role, ServerGrants, grants
from schemaless.topology.model import new_topology
from schemaless.wire.accounts import Account
from schemaless.wire.urls import parse_url

_MAY_NOT = {1044, 1045, 1142, 1227, 1410}


class Accounts:
    """One account for each role, the same on all of some servers.

    Attributes:
        servers: their URLs, with the account that may do everything.
        password: of that account and of these, or None.
    """

    def __init__(self, servers: Sequence[str], password: str | None, prefix: str) -> None:
        self.servers = servers
        self.password = password
        self._prefix = prefix
        self._urls = {parse_url(url).node: url for url in servers}
        self._allowed: set[tuple[Role, str, int]] = set()
        with closing(connect(servers[0], password)) as connection:
            self._mariadb = "mariadb" in str(connection.get_server_info()).lower()

    def account(self, role: Role) -> Account:
        """Return the account of a role."""
        return Account(f"{self._prefix}{role}")

    def url(self, role: Role, url: str, name: str | None = None) -> str:
        """Return a URL with the account of a role, and with the name of a datastore where one is given."""
        return _changed(url, self.account(role).name, name)

    def root(self, url: str, name: str | None = None) -> str:
        """Return a URL with the account that may do everything."""
        return _changed(url, make_url(self.servers[0]).username, name)

    def urls(self, role: Role) -> list[str]:
        """Return the servers' URLs with the account of a role."""
        return type(self.servers)([self.url(role, url) for url in self.servers])

    def allow(self, role: Role, name: str, shard_count: int, **options: Any) -> None:
        """Give a role what it needs for a datastore that ``create`` makes, or has made, on all the servers.

        Without options, it is given once for each name: databases that are dropped and made again leave it.
        """
        if not options:
            if (role, name, shard_count) in self._allowed:
                return
            self._allowed.add((role, name, shard_count))
        nodes = list(self._urls)
        topology = new_topology(name, shard_count, nodes)
        for part in grants(role, self.account(role), topology, nodes[0], mariadb=self._mariadb, **options):
            self._run(part)

    def allow_admin_anywhere(self, name: str, shard_count: int) -> None:
        """Allow ``admin`` to create a datastore of up to this many shards on any of the servers."""
        for node in self._urls:
            topology = new_topology(name, shard_count, [node])
            for part in grants("admin", self.account("admin"), topology, node, mariadb=self._mariadb):
                self._run(part)

    @contextmanager
    def locking_tables(self, name: str, shard_count: int) -> Iterator[None]:
        """Grant LOCK TABLES to ``tail`` for the block only: a later test may get the same datastore as a new one."""
        self.allow("tail", name, shard_count, lock_tables=True)
        try:
            yield
        finally:
            nodes = list(self._urls)
            topology = new_topology(name, shard_count, nodes)
            for part in grants("tail", self.account("tail"), topology, nodes[0], lock_tables=True):
                with closing(connect(self._urls[part.node], self.password)) as connection:
                    for statement in part.statements:
                        if statement.startswith("GRANT LOCK TABLES ON "):
                            run(connection, statement.replace("GRANT", "REVOKE", 1).replace(" TO ", " FROM ", 1))

    def create(self, name: str, shard_count: int) -> str:
        """Create a datastore as ``admin``, and return its URL for ``app``."""
        self.allow("admin", name, shard_count)
        url = schemaless.create(name, shard_count, self.urls("admin"))
        self.allow("app", name, shard_count)
        return self.url("app", url)

    def _run(self, part: ServerGrants) -> None:
        with closing(connect(self._urls[part.node], self.password)) as connection:
            for statement in part.statements:
                _grant(connection, statement)


def _changed(url: str, username: str | None, name: str | None) -> str:
    changed = make_url(url).set(username=username)
    if name is not None:
        changed = changed.set(database=name)
    return changed.render_as_string(hide_password=False).replace("%2F", "/")


@contextmanager
def accounts_on(
    servers: Sequence[str], password: str | None = None, prefix: str = "", *, clean: bool = False
) -> Iterator[Accounts]:
    """Make the accounts on servers.

    Args:
        servers: URLs with an account that may create others.
        password: of that account, and of those that are made.
        prefix: what their names begin with.
        clean: remove them at the end.
    """
    secret = "" if password is None else f" IDENTIFIED BY {pymysql.converters.escape_str(password)}"
    made = Accounts(servers, password, prefix)
    for url in servers:
        with closing(connect(url, password)) as connection:
            for role in ROLES:
                _grant(connection, f"DROP USER IF EXISTS {made.account(role)}")
                _grant(connection, f"CREATE USER {made.account(role)}{secret}")
    yield made
    for url in servers if clean else ():
        with closing(connect(url, password)) as connection:
            for role in ROLES:
                run(connection, f"DROP USER {made.account(role)}")


def _grant(connection: pymysql.Connection, sql: str) -> None:
    try:
        run(connection, sql)
    except pymysql.Error as error:
        if error.args[0] not in _MAY_NOT:
            raise
        pytest.exit(
            f"the suite makes accounts of its own, and the one that SERVER gives may not: {error.args[1]}; "
            "it needs CREATE USER, and its other privileges WITH GRANT OPTION",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def connect(url: str, password: str | None) -> pymysql.Connection:
    """Open a connection of its own to a server."""
    parsed = parse_url(url)
    return pymysql.connect(
        host=parsed.node.host,
        port=parsed.node.port or 3306,
        unix_socket=parsed.node.socket,
        user=parsed.credentials.username,
        password=password or "",
        autocommit=True,
        ssl_disabled=parsed.node.socket is not None,  # it would take most of the time
    )


def run(connection: pymysql.Connection, sql: str) -> tuple[tuple[object, ...], ...]:
    """Run a statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return tuple(cursor.fetchall())
