"""Private MySQL and MariaDB servers in a folder: starting, finding, stopping and killing them.

A folder contains servers 1, 2, ... and their replicas, each with its data, its log and ``server.json``, which is
written once its data directory is complete. A lock makes commands on the same folder take turns. A server outlives the
process that started it, unless it is tied to that process.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from schemaless.base.home import expanded
from schemaless.errors import LocalServerError
from schemaless.local import free_space as space
from schemaless.local import group as group_replication
from schemaless.local import replication, rocksdb
from schemaless.local import semi_sync as semi_synchronous
from schemaless.local.apt import Progress
from schemaless.local.binaries import FLAVOURS, fits
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
    version: str = "",
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
    """Start at least ``servers`` servers in ``folder``, each with its replicas, and return all of them.

    Running servers are left alone, stopped and crashed ones are started on their own data, and missing ones are
    created. All replicas have caught up when this returns.

    Args:
        folder: used only for these servers; created if it does not exist.
        servers: minimum number, 1 to 100. If the folder has more, all of them are started.
        flavour: "mysql" or "mariadb". If the package archive has no MySQL, MariaDB is used instead, with a notice.
        version: version of new servers, such as "11.8" or "11.8.3"; "" for any that the store supports. The package
            archive's later suites are searched too, with their signatures checked.
        engine: storage engine that the servers offer for cells, "innodb" or "rocksdb" (MyRocks, on MariaDB only).
            Servers with MyRocks also have InnoDB, for all other tables. The choice is kept for later starts.
        replicas: minimum number per server, 0 to 9. A server with replicas listens on a port on 127.0.0.1; a running
            server that gets its first replica is restarted for that.
        semi_sync: make commits on a primary wait until a replica has received them, for up to a day. The choice is kept
            for later starts; it is an error if a server is running without it.
        group: make each server and two replicas a Group Replication group, which elects its primary. For new folders;
            MySQL only.
        tied: stop the servers when this process ends, even by ``kill -9``.
        remove: with ``tied``, kill the servers and delete the folder.
        options: server options such as ``{"innodb-buffer-pool-size": "1G"}``, kept for later starts; if empty, the ones
            kept from an earlier start are used. A running server uses them from its next start.
        report: callback for lines of progress.
        progress: shows the progress of long steps; see ``apt.Progress``.

    Returns:
        The primaries, by number; each has its ``replicas``.

    Raises:
        LocalServerError: a server cannot be started; the message gives the reason and the next step.
    """
    if sys.platform not in ("linux", "darwin"):
        raise LocalServerError(
            f"local servers need Linux or macOS, not {sys.platform}; use other servers by their URLs"
        )
    _check_wanted(servers, flavour, version, engine, replicas, semi_sync=semi_sync, group=group)
    given = option_arguments(options)
    say = _by_line(report)
    folder = expanded(folder).resolve()
    with locked(folder, say, create=True):
        there = descriptions(folder)
        wanted_features = {"rocksdb": engine == "rocksdb", "semi-sync": semi_sync, "group": group}
        features = tuple(feature for feature, is_wanted in wanted_features.items() if is_wanted)
        _check_folder(folder, there, flavour, version, features)
        features = tuple(dict.fromkeys([*(there[0].features if there else ()), *features]))
        if "group" in features:
            if semi_sync or replicas > group_replication.REPLICAS:
                raise LocalServerError(
                    "a group always has three servers, and two of them have every acknowledged commit: it accepts "
                    "neither --semi-sync nor more replicas"
                )
            replicas = group_replication.REPLICAS
        manner = Manner(tuple(given), say, progress, features, version)
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


def _by_line(report: Callable[[str], None] | None) -> Callable[[str], None]:
    """Return a callback that passes on messages of several lines, such as the end of a server's log, line by line."""

    def say(message: str) -> None:
        if report is not None:
            for line in message.splitlines():
                report(line)

    return say


def _check_wanted(
    servers: int, flavour: str, version: str, engine: str, replicas: int, *, semi_sync: bool, group: bool
) -> None:
    if flavour not in FLAVOURS:
        raise LocalServerError(f"flavour must be one of {', '.join(FLAVOURS)}, got {flavour!r}")
    if not re.fullmatch(r"(\d+(\.\d+)*)?", version):
        raise LocalServerError(f"version must be numbers such as 11.8 or 11.8.3, got {version!r}")
    if engine not in rocksdb.ENGINES:
        raise LocalServerError(f"engine must be one of {', '.join(rocksdb.ENGINES)}, got {engine!r}")
    if engine == "rocksdb" and flavour != "mariadb":
        raise LocalServerError(f"{flavour} has no MyRocks; it needs MariaDB: add --flavour mariadb")
    if not 1 <= servers <= MAX_SERVERS:
        raise LocalServerError(f"servers must be 1 to {MAX_SERVERS}, got {servers}")
    if group:
        group_replication.require_able(flavour)
    if semi_sync and not replicas:
        raise LocalServerError(
            "semi-synchronous replication needs replicas: also set replicas (--replicas) to 1 or more"
        )
    if not 0 <= replicas <= MAX_REPLICAS:
        raise LocalServerError(f"replicas must be 0 to {MAX_REPLICAS}, got {replicas}")


def _check_folder(
    folder: Path, there: Sequence[Description], flavour: str, version: str, features: Sequence[str]
) -> None:
    other = [server for server in there if flavour not in (server.binary.flavour, server.asked)]
    if other:
        raise LocalServerError(
            f"{folder} contains {other[0].binary.flavour} servers, not {flavour}; choose another --folder, or delete "
            "them with 'schemaless local down --delete'"
        )
    old = [server for server in there if not fits(server.binary.version, version)]
    if old:
        raise LocalServerError(
            f"{folder} contains servers of {flavour} {old[0].binary.version}, not {version}; choose another --folder"
        )
    missing = set(features).difference(there[0].features) if there else ()
    if "rocksdb" in missing:
        raise LocalServerError(f"the servers in {folder} have no MyRocks; choose another --folder for MyRocks")
    if "group" in missing:
        raise LocalServerError(f"the servers in {folder} are not a group; choose another --folder for a group")


def _with_replicas(
    folder: Path,
    primaries: Sequence[LocalServer],
    wanted: Mapping[int, int],
    known: Mapping[tuple[int, int], Description],
    manner: Manner,
) -> list[LocalServer]:
    """Start the replicas of running primaries, wait until they replicate, and return the primaries with them."""
    places = [(primary, number) for primary in primaries for number in range(1, wanted[primary.number] + 1)]
    for primary in {primary for primary, number in places if (primary.number, number) not in known}:
        replication.require_able(primary.flavour, primary.version)
        replication.require_whole_binary_log(primary)
    started = []
    for primary, number in places:
        listens = "group" in primary.features
        if (primary.number, number) in known:
            started.append(begin(known[primary.number, number], manner, listens=listens))
            continue
        model = Description.read(primary.folder)
        assert model is not None
        alike = dataclasses.replace(manner, options=model.options, features=model.features)
        started.append(make(model.binary, folder, (primary.number, number), model.asked, alike, listens=listens))
    running = [(primary, finish(begun, manner)) for (primary, _), begun in zip(places, started, strict=True)]
    whole = [
        dataclasses.replace(primary, replicas=tuple(replica for source, replica in running if source is primary))
        for primary in primaries
    ]
    _connect(whole, manner.say)
    return whole


def _connect(families: Sequence[LocalServer], say: Callable[[str], None]) -> None:
    """Make the replicas of running primaries replicate, or the members of a group join it, and wait for them."""
    pairs = [(first, replica) for first in families if "group" not in first.features for replica in first.replicas]
    for primary, replica in pairs:
        replication.follow(primary, replica)
    for primary, replica in pairs:
        replication.wait_until_replicating(primary, replica, say)
    for first in families:
        if "group" in first.features:
            group_replication.form([first, *first.replicas], say)
        elif "semi-sync" in first.features and not first.replica:
            semi_synchronous.enable(first)


def status(folder: Path) -> list[ServerStatus]:
    """Return the state of the servers in ``folder``, each primary before its replicas; empty if there are none."""
    folder = expanded(folder).resolve()
    if not folder.is_dir() or not any(folder.iterdir()):
        return []
    require_ours(folder)
    return [_status(description) for description in descriptions(folder)]


def _status(description: Description) -> ServerStatus:
    pid = description.running_pid()
    fault = None
    if pid is not None:
        server = description.server(pid)
        state, facts = "running", description.facts | {"socket": server.socket}
        if "group" in server.features:
            fault = group_replication.fault(server)
        else:
            fault = replication.fault(server) if description.replica else None
    else:
        # A server removes its pid file when it shuts down.
        state, facts = ("crashed" if description.pid_file.exists() else "stopped"), description.facts
    return ServerStatus(**facts, state=state, pid=pid, data_bytes=space.used_bytes(description.data), fault=fault)


def down(folder: Path, *, delete: bool = False, report: Callable[[str], None] | None = None) -> list[ServerStatus]:
    """Shut down the servers and replicas in ``folder``, and wait for them.

    A server that is still running after ``STOP_TIMEOUT_S`` is killed, and recovers at its next start.

    Args:
        folder: as given to ``up``.
        delete: also delete the folder with all data.
        report: callback for lines of progress.

    Returns:
        The state of the servers before the shutdown.

    Raises:
        LocalServerError: ``folder`` contains something other than servers.
    """
    say = _by_line(report)
    folder = expanded(folder).resolve()
    if not folder.is_dir():
        return []
    require_ours(folder)
    with locked(folder, say, create=False):
        try:
            before = [_status(description) for description in descriptions(folder)]
        except LocalServerError:  # a damaged description must not prevent deleting a folder
            if not delete:
                raise
            before = []
        # This includes processes that initialise the data directory of an incomplete server.
        running = [(pid, path / "data") for path in server_folders(folder) for pid in processes_on(path / "data")]
        for pid, data in running:
            send(pid, data, signal.SIGKILL if delete else signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for pid, data in running:
            if not wait_gone(pid, data, max(0.0, deadline - time.monotonic())):
                say(f"killed {data.parent.name} after waiting {STOP_TIMEOUT_S:.0f} s; it recovers at its next start")
                end(pid, data)
        for path in server_folders(folder):
            clean_up(path)
        unwatch(folder)
        if delete:
            shutil.rmtree(folder)
    return before


def kill(server: LocalServer) -> None:
    """Kill a server with SIGKILL, to simulate a crash, and wait until it has ended."""
    end(server.pid, server.data)


def start(server: LocalServer) -> LocalServer:
    """Start a stopped or killed server on its own data, and return it with its new process id.

    When this returns, the server has caught up again if it is a replica; if it is a primary, its running replicas have.
    No other server is started: neither a primary's replicas nor a replica's primary.
    """
    manner = Manner((), _by_line(None))
    folder = server.folder.parent
    with locked(folder, manner.say, create=False):
        description = Description.read(server.folder)
        if description is None:
            raise LocalServerError(f"{server.folder} contains no server; run 'schemaless local up' again")
        result = finish(begin(description, manner), manner)
        first, *others = (
            member.server(pid)
            for member in descriptions(folder)
            if member.number == server.number and (pid := member.running_pid()) is not None
        )
        if "group" not in result.features:
            others = [other for other in others if not first.replica and result.replica in (0, other.replica)]
        _connect([dataclasses.replace(first, replicas=tuple(others))], manner.say)
    return dataclasses.replace(result, replicas=() if result.replica else tuple(others))
