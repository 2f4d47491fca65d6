"""Runner names, which identify the user, host and process that work on a job."""

from __future__ import annotations

import os
import re
import secrets
import socket
from getpass import getuser
from os import getpid
from pathlib import Path
from typing import Final

_RUNNER: Final = re.compile(r".*?@(?P<host>.+) pid (?P<driver>\d+) of (?P<space>\d+) [0-9a-f]+(/(?P<worker>\d+)\.\d+)?")


def runner_name() -> str:
    """Return a unique name for this process: user, host, process id and a random token."""
    return f"{who()} pid {getpid()} of {_pid_namespace()} {secrets.token_hex(4)}"


def process_of(runner: str) -> str:
    """Return the part of a runner's name to show to users: user, host and process id."""
    parts = _RUNNER.fullmatch(runner)
    return runner if parts is None else f"{runner.partition(' pid ')[0]} pid {parts['worker'] or parts['driver']}"


def is_dead_here(runner: str) -> bool:
    """Return True if a runner was a process on this machine that has ended, so its lease can be taken over at once."""
    parts = _RUNNER.fullmatch(runner)
    if parts is None or parts["host"] != socket.gethostname() or parts["space"] != _pid_namespace():
        return False
    return not _is_running(int(parts["worker"] or parts["driver"]))


def _pid_namespace() -> str:
    """Return an identifier of the PID namespace: containers on one host have process ids of their own."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def who() -> str:
    """Return ``user@host`` of this process."""
    try:
        user = getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:200]
