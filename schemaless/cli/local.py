"""``schemaless local``: private servers on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import click

from schemaless.base.numbers import bytes_text, counted
from schemaless.cli.command import Command, JSONCommand, QueryCommand
from schemaless.cli.option import option
from schemaless.errors import LocalServerError
from schemaless.local import servers as local_servers
from schemaless.local import sql as local_sql
from schemaless.local.binaries import FLAVOURS
from schemaless.local.description import LocalServer, ServerStatus
from schemaless.local.replication import session
from schemaless.local.rocksdb import ENGINES
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    error,
    facts,
    hint,
    note,
    out,
    print_result,
    print_rows,
    print_table,
    progress,
)


@click.group()
def local() -> None:
    """Run private MySQL servers on this machine, without root or Docker.

    The servers run under your account, listen on a socket that only you can reach, and keep their data in a
    separate folder. They keep running after the command that starts them.

    \b
    Examples:
      schemaless local up              # two MySQL servers in .schemaless/local
      schemaless local up --flavour mariadb --folder /tmp/maria
      schemaless local status
      schemaless local down            # stop them; their data stays
      schemaless local down --delete   # stop them and remove their data
    """


DEFAULT_FOLDER: Final = ".schemaless/local"

folder_option: Final = option(
    "--folder",
    "The folder of the servers and their data.",
    type=click.Path(path_type=Path),
    envvar="SCHEMALESS_LOCAL",
    default=DEFAULT_FOLDER,
    show_envvar=True,
)


_FACTS: Final = ("number", "role", "flavour", "version", "url", "socket", "pid", "folder")


def server_data(server: LocalServer) -> dict[str, Any]:
    """Return a private server for ``--json``."""
    return {
        **facts(server, *_FACTS),
        **({"replica": server.replica} if server.replica else {"replicas": [server_data(r) for r in server.replicas]}),
    }


def status_data(state: ServerStatus) -> dict[str, Any]:
    """Return the state of a private server for ``--json``."""
    return facts(state, *_FACTS, "replica", "state", "data_bytes", "fault")


_NAME: Final = "demo"

_SQL_TOKENS: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|(?:--\s|\#)[^\n]*|/\*.*?\*/|;""", re.DOTALL
)
"""Matches semicolons, and literals, names and comments, which may have some."""


@local.command(cls=JSONCommand)
@option("--servers", "Minimum number of servers.", type=click.IntRange(1, local_servers.MAX_SERVERS), default=2)
@option(
    "--replicas",
    "Minimum number of replicas of each server.",
    type=click.IntRange(0, local_servers.MAX_REPLICAS),
    default=0,
)
@option("--semi-sync", "Make commits wait for a replica; needs --replicas, and new servers.", is_flag=True)
@option(
    "--group-replication",
    "Make each server a group of three that elects its primary; only for new folders, and only MySQL.",
    name="group",
    is_flag=True,
)
@option("--flavour", "The kind of server.  [default: mysql, or mariadb for MyRocks]", type=click.Choice(FLAVOURS))
@option("--version N.N", "The version of new servers, such as 11.8 or 11.8.3.", default="")
@option(
    "--engine",
    "The storage engine for cells; rocksdb is MyRocks, on MariaDB only.",
    type=click.Choice(ENGINES),
    default="innodb",
)
@option("--option NAME=VALUE", "A server option; may be repeated.", name="options", multiple=True)
@folder_option
def up(servers: int, flavour: str | None, engine: str, folder: Path, **asked: Any) -> None:
    """Start servers as needed, and print their URLs.

    Running servers are left alone, stopped or crashed ones are started with their own data, and missing ones are
    created. The server program is the one in SCHEMALESS_MYSQLD, or else the system's. If there is neither, the command
    unpacks one from the system's package archive into SCHEMALESS_CACHE (~/.cache/schemaless) without installing it;
    MySQL's is a one-time download of 60 MB. If the command is interrupted, run it again to resume it. When it has
    ended, pass the printed URLs to 'schemaless create'.

    With --version, new servers are of that series: the program in SCHEMALESS_MYSQLD or the system's if it fits, or else
    one from the archive of the distribution, whose later suites are searched too.

    With --replicas, each server becomes the primary of that many more servers, which replicate by GTID and have caught
    up when the command ends. Such a primary also listens on a port of 127.0.0.1 for its replicas' account; root can
    connect only over the socket. With --semi-sync, a commit on a primary waits up to a day for a replica to receive it,
    so that a failover loses no acknowledged write.

    With --engine rocksdb, the servers are MariaDB with the MyRocks plugin, configured so that the store's guarantees
    hold; 'schemaless create --engine rocksdb' then stores cells in it.

    With --group-replication, each server gets two replicas, and the three form a group: a commit is acknowledged once
    two of them have it. If the primary fails, the others elect a new one within about 20 seconds, or seven with
    --option loose-group-replication-member-expel-timeout=0. 'schemaless topology watch' then redirects programs to it.

    \b
    Examples:
      schemaless local up --servers 3
      schemaless local up --servers 2 --replicas 1
      schemaless local up --replicas 2 --semi-sync
      schemaless local up --engine rocksdb
      schemaless local up --servers 1 --group-replication
      schemaless local up --option innodb-buffer-pool-size=1G
    """
    running = local_servers.up(
        folder,
        servers,
        flavour or ("mariadb" if engine == "rocksdb" else "mysql"),
        engine=engine,
        **asked,
        report=note,
        progress=progress,
    )
    print_result({"folder": str(folder.resolve()), "servers": [server_data(server) for server in running]})
    for server in running:
        for started in (server, *server.replicas):
            out().print(f"{started.name}  {started.flavour} {started.version}  {started.url}", soft_wrap=True)
    if _have_datastore(running):
        return
    hint("next, create a datastore on these servers:")
    on_engine = " --engine rocksdb" if engine == "rocksdb" else ""
    _echo_command(
        f"schemaless create {_NAME} --shards 16{on_engine}",
        *(f"--cluster {shlex.quote(server.url)}" for server in running),
    )
    if not any(server.replicas for server in running):
        return
    hint("then add the replicas to its catalog:")
    url = shlex.quote(running[0].url.replace("/?", f"/{_NAME}?", 1))
    for server in running:
        for replica in server.replicas:
            add = f"schemaless topology add-replica --cluster cluster-{server.number}"
            _echo_command(add, f"--url {url}", shlex.quote(replica.url))
    if "group" in running[0].features:
        hint("and make programs follow the group's elections; this URL finds the catalog on any member:")
        sockets = ",".join(str(member.socket) for member in (running[0], *running[0].replicas))
        several = url.replace(str(running[0].socket), sockets)
        _echo_command("schemaless topology watch", f"--url {several}")


def _have_datastore(servers: list[LocalServer]) -> bool:
    for server in servers:
        with suppress(LocalServerError), session(server) as opened:
            if opened.run(local_sql.SELECT_ANY_SHARD):
                return True
    return False


def _echo_command(*parts: str) -> None:
    out().print(" \\\n    ".join(parts), soft_wrap=True)


@local.command(cls=QueryCommand)
@folder_option
@option("--url N", "Print only the URL of server N, for use in a script.", name="number", type=click.IntRange(1))
def status(folder: Path, number: int | None) -> int:
    """Show the state of servers, replication and group membership.

    The servers are those in --folder.

    \b
    Examples:
      schemaless local status
      schemaless local status --json
      schemaless create trips --shards 4 \\
          --cluster "$(schemaless local status --url 1)"

    Exit status: 0 if there are servers, all are running, all replicas replicate and all members are online; else 1.
    """
    states = local_servers.status(folder)
    if number is not None:
        click.echo(_running(states, number, folder).url)
        return 0
    print_result({"folder": str(folder.resolve()), "servers": [status_data(state) for state in states]})
    if states:
        rows = [
            {
                "server": state.name,
                "state": f"{state.state}, not {_what(state)}" if state.fault else state.state,
                "version": f"{state.flavour} {state.version}",
                "url": state.url,
                "process": None if state.pid is None else str(state.pid),
                "data": bytes_text(state.data_bytes),
            }
            for state in states
        ]
        print_rows(None, rows, text_columns=4)
    else:
        note(f"no servers in {folder.resolve()}; create them with 'schemaless local up'")
    stopped = [state for state in states if state.state != "running"]
    broken = [state for state in states if state.fault]
    for state in broken:
        note(f"{state.name} is not {_what(state)}: {state.fault}")
    if stopped:
        note(
            f"not running: {len(stopped)} of {counted(len(states), 'server')}; 'schemaless local up' starts them "
            f"with their data"
        )
    elif broken:
        note("'schemaless local up' reconnects replicas to their primaries and members to their group")
    return EXIT_FAILED if stopped or broken or not states else 0


def _running(states: list[ServerStatus], number: int, folder: Path) -> ServerStatus:
    name = f"server {number}"
    for state in states:
        if state.name == name and state.state == "running":
            return state
    raise click.UsageError(f"no running {name} in {folder.resolve()}; start it with 'schemaless local up'")


@local.command(cls=Command)
@click.argument("number", metavar="[N]", type=click.IntRange(1), default=1)
@option("-e --statement SQL", "Run a statement and exit; may be repeated.", name="statements", multiple=True)
@folder_option
def sql(number: int, statements: tuple[str, ...], folder: Path) -> int:
    """Open an SQL client on server N, as root.

    Runs the mysql or mariadb program if one is installed. Otherwise, the command itself reads statements, from standard
    input or a prompt, where a line that ends with a semicolon sends them, and prints their rows.

    \b
    Examples:
      schemaless local sql
      schemaless local sql 2 -e 'SHOW DATABASES'
      schemaless local sql < accounts.sql

    Exit status: 0, or 1 if a statement failed; statements after it were not run, except at a prompt.
    """
    server = _running(local_servers.status(folder), number, folder)
    programs = ("mariadb", "mysql") if server.flavour == "mariadb" else ("mysql", "mariadb")
    client = next(filter(None, map(shutil.which, programs)), None)
    if client is not None:
        arguments = [client, "--no-defaults", "--user=root", f"--socket={server.socket}"]
        given = [f"--execute={'; '.join(statements)}"] if statements else []
        os.execv(client, [*arguments, *given])  # noqa: S606 - the user's own client, found on PATH
    at_a_prompt = not statements and sys.stdin.isatty()
    with session(server) as opened:
        for each in chain.from_iterable(map(_split, statements or _statements_of_input(at_a_prompt))):
            try:
                columns, rows = opened.table(each)
            except LocalServerError as refusal:
                error(str(refusal))
                if not at_a_prompt:
                    return EXIT_FAILED
            else:
                if columns:
                    print_table(None, columns, [list(map(_value_text, row)) for row in rows], text_columns=len(columns))
    return 0


def _split(text: str) -> Iterator[str]:
    """Yield the statements in a text that semicolons separate."""
    semicolons = [token.start() for token in _SQL_TOKENS.finditer(text) if token[0] == ";"]
    for start, end in pairwise([-1, *semicolons, len(text)]):
        if statement := text[start + 1 : end].strip():
            yield statement


def _statements_of_input(at_a_prompt: bool) -> Iterator[str]:
    lines: list[str] = []
    if at_a_prompt:
        import readline  # noqa: F401 - line editing for input()
    while True:
        try:
            lines.append(input("sql> " if not lines else "  -> ") if at_a_prompt else next(sys.stdin))
        except (EOFError, StopIteration):
            break
        if at_a_prompt and lines[-1].strip() in ("exit", "quit"):
            return
        if lines[-1].rstrip().endswith(";"):
            yield "\n".join(lines)
            lines.clear()
    if "".join(lines).strip():
        yield "\n".join(lines)


def _value_text(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _what(state: ServerStatus) -> str:
    return "in its group" if "group" in state.features else "replicating"


@local.command(cls=JSONCommand)
@option("--delete", "Also remove the folder, with all data of the servers.", is_flag=True)
@folder_option
def down(delete: bool, folder: Path) -> None:
    """Stop the servers, and wait until they have stopped.

    Their data stays, and 'schemaless local up' starts them again, unless --delete is given.

    \b
    Examples:
      schemaless local down
      schemaless local down --delete
    """
    before = local_servers.down(folder, delete=delete, report=note)
    servers = [status_data(state) for state in before]
    print_result({"folder": str(folder.resolve()), "deleted": delete, "servers": servers})
    running = [state for state in before if state.state == "running"]
    if not before:
        note(f"no servers in {folder.resolve()}")
    elif delete:
        size = bytes_text(sum(state.data_bytes for state in before))
        note(f"stopped {len(running)} of {counted(len(before), 'server')} and removed {folder.resolve()}, {size}")
    else:
        note(f"stopped {len(running)} of {counted(len(before), 'server')}; their data stays in {folder.resolve()}")
