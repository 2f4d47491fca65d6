"""A target that stops at a given step, or loses what was not synced; and a change feed without a server.

A step is what the operating system does at once: create a file, sync it, rename it, exchange two folders.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from schemaless.cells.paging import Row
from schemaless.codec.dictionaries import NO_DICTIONARIES
from schemaless.codec.envelope import DEFAULT_LIMITS, encode_body
from schemaless.errors import SchemalessError
from schemaless.export.compact import compact_shard
from schemaless.export.exporter import Pace, ShardExport
from schemaless.export.manifest import Definition, cells_folder, present_files, read_shard
from schemaless.export.target import LocalTarget
from schemaless.feed.reader import RowPage

SHARD = 3
DEFINITION = Definition("parquet", "mezzanine", 4, None, ("n=BASE.n:int",), latest=True)
PACE = Pace(file_bytes=1_500, once=True)


class Crashed(BaseException):
    """The process is killed here."""


class SteppedTarget(LocalTarget):
    """A folder whose operations are counted, and which calls ``at_step`` before each.

    Attributes:
        steps: number of operations so far.
        at_step: called with the number of the next operation.
        unsynced: content of files that a power failure may lose.
        renames: renames that a power failure may undo, with what was there before.
    """

    def __init__(self, root: Path, at_step: Callable[[int], None] = lambda step: None) -> None:
        super().__init__(root)
        self.steps = 0
        self.at_step = at_step
        self.unsynced: set[Path] = set()
        self.renames: list[tuple[Path, bytes | None]] = []

    def _step(self) -> None:
        self.at_step(self.steps)
        self.steps += 1

    def _create(self, path: Path, content: Any) -> None:
        self._step()
        super()._create(path, content)
        self.unsynced.add(path)

    def _move(self, path: Path, to: Path) -> None:
        self._step()
        before = to.read_bytes() if to.is_file() else None
        super()._move(path, to)
        if path in self.unsynced:
            self.unsynced.discard(path)
            self.unsynced.add(to)
        self.renames.append((to, before))

    def _exchange(self, one: Path, other: Path) -> bool:
        self._step()
        return super()._exchange(one, other)

    def _sync(self, path: Path) -> None:
        self._step()
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


class RenamesBeforeSync(SteppedTarget):
    """A control: a file gets its name before its content is durable."""

    def _write(self, name: str, content: Any, writer: str) -> Path:
        sync, self._sync = self._sync, lambda path: None  # type: ignore[method-assign]
        try:
            return super()._write(name, content, writer)
        finally:
            self._sync = sync  # type: ignore[method-assign]


class Feed:
    """A shard's change feed: cells with gaps between their added_ids."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def grow(self, count: int) -> None:
        """Add cells: two columns, and versions that are not in order."""
        for _ in range(count):
            number = len(self.rows)
            key = uuid.uuid5(uuid.NAMESPACE_OID, str(number % 7)).bytes
            body = encode_body({"n": number, "text": "x" * 100})
            column = "BASE" if number % 3 else "LOG"
            self.rows.append((2 * number + 1, key, column, number ^ 1, body, "2026-03-01 12:00:00.123456+00:00"))

    def page(self, shard: int, location: int, limit: int, column_name: str | None, read_from: str) -> RowPage:
        """Return a page as ``Changes`` does."""
        rows = [row for row in self.rows if row[0] > location][: min(limit, 5)]
        return RowPage(rows, rows[-1][0] if rows else location)


def run_export(target: LocalTarget, feed: Feed) -> ShardExport:
    """Recover, and export all that the feed has."""
    internals: Any = SimpleNamespace(changes=feed, limits=DEFAULT_LIMITS, dictionaries=NO_DICTIONARIES)
    export = ShardExport(internals, target, DEFINITION, PACE, SHARD)
    export.recover(lambda: None)
    while not export.write_next(lambda: None)[1]:
        pass
    if export.is_latest_behind:
        export.write_latest()
    return export


def run_compact(target: LocalTarget, feed: Feed) -> None:
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
        if target.sha256(f"{cells_folder(SHARD)}/{file.name}") != file.sha256:
            found.append(f"{file.name} is not what the manifest says")
            continue
        ids += ids_of(root / cells_folder(SHARD) / file.name)
    expected = [row[0] for row in feed.rows if complete or row[0] <= entry.location]
    if not found and ids != expected:
        found.append(f"the manifest's files have {len(ids)} rows of {len(expected)}, {len(set(ids))} different")
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


class Suspended:
    """Runs a writer on a thread up to a step, where it waits for ``resume``."""

    def __init__(self, target: SteppedTarget, step: int, work: Callable[[], Any]) -> None:
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
        """Let the writer continue to its end."""
        self._resumed.set()
        self._thread.join()
