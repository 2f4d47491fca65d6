"""The names of runners: who does a job's work, on which machine, in which process."""

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
    """Return a name for this process that no other has: who, where, and a token."""
    return f"{who()} pid {getpid()} of {_pid_namespace()} {secrets.token_hex(4)}"


def is_dead_here(runner: str) -> bool:
    """Whether a runner, by its name, was a process of this machine that is no more: nobody need wait for its lease."""
    parts = _RUNNER.fullmatch(runner)
    if parts is None or parts["host"] != socket.gethostname() or parts["space"] != _pid_namespace():
        return False
    return not _lives(int(parts["worker"] or parts["driver"]))


def _pid_namespace() -> str:
    """Return what tells the process numbers of this machine from those of its containers."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def who() -> str:
    """Return who runs this: the user and the machine."""
    try:
        user = getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[:200]
