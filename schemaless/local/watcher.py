"""Process that stops the servers tied to a process when that process ends; ``Watcher`` runs it as a script.

It imports nothing from this package, so that it starts fast and does not depend on the caller's environment.

    watcher.py PARENT_PID REMOVE FOLDER SOCKET...
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

_PATIENCE_S = 30.0


def _servers(folder: str) -> list[int]:
    """Return the ids of processes whose ``--datadir`` is below ``folder``."""
    prefix = f"--datadir={folder}/".encode()
    running = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(argument.startswith(prefix) for argument in arguments):
                running.append(int(entry.name))
    return running


def _end(folder: str, number: int, patience_s: float) -> bool:
    """Signal every server below ``folder``; return whether all ended in time."""
    deadline = time.monotonic() + patience_s
    signalled: set[int] = set()
    while pids := _servers(folder):
        for pid in pids:
            if pid not in signalled:
                signalled.add(pid)
                try:
                    os.kill(pid, number)
                except OSError:
                    continue
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def main() -> None:
    """Stop the servers when the parent ends, unless it has sent the quit byte."""
    parent, remove, folder, sockets = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3], sys.argv[4:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    waited: list[int] = [0]
    with contextlib.suppress(OSError):  # an old kernel, or the parent has ended and the pipe with it
        waited.append(os.pidfd_open(parent))
    os.write(1, b"r")
    if os.getppid() == parent:
        select.select(waited, [], [])
    if select.select([0], [], [], 0)[0] and os.read(0, 1) == b"q":
        return
    if remove or not _end(folder, signal.SIGTERM, _PATIENCE_S):
        _end(folder, signal.SIGKILL, _PATIENCE_S)
    if remove:
        shutil.rmtree(folder, ignore_errors=True)
        for socket in sockets:
            for path in (Path(socket), Path(socket + ".lock")):
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
