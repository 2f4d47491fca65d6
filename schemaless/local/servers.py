"""Private MySQL and MariaDB servers of a folder: start them, find them again, stop them, kill them.

A folder holds servers 1, 2, ..., each with its data, its log and ``server.json``, which is written once its data folder
is whole. Commands on one folder take turns by a lock. A server runs in a session of its own and outlives its starter,
unless it is tied to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pymysql

from schemaless.errors import LocalServerError
from schemaless.local import space
from schemaless.local.apt import Progress
from schemaless.local.binaries import FLAVOURS, Binary, candidates, environment, inspect
from schemaless.local.options import error_lines, is_full_disk, make_data_folder, option_arguments, server_command
from schemaless.local.processes import (
    Watcher,
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
"""How long a server may take to answer; after a crash it recovers first."""
STOP_TIMEOUT_S: Final = 60.0
"""How long a clean shutdown may take before the server is killed."""

RELEASE_TIMEOUT_S: Final = 10.0
"""How long a data folder may stay locked by a server that is just ending."""

_MARKER: Final = "schemaless-local.json"
_POLL_S: Final = 0.05
_SPACE_REMEDY: Final = "free some, or choose a folder on another disk, and run the same command again"

_watchers: dict[Path, Watcher] = {}


@dataclass(frozen=True)
class LocalServer:
    """A running private server.

    Attributes:
        number: 1, 2, ...; its ``server_id`` too.
        flavour: "mysql" or "mariadb".
        version: such as "9.7.4".
        socket: where it listens.
        folder: holds its data, its log and its description.
        pid: its process.
    """

    number: int
    flavour: str
    version: str
    socket: Path
    folder: Path
    pid: int

    @property
    def url(self) -> str:
        """What to connect with, such as ``mysql://root@/?unix_socket=/run/user/1000/schemaless/3f2a.sock``."""
        return socket_url(self.socket)

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """Its error log."""
        return self.folder / "error.log"


@dataclass(frozen=True)
class ServerStatus:
    """What is known about a server without changing anything.

    Attributes:
        state: "running", "stopped" (by ``down``, or never started) or "crashed" (it ended without a shutdown).
        pid: its process, or None.
        data_bytes: what its data folder takes on disk.
    """

    number: int
    flavour: str
    version: str
    state: str
    pid: int | None
    socket: Path
    folder: Path
    data_bytes: int

    @property
    def url(self) -> str:
        """What to connect with when it runs."""
        return socket_url(self.socket)


@dataclass(frozen=True)
class _Description:
    """What ``server.json`` holds."""

    number: int
    flavour: str
    asked: str
    version: str
    command: tuple[str, ...]
    root: Path | None
    name: str
    socket: Path
    options: tuple[str, ...]
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "error.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "mysqld.pid"

    def running_pid(self) -> int | None:
        try:
            hint = int(self.pid_file.read_text())
        except (OSError, ValueError):
            hint = None
        pids = processes_on(self.data, hint=hint)
        return pids[0] if pids else None

    def binary(self) -> Binary:
        return Binary(self.flavour, self.version, self.command, self.root, self.name)

    def server(self, pid: int) -> LocalServer:
        # The running server's own command line knows best where it listens.
        arguments = command_line(pid)
        socket = next(
            (Path(part.removeprefix("--socket=")) for part in arguments if part.startswith("--socket=")), None
        )
        return LocalServer(self.number, self.flavour, self.version, socket or self.socket, self.folder, pid)

    def write(self) -> None:
        state: dict[str, Any] = {
            "number": self.number,
            "flavour": self.flavour,
            "asked": self.asked,
            "version": self.version,
            "command": list(self.command),
            "root": None if self.root is None else str(self.root),
            "name": self.name,
            "socket": str(self.socket),
            "options": list(self.options),
        }
        part = self.folder / "server.json.part"
        part.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        part.replace(self.folder / "server.json")

    @classmethod
    def read(cls, folder: Path) -> _Description | None:
        try:
            state = json.loads((folder / "server.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as problem:
            raise LocalServerError(
                f"{folder / 'server.json'} is damaged ({problem}); with 'schemaless local down --delete' all servers "
                "of the folder and their data go"
            ) from problem
        return cls(
            number=state["number"],
            flavour=state["flavour"],
            asked=state["asked"],
            version=state["version"],
            command=tuple(state["command"]),
            root=None if state["root"] is None else Path(state["root"]),
            name=state["name"],
            socket=Path(state["socket"]),
            options=tuple(state["options"]),
            folder=folder,
        )


def socket_url(socket: Path) -> str:
    """Return the URL of a server that listens on ``socket``."""
    return f"mysql://root@/?unix_socket={quote(str(socket), safe='/')}"


def up(
    folder: Path,
    servers: int = 2,
    flavour: str = "mysql",
    *,
    tied: bool = False,
    remove: bool = False,
    options: Mapping[str, object] | Sequence[str] = (),
    report: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> list[LocalServer]:
    """Have at least ``servers`` servers running in ``folder``, and return all of them, by number.

    Running ones are left as they are, stopped and crashed ones are started on their own data, missing ones are made.

    Args:
        folder: theirs alone; made when it is missing.
        servers: how many, 1 to 100. Where more are there already, all of them are started.
        flavour: "mysql" or "mariadb". Where no archive has MySQL, MariaDB comes instead, and ``report`` says so.
        tied: stop the servers when this process ends, however it ends.
        remove: with ``tied``, kill them and delete the folder too.
        options: of the servers, such as ``{"innodb-buffer-pool-size": "1G"}``; kept for later starts, and none given
            means the ones kept. A running server takes them at its next start.
        report: gets lines about what goes on.
        progress: shows what takes long; see ``apt.Progress``.

    Raises:
        LocalServerError: what came, where, and what to do next.
    """
    if not sys.platform.startswith("linux"):
        raise LocalServerError(f"local servers need Linux, this is {sys.platform}; name other servers by their URLs")
    if flavour not in FLAVOURS:
        raise LocalServerError(f"flavour must be one of {', '.join(FLAVOURS)}, got {flavour!r}")
    if not 1 <= servers <= 100:
        raise LocalServerError(f"servers must be 1 to 100, got {servers}")
    say = report or (lambda line: None)
    given = option_arguments(options)
    folder = Path(folder).expanduser().resolve()
    with _locked(folder, say, create=True):
        found = _descriptions(folder)
        other = [each for each in found.values() if flavour not in (each.flavour, each.asked)]
        if other:
            raise LocalServerError(
                f"{folder} holds {other[0].flavour} servers and {flavour} was asked for; choose another --folder, or "
                "delete these with 'schemaless local down --delete'"
            )
        numbers = range(1, max([servers, *found]) + 1)
        if tied:
            sockets = [socket_path(_server_folder(folder, number)) for number in numbers]
            _unwatch(folder)
            _watchers[folder] = Watcher(folder, sockets, remove=remove)
        started = [_begin(description, given, say, progress) for description in found.values()]
        result = [_finish(description, pid, offset, say) for description, pid, offset in started]
        new = [number for number in numbers if number not in found]
        if new:
            result += _make(folder, new, flavour, given, say, progress)
    return sorted(result, key=lambda server: server.number)


def status(folder: Path) -> list[ServerStatus]:
    """Return what the servers of ``folder`` do, by number; empty when there are none."""
    folder = Path(folder).expanduser().resolve()
    if not folder.is_dir() or not any(folder.iterdir()):
        return []
    _require_ours(folder)
    return _statuses(folder)


def _statuses(folder: Path) -> list[ServerStatus]:
    result = []
    for description in _descriptions(folder).values():
        pid = description.running_pid()
        if pid is not None:
            state, socket = "running", description.server(pid).socket
        else:
            # A server takes its pid file away when it shuts down.
            state, socket = ("crashed" if description.pid_file.exists() else "stopped"), description.socket
        used = space.used_bytes(description.data)
        result.append(
            ServerStatus(
                description.number,
                description.flavour,
                description.version,
                state,
                pid,
                socket,
                description.folder,
                used,
            )
        )
    return result


def down(
    folder: Path,
    *,
    delete: bool = False,
    timeout_s: float = STOP_TIMEOUT_S,
    report: Callable[[str], None] | None = None,
) -> list[ServerStatus]:
    """Shut the servers of ``folder`` down, and wait until they are.

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
    _require_ours(folder)
    with _locked(folder, say, create=False):
        try:
            before = _statuses(folder)
        except LocalServerError:  # a damaged description does not keep a folder from being removed
            if not delete:
                raise
            before = []
        # Whatever runs on a data folder here ends, a half-made server's first process included.
        running = [
            (pid, path / "data") for path in sorted(folder.glob("server-*")) for pid in processes_on(path / "data")
        ]
        for pid, data in running:
            send(pid, data, signal.SIGKILL if delete else signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for pid, data in running:
            if not wait_gone(pid, data, max(0.0, deadline - time.monotonic())):
                say(f"{data.parent.name} did not stop in {timeout_s:.0f} s: killed; its next start recovers")
                send(pid, data, signal.SIGKILL)
                if not wait_gone(pid, data, STOP_TIMEOUT_S):
                    raise LocalServerError(f"process {pid} on {data} cannot be ended; see what it waits for")
        for path in sorted(folder.glob("server-*")):
            _clean_up(path)
        _unwatch(folder)
        if delete:
            shutil.rmtree(folder)
    return before


def kill(server: LocalServer) -> None:
    """End a server with SIGKILL, as a crash does, and wait until it is gone."""
    pid = server.pid
    send(pid, server.data, signal.SIGKILL)
    if not wait_gone(pid, server.data, STOP_TIMEOUT_S):
        raise LocalServerError(f"process {pid} on {server.data} cannot be ended; see what it waits for")


def start(server: LocalServer, *, report: Callable[[str], None] | None = None) -> LocalServer:
    """Start a server that was stopped or killed, on its own data, and return it with its new process."""
    say = report or (lambda line: None)
    with _locked(server.folder.parent, say, create=False):
        description = _Description.read(server.folder)
        if description is None:
            raise LocalServerError(f"{server.folder} holds no server; run 'schemaless local up' again")
        return _finish(*_begin(description, [], say, None), say)


# --- one server -------------------------------------------------------------------------------------------------------


def _begin(
    description: _Description, given: Sequence[str], say: Callable[[str], None], progress: Progress | None
) -> tuple[_Description, int, int]:
    """Start a server unless it runs; return its process and where this start's words begin in its log."""
    data, log = description.data, description.log
    offset = log.stat().st_size if log.exists() else 0
    pid = description.running_pid()
    changed = bool(given) and tuple(given) != description.options
    if pid is not None and description.server(pid).socket.exists():
        if changed:
            description = _replace(description, options=tuple(given))
            description.write()
        return description, pid, offset
    if pid is not None and wait_gone(pid, data, 1.0) is False:
        say(f"server {description.number} runs, but its socket is gone: starting it again")
        send(pid, data, signal.SIGTERM)
        if not wait_gone(pid, data, STOP_TIMEOUT_S):
            send(pid, data, signal.SIGKILL)
            wait_gone(pid, data, STOP_TIMEOUT_S)
    if description.pid_file.exists():
        say(f"server {description.number} had crashed: starting it on its own data")
    binary = description.binary()
    if not binary.program.is_file():
        say(f"{binary.program} is gone: looking for another {binary.flavour}")
        binary = next(iter(candidates(binary.flavour, report=say, progress=progress)))
        if binary.flavour != description.flavour:
            raise LocalServerError(
                f"{description.folder} has {description.flavour} data, and only {binary.name} is here"
            )
    elif binary.root is None:
        binary = inspect(binary.command)  # it may have been upgraded
    _require_unused(data)
    description = _replace(
        description,
        version=binary.version,
        command=binary.command,
        root=binary.root,
        name=binary.name,
        socket=socket_path(description.folder),
        options=tuple(given) if given else description.options,
    )
    _clean_up(description.folder)
    description.write()
    with space.full_disk_is_an_error(description.folder, "starting a server", _SPACE_REMEDY):
        command = server_command(
            binary, description.number, data, description.socket, description.pid_file, log, description.options
        )
        (description.folder / "tmp").mkdir(mode=0o700, exist_ok=True)
        pid = spawn(command, log, environment())
    return description, pid, offset


def _finish(description: _Description, pid: int, offset: int, say: Callable[[str], None]) -> LocalServer:
    """Wait until a server answers."""
    started = said = time.monotonic()
    while not _answers(description.server(pid).socket):
        now = time.monotonic()
        if is_gone(pid, description.data):
            raise _died(description, offset)
        if now - started > READY_TIMEOUT_S:
            raise LocalServerError(
                f"server {description.number} (process {pid}) does not answer on {description.socket} after "
                f"{READY_TIMEOUT_S:.0f} s; its log is {description.log}"
            )
        if now - said > 5:
            said = now
            say(
                f"server {description.number} is not ready yet, {now - started:.0f} s (after a crash it recovers first)"
            )
        time.sleep(_POLL_S)
    return description.server(pid)


def _died(description: _Description, offset: int) -> LocalServerError:
    try:
        with description.log.open("rb") as file:
            file.seek(offset)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        text = ""
    what = f"server {description.number} ({description.flavour} {description.version}) ended while starting"
    if is_full_disk(text):
        return space.NoSpace(
            f"{what}: no space left in {description.folder} ({space.free_text(description.folder)} free); "
            f"{_SPACE_REMEDY}"
        )
    return LocalServerError(f"{what}; the last of its log {description.log}:{error_lines(text)}")


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    try:
        connection = pymysql.connect(unix_socket=str(socket), user="root", connect_timeout=5, read_timeout=5)
    except pymysql.err.OperationalError as problem:
        return bool(problem.args) and problem.args[0] == 1045  # root was given a password: somebody is at home
    except (pymysql.err.Error, OSError):
        return False
    connection.close()
    return True


def _require_unused(data: Path) -> None:
    """Raise when a process holds the data folder; one that is just ending is waited for."""
    deadline = time.monotonic() + RELEASE_TIMEOUT_S
    while (holder := lock_holder(data / "ibdata1")) is not None:
        if time.monotonic() > deadline:
            who = f"process {holder} ({' '.join(command_line(holder)[:1])})" if holder else "a process out of sight"
            raise LocalServerError(
                f"{data} is in use by {who}; stop it, or choose another --folder: one data folder never has two servers"
            )
        time.sleep(_POLL_S)


def _clean_up(server_folder: Path) -> None:
    """Remove what a server that is gone has left: its pid file, its socket and the socket's lock."""
    description = None
    with contextlib.suppress(LocalServerError):
        description = _Description.read(server_folder)
    paths = [server_folder / "mysqld.pid"]
    if description is not None:
        paths += [description.socket, Path(f"{description.socket}.lock")]
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


# --- new servers ------------------------------------------------------------------------------------------------------


def _make(
    folder: Path,
    numbers: Sequence[int],
    flavour: str,
    given: Sequence[str],
    say: Callable[[str], None],
    progress: Progress | None,
) -> list[LocalServer]:
    """Make and start new servers, with the first program that can."""
    for binary in candidates(flavour, report=say, progress=progress):
        try:
            return _make_with(binary, folder, numbers, flavour, given, say, progress)
        except space.NoSpace:
            raise
        except LocalServerError as problem:
            if binary.root is not None or os.environ.get("SCHEMALESS_MYSQLD"):
                raise
            # AppArmor, for one, keeps a system's program to its own paths.
            say(f"{binary.program} cannot run here, going on to an unpacked one: {problem}")
            for number in numbers:
                path = _server_folder(folder, number)
                for pid in processes_on(path / "data"):
                    send(pid, path / "data", signal.SIGKILL)
                    wait_gone(pid, path / "data", STOP_TIMEOUT_S)
                shutil.rmtree(path, ignore_errors=True)
    raise AssertionError("candidates() ends with a program or an error")


def _make_with(
    binary: Binary,
    folder: Path,
    numbers: Sequence[int],
    flavour: str,
    given: Sequence[str],
    say: Callable[[str], None],
    progress: Progress | None,
) -> list[LocalServer]:
    started = []
    for number in numbers:
        path = _server_folder(folder, number)
        say(f"making server {number}: {binary.flavour} {binary.version} in {path}")
        path.mkdir(mode=0o700, exist_ok=True)
        for pid in processes_on(path / "data"):  # an interrupted run's first process
            send(pid, path / "data", signal.SIGKILL)
            wait_gone(pid, path / "data", STOP_TIMEOUT_S)
        socket = socket_path(path)
        make_data_folder(binary, path / "data", say)
        description = _Description(
            number,
            binary.flavour,
            flavour,
            binary.version,
            binary.command,
            binary.root,
            binary.name,
            socket,
            tuple(given),
            path,
        )
        description.write()
        started.append(_begin(description, given, say, progress))
    return [_finish(description, pid, offset, say) for description, pid, offset in started]


# --- the folder -------------------------------------------------------------------------------------------------------


def _server_folder(folder: Path, number: int) -> Path:
    return folder / f"server-{number}"


def _descriptions(folder: Path) -> dict[int, _Description]:
    """Return the whole servers of a folder, by number."""
    found = {}
    for path in folder.glob("server-*"):
        if re.fullmatch(r"server-[1-9]\d*", path.name):
            description = _Description.read(path)
            if description is not None:
                found[description.number] = description
    return dict(sorted(found.items()))


def _require_ours(folder: Path) -> None:
    if not (folder / _MARKER).is_file():
        content = sorted(path.name for path in folder.iterdir() if path.name not in (".lock", ".gitignore"))
        if content:
            named = ", ".join(content[:3]) + (", ..." if len(content) > 3 else "")
            raise LocalServerError(
                f"{folder} holds something else ({named}); choose another --folder, empty or not there yet"
            )


@contextmanager
def _locked(folder: Path, say: Callable[[str], None], *, create: bool) -> Iterator[None]:
    """Hold the folder's lock; with ``create``, make the folder and mark it as one of ours."""
    with space.full_disk_is_an_error(folder, "making the servers' folder", _SPACE_REMEDY):
        if create:
            if folder.exists() and not folder.is_dir():
                raise LocalServerError(f"{folder} is a file; choose another --folder")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_ours(folder)
        while True:
            file = (folder / ".lock").open("w")
            try:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say(f"another command is at work in {folder}; waiting for it")
                    fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(file.fileno()), (folder / ".lock").stat()):
                        break
            except BaseException:
                file.close()
                raise
            file.close()  # the folder was deleted while this waited
            if create:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file:
        if create and not (folder / _MARKER).is_file():
            with space.full_disk_is_an_error(folder, "making the servers' folder", _SPACE_REMEDY):
                (folder / ".gitignore").write_text("*\n")  # it is in somebody's project, as a rule
                (folder / _MARKER).write_text('{"format": 1}\n')
        yield


def _unwatch(folder: Path) -> None:
    watcher = _watchers.pop(folder, None)
    if watcher is not None:
        watcher.close()


def _replace(description: _Description, **changes: Any) -> _Description:
    return dataclasses.replace(description, **changes)
