"""``schemaless local up``: starts private servers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import click

from schemaless.cli.local.shown import folder_option, server_data
from schemaless.local import servers as local_servers
from schemaless.local.binaries import FLAVOURS
from schemaless.local.group import is_member
from schemaless.terminal.output import json_option, note, print_json, progress
from schemaless.terminal.shown import shown

_NAME: Final = "demo"


@click.command()
@click.option(
    "--servers",
    type=click.IntRange(1, local_servers.MAX_SERVERS),
    default=2,
    help="How many servers there should be, at least.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, local_servers.MAX_REPLICAS),
    default=0,
    help="How many replicas each server should have, at least.",
)
@click.option(
    "--semi-sync", is_flag=True, help="Acknowledge a commit once a replica has it; needs --replicas, and new servers."
)
@click.option(
    "--group-replication",
    "group",
    is_flag=True,
    help="Make each server a group of three, which chooses its primary itself; for a new folder, MySQL only.",
)
@click.option("--flavour", type=click.Choice(FLAVOURS), default="mysql", help="The kind of server.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the servers; may be repeated."
)
@folder_option
@json_option
def up(
    servers: int,
    replicas: int,
    semi_sync: bool,
    group: bool,
    flavour: str,
    options: tuple[str, ...],
    folder: Path,
    as_json: bool,
) -> None:
    """Start servers as needed, and print their URLs.

    Running servers are left alone, stopped or crashed ones are started with their own data, and missing ones are
    created. The server program is the one in SCHEMALESS_MYSQLD, or else the system's. If there is neither, the command
    unpacks one from the system's package archive into SCHEMALESS_CACHE (~/.cache/schemaless) without installing it;
    MySQL's takes 60 MB, once. If the command is interrupted, the same command continues. The next step is 'schemaless
    create', with these URLs.

    With --replicas, each server becomes the primary of that many more servers, which follow it by GTID and replicate
    before the command ends. Such a primary also listens on a port of 127.0.0.1, for the account of its replicas; root
    stays on the socket. With --semi-sync as well, a primary acknowledges a commit only once a replica has it, and waits
    up to a day for that: a failover then loses nothing that was acknowledged.

    With --group-replication, each server gets two replicas, and the three are a group: a commit is acknowledged once
    two of them have it, and where the primary is lost, the others choose another one within 20 seconds or so, and
    within seven with --option loose-group-replication-member-expel-timeout=0. 'schemaless topology watch' then has
    programs write there.

    \b
    Examples:
      schemaless local up --servers 3
      schemaless local up --servers 2 --replicas 1
      schemaless local up --replicas 2 --semi-sync
      schemaless local up --servers 1 --group-replication
      schemaless local up --option innodb-buffer-pool-size=1G
    """
    running = local_servers.up(
        folder,
        servers,
        flavour,
        replicas=replicas,
        semi_sync=semi_sync,
        group=group,
        options=options,
        report=note,
        progress=progress,
    )
    if as_json:
        print_json({"folder": str(folder.resolve()), "servers": [server_data(server) for server in running]})
        return
    for server in running:
        for started in (server, *server.replicas):
            click.echo(shown(f"{started.name}  {started.flavour} {started.version}  {started.url}"))
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
    if is_member(running[0]):
        note("and have programs follow what the group decides; this URL leads to the catalog on whichever is left:")
        sockets = ",".join(str(member.socket) for member in (running[0], *running[0].replicas))
        several = url.replace(str(running[0].socket), sockets)
        click.echo(shown(f"schemaless topology watch --url {several}"))
