"""The user's home folder, which a user in a container may not have, the cache in it, lock files, and free space."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from schemaless.errors import InvalidInput


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of ``~``.

    Raises:
        InvalidInput: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidInput(
            f"cannot expand the ~ in {path}: HOME is not set, and there is no such user in the passwd database; give "
            "an absolute path, or set HOME"
        ) from None


def cache_folder() -> Path:
    """Return ``$SCHEMALESS_CACHE``, else ``$XDG_CACHE_HOME/schemaless``, else ``~/.cache/schemaless``.

    Raises:
        InvalidInput: neither variable is set, and there is no home folder.
    """
    own = os.environ.get("SCHEMALESS_CACHE")
    if own:
        return expanded(own).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "schemaless"
    try:
        return Path.home() / ".cache/schemaless"
    except RuntimeError:
        raise InvalidInput("no home folder to keep downloads in; set SCHEMALESS_CACHE to a writable folder") from None


@contextmanager
def locked(path: Path, when_waiting: Callable[[], object]) -> Iterator[IO[str]]:
    """Hold the lock of a lock file, which is created; calls ``when_waiting`` if another process holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def free_bytes(folder: Path) -> int:
    """Return the number of bytes that this user may write to the disk of ``folder``, which need not exist."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
