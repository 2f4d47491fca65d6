"""Where exports and cold files are: a local folder, or any file system that ``pyarrow.fs`` opens by URI.

A file appears whole or not at all. In a local folder it is written under another name, synced and renamed; an object
store makes an object visible once it is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from schemaless.base.home import free_bytes
from schemaless.base.optional import load
from schemaless.errors import ColdStoreUnavailable, ExportFailed, InvalidInput

TEMPORARY: Final = "tmp"
"""Folder for files that are still being written, outside the folders that readers list."""

MARKER: Final = "schemaless-cold-store"
"""Object in the root of a cold store, which distinguishes a lost file from a folder that is not mounted."""

_WRITER: Final = re.compile(r"-[0-9a-f]{8}-\d{6,}\Z")
"""Part of an object's name that identifies its writer."""

_USER: Final = re.compile(r"(?<=^s3://)([^/?#@]*:.*|[^/?#]*)@|(?<=://)[^/?#@]*:[^/?#]*@")
"""The account in a URI. Only the secret keys of S3 contain slashes; elsewhere, a path may contain an @."""

_OPTION: Final = re.compile(r"([?&][^=&]*(?:secret|pass|token|key|sas|sig)[^=&]*=)[^&]+", re.IGNORECASE)

_S3_ATTEMPTS: Final = 3
"""How often a request is sent to S3, each time with the client's timeouts of a few seconds."""

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2

Check = Callable[[], None]
"""Function called right before a file becomes visible; it raises an error if the writer must not continue."""


class Vanished(Exception):
    """A temporary file is gone because another writer has taken over its shard and removed it."""


def masked(uri: str) -> str:
    """Return a target's path or URI with asterisks in place of credentials."""
    if "://" not in uri:
        return uri
    # Decoded, because the options may include another URI; before that, a / in the account is still encoded.
    hidden = _USER.sub("***:***@", unquote(_USER.sub("***:***@", uri)))
    hidden = _OPTION.sub(r"\1***", hidden)
    return hidden if "***" in hidden else uri


def folder_of(uri: str) -> Path | None:
    """Return the folder that a path or URI names; None for an object store."""
    return Path(uri.removeprefix("file://")).absolute() if "://" not in uri or uri.startswith("file://") else None


def open_target(uri: str) -> Target:
    """Return the target that a path or URI names; nothing is created.

    Raises:
        InvalidInput: the URI contains credentials, or pyarrow cannot open it.
    """
    if not uri:
        raise InvalidInput("the target is empty; give a folder, or a URI such as s3://bucket/path")
    if "://" in uri and "***" in (hidden := masked(uri)):
        raise InvalidInput(
            f"{hidden} contains credentials, which would be stored in the catalog and shown; leave them out, and set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (S3), GOOGLE_APPLICATION_CREDENTIALS (Google Cloud), or "
            "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET (Azure) in the environment"
        )
    if (folder := folder_of(uri)) is not None:
        return LocalTarget(folder)
    fs = load("pyarrow.fs")
    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
        if filesystem.type_name == "s3":
            # By default, it retries for minutes, also while the process tries to end. A copy has the same options.
            _, (options,) = filesystem.__reduce__()
            attempts = fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS)
            filesystem = fs.S3FileSystem(**options, retry_strategy=attempts)
    except Exception as error:
        raise InvalidInput(f"cannot open {uri}: {error}; give a folder, or a URI that pyarrow.fs opens") from error
    return ObjectTarget(filesystem, root, uri)


@contextmanager
def unavailable(uri: str) -> Iterator[None]:
    """Turn errors of a cold store's target other than FileNotFoundError into ``ColdStoreUnavailable``."""
    try:
        yield
    except ExportFailed as error:
        raise ColdStoreUnavailable(uri, str(error)) from error


def mark(target: Target) -> None:
    """Make a place a cold store.

    Raises:
        ColdStoreUnavailable: it cannot be written.
    """
    with unavailable(target.uri):
        target.put(MARKER, b"Cold files of schemaless datastores. Do not delete this file.\n", secrets.token_hex(4))


def check_marked(target: Target) -> None:
    """Check that a place is a cold store.

    Raises:
        ColdStoreUnavailable: it is not, as if it were not mounted, or it does not answer.
    """
    with unavailable(target.uri):
        try:
            target.read(MARKER)
        except FileNotFoundError as error:
            problem = (
                f"it does not have {MARKER}, as if it were not mounted; if the cold files are there, put an empty "
                "object of that name beside their folders"
            )
            raise ColdStoreUnavailable(target.uri, problem) from error


def lacking_space(target: Target, min_free_bytes: int | None) -> str | None:
    """Return in words that the disk of a local folder has less free than ``min_free_bytes``; None if it has not."""
    free_bytes = target.free_bytes()
    if min_free_bytes is None or free_bytes is None or free_bytes >= min_free_bytes:
        return None
    free, limit = (f"{number / 1e6:,.0f} MB" for number in (free_bytes, min_free_bytes))
    return f"the disk of {target.uri} has {free} free (limit {limit})"


@contextmanager
def _naming(uri: str, name: str) -> Iterator[None]:
    """Turn file system errors other than FileNotFoundError into ``ExportFailed``."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ExportFailed(f"{uri}, {name}: {error}; fix the cause and run the same command again") from error


class LocalTarget:
    """A folder on this machine or on a network file system with atomic renames. Names are relative, with slashes.

    Attributes:
        uri: the folder's absolute path.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.uri: str = str(self._root)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, without the folder; none if it does not exist."""
        with _naming(self.uri, folder):
            try:
                return [entry.name for entry in os.scandir(self._root / folder) if entry.is_file()]
            except FileNotFoundError:
                return []

    def read(self, name: str) -> bytes:
        """Return a file's contents.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with _naming(self.uri, name):
            return (self._root / name).read_bytes()

    def put(self, name: str, content: Any, writer: str, check: Check | None = None) -> None:
        """Write a file under a temporary name, sync it, and rename it, replacing any existing one of that name.

        Args:
            name: its name.
            content: its bytes, or a buffer.
            writer: identifies the writer in the temporary file's name.
            check: called once the content is durable, before the file becomes visible.

        Raises:
            Vanished: another writer has removed the temporary file.
        """
        with _naming(self.uri, name):
            path = self._root / name
            self._make(path.parent)
            temporary = self._write(name, content, writer)
            try:
                if check is not None:
                    check()
                self._rename(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def replace(self, folder: str, name: str, content: Any, replaced: Sequence[str], writer: str, check: Check) -> None:
        """Write a file that replaces others in its folder, by a folder that takes its place in one step where possible.

        The others may or may not exist afterwards.
        """
        with _naming(self.uri, f"{folder}/{name}"):
            here = self._root / folder
            prefix = self._prefix(f"{folder}/{name}")
            beside = self._root / TEMPORARY / f"{prefix}-{writer}-folder"
            shutil.rmtree(beside, ignore_errors=True)
            self._make(beside)
            for each in self.names(folder):
                if each not in replaced and each != name:
                    os.link(here / each, beside / each)
            self._move(self._write(f"{folder}/{name}", content, writer), beside / name)
            self._sync(beside)
            try:
                check()
                if self._exchange(here, beside):
                    self._sync(here.parent)
                else:
                    # Readers that list the folder before the others are deleted see some rows twice.
                    self._rename(beside / name, here / name)
            finally:
                shutil.rmtree(beside, ignore_errors=True)

    def free_bytes(self) -> int:
        """Return the free space of the folder's disk."""
        return free_bytes(self._root)

    def own_name(self, name: str, writer: str) -> str:
        """Return the name of a Parquet file that a writer is about to write."""
        return name

    def settle(self, folder: str) -> None:
        """Sync a folder and its parent, which holds the folder's name; a writer that was killed may not have."""
        with _naming(self.uri, folder):
            path = self._root / folder
            self._sync(path)
            self._sync(path.parent)

    def delete(self, names: Collection[str]) -> None:
        """Delete files; those that do not exist are ignored."""
        for name in names:
            with _naming(self.uri, name):
                (self._root / name).unlink(missing_ok=True)

    def open_input(self, name: str) -> Any:
        """Return the path of a file."""
        return str(self._root / name)

    def remove_temporary(self, prefix: str, *, but: str) -> None:
        """Delete temporary files whose names begin with ``prefix``, except those of the writer ``but``.

        The renames of the other writers fail from then on.
        """
        folder = self._root / TEMPORARY
        with _naming(self.uri, TEMPORARY), contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(folder)):
                if not entry.name.startswith(prefix) or f"-{but}-" in entry.name:
                    continue
                if not entry.is_dir():
                    Path(entry.path).unlink(missing_ok=True)
                    continue
                # Renamed first: its writer may be about to put the folder in its place, whole or not at all.
                away = folder / f"{prefix}{but}-{entry.name}"
                with contextlib.suppress(FileNotFoundError):
                    self._move(Path(entry.path), away)
                    shutil.rmtree(away, ignore_errors=True)

    def _write(self, name: str, content: Any, writer: str) -> Path:
        """Write a temporary file and make its content durable."""
        folder = self._root / TEMPORARY
        self._make(folder)
        temporary = folder / f"{self._prefix(name)}-{writer}-{name.rpartition('/')[2]}"
        try:
            self._create(temporary, content)
            self._sync(temporary)
        except (Exception, KeyboardInterrupt):
            # It would keep a full disk full.
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _rename(self, temporary: Path, path: Path) -> None:
        try:
            self._move(temporary, path)
        except FileNotFoundError as error:
            raise Vanished(str(temporary)) from error
        self._sync(path.parent)

    def _make(self, folder: Path) -> None:
        """Create a folder and make it durable."""
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for each in missing:
            self._sync(each.parent)

    @staticmethod
    def _prefix(name: str) -> str:
        """Return the last part of a name's folder; for a shard's files, it identifies the shard."""
        return name.rpartition("/")[0].rpartition("/")[2] or "root"

    # The steps of a write, which tests interrupt.

    def _create(self, path: Path, content: Any) -> None:
        with path.open("wb") as file:
            file.write(content)

    def _move(self, path: Path, to: Path) -> None:
        path.replace(to)

    def _exchange(self, one: Path, other: Path) -> bool:
        return exchange(one, other)

    def _sync(self, path: Path) -> None:
        """Make a file's content, or the names in a folder, durable."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False if the file system or operating system does not support it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(one))


class ObjectTarget:
    """A pyarrow file system: an object store whose objects appear once they are complete.

    Readers of such a target must use the manifest, since several objects cannot be exchanged in one step. A writer
    that was suspended while writing an object may complete it after another writer has taken over. Each writer
    therefore gives its objects unique names, so that such an object is never one that the manifest lists.
    """

    def __init__(self, filesystem: Any, root: str, uri: str) -> None:
        self.uri = uri
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._selector = load("pyarrow.fs").FileSelector
        self._is_file = load("pyarrow.fs").FileType.File

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder."""
        with _naming(self.uri, folder):
            found = self._fs.get_file_info(self._selector(self._path(folder), allow_not_found=True))
            return [info.base_name for info in found if info.type == self._is_file]

    def read(self, name: str) -> bytes:
        """Return an object's contents."""
        with _naming(self.uri, name), self._fs.open_input_stream(self._path(name)) as stream:
            content: bytes = stream.read()
            return content

    def put(self, name: str, content: Any, writer: str, check: Check | None = None) -> None:
        """Write an object under its final name."""
        with _naming(self.uri, name):
            if check is not None:
                check()
            self._fs.create_dir(self._path(name).rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(self._path(name)) as stream:
                stream.write(content)

    def replace(self, folder: str, name: str, content: Any, replaced: Sequence[str], writer: str, check: Check) -> None:
        """Write an object that replaces others, which still exist afterwards."""
        self.put(f"{folder}/{name}", content, writer, check)

    def delete(self, names: Collection[str]) -> None:
        """Delete objects."""
        for name in names:
            with _naming(self.uri, name), contextlib.suppress(FileNotFoundError):
                self._fs.delete_file(self._path(name))

    def free_bytes(self) -> None:
        """Return None: object stores do not fill up."""

    def own_name(self, name: str, writer: str) -> str:
        """Return a name that no other writer gives to an object."""
        return f"{_WRITER.sub('', name.removesuffix('.parquet'))}-{writer}.parquet"

    def settle(self, folder: str) -> None:
        """Do nothing: an object that can be read is durable."""

    def remove_temporary(self, prefix: str, *, but: str) -> None:
        """Do nothing: objects have no temporary names."""

    def open_input(self, name: str) -> Any:
        """Return an object as a random-access file."""
        with _naming(self.uri, name):
            return self._fs.open_input_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


Target = LocalTarget | ObjectTarget
"""A place that holds an export."""


def sha256_of(target: Target, name: str) -> str | None:
    """Return the checksum of a file in hexadecimal; None if there is no such file."""
    try:
        return hashlib.sha256(target.read(name)).hexdigest()
    except FileNotFoundError:
        return None
