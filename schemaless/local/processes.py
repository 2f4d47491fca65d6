"""Processes, sockets and locks of local servers.

A server is identified by the ``--datadir`` on its command line, since process ids are reused. Command lines are read
from ``/proc`` or, on macOS, which has none, from ``ps``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from schemaless.errors import LocalServerError

SOCKET_PATH_MAX_BYTES: Final = 107 if sys.platform == "linux" else 103
"""Longest path in ``sockaddr_un``, in bytes, without the terminating zero."""

PROC: Final = Path("/proc")
"""Folder of the processes; only Linux has one."""

_POLL_S: Final = 0.02


def runtime_folder() -> Path:
    """Return this user's private folder for sockets, creating it if necessary.

    It is ``$XDG_RUNTIME_DIR/schemaless`` if that variable names a folder that this user owns, else ``schemaless-<uid>``
    in the temporary folder.

    Raises:
        LocalServerError: the folder belongs to another user, or is open to others.
    """
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg and Path(xdg).is_absolute() and Path(xdg).is_dir() and Path(xdg).stat().st_uid == os.getuid():
        folder = Path(xdg) / "schemaless"
    else:
        folder = Path(tempfile.gettempdir()) / f"schemaless-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as problem:
        raise LocalServerError(
            f"cannot create the socket folder {folder} ({problem.strerror}); set XDG_RUNTIME_DIR to a folder of yours"
        ) from problem
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise LocalServerError(
            f"the socket folder {folder} belongs to another user or is accessible to others; remove it, or set "
            "XDG_RUNTIME_DIR to a folder of yours"
        )
    return folder


def socket_path(server_folder: Path) -> Path:
    """Return the socket path for the server in ``server_folder``, which depends only on the folder's path.

    Raises:
        LocalServerError: the path exceeds ``SOCKET_PATH_MAX_BYTES``.
    """
    digest = hashlib.sha256(os.fsencode(server_folder)).hexdigest()[:16]
    path = runtime_folder() / f"{digest}.sock"
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_MAX_BYTES:
        raise LocalServerError(
            f"the socket path {path} has {length} bytes, but the limit is {SOCKET_PATH_MAX_BYTES}; set "
            "XDG_RUNTIME_DIR or TMPDIR to a folder with a shorter path"
        )
    return path


def command_line(pid: int) -> list[str]:
    """Return the command line of process ``pid``; empty if it has ended or is ending."""
    if not PROC.is_dir():
        return _listed("-p", str(pid)).get(pid, [])
    try:
        return [os.fsdecode(part) for part in (PROC / f"{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    except OSError:
        return []


def _listed(*which: str) -> dict[int, list[str]]:
    """Return the command lines of processes that have not ended, as ``ps`` prints them.

    It joins arguments with spaces, which paths may contain, so they are separated where the next option begins.
    """
    command = ["ps", *which, "-ww", "-o", "pid=", "-o", "stat=", "-o", "args="]
    lines = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape").stdout.splitlines()
    processes = {}
    for pid, state, arguments in (line.split(maxsplit=2) for line in lines if len(line.split(maxsplit=2)) == 3):
        if not state.startswith("Z"):
            first, *options = arguments.split(" --")
            processes[int(pid)] = [first, *(f"--{option}" for option in options)]
    return processes


def processes_on(data_folder: Path, *, hint: int | None = None) -> list[int]:
    """Return the processes that were started with ``--datadir=<data_folder>``, checking ``hint`` first."""
    wanted = f"--datadir={data_folder}"
    if hint is not None and wanted in command_line(hint):
        return [hint]
    if not PROC.is_dir():
        return sorted(pid for pid, arguments in _listed("-A").items() if wanted in arguments)
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in sorted(pids) if pid != hint and wanted in command_line(pid)]


def lock_holder(path: Path) -> int | None:
    """Return the id of the process with a POSIX lock on ``path``; None if none has one, 0 if it is not visible.

    InnoDB locks ``ibdata1`` while it runs, so this also finds servers with another command line.
    """
    try:
        file = path.open("rb+")
    except OSError:
        return None
    with file:
        if not PROC.is_dir():  # the layout of struct flock differs
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return 0
            return None
        # struct flock: type, whence, start, length, pid
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, request))
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def spawn(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int:
    """Start ``command`` in a new session, so that it outlives this process; return its process id.

    Its output is appended to ``log``; its input is empty. Does not use ``subprocess``, which would warn about a child
    that keeps running.
    """
    files = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(
        command[0],
        list(command),
        environment,
        file_actions=files,
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGPIPE,),
    )


def is_gone(pid: int, data_folder: Path) -> bool:
    """True if process ``pid`` is no longer the server on ``data_folder``; reaps it if it was a child.

    A process that is starting or ending has no command line for a moment, so an empty one proves nothing: the server
    is gone once its last thread has ended and released all locks.
    """
    arguments = command_line(pid)
    if arguments:
        return f"--datadir={data_folder}" not in arguments
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # macOS, or a kernel or a sandbox without it
        ended = _is_zombie(pid)
    else:
        ended = bool(select.select([handle], [], [], 0)[0])
        os.close(handle)
    if ended:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return ended


def _is_zombie(pid: int) -> bool:
    try:
        return (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_gone(pid: int, data_folder: Path, timeout_s: float) -> bool:
    """Wait until ``pid`` is no longer the server on ``data_folder``; return False after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not is_gone(pid, data_folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def send(pid: int, data_folder: Path, number: signal.Signals) -> None:
    """Send a signal to the server on ``data_folder``, but not to another process that has reused its id."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # macOS, or a kernel or a sandbox without it
        if f"--datadir={data_folder}" in command_line(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return
    try:
        if f"--datadir={data_folder}" in command_line(pid):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


class Watcher:
    """Process that stops the servers of a folder when this process ends, even by ``kill -9``.

    It watches both a pipe from this process and the process itself, since a forked child may keep the pipe open.
    """

    def __init__(self, folder: Path, sockets: Sequence[Path], *, remove: bool) -> None:
        script = Path(__file__).with_name("watcher.py")
        command = [sys.executable, "-I", "-S", str(script), str(os.getpid()), str(int(remove)), str(folder), str(PROC)]
        word_read, self._word = os.pipe()
        ready, ready_write = os.pipe()
        try:
            files = [
                (os.POSIX_SPAWN_DUP2, word_read, 0),
                (os.POSIX_SPAWN_DUP2, ready_write, 1),
                (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0),
            ]
            self._pid = os.posix_spawn(
                sys.executable, [*command, *map(str, sockets)], os.environ, file_actions=files, setsid=True
            )
        finally:
            os.close(word_read)
            os.close(ready_write)
        self.owner_pid: int = os.getpid()
        try:
            readable, _, _ = select.select([ready], [], [], 30)
            started = bool(readable) and os.read(ready, 1) == b"r"
        finally:
            os.close(ready)
        if not started:
            self.close()
            raise LocalServerError("the watcher process for tied servers did not start within 30 s")

    def close(self) -> None:
        """Stop watching, without stopping the servers. Does nothing in a forked child."""
        if self.owner_pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            os.write(self._word, b"q")
        os.close(self._word)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
