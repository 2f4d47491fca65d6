"""A target that stops at a given step, or loses what was not synced; and a change feed without a server.

A step is what the operating system does at once: create a file, write half of it, sync it, rename it, exchange two
folders.
"""

from __future__ import annotations

import json
import os
import random
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.fs
import pyarrow.parquet as pq

from schemaless.codec.dictionaries import NO_DICTIONARIES
from schemaless.codec.envelope import DEFAULT_LIMITS, encode_body, tombstone
from schemaless.errors import SchemalessError
from schemaless.ops.export.compact import compact_shard
from schemaless.ops.export.exporter import Pace, ShardExport
from schemaless.ops.export.manifest import (
    DataFile,
    Definition,
    ShardWriter,
    cells_folder,
    latest_folder,
    present_files,
    read_shard,
)
from schemaless.store.cells.sql import Row
from schemaless.store.cold.targets import Check, LocalTarget, ObjectTarget, Target, sha256_of
from schemaless.store.feed.reader import RowPage

SHARD = 3
DEFINITION = Definition("parquet", "mezzanine", 4, None, ("n=BASE.n:int",), latest=True)
PACE = Pace(file_bytes=1_500, once=True)


class Crashed(BaseException):
    """The process is killed here."""


class SteppedTarget(LocalTarget):
    """A folder whose operations are counted, and which calls ``at_step`` before each.

    Attributes:
        steps: number of operations so far.
        step: name of the next operation, such as "rename cells".
        at_step: called with the number of the next operation.
        unsynced: content of files that a power failure may lose.
        renames: renames that a power failure may undo, with what was there before.
    """

    def __init__(self, root: Path, at_step: Callable[[int], None] = lambda step: None) -> None:
        super().__init__(root)
        self.steps = 0
        self.step = ""
        self.at_step = at_step
        self.unsynced: set[Path] = set()
        self.renames: list[tuple[Path, bytes | None]] = []
        self._announcements: set[str] = set()

    def _step(self, operation: str, path: Path) -> None:
        self.step = f"{operation} {self._kind(path)}"
        self.at_step(self.steps)
        self.steps += 1

    def _kind(self, path: Path) -> str:
        """Return what a file or a folder has."""
        if path.suffix == ".parquet":
            return "latest" if path.name.endswith("latest.parquet") else "cells"
        if path.suffix == ".json":
            return "announcement" if path.name in self._announcements else "entry"
        if path.suffix == ".fence":
            return "fence"
        below = path.parts[len(self._root.parts) :]
        return "merged folder" if path.name.endswith("-folder") else f"folder {below[0] if below else 'above'}"

    def _create(self, path: Path, content: Any) -> None:
        if path.suffix == ".json" and json.loads(content).get("pending"):
            self._announcements.add(path.name)
        self._step("create", path)
        self.unsynced.add(path)
        super()._create(path, memoryview(content)[: len(content) // 2])
        self._step("half-write", path)
        super()._create(path, content)

    def _move(self, path: Path, to: Path) -> None:
        self._step("rename", path)
        before = to.read_bytes() if to.is_file() else None
        super()._move(path, to)
        if path in self.unsynced:
            self.unsynced.discard(path)
            self.unsynced.add(to)
        self.renames.append((to, before))

    def _exchange(self, one: Path, other: Path) -> bool:
        self._step("exchange", one)
        return super()._exchange(one, other)

    def _sync(self, path: Path) -> None:
        self._step("sync", path)
        path.stat()
        self.unsynced.discard(path)
        self.renames = [each for each in self.renames if each[0].parent != path]

    def lose_power(self, chance: random.Random) -> None:
        """Cut files that were not synced, and undo the last renames of folders that were not."""
        for path in sorted(self.unsynced):
            if path.is_file():
                os.truncate(path, chance.randrange(path.stat().st_size + 1))
        for path, before in reversed(self.renames[chance.randrange(len(self.renames) + 1) :]):
            if before is not None:
                path.write_bytes(before)
            else:
                path.unlink(missing_ok=True)


class SteppedObjects(ObjectTarget):
    """An object store, whose writers stop after their check and before the object is there, or before one is deleted.

    Attributes:
        steps: number of objects written and deleted so far.
        at_step: called with the number of the next one.
    """

    def __init__(self, root: Path, at_step: Callable[[int], None] = lambda step: None) -> None:
        super().__init__(pyarrow.fs.LocalFileSystem(), str(root), f"s3:/{root}")
        self.steps = 0
        self.at_step = at_step

    def put(self, name: str, content: Any, writer: str, check: Check | None = None) -> None:
        if check is not None:
            check()
        self._step()
        super().put(name, content, writer)

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            self._step()
            super().delete([name])

    def _step(self) -> None:
        self.at_step(self.steps)
        self.steps += 1


class RenamesBeforeSync(SteppedTarget):
    """A control: a file gets its name before its content is durable."""

    def _write(self, name: str, content: Any, writer: str) -> Path:
        sync, self._sync = self._sync, lambda path: None  # type: ignore[method-assign]
        try:
            return super()._write(name, content, writer)
        finally:
            self._sync = sync  # type: ignore[method-assign]


_announce = ShardWriter.announce


def list_early(writer: ShardWriter, file: DataFile, replaced: Sequence[str] = ()) -> DataFile:
    """Take the place of ``ShardWriter.announce``, as a control: a file is listed before it is there."""
    file = _announce(writer, file, replaced)
    announced = writer.entry
    writer.complete()
    writer.entry = announced
    return file


class Feed:
    """A shard's change feed: cells with gaps between their added_ids.

    Attributes:
        rows: the cells.
        erased: number of the erasure by added_id.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.erased: dict[int, int] = {}

    def grow(self, count: int) -> None:
        """Add cells: two columns, and versions that are not in order."""
        for _ in range(count):
            number = len(self.rows)
            key = uuid.uuid5(uuid.NAMESPACE_OID, str(number % 7)).bytes
            body = encode_body({"n": number, "text": "x" * 100})
            column = "BASE" if number % 3 else "LOG"
            self.rows.append((2 * number + 1, key, column, number ^ 1, body, "2026-03-01 12:00:00.123456+00:00"))

    def erase(self) -> None:
        """Erase every fourth cell."""
        self.erased = {row[0]: 1 for row in self.rows[::4]}
        self.rows = [(*row[:4], tombstone(1), row[5]) if row[0] in self.erased else row for row in self.rows]

    def page(self, shard: int, location: int, limit: int, column_name: str | None, read_from: str) -> RowPage:
        """Return a page as ``Changes`` does."""
        rows = [row for row in self.rows if row[0] > location][: min(limit, 5)]
        return RowPage(rows, rows[-1][0] if rows else location)


def _export(target: Target, feed: Feed) -> ShardExport:
    internals: Any = SimpleNamespace(changes=feed, limits=DEFAULT_LIMITS, dictionaries=NO_DICTIONARIES)
    export = ShardExport(internals, target, DEFINITION, PACE, SHARD)
    export.recover(lambda: None)
    return export


def run_export(target: Target, feed: Feed) -> None:
    """Recover, and export all that the feed has."""
    export = _export(target, feed)
    while not export.write_next(lambda: None)[1]:
        pass
    if export.is_latest_behind:
        export.write_latest()


def run_erase(target: Target, feed: Feed) -> None:
    """Recover, and remove erased documents from the files; cells are erased unless they have been before."""
    export = _export(target, feed)
    if not feed.erased:
        feed.erase()
    export.erase(feed.erased)


def run_compact(target: Target, feed: Feed) -> None:
    """Merge the shard's files in pairs or so."""
    compact_shard(target, SHARD, 3_500)


def faults(root: Path, feed: Feed, *, complete: bool) -> list[str]:
    """Return what is wrong with an export.

    Args:
        root: its folder.
        feed: the cells.
        complete: whether all cells have to be there; otherwise those up to the manifest's location.
    """
    target = LocalTarget(root)
    try:
        entry = read_shard(target, SHARD)
    except SchemalessError as error:
        return [str(error)]
    found = []
    ids: list[int] = []
    for file in present_files(target, SHARD):
        allowed = {file.sha256}
        if entry.pending is not None and entry.pending.file.name == file.name:
            # Its erased documents are gone before the manifest says so.
            allowed.add(entry.pending.file.sha256)
        if sha256_of(target, f"{cells_folder(SHARD)}/{file.name}") not in allowed:
            found.append(f"{file.name} is not what the manifest says")
            continue
        ids += ids_of(root / cells_folder(SHARD) / file.name)
    expected = [row[0] for row in feed.rows if complete or row[0] <= entry.location]
    if not found and ids != expected:
        found.append(f"the manifest's files have {len(ids)} rows of {len(expected)}, {len(set(ids))} different")
    if complete and not found:
        names = [cells_folder(SHARD) + f"/{file.name}" for file in present_files(target, SHARD)]
        if entry.latest is not None:
            names.append(f"{latest_folder(SHARD)}/{entry.latest.name}")
        kept = {added_id for name in names for added_id, body in bodies_of(root / name) if body is not None}
        if still := kept & feed.erased.keys():
            found.append(f"{len(still)} erased documents are still there")
    return found


def visible_faults(root: Path, feed: Feed) -> list[str]:
    """Return what is wrong with what a reader of ``cells/*/*.parquet`` sees, at any time."""
    ids: list[int] = []
    for path in sorted(root.glob("cells/*/*.parquet")):
        try:
            ids += ids_of(path)
        except (OSError, ValueError) as error:
            return [f"{path.name} cannot be read: {error}"]
    expected = [row[0] for row in feed.rows][: len(ids)]
    return [] if sorted(ids) == expected else [f"readers see {len(ids)} rows, {len(set(ids))} different"]


def ids_of(path: Path) -> list[int]:
    """Return the added_ids of a file."""
    ids: list[int] = pq.read_table(path, columns=["added_id"], partitioning=None)["added_id"].to_pylist()
    return ids


def bodies_of(path: Path) -> list[tuple[int, str | None]]:
    """Return added_id and body of the rows of a file."""
    table = pq.read_table(path, columns=["added_id", "body"], partitioning=None)
    return list(zip(table["added_id"].to_pylist(), table["body"].to_pylist(), strict=True))


class Suspended:
    """Runs a writer on a thread up to a step, where it waits for ``resume``."""

    def __init__(self, target: SteppedTarget | SteppedObjects, step: int, work: Callable[[], Any]) -> None:
        self._reached, self._resumed = threading.Event(), threading.Event()
        self.error: BaseException | None = None

        def wait(now: int) -> None:
            if now == step:
                self._reached.set()
                self._resumed.wait()

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the test judges it
                self.error = error
            finally:
                self._reached.set()

        target.at_step = wait
        self._thread = threading.Thread(target=run)
        self._thread.start()
        self._reached.wait()

    def resume(self) -> None:
        """Run the writer to its end."""
        self._resumed.set()
        self._thread.join()
