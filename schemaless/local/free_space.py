"""Room on disks: how much is free, how much a folder takes, and the error when it is too little."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from schemaless.errors import LocalServerError

SERVERS_REMEDY: Final = "free some, or choose a folder on another disk, and run the same command again"
CACHE_REMEDY: Final = "free some, or set SCHEMALESS_CACHE to a folder on another disk, and run the same command again"


class NoSpace(LocalServerError):
    """A disk has too little room."""


def no_space(folder: Path, what: str, remedy: str) -> NoSpace:
    """Return the error for a disk that is full."""
    return NoSpace(f"no space left{what} in {folder} ({free_text(folder)} free); {remedy}")


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write where ``folder`` is, or would be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def free_text(folder: Path) -> str:
    """Return the free bytes for people."""
    return f"{free_bytes(folder) / 1024 / 1024:,.0f} MiB"


def used_bytes(folder: Path) -> int:
    """Return the bytes allocated by the files below ``folder``; files that vanish meanwhile count as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def require(folder: Path, needed_bytes: int, what: str, remedy: str) -> None:
    """Raise unless ``needed_bytes`` are free where ``folder`` is.

    Raises:
        NoSpace: too little is free; the message says how much is needed, where, and the remedy.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        raise NoSpace(
            f"{what} needs {needed_bytes / 1024 / 1024:,.0f} MiB in {folder}, and {free / 1024 / 1024:,.0f} MiB are "
            f"free; {remedy}"
        )


@contextmanager
def full_disk_is_an_error(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Turn a disk that fills up, a quota or a read-only file system into one clear error."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(folder, f" while {what}", remedy) from problem
        if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise LocalServerError(f"{what} in {folder} is not permitted ({problem.strerror}); {remedy}") from problem
        raise
