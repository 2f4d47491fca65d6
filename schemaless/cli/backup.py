"""``schemaless backup``: the commands of a backup, and a check of dumps."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from schemaless.cli.options import store_option
from schemaless.ops.admin.backups import TOOLS, Tool, faults, read_dump
from schemaless.ops.admin.backups import plan as plan_of
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import EXIT_FAILED, ReadOnlyCommand, counted, json_option, note, out, print_result


@click.group()
def backup() -> None:
    """Plan backups, and check that they are complete.

    \b
    Workflow:
      schemaless backup plan --to backup > backup.sh
      sh backup.sh
      schemaless topology restored --help
    """


@backup.command(cls=ReadOnlyCommand)
@click.option("--to", "folder", required=True, metavar="DIR", help="Folder for the files of the backup.")
@click.option(
    "--tool",
    type=click.Choice(TOOLS),
    default="dump",
    help="Dump SQL with mysqldump or mariadb-dump, or copy the files of whole servers.",
)
@store_option
@json_option
def plan(folder: str, tool: Tool, store: Datastore) -> None:
    """Print the commands of a backup, as a shell script.

    The script backs up the servers of the shards before the catalog, so that it can be restored to a consistent state
    while applications write. Jobs that move or rebuild shards are paused. Dumps are checked at the end.

    clone, mariadb-backup and xtrabackup copy whole servers; DIR is then an absolute path on each server's machine,
    where ssh starts the last two. The script logs in with your option file, as an account with the role backup; dumps
    need none of its server-wide privileges.

    \b
    Examples:
      schemaless backup plan --to backup > backup.sh
      schemaless backup plan --to /backup --tool mariadb-backup
      schemaless grants --role backup --no-server-wide
    """
    steps = plan_of(store, tool, folder)
    print_result({"datastore": store.name, "steps": [asdict(step) for step in steps]})
    lines = [f"# Backs up {store.name}, {counted(store.shard_count, 'shard')}.", "set -eu", "umask 077"]
    if tool == "dump":
        lines.append(f"mkdir -p {shlex.quote(folder)}")
    for step in steps:
        lines += ["", f"# {step.what}", *step.commands]
    for line in lines:
        out().print(line, soft_wrap=True)


@backup.command(cls=ReadOnlyCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, exists=True, path_type=Path))
@json_option
def check(files: tuple[Path, ...]) -> int:
    """Check that dumps are all of a datastore.

    Every dump must have ended, the catalog must be newer than the others, and each shard must be in the dump of the
    cluster that has it according to that catalog, with all its tables. A cluster's file is named after it, such as
    cluster-1.sql.gz; files may be compressed with gzip or zstd. No server is contacted.

    \b
    Examples:
      schemaless backup check backup/*.sql

    Exit status: 0, or 1 if something is missing.
    """
    dumps = [read_dump(path) for path in files]
    found = faults(dumps)
    databases = sum(len(dump.databases) for dump in dumps)
    print_result({"files": len(dumps), "databases": databases, "faults": found})
    for fault in found:
        note(fault)
    if not found:
        out().print(f"the backup is complete: {counted(databases, 'database')} in {counted(len(dumps), 'file')}")
    return EXIT_FAILED if found else 0
