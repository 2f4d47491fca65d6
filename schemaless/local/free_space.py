"""Disk space: free and used bytes, and errors for a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from schemaless.base.home import free_bytes as free_bytes
from schemaless.base.numbers import bytes_text
from schemaless.errors import LocalServerError

SERVERS_REMEDY: Final = "choose a folder on another disk, and run the same command again"
"""Besides making room."""

CACHE_REMEDY: Final = "set SCHEMALESS_CACHE to a folder on another disk, and run the same command again"


class NoSpace(LocalServerError):
    """A disk has too little free space."""


def no_space(folder: Path, what: str, remedy: str) -> NoSpace:
    """Return the error for a full disk."""
    return NoSpace(f"no space left{what} in {folder} ({bytes_text(free_bytes(folder))} free); make room, or {remedy}")


def used_bytes(folder: Path) -> int:
    """Return how many bytes the files below ``folder`` occupy, ignoring files that disappear during the scan."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def require(folder: Path, needed_bytes: int, what: str, remedy: str) -> None:
    """Check that the disk of ``folder`` has ``needed_bytes`` free.

    Raises:
        NoSpace: it has less; the message gives both sizes and the remedy.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        raise NoSpace(
            f"{what} needs {bytes_text(needed_bytes)} in {folder}, but only {bytes_text(free)} are free; "
            f"make room, or {remedy}"
        )


@contextmanager
def full_disk_is_an_error(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Turn an error caused by a full disk, a quota or a lack of write access into one that states a remedy."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(folder, f" while {what}", remedy) from problem
        if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise LocalServerError(f"{what} in {folder} is not permitted ({problem.strerror}); {remedy}") from problem
        raise
