"""Process that stops the servers tied to a process when that process ends; ``Watcher`` runs it as a script.

It imports nothing from this package, so that it starts fast and does not depend on the caller's environment.

    watcher.py PARENT_PID REMOVE FOLDER PROC SOCKET...
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PATIENCE_S = 30.0
_POLL_S = 0.2


def _servers(folder: str, proc: Path) -> list[int]:
    """Return the ids of processes whose ``--datadir`` is below ``folder``."""
    option = f"--datadir={folder}/".encode()
    if not proc.is_dir():  # macOS
        listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=", "-o", "args="], capture_output=True).stdout
        return [int(line.split()[0]) for line in listed.splitlines() if b" " + option in line]
    running = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(argument.startswith(option) for argument in arguments):
                running.append(int(entry.name))
    return running


def _end(folder: str, proc: Path, number: int, patience_s: float) -> bool:
    """Signal every server below ``folder``; return whether all ended in time."""
    deadline = time.monotonic() + patience_s
    signalled: set[int] = set()
    while pids := _servers(folder, proc):
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
    parent, remove, folder, proc = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3], Path(sys.argv[4])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"r")
    # The pipe ends with the parent, unless a forked child of it has kept it open.
    while os.getppid() == parent and not select.select([0], [], [], _POLL_S)[0]:
        pass
    if select.select([0], [], [], 0)[0] and os.read(0, 1) == b"q":
        return
    if remove or not _end(folder, proc, signal.SIGTERM, _PATIENCE_S):
        _end(folder, proc, signal.SIGKILL, _PATIENCE_S)
    if remove:
        shutil.rmtree(folder, ignore_errors=True)
        for socket in sys.argv[5:]:
            for path in (Path(socket), Path(socket + ".lock")):
                path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
