"""Private MySQL and MariaDB servers of a folder: start them, find them again, stop them, kill them.

A folder holds servers 1, 2, ..., and the replicas of each, every one with its data, its log and ``server.json``, which
is written once its data folder is whole. Commands on one folder take turns by a lock. A server runs in a session of its
own and outlives its starter, unless it is tied to it.
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from schemaless.errors import LocalServerError
from schemaless.local import free_space as space
from schemaless.local import group as group_replication
from schemaless.local import replication, rocksdb
from schemaless.local import semi_sync as semi_synchronous
from schemaless.local.apt import Progress
from schemaless.local.binaries import FLAVOURS
from schemaless.local.description import Description, LocalServer, ServerStatus
from schemaless.local.folder import descriptions, locked, require_ours, server_folder, server_folders, unwatch, watch
from schemaless.local.options import option_arguments
from schemaless.local.processes import processes_on, send, wait_gone
from schemaless.local.starting import STOP_TIMEOUT_S, Manner, begin, clean_up, end, finish, make, make_primaries

MAX_SERVERS = 100
MAX_REPLICAS = 9


def up(
    folder: Path,
    servers: int = 2,
    flavour: str = "mysql",
    *,
    engine: str = "innodb",
    replicas: int = 0,
    semi_sync: bool = False,
    group: bool = False,
    tied: bool = False,
    remove: bool = False,
    options: Mapping[str, object] | Sequence[str] = (),
    report: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> list[LocalServer]:
    """Have at least ``servers`` servers running in ``folder``, each with its replicas, and return all of them.

    Running ones are left as they are, stopped and crashed ones are started on their own data, missing ones are made.
    Where there are replicas, all of them replicate when this returns, and had caught up.

    Args:
        folder: theirs alone; made when it is missing.
        servers: how many, 1 to 100. Where more are there already, all of them are started.
        flavour: "mysql" or "mariadb". Where no archive has MySQL, MariaDB comes instead, and ``report`` says so.
        engine: storage engine that the servers offer for cells, "innodb" or "rocksdb" (MyRocks, on MariaDB only).
            Servers with MyRocks have InnoDB as well, for all other tables. Kept for later starts.
        replicas: how many each server has at least, 0 to 9. A server that gets its first one listens on a port of
            127.0.0.1 from then on; one that runs is started again for that.
        semi_sync: have primaries acknowledge a commit once a replica has it, for as long as a day. Kept for later
            starts; servers that run without it are refused.
        group: have each server and two replicas of it be a group (Group Replication), which itself decides which of
            the three is the primary, now and when that one is lost. For a new folder; MySQL only.
        tied: stop the servers when this process ends, however it ends.
        remove: with ``tied``, kill them and delete the folder too.
        options: of the servers, such as ``{"innodb-buffer-pool-size": "1G"}``; kept for later starts, and none given
            means the ones kept. A running server takes them at its next start.
        report: gets lines about what goes on.
        progress: shows what takes long; see ``apt.Progress``.

    Returns:
        The primaries, by number; each has its ``replicas``.

    Raises:
        LocalServerError: a server cannot be had; the message says why, and what to do next.
    """
    if not sys.platform.startswith("linux"):
        raise LocalServerError(f"local servers need Linux, this is {sys.platform}; name other servers by their URLs")
    if flavour not in FLAVOURS:
        raise LocalServerError(f"flavour must be one of {', '.join(FLAVOURS)}, got {flavour!r}")
    rocksdb.check_engine(engine, flavour)
    if not 1 <= servers <= MAX_SERVERS:
        raise LocalServerError(f"servers must be 1 to {MAX_SERVERS}, got {servers}")
    if group:
        group_replication.require_able(flavour)
    if semi_sync and not replicas:
        raise LocalServerError("semi-synchronous replication is between a server and its replicas; give replicas too")
    if not 0 <= replicas <= MAX_REPLICAS:
        raise LocalServerError(f"replicas must be 0 to {MAX_REPLICAS}, got {replicas}")
    extra = rocksdb.ARGUMENTS if engine == "rocksdb" else ()
    replicating = semi_synchronous.ARGUMENTS[flavour] if semi_sync else ()
    arguments = [*extra, *option_arguments(options), *replicating]
    manner = Manner(tuple(arguments), report or (lambda line: None), progress)
    folder = Path(folder).expanduser().resolve()
    with locked(folder, manner.say, create=True):
        there = descriptions(folder)
        other = [server for server in there if flavour not in (server.flavour, server.asked)]
        if other:
            raise LocalServerError(
                f"{folder} holds {other[0].flavour} servers and {flavour} was asked for; choose another --folder, or "
                "delete these with 'schemaless local down --delete'"
            )
        has_rocksdb = bool(there) and rocksdb.is_wanted(there[0].options)
        if there and engine == "rocksdb" and not has_rocksdb:
            raise LocalServerError(
                f"{folder} holds servers without MyRocks; choose another --folder for servers with it"
            )
        if has_rocksdb and options and not extra:
            manner = dataclasses.replace(manner, options=(*rocksdb.ARGUMENTS, *manner.options))
        if there and group_replication.is_wanted(there[0].options) != group:
            if group:
                raise LocalServerError(f"{folder} holds servers that are no group; choose another --folder for one")
            group = True
        if group:
            if semi_sync or replicas > group_replication.REPLICAS:
                raise LocalServerError(
                    "a group is three servers, of which two have what is acknowledged: it takes neither --semi-sync "
                    "nor more replicas"
                )
            replicas = group_replication.REPLICAS
            if arguments or not there:
                manner = dataclasses.replace(manner, options=(*arguments, *group_replication.ARGUMENTS))
        if semi_sync and not options and there:
            manner = dataclasses.replace(manner, options=tuple(dict.fromkeys([*there[0].options, *manner.options])))
        numbers = range(1, max([servers, *(server.number for server in there)]) + 1)
        wanted = {
            number: max([replicas, *(server.replica for server in there if server.number == number)])
            for number in numbers
        }
        if tied:
            places = [(number, replica) for number in numbers for replica in range(wanted[number] + 1)]
            watch(folder, [server_folder(folder, *place) for place in places], remove=remove)
        known = {(server.number, server.replica): server for server in there}
        old = [
            begin(known[number, 0], manner, listens=wanted[number] > 0) for number in numbers if (number, 0) in known
        ]
        primaries = [finish(begun, manner) for begun in old]
        new = [number for number in numbers if (number, 0) not in known]
        if new:
            primaries += make_primaries(folder, new, flavour, manner, listens=replicas > 0)
        primaries.sort(key=lambda server: server.number)
        return _with_replicas(folder, primaries, wanted, known, manner)


def _with_replicas(
    folder: Path,
    primaries: Sequence[LocalServer],
    wanted: Mapping[int, int],
    known: Mapping[tuple[int, int], Description],
    manner: Manner,
) -> list[LocalServer]:
    """Have the replicas of running primaries running and replicating, and return the primaries with them."""
    places = [(primary, number) for primary in primaries for number in range(1, wanted[primary.number] + 1)]
    for primary in {primary for primary, number in places if (primary.number, number) not in known}:
        replication.require_able(primary.flavour, primary.version)
        replication.require_whole_binary_log(primary)
    started = []
    for primary, number in places:
        listens = group_replication.is_member(primary)
        if (primary.number, number) in known:
            started.append(begin(known[primary.number, number], manner, listens=listens))
            continue
        model = Description.read(primary.folder)
        assert model is not None
        alike = dataclasses.replace(manner, options=manner.options or model.options)
        started.append(make(model.binary(), folder, (primary.number, number), model.asked, alike, listens=listens))
    running = [(primary, finish(begun, manner)) for (primary, _), begun in zip(places, started, strict=True)]
    followers = [pair for pair in running if not group_replication.is_member(pair[0])]
    for primary, replica in followers:
        replication.follow(primary, replica)
    for primary, replica in followers:
        replication.wait_until_replicating(primary, replica, manner.say)
    whole = [
        dataclasses.replace(primary, replicas=tuple(replica for source, replica in running if source is primary))
        for primary in primaries
    ]
    for primary in whole:
        if group_replication.is_member(primary):
            group_replication.form([primary, *primary.replicas], manner.say)
        elif primary.replicas and semi_synchronous.is_wanted(primary):
            semi_synchronous.begin(primary)
    return whole


def status(folder: Path) -> list[ServerStatus]:
    """Return what the servers of ``folder`` do, each primary before its replicas; empty when there are none."""
    folder = Path(folder).expanduser().resolve()
    if not folder.is_dir() or not any(folder.iterdir()):
        return []
    require_ours(folder)
    return [_status(description) for description in descriptions(folder)]


def _status(description: Description) -> ServerStatus:
    pid = description.running_pid()
    of_group, fault = group_replication.is_wanted(description.options), None
    if pid is not None:
        server = description.server(pid)
        state, socket = "running", server.socket
        if of_group:
            fault = group_replication.fault(server)
        else:
            fault = replication.fault(server) if description.replica else None
    else:
        # A server takes its pid file away when it shuts down.
        state, socket = ("crashed" if description.pid_file.exists() else "stopped"), description.socket
    return ServerStatus(
        number=description.number,
        replica=description.replica,
        flavour=description.flavour,
        version=description.version,
        state=state,
        pid=pid,
        socket=socket,
        folder=description.folder,
        data_bytes=space.used_bytes(description.data),
        of_group=of_group,
        fault=fault,
    )


def down(
    folder: Path,
    *,
    delete: bool = False,
    timeout_s: float = STOP_TIMEOUT_S,
    report: Callable[[str], None] | None = None,
) -> list[ServerStatus]:
    """Shut the servers of ``folder`` down, replicas too, and wait until they are.

    Args:
        folder: the one that was given to ``up``.
        delete: remove the folder and all data in it too.
        timeout_s: a server that needs longer is killed; its next start recovers.
        report: gets lines about what goes on.

    Returns:
        What the servers did before.

    Raises:
        LocalServerError: ``folder`` holds something else.
    """
    say = report or (lambda line: None)
    folder = Path(folder).expanduser().resolve()
    if not folder.is_dir():
        return []
    require_ours(folder)
    with locked(folder, say, create=False):
        try:
            before = [_status(description) for description in descriptions(folder)]
        except LocalServerError:  # a damaged description does not keep a folder from being removed
            if not delete:
                raise
            before = []
        # Whatever runs on a data folder here ends, a half-made server's first process included.
        running = [(pid, path / "data") for path in server_folders(folder) for pid in processes_on(path / "data")]
        for pid, data in running:
            send(pid, data, signal.SIGKILL if delete else signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for pid, data in running:
            if not wait_gone(pid, data, max(0.0, deadline - time.monotonic())):
                say(f"{data.parent.name} did not stop in {timeout_s:.0f} s: killed; its next start recovers")
                end(pid, data)
        for path in server_folders(folder):
            clean_up(path)
        unwatch(folder)
        if delete:
            shutil.rmtree(folder)
    return before


def kill(server: LocalServer) -> None:
    """End a server with SIGKILL, as a crash does, and wait until it is gone."""
    end(server.pid, server.data)


def start(server: LocalServer, *, report: Callable[[str], None] | None = None) -> LocalServer:
    """Start a server that was stopped or killed, on its own data, and return it with its new process.

    A replica replicates again when this returns, and so do the running replicas of a primary. Other servers are left as
    they are: a replica is not started with its primary, nor the other way round.
    """
    manner = Manner((), report or (lambda line: None))
    folder = server.folder.parent
    with locked(folder, manner.say, create=False):
        description = Description.read(server.folder)
        if description is None:
            raise LocalServerError(f"{server.folder} holds no server; run 'schemaless local up' again")
        result = finish(begin(description, manner), manner)
        family = {
            member.replica: member.server(pid)
            for member in descriptions(folder)
            if member.number == server.number and (pid := member.running_pid()) is not None
        }
        primary = family.pop(0, None)
        followers = tuple(replica for replica in family.values() if result.replica in (0, replica.replica))
        is_group = group_replication.is_member(result)
        if is_group:
            group_replication.form([*([] if primary is None else [primary]), *family.values()], manner.say)
        elif primary is not None:
            for replica in followers:
                replication.follow(primary, replica)
                replication.wait_until_replicating(primary, replica, manner.say)
    if primary is not None and not is_group and semi_synchronous.is_wanted(primary):
        semi_synchronous.begin(dataclasses.replace(primary, replicas=followers))
    return dataclasses.replace(result, replicas=() if result.replica else followers)
