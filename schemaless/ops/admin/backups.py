"""Backups: the commands that make one, and a check of the dumps; ``backup_folders`` checks copies of servers' files.

Shards are backed up before the catalog, so that the catalog has every dictionary that a cell needs, and every erasure
that the shards may lack. The servers' clocks and positions do not matter. A shard that moves from a server that is
still to be backed up to one that has been is in no backup: the check notices that, and pausing the moves prevents it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from schemaless.base.keys import heartbeat_database, shard_database
from schemaless.base.numbers import counted, shards_text
from schemaless.codec.lines import open_lines
from schemaless.errors import InvalidInput
from schemaless.ops.admin.sql import CLONE, IN_DUMP_DATABASE, IN_DUMP_RANGES, IN_DUMP_TABLE, SHARD_DATABASES
from schemaless.ops.jobs.job_store import JobStore
from schemaless.schema.tables import catalog_metadata, shard_metadata
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.replication import is_same_server
from schemaless.wire.node import Node

Tool = Literal["dump", "clone", "mariadb-backup", "xtrabackup"]

TOOLS: Final[tuple[Tool, ...]] = get_args(Tool)

_FOR_MARIADB: Final[Mapping[Tool, bool]] = {"clone": False, "xtrabackup": False, "mariadb-backup": True}
_DEFAULT_PORT: Final = 3306
_RENAMES_TABLES: Final = ("move", "rebuild")
"""Kinds of jobs that take tables away from a backup."""

_ENDED = re.compile(rb"-- Dump completed(?: on (\S+\s+\S+))?")
_RANGE = re.compile(rb"\((\d+),(\d+),'([^']+)'\)")
_SHARD_TABLES: Final = frozenset(shard_metadata.tables)
_CATALOG_TABLES: Final = frozenset(catalog_metadata.tables)


@dataclass(frozen=True, slots=True)
class Step:
    """Part of a backup: shell commands, and what they do."""

    what: str
    commands: tuple[str, ...]


def plan(store: Datastore, tool: Tool, folder: str) -> list[Step]:
    """Return the steps of a backup, in the order in which they must be taken.

    Args:
        store: the datastore.
        tool: ``dump`` for dumps as SQL by the client programs, or a program or statement that copies servers' files.
        folder: folder for the files; ``clone`` and the programs write to it on each server's machine.

    Raises:
        InvalidInput: a server is not one that the tool can copy.
        ServerError: a server cannot be reached.
    """
    if "'" in folder or not folder.isprintable() or (tool != "dump" and not Path(folder).is_absolute()):
        raise InvalidInput(
            f"{folder!r} cannot be the folder of a backup; give a path without quotes, absolute for {tool}"
        )
    internals = internals_of(store)
    internals.shards.router.again(internals.shards.routing)
    topology, catalog = internals.topology, internals.catalog
    pools = {cluster.name: internals.shards.pool_for(cluster.primary) for cluster in topology.clusters}
    mariadb = {name: pool.run(lambda connection: connection.is_mariadb) for name, pool in pools.items()}
    unfit = [
        cluster
        for cluster in topology.clusters
        if mariadb[cluster.name] is not _FOR_MARIADB.get(tool, mariadb[cluster.name])
    ]
    if unfit:
        flavour = "MariaDB" if mariadb[unfit[0].name] else "MySQL"
        raise InvalidInput(f"{tool} does not copy {unfit[0].primary}, which is {flavour}; choose another tool")
    steps = []
    paused = [job.job_id for job in JobStore(store).jobs() if job.kind in _RENAMES_TABLES and job.state == "running"]
    if paused:
        resume = "; ".join(f"schemaless job resume {number}" for number in paused)
        commands = (f"trap {shlex.quote(resume)} EXIT", *(f"schemaless job pause {number}" for number in paused))
        steps.append(Step("Jobs that move or rename tables wait until the end.", commands))
    # The server of the catalog is last: a copy of its files has the catalog, too.
    ordered = sorted(topology.clusters, key=lambda cluster: is_same_server(pools[cluster.name], catalog))
    files = []
    for cluster in ordered:
        where = f"{folder}/{cluster.name}"
        parts = f"{cluster.name}: shards {shards_text(topology.shards_of(cluster.name)) or 'none'}"
        if tool == "dump":
            files.append(f"{where}.sql")
            names = _client("mariadb" if mariadb[cluster.name] else "mysql", cluster.primary)
            listed = f"databases=$({names} -NBe {shlex.quote(SHARD_DATABASES % store.name)})"
            commands = listed, _dump(cluster.primary, "$databases", files[-1], mariadb=mariadb[cluster.name])
        else:
            files.append(where)
            commands = _copy(tool, cluster.primary, where)
        steps.append(Step(parts, commands))
    if tool == "dump":
        files.append(f"{folder}/catalog.sql")
        is_mariadb = catalog.run(lambda connection: connection.is_mariadb)
        steps.append(Step("The catalog.", (_dump(catalog.node, store.name, files[-1], mariadb=is_mariadb),)))
    cold = internals.cold.store()
    if cold is not None:
        # The path of a folder may have several lines.
        where = f"those in {cold.uri!r}, where unused ones are deleted after {counted(cold.keep_days, 'day')}"
        steps.append(Step(f"Cold files are not included. The backup needs {where}.", ()))
    expected = "" if tool == "dump" else f" --datastore {store.name} --shards {store.shard_count}"
    check = f"schemaless backup check {' '.join(map(shlex.quote, files))}{expected}"
    if tool == "dump" or all(cluster.primary.socket is not None for cluster in topology.clusters):
        steps.append(Step("Proof that nothing is missing.", (check,)))
    else:
        steps.append(Step(f"Proof that nothing is missing, once all folders are on one machine: {check}", ()))
    return steps


def _client(program: str, node: Node) -> str:
    if node.socket is not None:
        return f"{program} -S {shlex.quote(node.socket)}"
    port = "" if node.port in (None, _DEFAULT_PORT) else f" -P {node.port}"
    return f"{program} -h {shlex.quote(str(node.host))}{port}"


def _dump(node: Node, databases: str, file: str, *, mariadb: bool) -> str:
    # With GTIDs in the dumps, only one of them could be loaded into a server.
    program, options = ("mariadb-dump", "") if mariadb else ("mysqldump", " --set-gtid-purged=OFF")
    options = f"--single-transaction --hex-blob --no-tablespaces{options}"
    return f"{_client(program, node)} {options} --databases {databases} > {shlex.quote(file)}"


def _copy(tool: Tool, node: Node, folder: str) -> tuple[str, ...]:
    if tool == "clone":
        return (f"{_client('mysql', node)} -e {shlex.quote(CLONE % folder)}",)
    target = f"--target-dir={shlex.quote(folder)}"
    if node.socket is not None:
        return f"{_client(tool, node)} --backup {target}", f"{tool} --prepare {target}"
    on = f"ssh {shlex.quote(str(node.host))} {tool}"
    port = "" if node.port in (None, _DEFAULT_PORT) else f" -h 127.0.0.1 -P {node.port}"
    return f"{on}{port} --backup {target}", f"{on} --prepare {target}"


@dataclass(slots=True)
class Dump:
    """Contents of a dump.

    Attributes:
        path: the file.
        databases: names of the tables by database.
        ranges: first shard, last shard and cluster, if it has a catalog.
        ended: whether it is complete.
        ended_at: when it was completed, on the clock of the machine that made it; None if it does not say.
    """

    path: Path
    databases: dict[str, set[str]] = field(default_factory=dict)
    ranges: list[tuple[int, int, str]] = field(default_factory=list)
    ended: bool = False
    ended_at: str | None = None


def read_dump(path: Path) -> Dump:
    """Read a dump, plain or compressed by gzip or zstd.

    Raises:
        InvalidInput: the file cannot be read or decompressed.
    """
    dump, database, is_range = Dump(path), "", False
    with path.open("rb") as file:
        for line in open_lines(file, str(path)):
            if not line.strip():
                continue
            ended = _ENDED.match(line)
            dump.ended = ended is not None
            is_range = is_range or line.startswith(IN_DUMP_RANGES)
            if ended is not None and ended[1] is not None:
                dump.ended_at = " ".join(ended[1].decode().split())
            elif (used := IN_DUMP_DATABASE.match(line)) is not None:
                database = used[1].decode()
                dump.databases.setdefault(database, set())
            elif (created := IN_DUMP_TABLE.match(line)) is not None:
                dump.databases.setdefault(database, set()).add(created[1].decode())
            elif is_range:
                dump.ranges += [(int(first), int(last), name.decode()) for first, last, name in _RANGE.findall(line)]
                is_range = not line.rstrip().endswith(b";")
    return dump


def faults(dumps: Sequence[Dump]) -> list[str]:
    """Return what is missing from the dumps of a datastore, in words; the files of clusters are named after them."""
    found = [f"{dump.path} is incomplete: it does not end with '-- Dump completed'" for dump in dumps if not dump.ended]
    catalogs = [(dump, name) for dump in dumps for name, tables in dump.databases.items() if "shard_range" in tables]
    if len(catalogs) != 1:
        return [*found, f"the files have {len(catalogs)} catalogs; check the files of one backup, catalog included"]
    catalog, name = catalogs[0]
    found += _without(catalog, name, _CATALOG_TABLES)
    if not catalog.ranges:
        found.append(f"{catalog.path} does not say which cluster has which shard")
    clusters: dict[str, list[int]] = {}
    for first, last, cluster in catalog.ranges:
        clusters.setdefault(cluster, []).extend(range(first, last + 1))
    for cluster, shards in clusters.items():
        files = [dump for dump in dumps if dump.path.name.startswith(f"{cluster}.")]
        if len(files) != 1:
            found.append(f"{cluster} has {len(files)} files named {cluster}.*; give the one of its server")
            continue
        found += _of_cluster(files[0], name, shards)
        if (files[0].ended_at or "") > (catalog.ended_at or "9"):
            found.append(f"{catalog.path} is older than {files[0].path}, so it may lack dictionaries; dump it again")
    return found


def _of_cluster(dump: Dump, name: str, shards: Iterable[int]) -> list[str]:
    missing = [shard for shard in shards if "cell" not in dump.databases.get(shard_database(name, shard), ())]
    found = []
    if missing:
        found.append(
            f"{dump.path} lacks the cells of shards {shards_text(missing)}, which the catalog expects there; if they "
            "were moved during the backup, make another one"
        )
    for shard in shards:
        if shard not in missing:
            found += _without(dump, shard_database(name, shard), _SHARD_TABLES)
    if heartbeat_database(name) not in dump.databases:
        found.append(f"{dump.path} lacks the database {heartbeat_database(name)}")
    return found


def _without(dump: Dump, database: str, tables: frozenset[str]) -> list[str]:
    missing = sorted(tables - dump.databases[database])
    if not missing:
        return []
    return [f"{dump.path} lacks tables of {database}: {', '.join(missing)}; may the account read them?"]
