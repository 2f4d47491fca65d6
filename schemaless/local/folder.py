"""The folder of private servers: its contents, its lock and its watcher."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from schemaless.base import home
from schemaless.errors import LocalServerError
from schemaless.local import free_space as space
from schemaless.local.description import Description
from schemaless.local.processes import Watcher, socket_path

MARKER: Final = "schemaless-local.json"
"""Name of the file that marks a folder as containing private servers."""

_SERVER_FOLDER: Final = re.compile(r"server-[1-9]\d*(-replica-[1-9])?")

_watchers: dict[Path, Watcher] = {}


def server_folder(folder: Path, number: int, replica: int = 0) -> Path:
    """Return the folder of a server."""
    return folder / (f"server-{number}-replica-{replica}" if replica else f"server-{number}")


def server_folders(folder: Path) -> list[Path]:
    """Return the folders of all servers, including incomplete ones."""
    return sorted(path for path in folder.glob("server-*") if _SERVER_FOLDER.fullmatch(path.name))


def descriptions(folder: Path) -> list[Description]:
    """Return the complete servers in a folder in numerical order, each primary before its replicas.

    Raises:
        LocalServerError: a description is damaged.
    """
    whole = [description for path in server_folders(folder) if (description := Description.read(path)) is not None]
    return sorted(whole, key=lambda description: (description.number, description.replica))


def require_ours(folder: Path) -> None:
    """Raise LocalServerError if the folder contains anything other than private servers."""
    content = sorted(path.name for path in folder.iterdir() if path.name not in (".lock", ".gitignore"))
    # The marker is looked for last: another command may be creating it and the servers.
    if content and not (folder / MARKER).is_file():
        named = ", ".join(content[:3]) + (", ..." if len(content) > 3 else "")
        raise LocalServerError(
            f"{folder} contains other files ({named}); choose a --folder that is empty or does not exist"
        )


@contextmanager
def locked(folder: Path, say: Callable[[str], None], *, create: bool) -> Iterator[None]:
    """Hold the folder's lock; with ``create``, create and mark the folder."""
    lock = folder / ".lock"
    with ExitStack() as stack:
        with space.full_disk_is_an_error(folder, "creating the servers' folder", space.SERVERS_REMEDY):
            while True:
                if create:
                    if folder.exists() and not folder.is_dir():
                        raise LocalServerError(f"{folder} is a file; choose another --folder")
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    require_ours(folder)
                say_so = partial(say, f"another command is using {folder}; waiting for it")
                file = stack.enter_context(home.locked(lock, say_so))
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                        break
                stack.close()  # the folder was deleted during the wait
            if create and not (folder / MARKER).is_file():
                (folder / ".gitignore").write_text("*\n")  # the folder is usually inside a project
                (folder / MARKER).write_text('{"format": 1}\n')
        yield


def watch(folder: Path, places: list[Path], *, remove: bool) -> None:
    """Stop the servers in ``places`` when this process ends; with ``remove``, also delete the folder."""
    unwatch(folder)
    _watchers[folder] = Watcher(folder, [socket_path(place) for place in places], remove=remove)


def unwatch(folder: Path) -> None:
    """Stop watching a folder; does nothing if this process does not watch it."""
    watcher = _watchers.pop(folder, None)
    if watcher is not None:
        watcher.close()
