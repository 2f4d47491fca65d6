"""Where the suite's servers and files are: in memory where there is plenty of it, so that tests do not wait for a disk.

What a server has committed survives ``kill -9`` of it there as well; a loss of power is nothing that the suite tries.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
_NAME: Final = "sl-"
"""Short, since the path of a socket in it has 107 bytes at most."""

_LEAST_FREE_BYTES: Final = 12 * 2**30
"""A whole run puts up to 8 GiB there."""

_LEAST_AVAILABLE_BYTES: Final = 20 * 2**30
"""A whole run takes up to 18 GiB with that: its 20 servers and all that they start have the others."""


def in_memory() -> Path | None:
    """Make a folder in memory, and have it be the one for temporary files, here and in processes that this one starts.

    Returns:
        The folder, which is to be removed; None where there is too little memory, or ``TMPDIR`` names another place.
    """
    if "TMPDIR" in os.environ or _free_bytes() < _LEAST_FREE_BYTES or _available_bytes() < _LEAST_AVAILABLE_BYTES:
        return None
    for left in _MEMORY.glob(f"{_NAME}*"):
        # Of a run that was killed.
        number = left.name.removeprefix(_NAME)
        if number == str(os.getpid()) or (number.isdigit() and not Path("/proc", number).exists()):
            shutil.rmtree(left, ignore_errors=True)
    folder = _MEMORY / f"{_NAME}{os.getpid()}"
    # Others pass through it to what is theirs, and list nothing.
    folder.mkdir(mode=0o711)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return folder


def _free_bytes() -> int:
    """Return what the folder of shared memory takes; 0 where there is none."""
    return shutil.disk_usage(_MEMORY).free if os.access(_MEMORY, os.W_OK) else 0


def _available_bytes() -> int:
    """Return how much memory programs may still take; 0 where the system does not say."""
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)
