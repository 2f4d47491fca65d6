"""The follower that exports cells: it reads the change feed from the manifest's location and writes one file at a time.

A shard's progress is in the manifest, not in the follower's row, which assigns the shard to a worker and shows the lag.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from schemaless.base.logger import log
from schemaless.cell import StoredCell
from schemaless.codec.exact_text import exact_text
from schemaless.errors import CorruptBody, ExportFailed, InvalidInput, LocationLost, SchemalessError
from schemaless.ops.export.manifest import (
    ROOT,
    DataFile,
    Definition,
    Pending,
    ShardWriter,
    cells_folder,
    latest_folder,
    missing_files,
    read_definition,
)
from schemaless.ops.export.parquet import CellFile, latest_file, without_documents
from schemaless.store.arrow.batches import Batches
from schemaless.store.arrow.fields import typed_columns
from schemaless.store.cells.sql import Row
from schemaless.store.cold.targets import Target, lacking_space, sha256_of
from schemaless.store.followers.erasures import ErasureEvent
from schemaless.store.followers.handler import Handler, HandlerContext, Interrupted
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import now_s
from schemaless.store.followers.sql import select_age
from schemaless.store.followers.states import STOPPED
from schemaless.store.internals import Internals

_PAGE_CELLS: Final = 1_000
_POLL_S: Final = 5.0
"""Maximum pause before a shard with too few cells for a file is checked again, in seconds."""

_BODY_BYTES: Final = 500
"""Assumed size of a body as JSON text until a shard's first file has been written."""

_KIND: Final = "export:"


def follower_name(export: str) -> str:
    """Return the name of an export's follower."""
    return _KIND + export


def export_name(follower: str) -> str:
    """Return the name of the export that a follower belongs to."""
    return follower.removeprefix(_KIND)


def is_export(follower: str) -> bool:
    """Return whether a follower belongs to an export."""
    return follower.startswith(_KIND)


def lost_target(uri: str, name: str) -> InvalidInput:
    """Return the error of an export whose target has no ``manifest.json``."""
    return InvalidInput(
        f"{uri} has no {ROOT}, but export {name} writes there; is the folder mounted? If only that file is gone, run "
        "'schemaless export parquet' with all options of the export. If everything is, run 'schemaless export remove "
        f"{name} --execute' before, and all cells are exported again"
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """When a file is written, and what happens on errors.

    Attributes:
        file_bytes: approximate maximum size of the bodies in a file, as JSON text.
        min_bytes: minimum size of the bodies in a file; a smaller file waits for more cells.
        max_age_s: time for which the first cell has waited when a smaller file is written anyway, in seconds.
        once: write the existing cells without waiting for more, and stop a shard at its first error.
        min_free_bytes: no file is written while a local target's disk has less free; None for no limit.
        skip_corrupt: if a body does not decode, export its cell with a null body.
    """

    file_bytes: int = 256 << 20
    min_bytes: int = 32 << 20
    max_age_s: float = 900.0
    once: bool = False
    skip_corrupt: bool = False
    min_free_bytes: int | None = None


def _row(cell: StoredCell) -> Row:
    """Return a cell as the row that it was read from."""
    created_at = cell.created_at.isoformat()
    return cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, cell.body, created_at


class ShardExport:
    """The export of one shard, until another writer takes over.

    Args:
        internals: the open datastore.
        target: where the export is.
        definition: what it consists of.
        pace: when a file is written.
        shard: the shard.

    Attributes:
        location: every cell up to this added_id has been exported, or does not belong to the export.
        writer: writes the shard's part of the manifest.
        waiting: the first cell that waits for a file, and since when; its ``created_at`` may be any time.

    Raises:
        LeaseLost: another writer has started at the same time.
        ExportFailed: the target cannot be read or written.
    """

    def __init__(self, internals: Internals, target: Target, definition: Definition, pace: Pace, shard: int) -> None:
        self.writer: ShardWriter = ShardWriter(target, shard)
        self.location: int = self.writer.entry.location
        self.waiting: tuple[int, float] = 0, 0.0
        self._internals = internals
        self._target = target
        self._definition = definition
        self._pace = pace
        self._shard = shard
        self._only = definition.only_column
        self._columns = typed_columns(definition.fields, definition.columns)
        limits, dictionaries = internals.limits, internals.dictionaries
        self._batches = Batches(
            self._columns, lambda body: exact_text(body, limits, dictionaries), keep_corrupt=pace.skip_corrupt
        )

    @property
    def mean_bytes(self) -> int:
        """Mean size of an exported body in the last file."""
        files = self.writer.entry.files
        return max(1, files[-1].body_bytes // files[-1].rows) if files and files[-1].rows else _BODY_BYTES

    @property
    def is_latest_behind(self) -> bool:
        """Whether the file of the latest versions lacks cells that other files have."""
        latest = self.writer.entry.latest
        return self._definition.latest and self.writer.entry.location > (0 if latest is None else latest.up_to)

    def recover(self, check: Callable[[], None]) -> None:
        """Complete the change that a writer announced before it died, replace missing files, and delete unlisted ones.

        Args:
            check: called after each page; it raises an error to stop.
        """
        pending = self.writer.entry.pending
        if pending is not None:
            self._finish(pending, check)
            self.location = max(self.location, self.writer.entry.location)
        self._replace_missing(check)
        self.writer.sweep()

    def write_next(self, check: Callable[[], None], first: Sequence[StoredCell] = ()) -> tuple[int, bool]:
        """Write the next file; return its number of cells, and whether the end of the feed was reached.

        Args:
            check: called before each page; it raises an error to stop.
            first: the first cells after ``location``, if they have been read already.
        """
        built, location, is_end = self._build(self.location, None, check, first)
        if built.rows:
            self._write(*built.close(self.writer.entry.location, location))
        self.location = max(self.location, location)
        return built.rows, is_end

    def write_latest(self, *, lost: bool = False) -> None:
        """Bring the file of the latest versions up to date, or write it again if it is ``lost``."""
        with self.writer.reading():
            file, content = latest_file(self._target, self._shard, self.writer.entry, lost=lost)
        self.writer.write_latest(file, content)

    def erase(self, erased: Mapping[int, int]) -> None:
        """Rewrite files without the documents of these cells.

        Their rows are kept, so that no older version becomes the latest.

        Args:
            erased: numbers of the erasures by added_id.

        Raises:
            ExportFailed: a file cannot be read or written.
        """
        ids = sorted(erased)
        files = self.writer.entry.files
        for file in [each for each in files if bisect_right(ids, each.after) < bisect_right(ids, each.up_to)]:
            if (rewritten := self._without(cells_folder(self._shard), file, erased)) is not None:
                self._write(*rewritten, replaced=[file.name])
        latest = self.writer.entry.latest
        if latest is not None and (rewritten := self._without(latest_folder(self._shard), latest, erased)) is not None:
            self.writer.write_latest(*rewritten)

    def _without(self, folder: str, file: DataFile, erased: Mapping[int, int]) -> tuple[DataFile, Any] | None:
        with self.writer.reading():
            return without_documents(self._target, f"{folder}/{file.name}", file, erased)

    def _build(
        self, after: int, up_to: int | None, check: Callable[[], None], first: Sequence[StoredCell] = ()
    ) -> tuple[CellFile, int, bool]:
        """Read the cells after a location, up to an added_id or until the file is full.

        Returns:
            The file, the location at which its cells end, and whether that is the end of the feed.
        """
        built = CellFile(self._columns, self._batches)
        while built.body_bytes < self._pace.file_bytes or up_to is not None:
            check()
            room = max(0, self._pace.file_bytes - built.body_bytes) if up_to is None else self._pace.file_bytes
            limit = min(_PAGE_CELLS, room // self.mean_bytes + 1)
            if first:
                rows: Sequence[Row] = [_row(cell) for cell in first[:limit]]
                first, location = first[limit:], rows[-1][0]
            else:
                rows, location, _ = self._internals.changes.page(self._shard, after, limit, self._only, "primary")
            columns = self._definition.columns
            built.add(
                [row for row in rows if (columns is None or row[2] in columns) and (up_to is None or row[0] <= up_to)],
                self._shard,
            )
            if location == after or (up_to is not None and location >= up_to):
                return built, after if up_to is None else up_to, True
            after = location
        return built, after, False

    def _replace_missing(self, check: Callable[[], None]) -> None:
        for name, file in missing_files(self._target, self._shard).items():
            if name.startswith(latest_folder(self._shard)):
                self.write_latest(lost=True)
                continue
            again, content = self._build(file.after, file.up_to, check)[0].close(file.after, file.up_to)
            self._write(replace(again, erased=file.erased), content, replaced=[file.name])

    def _write(self, file: DataFile, content: Any, replaced: Sequence[str] = ()) -> None:
        file = self.writer.announce(file, replaced)
        self.writer.put(f"{cells_folder(self._shard)}/{file.name}", content)
        self.writer.complete()

    def _finish(self, pending: Pending, check: Callable[[], None]) -> None:
        """Complete an announced change, or withdraw it."""
        file, replaced = pending
        folder = cells_folder(self._shard)
        if sha256_of(self._target, f"{folder}/{file.name}") == file.sha256:
            self._target.settle(folder)
            self.writer.complete()
        elif replaced:
            self.writer.abandon()
        else:
            self._write(*self._build(file.after, file.up_to, check)[0].close(file.after, file.up_to))


class Exporter(Handler):
    """Handles cells by exporting them.

    Attributes:
        name: the follower's name.
        column: the only exported column; None if several or all are exported.

    Args:
        internals: the open datastore.
        target: where the export is.
        definition: what it consists of.
        pace: when a file is written.
    """

    def __init__(self, internals: Internals, target: Target, definition: Definition, pace: Pace) -> None:
        self.name = follower_name(definition.name)
        self.column = definition.only_column
        self._internals = internals
        self._target = target
        self._definition = definition
        self._pace = pace
        self._waits_for_space = False
        self._open: dict[int, tuple[Lease, ShardExport]] = {}

    def handle_erased(self, context: HandlerContext, lease: Lease, events: Sequence[ErasureEvent]) -> bool:
        """Rewrite the files that contain documents of erased cells; return True if they were rewritten."""
        erased = {event.erased.added_id: event.erased.erasure for event in events}
        if (error := self._try(context, lease, lambda check: self._export(lease, check).erase(erased))) is not None:
            lease.retry_erasures(str(error))
            return False
        if lease.row.state != STOPPED:
            # The message of an earlier attempt is out of date.
            context.note_attempt(lease, 0, None, None)
        return True

    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        """Write the next file, if there are enough cells; return True only if the page has no cells."""
        # Exporting cells twice is harmless: no care is needed after the crash of a previous owner.
        lease.trust()
        if not cells:
            return True
        error = self._try(context, lease, lambda check: self._handle(context, lease, cells, check))
        if error is not None and lease.row.state != STOPPED:
            lease.fail(error)
        return False

    def _try(
        self, context: HandlerContext, lease: Lease, work: Callable[[Callable[[], None]], None]
    ) -> SchemalessError | None:
        """Do some work in a shard, or stop the shard or record why it waits; return the error of the latter two.

        Raises:
            SchemalessError: a server failed, or another process has taken over the shard.
        """

        def check() -> None:
            context.check_active(lease)

        check()
        failure: SchemalessError
        try:
            work(check)
        except Interrupted:
            raise
        except SchemalessError as error:
            self._open.pop(lease.pair[1], None)
            if not isinstance(error, CorruptBody | ExportFailed | InvalidInput | LocationLost):
                raise
            failure = error
        except Exception as error:  # noqa: BLE001 - it would end this worker, and every worker that takes over the shard
            self._open.pop(lease.pair[1], None)
            if not lease.wait.failures:
                log.exception("%s: cannot export shard %d", *lease.pair)
            failure = ExportFailed(f"{type(error).__name__}: {error}")
        else:
            return None
        if self._pace.once:
            context.stop(lease, str(failure))
            log.warning("%s: shard %d has stopped: %s", *lease.pair, failure)
        else:
            # The caller backs off; this makes the status say why.
            context.note_attempt(lease, lease.row.attempts, 0.0, str(failure))
        return failure

    def _handle(
        self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell], check: Callable[[], None]
    ) -> None:
        export = self._export(lease, check)
        if lease.reached < export.location:
            # The manifest is ahead of the row, because the last owner was killed between the two.
            context.advance(lease, export.location, cells=0)
            return
        if (wait_s := self._wait_s(export, lease, cells)) > 0:
            lease.defer(wait_s, "collecting cells for a file")
            return
        if (reason := lacking_space(self._target, self._pace.min_free_bytes)) is not None:
            if not self._waits_for_space:
                log.warning("%s: waits, because %s", self.name, reason)
            self._waits_for_space = True
            lease.defer(_POLL_S, reason)
            return
        self._waits_for_space = False
        rows, is_end = export.write_next(check, cells if lease.reached == export.location else ())
        if is_end and export.is_latest_behind:
            export.write_latest()
        if export.location > lease.reached:
            context.advance(lease, export.location, cells=rows)

    def _export(self, lease: Lease, check: Callable[[], None]) -> ShardExport:
        shard = lease.pair[1]
        held, export = self._open.get(shard, (None, None))
        if held is not lease or export is None:
            if read_definition(self._target) is None:
                # Writing would create an export without the files so far.
                raise lost_target(self._target.uri, self._definition.name)
            export = ShardExport(self._internals, self._target, self._definition, self._pace, shard)
            export.recover(check)
            if export.is_latest_behind:
                export.write_latest()
            self._open[shard] = lease, export
        return export

    def _wait_s(self, export: ShardExport, lease: Lease, cells: Sequence[StoredCell]) -> float:
        """Return how long to wait for more cells, in seconds; 0 to write a file now."""
        if self._pace.once or (lease.top - export.location) * export.mean_bytes >= self._pace.min_bytes:
            return 0.0
        first = next((cell for cell in cells if cell.added_id > export.location), None)
        if first is None:
            return 0.0
        if export.waiting[0] != first.added_id:
            waited_s = 0.0 if export.waiting[0] else self._waited_s(lease, first)
            export.waiting = first.added_id, now_s() - waited_s
        return max(0.0, min(_POLL_S, self._pace.max_age_s - (now_s() - export.waiting[1])))

    def _waited_s(self, lease: Lease, first: StoredCell) -> float:
        """Return how long a cell has waited for earlier exporters of its shard, in seconds, by the server's clock.

        That is since it was created, if that time is possible, but not since before the shard's location was written.
        """
        shards, shard = self._internals.shards, lease.pair[1]
        ages = shards.rows(shard, select_age(shards.database(shard), first.added_id - 1))
        age_s = float(ages[0][0]) if ages else 0.0
        moved_at = datetime.fromisoformat(lease.row.moved_at)
        since_move_s = age_s + (first.created_at - moved_at).total_seconds()
        return max(0.0, since_move_s if age_s < 0 else min(age_s, since_move_s))
