"""Starts private servers, and creates new ones."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket as sockets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pymysql

from schemaless.errors import LocalServerError
from schemaless.local import free_space as space
from schemaless.local import group
from schemaless.local.apt import Progress
from schemaless.local.binaries import Binary, Wanted, environment, inspect
from schemaless.local.description import Description, LocalServer
from schemaless.local.folder import server_folder
from schemaless.local.options import error_lines, is_full_disk, make_data_folder, server_command
from schemaless.local.processes import (
    command_line,
    is_gone,
    lock_holder,
    processes_on,
    send,
    socket_path,
    spawn,
    wait_gone,
)

READY_TIMEOUT_S: Final = 300.0
"""Timeout for a server to answer after its start, in seconds; after a crash it recovers first."""

STOP_TIMEOUT_S: Final = 60.0
"""Timeout for a clean shutdown before the server is killed, in seconds."""

RELEASE_TIMEOUT_S: Final = 10.0
"""Timeout for a previous server to release a data directory, in seconds."""

_POLL_S: Final = 0.05
_PORT_ATTEMPTS: Final = 5


@dataclass(frozen=True)
class Started:
    """A running server that may not answer yet.

    Attributes:
        description: its current ``server.json``.
        pid: its process id.
        offset: size of its log before this start, in bytes.
    """

    description: Description
    pid: int
    offset: int


@dataclass(frozen=True)
class Manner:
    """Settings for all servers that one command starts.

    Attributes:
        options: server options; empty means that each server keeps its own.
        say: callback for lines of progress.
        progress: shows the progress of long steps.
        features: as of ``LocalServer``; empty means that each server keeps its own.
        version: version of new servers; "" for any.
    """

    options: tuple[str, ...]
    say: Callable[[str], None]
    progress: Progress | None = None
    features: tuple[str, ...] = ()
    version: str = ""

    def wanted(self, flavour: str, version: str) -> Wanted:
        """Return what a server program of a flavour must be."""
        engine = "rocksdb" if "rocksdb" in self.features else "innodb"
        return Wanted(flavour, engine, version, self.say, self.progress)


def begin(description: Description, manner: Manner, *, listens: bool = False) -> Started:
    """Start a server unless it is running.

    Args:
        listens: whether it must listen on a port on 127.0.0.1; a running server that does not is restarted.

    Raises:
        LocalServerError: it cannot be started.
    """
    manner = dataclasses.replace(
        manner, options=manner.options or description.options, features=manner.features or description.features
    )
    data, log, say = description.data, description.log, manner.say
    listens = listens or description.port is not None
    offset = log.stat().st_size if log.exists() else 0
    pid = description.running_pid()
    deaf = pid is not None and listens and f"--port={description.port}" not in command_line(pid)
    if pid is not None and not deaf and description.server(pid).socket.exists():
        description = dataclasses.replace(description, options=manner.options, features=manner.features)
        description.write()
        return Started(description, pid, offset)
    if pid is not None and wait_gone(pid, data, 0.0 if deaf else 1.0) is False:
        why = "must listen on 127.0.0.1 for its replicas" if deaf else "has lost its socket"
        say(f"{description.name} is running, but {why}: restarting it")
        send(pid, data, signal.SIGTERM)
        if not wait_gone(pid, data, STOP_TIMEOUT_S):
            end(pid, data)
    if description.pid_file.exists():
        say(f"{description.name} had crashed: restarting it with its existing data")
    binary = description.binary
    if not binary.program.is_file():
        say(f"{binary.program} no longer exists: looking for another {binary.flavour}")
        binary = next(manner.wanted(binary.flavour, "").candidates())
        flavour = description.binary.flavour
        if binary.flavour != flavour:
            raise LocalServerError(
                f"{description.folder} contains {flavour} data, but only {binary.name} is available; install "
                f"{flavour}, or choose another --folder"
            )
    elif binary.root is None:
        binary = inspect(binary.command)  # the system may have upgraded it
    _require_unused(data)
    description = dataclasses.replace(
        description,
        binary=binary,
        socket=socket_path(description.folder),
        port=_free_port(description.port) if listens else None,
        options=manner.options,
        features=manner.features,
    )
    clean_up(description.folder)
    description.write()
    with space.full_disk_is_an_error(description.folder, "starting a server", space.SERVERS_REMEDY):
        (description.folder / "tmp").mkdir(mode=0o700, exist_ok=True)
        pid = spawn(server_command(description), log, environment())
    return Started(description, pid, offset)


def finish(started: Started, manner: Manner) -> LocalServer:
    """Wait until a server answers.

    Raises:
        LocalServerError: it ended, or did not answer in time.
    """
    for _ in range(_PORT_ATTEMPTS - 1):
        try:
            return _finish(started, manner.say)
        except _PortTaken as problem:
            manner.say(f"{problem}\nchoosing another port")
            started = begin(started.description, manner)
    return _finish(started, manner.say)


def _finish(started: Started, say: Callable[[str], None]) -> LocalServer:
    description, pid = started.description, started.pid
    began = said = time.monotonic()
    while not _answers(description.server(pid).socket):
        now = time.monotonic()
        if is_gone(pid, description.data):
            raise _died(started)
        if now - began > READY_TIMEOUT_S:
            raise LocalServerError(
                f"{description.name} (process {pid}) does not answer on {description.socket} after "
                f"{READY_TIMEOUT_S:.0f} s; see its log, {description.log}"
            )
        if now - said > 5:
            said = now
            say(f"{description.name} is not ready yet after {now - began:.0f} s (after a crash, it recovers first)")
        time.sleep(_POLL_S)
    return description.server(pid)


class _PortTaken(LocalServerError):
    """Another process took the chosen port before the server started."""


def _died(started: Started) -> LocalServerError:
    description = started.description
    try:
        with description.log.open("rb") as file:
            file.seek(started.offset)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        text = ""
    what = f"{description.name} ({description.binary.flavour} {description.binary.version}) ended while starting"
    if is_full_disk(text):
        return space.NoSpace(f"{what}: {space.no_space(description.folder, '', space.SERVERS_REMEDY)}")
    if description.port is not None and "Address already in use" in text:
        return _PortTaken(f"{what}, since its port is taken:{error_lines(text)}")
    return LocalServerError(f"{what}; the end of its log {description.log}:{error_lines(text)}")


def _answers(socket: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as probe:
        # PyMySQL leaks its socket if the connection is refused, which would be a warning in an application's tests.
        if probe.connect_ex(str(socket)) != 0:
            return False
    try:
        connection = pymysql.connect(
            unix_socket=str(socket), user="root", ssl_disabled=True, connect_timeout=5, read_timeout=5
        )
    except pymysql.err.OperationalError as problem:
        return bool(problem.args) and problem.args[0] == 1045  # access denied (root has a password): it answers
    except (pymysql.err.Error, OSError):
        return False
    connection.close()
    return True


def _free_port(wanted: int | None) -> int:
    """Return ``wanted`` if that port on 127.0.0.1 is free, else any free port."""
    for port in (wanted, 0) if wanted else (0,):
        with sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM) as probe:
            probe.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise LocalServerError(
        "no port on 127.0.0.1 is free for replicas to connect to; stop programs that listen on many ports"
    )


def _require_unused(data: Path) -> None:
    """Raise LocalServerError if a process uses the data directory, after waiting for one that is ending."""
    deadline = time.monotonic() + RELEASE_TIMEOUT_S
    while (holder := lock_holder(data / "ibdata1")) is not None:
        if time.monotonic() > deadline:
            who = f"process {holder} ({' '.join(command_line(holder)[:1])})" if holder else "a process not visible here"
            raise LocalServerError(f"{data} is in use by {who}; stop that process, or choose another --folder")
        time.sleep(_POLL_S)


def end(pid: int, data: Path) -> None:
    """Kill the server on ``data`` with SIGKILL, and wait until it has ended.

    Raises:
        LocalServerError: it does not end.
    """
    send(pid, data, signal.SIGKILL)
    if not wait_gone(pid, data, STOP_TIMEOUT_S):
        raise LocalServerError(f"process {pid} on {data} has not ended after SIGKILL; it may be waiting for its disk")


def clean_up(path: Path) -> None:
    """Remove the pid file, the socket and the socket's lock of a server that has ended."""
    description = None
    with contextlib.suppress(LocalServerError):
        description = Description.read(path)
    paths = [path / "mysqld.pid"]
    if description is not None:
        paths += [description.socket, Path(f"{description.socket}.lock")]
    for stale in paths:
        with contextlib.suppress(OSError):
            stale.unlink()


# --- new servers ------------------------------------------------------------------------------------------------------


def make_primaries(
    folder: Path, numbers: Iterable[int], flavour: str, manner: Manner, *, listens: bool
) -> list[LocalServer]:
    """Create and start new servers with the first program that works.

    Raises:
        LocalServerError: no program works, or the disk is full.
    """
    places = [(number, 0) for number in numbers]
    failure: LocalServerError | None = None
    for binary in manner.wanted(flavour, manner.version).candidates():
        try:
            made = [make(binary, folder, place, flavour, manner, listens=listens) for place in places]
            return [finish(begun, manner) for begun in made]
        except space.NoSpace:
            raise
        except LocalServerError as problem:
            if binary.root is not None or os.environ.get("SCHEMALESS_MYSQLD"):
                raise
            # For example, AppArmor may confine an installed program to its own paths.
            manner.say(f"{binary.program} cannot run here; trying another one: {problem}")
            failure = problem
            for place in places:
                path = server_folder(folder, *place)
                for pid in processes_on(path / "data"):
                    end(pid, path / "data")
                shutil.rmtree(path, ignore_errors=True)
    assert failure is not None, "candidates() yields a program or raises"
    raise failure


def make(
    binary: Binary, folder: Path, place: tuple[int, int], asked: str, manner: Manner, *, listens: bool = False
) -> Started:
    """Create a new server with ``binary``, and start it.

    Args:
        folder: the folder of all servers.
        place: its server number and its replica number, 0 for a primary.
        asked: the requested flavour.
        listens: whether it must listen on a port on 127.0.0.1.

    Raises:
        LocalServerError: it cannot be created or started.
    """
    if "group" in manner.features:
        group.require_able(binary.flavour)
    number, replica = place
    path = server_folder(folder, number, replica)
    path.mkdir(mode=0o700, exist_ok=True)
    description = Description(
        number=number,
        replica=replica,
        binary=binary,
        asked=asked,
        socket=socket_path(path),
        port=None,
        options=manner.options,
        features=manner.features,
        folder=path,
    )
    manner.say(f"creating {description.name}: {binary.flavour} {binary.version} in {path}")
    for pid in processes_on(description.data):  # left by an interrupted run
        end(pid, description.data)
    make_data_folder(binary, description.data, description.options, manner.say)
    description.write()
    return begin(description, manner, listens=listens)
