"""``schemaless local``: private servers of the current user, for a laptop, a demo, a test run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import click

from schemaless.local import servers as local_servers
from schemaless.local.binaries import FLAVOURS
from schemaless.local.description import LocalServer, ServerStatus
from schemaless.terminal.output import EXIT_FAILED, bytes_text, json_option, note, print_json, print_table, progress
from schemaless.terminal.shown import shown

DEFAULT_FOLDER: Final = ".schemaless/local"
_NAME: Final = "demo"

_folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    envvar="SCHEMALESS_LOCAL",
    default=DEFAULT_FOLDER,
    show_default=True,
    show_envvar=True,
    help="Where the servers and their data are.",
)


@click.group()
def local() -> None:
    """Private MySQL servers here: no root, no Docker.

    They run as you, listen on a socket that only you can reach, and keep their data in a folder of theirs. They
    outlive the command that starts them.

    \b
    Examples:
      schemaless local up                        two MySQL servers in .schemaless/local
      schemaless local up --flavour mariadb --folder /tmp/maria
      schemaless local status
      schemaless local down                      stop them; their data stays
      schemaless local down --delete             stop them and remove their data
    """


@local.command()
@click.option(
    "--servers",
    type=click.IntRange(1, local_servers.MAX_SERVERS),
    default=2,
    show_default=True,
    help="How many servers, at least.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, local_servers.MAX_REPLICAS),
    default=0,
    show_default=True,
    help="How many replicas each server has, at least.",
)
@click.option("--flavour", type=click.Choice(FLAVOURS), default="mysql", show_default=True, help="Whose server.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the servers; may be given often."
)
@_folder_option
@json_option
def up(servers: int, replicas: int, flavour: str, options: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Have servers running, and print their URLs.

    Running servers are left alone, stopped and crashed ones are started on their own data, missing ones are made. The
    server program is SCHEMALESS_MYSQLD, else the system's, else one that is unpacked (not installed) from the system's
    package archive into SCHEMALESS_CACHE (~/.cache/schemaless): 60 MB once, for MySQL. Interrupted, the same command
    goes on.

    With --replicas, each server is the primary of that many more, which follow it by GTID; all of them replicate when
    this ends. Such a primary listens on a port of 127.0.0.1 too, for an account of its replicas; root stays on the
    socket.

    \b
    Examples:
      schemaless local up --servers 3
      schemaless local up --servers 2 --replicas 1
      schemaless local up --option innodb-buffer-pool-size=1G
    """
    running = local_servers.up(
        folder, servers, flavour, replicas=replicas, options=options, report=note, progress=progress
    )
    if as_json:
        print_json({"folder": str(folder.resolve()), "servers": [_server_data(server) for server in running]})
        return
    for server in running:
        for each in (server, *server.replicas):
            click.echo(shown(f"{each.name}  {each.flavour} {each.version}  {each.url}"))
    clusters = " ".join(f"--cluster {shlex.quote(server.url)}" for server in running)
    note("next, make a datastore on them:")
    click.echo(shown(f"schemaless create {_NAME} --shards 16 {clusters}"))
    if not any(server.replicas for server in running):
        return
    note("and write the replicas into its catalog:")
    url = shlex.quote(running[0].url.replace("/?", f"/{_NAME}?", 1))
    for server in running:
        for replica in server.replicas:
            add = f"schemaless topology add-replica --url {url} --cluster cluster-{server.number}"
            click.echo(shown(f"{add} {shlex.quote(replica.url)}"))


@local.command()
@_folder_option
@json_option
def status(folder: Path, as_json: bool) -> int:
    """Show the servers of the folder, and whether replicas replicate.

    Exit status: 0 when there are servers, all of them run, and all replicas replicate, else 1.

    \b
    Examples:
      schemaless local status
      schemaless local status --json
    """
    states = local_servers.status(folder)
    if as_json:
        print_json({"folder": str(folder.resolve()), "servers": [_status_data(state) for state in states]})
    elif states:
        rows = [
            [
                state.name,
                f"{state.state}, not replicating" if state.fault else state.state,
                f"{state.flavour} {state.version}",
                state.url,
                "-" if state.pid is None else str(state.pid),
                bytes_text(state.data_bytes),
            ]
            for state in states
        ]
        print_table(None, ["server", "state", "version", "url", "process", "data"], rows, text_columns=4)
    else:
        note(f"no servers in {folder.resolve()}; 'schemaless local up' makes some")
    stopped = [state for state in states if state.state != "running"]
    broken = [state for state in states if state.fault]
    if not as_json:
        for state in broken:
            note(f"{state.name} does not replicate: {state.fault}")
        if stopped:
            note(f"{len(stopped)} of {len(states)} do not run; 'schemaless local up' starts them on their own data")
        elif broken:
            note("'schemaless local up' points replicas at their primaries and starts them again")
    return EXIT_FAILED if stopped or broken or not states else 0


@local.command()
@click.option("--delete", is_flag=True, help="Remove the folder, with all data of the servers, too.")
@_folder_option
@json_option
def down(delete: bool, folder: Path, as_json: bool) -> None:
    """Stop the servers, and wait until they have stopped.

    Their data stays, and 'schemaless local up' starts them again, unless --delete is given.

    \b
    Examples:
      schemaless local down
      schemaless local down --delete
    """
    before = local_servers.down(folder, delete=delete, report=note)
    if as_json:
        servers = [_status_data(state) for state in before]
        print_json({"folder": str(folder.resolve()), "deleted": delete, "servers": servers})
        return
    running = [state for state in before if state.state == "running"]
    if not before:
        note(f"no servers in {folder.resolve()}")
    elif delete:
        size = bytes_text(sum(state.data_bytes for state in before))
        note(f"stopped {len(running)} of {len(before)} servers and removed {folder.resolve()}, {size}")
    else:
        note(f"stopped {len(running)} of {len(before)} servers; their data stays in {folder.resolve()}")


def _server_data(server: LocalServer) -> dict[str, Any]:
    return {
        "number": server.number,
        "role": server.role,
        "flavour": server.flavour,
        "version": server.version,
        "url": server.url,
        "socket": str(server.socket),
        "pid": server.pid,
        "folder": str(server.folder),
        **({"replica": server.replica} if server.replica else {"replicas": [_server_data(r) for r in server.replicas]}),
    }


def _status_data(state: ServerStatus) -> dict[str, Any]:
    return {
        "number": state.number,
        "role": state.role,
        "replica": state.replica,
        "state": state.state,
        "flavour": state.flavour,
        "version": state.version,
        "url": state.url,
        "socket": str(state.socket),
        "pid": state.pid,
        "folder": str(state.folder),
        "data_bytes": state.data_bytes,
        "fault": state.fault,
    }
