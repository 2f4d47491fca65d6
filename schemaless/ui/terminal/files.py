"""Output files of commands: checked before the work starts, and written atomically."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

import click

from schemaless.errors import InvalidInput
from schemaless.ui.terminal.output import data_sink, note
from schemaless.ui.terminal.shown import JSONTerminal

_WRITE_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class OutputFile(click.Path):
    """Option type for an output file; an unwritable path is a usage error before the command starts."""

    def __init__(self, path_type: type[Any] | None = None) -> None:
        super().__init__(dir_okay=False, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path after checking it; ``-`` is returned unchecked."""
        path: Any = super().convert(value, param, ctx)
        if str(path) == "-":
            return path
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            reason = None if os.access(target, os.W_OK) else "it is not writable"
        else:
            reason = None if target.parent.is_dir() else f"there is no folder {target.parent}"
            reason = reason or _unwritable(target.parent)
        if reason is not None:
            self.fail(f"cannot write {value}: {reason}", param, ctx)
        return path


class OutputFolder(click.Path):
    """Option type for an output folder, which need not exist; an unwritable one is a usage error."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path after checking it."""
        path: Any = super().convert(value, param, ctx)
        reason = unwritable_folder(Path(path))
        if reason is not None:
            self.fail(f"cannot write to {value}: {reason}", param, ctx)
        return path


def unwritable_folder(folder: Path) -> str | None:
    """Return the reason why a folder, which need not exist, cannot be written to; None if it can."""
    there = Path(os.path.realpath(folder))
    while not there.exists():
        there = there.parent
    return f"{there} is not a folder" if not there.is_dir() else _unwritable(there)


def _unwritable(folder: Path) -> str | None:
    try:
        with TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"cannot create files in {folder} ({error.strerror})"


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that appears at ``path`` when the block ends without an error.

    An existing path that is not a regular file, such as a pipe, is written to directly.

    Raises:
        InvalidInput: the file cannot be created.
        OSError: writing failed, for example because the disk is full; it names the file.
    """
    plain = path.is_file() or not path.exists()
    # Replace the target of a symbolic link, not the link.
    target = Path(os.path.realpath(path)) if plain else path
    part = target.with_name(f".{target.name}.{os.getpid()}.part") if plain else target
    try:
        file = part.open("wb")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from None
    try:
        with file:
            yield file
            if plain:
                file.flush()
                os.fsync(file.fileno())
        if plain:
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
    except BaseException as problem:
        if isinstance(problem, OSError) and problem.filename is None and problem.errno in _WRITE_ERRORS:
            problem.filename = str(path)
        if plain:
            part.unlink(missing_ok=True)
        raise


@contextmanager
def data_output(path: Path | None) -> Iterator[IO[bytes] | JSONTerminal]:
    """Yield a file as ``whole_file`` does, or standard output for lines of JSON if there is no path."""
    with nullcontext(data_sink()) if path is None else whole_file(path) as sink:
        yield sink
        sink.flush()


def write_and_say(path: str | Path, content: str | bytes) -> None:
    """Write a file with ``write_whole``, and report it."""
    write_whole(path, content)
    note(f"written: {path}")


def write_csv(path: str | None, text: Callable[[], str]) -> bool:
    """Write CSV to a file, or to standard output for ``-``.

    Returns:
        True if the CSV was written to standard output, where nothing else may be printed then.

    Raises:
        InvalidInput, OSError: as for ``write_whole``.
    """
    if path == "-":
        click.echo(text(), nl=False)
        return True
    if path is not None:
        write_and_say(path, text())
    return False


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically: after an error, it is unchanged.

    Raises:
        InvalidInput: the file cannot be created.
        OSError: writing failed.
    """
    with whole_file(Path(path)) as file:
        file.write(content.encode() if isinstance(content, str) else content)
