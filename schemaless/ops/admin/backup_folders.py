"""Copies of servers' files: what a folder by mariadb-backup, xtrabackup or CLONE says of itself, and what it lacks.

The files do not say which cluster has which shard, so the number of shards must be known.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from schemaless.base.keys import heartbeat_database, shard_database
from schemaless.base.numbers import counted, shards_text
from schemaless.errors import InvalidInput
from schemaless.schema.tables import catalog_metadata, shard_metadata

_PREFIXES: Final = ("mariadb_backup", "xtrabackup")
"""Beginnings of the names of a program's files; MariaDB 10 has xtrabackup's."""

_CLONE_STATUS: Final = "#clone/#view_status"
_CLONE_UNFINISHED: Final = ("#clone/#status_in_progress", "#clone/#status_error")
_CLONE_COMPLETED: Final = "2"

_PREPARED: Final = {True: ("log-applied", "full-prepared"), False: ("full-prepared",)}
"""State of a complete copy, by whether mariadb-backup made it; xtrabackup's ``log-applied`` still has transactions."""

_HEADER_BYTES: Final = 64
_PAGES_AT: Final = 46
"""Offset of the number of pages in the first page of an InnoDB file, 4 bytes, big-endian."""


@dataclass(slots=True)
class Folder:
    """A copy of a server's files.

    Attributes:
        path: the folder.
        tool: program or statement that made it; None if the files do not say.
        problems: why it is no complete copy, as sentences.
        databases: names of the tables by database.
        cut: files that are shorter than their first pages say.
        ended_at: when the copy ended, on the clock of its machine (CLONE: UTC); None if unknown.
        position: file and offset in the server's binary log, and its GTID position, as far as known.
    """

    path: Path
    tool: str | None = None
    problems: list[str] = field(default_factory=list)
    databases: dict[str, set[str]] = field(default_factory=dict)
    cut: list[Path] = field(default_factory=list)
    ended_at: str | None = None
    position: tuple[str, ...] = ()


def read_folder(path: Path) -> Folder:
    """Read the state and the names of the tables of a copy.

    Raises:
        InvalidInput: a file cannot be read.
    """
    folder = Folder(path)
    try:
        prefix = next((each for each in _PREFIXES if (path / f"{each}_checkpoints").is_file()), None)
        page_bytes = None
        if prefix is not None:
            page_bytes = _by_program(folder, prefix)
        elif (path / _CLONE_STATUS).is_file():
            _by_clone(folder)
        else:
            folder.problems.append(
                f"it has no {' or '.join(f'{each}_checkpoints' for each in _PREFIXES)} and no {_CLONE_STATUS}, so no "
                "copy by mariadb-backup, xtrabackup or CLONE was completed there"
            )
        _read_tables(folder, page_bytes)
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{path} cannot be read: {problem}") from problem
    return folder


def _by_program(folder: Folder, prefix: str) -> int | None:
    """Read what mariadb-backup or xtrabackup says; return the size of the server's pages, in bytes."""
    state = _settings(folder.path / f"{prefix}_checkpoints").get("backup_type")
    info = _settings(folder.path / f"{prefix}_info")
    options = _settings(folder.path / "backup-my.cnf")
    is_mariadb = prefix == _PREFIXES[0] or "maria" in info.get("tool_name", "")
    folder.tool = "mariadb-backup" if is_mariadb else "xtrabackup"
    folder.ended_at = info.get("end_time")
    if state not in _PREPARED[is_mariadb]:
        folder.problems.append(
            f"its state is {state}, not {_PREPARED[is_mariadb][0]}; run '{folder.tool} --prepare "
            f"--target-dir={folder.path}'"
        )
    folder.problems += [
        f"it has no {name}" for name, found in ((f"{prefix}_info", info), ("backup-my.cnf", options)) if not found
    ]
    position = folder.path / f"{prefix}_binlog_info"
    if position.is_file():
        folder.position = tuple("".join(part.split()) for part in position.read_text(encoding="utf-8").split("\t"))
    return int(options["innodb_page_size"]) if "innodb_page_size" in options else None


def _by_clone(folder: Folder) -> None:
    lines = [*(folder.path / _CLONE_STATUS).read_text(encoding="utf-8").splitlines(), *[""] * 5]
    folder.tool = "clone"
    if lines[0].partition(" ")[0] != _CLONE_COMPLETED or any(
        (folder.path / name).exists() for name in _CLONE_UNFINISHED
    ):
        folder.problems.append(f"CLONE did not complete{f': {lines[4]}' if lines[4] else ''}; make another copy")
        return
    ended = datetime.datetime.fromtimestamp(int(lines[1].split()[1]) / 1e6, datetime.UTC)
    folder.ended_at = ended.strftime("%Y-%m-%d %H:%M:%S")
    # It is known once a server was started on the copy.
    folder.position = tuple(part for part in lines[5:8] if lines[5] and part)


def _settings(path: Path) -> dict[str, str]:
    """Return the values of a file of ``name = value`` lines; empty without the file."""
    if not path.is_file():
        return {}
    lines = (line.partition("=") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {name.strip(): value.strip() for name, equals, value in lines if equals}


def _read_tables(folder: Folder, page_bytes: int | None) -> None:
    # A table in MyRocks has no file of its own but its definition.
    has_rocksdb = (folder.path / "#rocksdb").is_dir()
    for database in (each for each in sorted(folder.path.iterdir()) if each.is_dir() and each.name[0] != "#"):
        tables = folder.databases.setdefault(database.name, set())
        for file in database.iterdir():
            if file.suffix == ".ibd":
                tables.add(file.stem)
                if _is_cut(file, page_bytes):
                    folder.cut.append(file)
            elif file.suffix == ".frm" and has_rocksdb:
                tables.add(file.stem)


def _is_cut(file: Path, page_bytes: int | None) -> bool:
    """Return whether a file is shorter than it says, or empty; a clone's files get their length when it starts."""
    with file.open("rb") as opened:
        header = opened.read(_HEADER_BYTES)
    if page_bytes is None:
        return len(header) < _HEADER_BYTES
    return file.stat().st_size < page_bytes * max(1, int.from_bytes(header[_PAGES_AT : _PAGES_AT + 4], "big"))


def folder_faults(folders: Sequence[Folder], shard_count: int, datastore: str | None = None) -> list[str]:
    """Return what copies lack of a datastore, as sentences.

    Args:
        folders: the copies of all its servers.
        shard_count: number of its shards.
        datastore: its name; not needed if the servers have no other datastore.

    Raises:
        InvalidInput: the copies have several datastores, and no name is given.
    """
    found = [f"{folder.path} is incomplete: {problem}" for folder in folders for problem in folder.problems]
    if found:
        return found
    names = sorted({name for folder in folders for name, tables in folder.databases.items() if "shard_range" in tables})
    if datastore is None and len(names) > 1:
        raise InvalidInput(f"the folders have several datastores: {', '.join(names)}; choose one with --datastore")
    name = datastore or next(iter(names), None)
    catalogs = [folder for folder in folders if "shard_range" in folder.databases.get(name or "", ())]
    if name is None or len(catalogs) != 1:
        return [f"the folders have {len(catalogs)} catalogs; give those of one backup, catalog included"]
    found += _without(catalogs[0], name, catalog_metadata.tables)
    for folder in folders:
        if heartbeat_database(name) not in folder.databases:
            found.append(f"{folder.path} lacks the database {heartbeat_database(name)}")
        if folder.tool == catalogs[0].tool and (folder.ended_at or "") > (catalogs[0].ended_at or "9"):
            found.append(
                f"{catalogs[0].path} has the catalog and is older than {folder.path}, so it may lack dictionaries; "
                "copy it again"
            )
        ours = {name, heartbeat_database(name), *(shard_database(name, shard) for shard in range(shard_count))}
        found += [f"{file} is cut off" for file in folder.cut if file.parent.name in ours]
    return [*found, *_of_shards(folders, name, shard_count)]


def _of_shards(folders: Sequence[Folder], name: str, shard_count: int) -> Iterator[str]:
    missing = []
    for shard in range(shard_count):
        database = shard_database(name, shard)
        holders = [folder for folder in folders if "cell" in folder.databases.get(database, ())]
        if not holders:
            missing.append(shard)
        elif len(holders) > 1:
            both = ", ".join(str(folder.path) for folder in holders)
            yield f"shard {shard} is in {both}: it was moved during the backup; make another one"
        for folder in holders:
            yield from _without(folder, database, shard_metadata.tables)
    if missing:
        yield (
            f"no folder has the cells of shards {shards_text(missing)}; if they were moved during the backup, make "
            "another one"
        )
    following = shard_database(name, shard_count)
    yield from (
        f"{folder.path} has {following}, but the datastore is said to have {counted(shard_count, 'shard')}"
        for folder in folders
        if following in folder.databases
    )


def _without(folder: Folder, database: str, tables: Iterable[str]) -> Iterator[str]:
    missing = sorted(set(tables) - folder.databases[database])
    if missing:
        yield f"{folder.path} lacks tables of {database}: {', '.join(missing)}"
