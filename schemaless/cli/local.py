"""``schemaless local``: private servers of the current user, for a laptop, a demo, a test run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import click

from schemaless.cli.output import EXIT_FAILED, bytes_text, json_option, note, print_json, print_table, progress
from schemaless.local import servers as local_servers
from schemaless.local.binaries import FLAVOURS

DEFAULT_FOLDER: Final = ".schemaless/local"

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
    "--servers", type=click.IntRange(1, 100), default=2, show_default=True, help="How many servers, at least."
)
@click.option("--flavour", type=click.Choice(FLAVOURS), default="mysql", show_default=True, help="Whose server.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the servers; may be given often."
)
@_folder_option
@json_option
def up(servers: int, flavour: str, options: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Have servers running, and print their URLs.

    Running servers are left alone, stopped and crashed ones are started on their own data, missing ones are made. The
    server program is SCHEMALESS_MYSQLD, else the system's, else one that is unpacked (not installed) from the system's
    package archive into SCHEMALESS_CACHE (~/.cache/schemaless): 60 MB once, for MySQL. Interrupted, the same command
    goes on.

    \b
    Examples:
      schemaless local up --servers 3
      schemaless local up --option innodb-buffer-pool-size=1G
    """
    running = local_servers.up(folder, servers, flavour, options=options, report=note, progress=progress)
    if as_json:
        print_json({"folder": str(folder.resolve()), "servers": [_server_data(server) for server in running]})
        return
    for server in running:
        click.echo(f"server {server.number}  {server.flavour} {server.version}  {server.url}")
    clusters = " ".join(f"--cluster {shlex.quote(server.url)}" for server in running)
    note("next, make a datastore on them:")
    click.echo(f"schemaless create demo --shards 16 {clusters}")


@local.command()
@_folder_option
@json_option
def status(folder: Path, as_json: bool) -> int:
    """Show the servers of the folder.

    Exit status: 0 when there are servers and all of them run, else 1.

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
                f"server {state.number}",
                state.state,
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
    if stopped and not as_json:
        note(f"{len(stopped)} of {len(states)} servers do not run; 'schemaless local up' starts them on their own data")
    return EXIT_FAILED if stopped or not states else 0


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


def _server_data(server: local_servers.LocalServer) -> dict[str, Any]:
    return {
        "number": server.number,
        "flavour": server.flavour,
        "version": server.version,
        "url": server.url,
        "socket": str(server.socket),
        "pid": server.pid,
        "folder": str(server.folder),
    }


def _status_data(state: local_servers.ServerStatus) -> dict[str, Any]:
    return {
        "number": state.number,
        "state": state.state,
        "flavour": state.flavour,
        "version": state.version,
        "url": state.url,
        "socket": str(state.socket),
        "pid": state.pid,
        "folder": str(state.folder),
        "data_bytes": state.data_bytes,
    }
