"""Servers that hang: stopped as a whole, so that nothing is answered any more once that is done."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def freeze(pid: int) -> None:
    """Stop a process, and return when each of its threads stands still: before that, one may answer once more."""
    os.kill(pid, signal.SIGSTOP)
    while not all(_state(task) in "Tt" for task in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(0.001)


def thaw(pid: int) -> None:
    """Resume a process."""
    os.kill(pid, signal.SIGCONT)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "t"  # it ended before it could be stopped
