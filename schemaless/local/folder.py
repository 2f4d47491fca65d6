"""The folder of private servers: what is in it, its lock, and who watches over it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from schemaless.errors import LocalServerError
from schemaless.local import free_space as space
from schemaless.local.description import Description
from schemaless.local.processes import Watcher, socket_path

MARKER: Final = "schemaless-local.json"
"""This file tells a folder of ours."""

_SERVER_FOLDER: Final = re.compile(r"server-[1-9]\d*(-replica-[1-9])?")

_watchers: dict[Path, Watcher] = {}


def server_folder(folder: Path, number: int, replica: int = 0) -> Path:
    """Return where a server is kept."""
    return folder / (f"server-{number}-replica-{replica}" if replica else f"server-{number}")


def server_folders(folder: Path) -> list[Path]:
    """Return the folders of all servers, whole or half made."""
    return sorted(path for path in folder.glob("server-*") if _SERVER_FOLDER.fullmatch(path.name))


def descriptions(folder: Path) -> list[Description]:
    """Return the whole servers of a folder, each primary before its replicas, by number.

    Raises:
        LocalServerError: a description is damaged.
    """
    whole = [description for path in server_folders(folder) if (description := Description.read(path)) is not None]
    return sorted(whole, key=lambda description: (description.number, description.replica))


def require_ours(folder: Path) -> None:
    """Raise LocalServerError for a folder that holds something else."""
    if not (folder / MARKER).is_file():
        content = sorted(path.name for path in folder.iterdir() if path.name not in (".lock", ".gitignore"))
        if content:
            named = ", ".join(content[:3]) + (", ..." if len(content) > 3 else "")
            raise LocalServerError(
                f"{folder} holds something else ({named}); choose another --folder, empty or not there yet"
            )


@contextmanager
def locked(folder: Path, say: Callable[[str], None], *, create: bool) -> Iterator[None]:
    """Hold the folder's lock; with ``create``, make the folder and mark it as one of ours."""
    with space.full_disk_is_an_error(folder, "making the servers' folder", space.SERVERS_REMEDY):
        if create:
            if folder.exists() and not folder.is_dir():
                raise LocalServerError(f"{folder} is a file; choose another --folder")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_ours(folder)
        while True:
            file = (folder / ".lock").open("w")
            try:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say(f"another command is at work in {folder}; waiting for it")
                    fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(file.fileno()), (folder / ".lock").stat()):
                        break
            except BaseException:
                file.close()
                raise
            file.close()  # the folder was deleted while this waited
            if create:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file:
        if create and not (folder / MARKER).is_file():
            with space.full_disk_is_an_error(folder, "making the servers' folder", space.SERVERS_REMEDY):
                (folder / ".gitignore").write_text("*\n")  # it is in somebody's project, as a rule
                (folder / MARKER).write_text('{"format": 1}\n')
        yield


def watch(folder: Path, places: list[Path], *, remove: bool) -> None:
    """Have the servers in ``places`` end when this process ends; with ``remove``, the folder goes too."""
    unwatch(folder)
    _watchers[folder] = Watcher(folder, [socket_path(place) for place in places], remove=remove)


def unwatch(folder: Path) -> None:
    """Stop watching over a folder, if this process does."""
    watcher = _watchers.pop(folder, None)
    if watcher is not None:
        watcher.close()
