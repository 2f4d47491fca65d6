"""``schemaless backup``: the commands of a backup, and a check of its files."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from schemaless.base.numbers import counted
from schemaless.cli.command import QueryCommand
from schemaless.cli.option import option
from schemaless.ops.admin.backup_folders import folder_faults, read_folder
from schemaless.ops.admin.backups import TOOLS, Tool, faults, read_dump
from schemaless.ops.admin.backups import plan as plan_of
from schemaless.store.datastore import Datastore
from schemaless.ui.terminal.output import EXIT_FAILED, note, out, print_result


@click.group()
def backup() -> None:
    """Plan backups, and check that they are complete.

    \b
    Workflow:
      schemaless backup plan --to backup > backup.sh
      sh backup.sh
      schemaless topology restored --help
    """


@backup.command(cls=QueryCommand)
@option("--to DIR", "Folder for the files of the backup.", name="folder", required=True)
@option(
    "--tool",
    "Dump SQL with mysqldump or mariadb-dump, or copy the files of whole servers.",
    type=click.Choice(TOOLS),
    default="dump",
)
def plan(folder: str, tool: Tool, store: Datastore) -> None:
    """Print the commands of a backup, as a shell script.

    The script backs up the servers of the shards before the catalog, so that it can be restored to a consistent state
    while applications write. Jobs that move or rebuild shards are paused. Dumps are checked at the end, and so are
    copies that are all on this machine.

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


@backup.command(cls=QueryCommand)
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@option("--shards N", "Number of shards, needed for folders.", type=click.IntRange(min=1))
@option("--datastore NAME", "Name of the datastore, if the folders have several.")
def check(paths: tuple[Path, ...], shards: int | None, datastore: str | None) -> int:
    """Check that dumps or copies of files are complete.

    Every dump must have ended, the catalog must be newer than the others, and each shard must be in the dump of the
    cluster that has it according to that catalog, with all its tables. A cluster's file is named after it, such as
    cluster-1.sql.gz; files may be compressed with gzip or zstd. No server is contacted.

    Of copies by mariadb-backup, xtrabackup or CLONE, give the folders and --shards. Each must have been completed and
    prepared, none of their files may be cut off, and exactly one must have each shard and the catalog, with all
    tables. Whether the catalog places the shards there, and whether pages are intact, only a server on the copy can
    tell. The command prints the position in the binary log that each copy has.

    \b
    Examples:
      schemaless backup check backup/*.sql
      schemaless backup check --shards 8 /backup/cluster-*

    Exit status: 0, or 1 if something is missing.
    """
    folders = [read_folder(path) for path in paths if path.is_dir()]
    dumps = [read_dump(path) for path in paths if not path.is_dir()]
    if folders and (dumps or shards is None):
        raise click.UsageError("for copies of servers' files, give only their folders, and --shards")
    if dumps and (shards is not None or datastore is not None):
        raise click.UsageError("--shards and --datastore are for folders; a dump of the catalog says both")
    found = faults(dumps) if shards is None else folder_faults(folders, shards, datastore)
    positions = {str(folder.path): " ".join(folder.position) or None for folder in folders}
    print_result({"files": len(paths), "positions": positions, "faults": found})
    for fault in found:
        note(fault)
    if not found:
        kind = "folder" if folders else "file"
        out().print(f"the backup is complete: nothing is missing from {counted(len(paths), kind)}")
        for path, position in positions.items():
            known = f"binary log at {position}" if position else "its files name no position in the binary log"
            out().print(f"{path}: {known}", soft_wrap=True)
    return EXIT_FAILED if found else 0
