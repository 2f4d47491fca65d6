"""Jobs that move the documents of old cells into cold files, shard by shard, while applications read and write.

Such a job lists a file before it reads a body for it, writes the file, reads it back and compares every document, and
makes the file live. Only then does it replace bodies by references, each only if it is still the bytes that were read.
A runner that dies before the file is live leaves an object that the next one deletes; after that, the next one goes on
with the file's own list.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, NamedTuple

from schemaless.base.parts import parts
from schemaless.cell import StoredCell
from schemaless.codec.compressors import too_large
from schemaless.codec.envelope import base_of, is_erased, is_reference
from schemaless.codec.exact_text import exact_text
from schemaless.codec.references import reference_body
from schemaless.errors import ColdBodyMissing, ColdFileDamaged, InvalidInput, JobConflict
from schemaless.ops.erasure.copies import copy_tables
from schemaless.ops.erasure.expired import server_time
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.kind import JobKind, JobSpec
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.binlog_cost import log_settings
from schemaless.ops.migrate.reclaimed import record_sizes
from schemaless.ops.migrate.reencode import PER_CELL_ERRORS
from schemaless.ops.migrate.sql import select_stored_digests, update_bodies
from schemaless.ops.tier.sql import Rule, select_eligible, select_has_deltas
from schemaless.planning.sampling.table_sizes import table_weights
from schemaless.store.cells.sql import select_id_span
from schemaless.store.cold.content import FILE_BYTES, ColdCell, Content, content_of, load_cold
from schemaless.store.cold.files import ColdFile, ShardFiles
from schemaless.store.cold.objects import cells_of, check_written, content_in, delete_object, put_object
from schemaless.store.cold.settings import ColdStore
from schemaless.store.cold.sql import lock_live_file
from schemaless.store.cold.targets import Vanished, open_target
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.dependents import dependents
from schemaless.store.erasures.sql import insert_lock_row, lock_log
from schemaless.store.followers.sql import select_last_event
from schemaless.store.internals import Internals, internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.sql.parts import CELLS

_BLOCK_ROWS: Final = 20_000
_READ_BYTES: Final = 4 << 20
_YIELDING_READ_BYTES: Final = 512 << 10
_READ_CELLS: Final = 2_000
_REPLACED_AT_ONCE: Final = 1_000
_YIELDING_CELLS: Final = 100


@dataclass(frozen=True, slots=True)
class TierSpec(JobSpec):
    """Parameters of a job that makes cells cold.

    Attributes:
        policies: the policies that the job follows, each as "COLUMN DAYS".
        as_of: time as of which ages count, UTC, as ISO text; that of the job if one is joined.
        file_text_bytes: JSON text per file, in bytes.
    """

    policies: tuple[str, ...] = ()
    as_of: str = field(default="", compare=False)
    file_text_bytes: int = FILE_BYTES

    def __post_init__(self) -> None:
        if type(self.file_text_bytes) is not int or self.file_text_bytes < 1:
            raise InvalidInput(f"file_text_bytes must be a positive integer, got {self.file_text_bytes!r}")

    def rules(self) -> list[Rule]:
        """Return the columns, with the time before which their cells were written that become cold."""
        now = datetime.fromisoformat(self.as_of)
        each = (policy.split() for policy in self.policies)
        return [(name, now - timedelta(int(days))) for name, days in each]


def spec_of(store: Datastore, columns: Sequence[str] = (), **options: Any) -> TierSpec:
    """Return the parameters of a job that follows the present policies; with ``columns``, only those of these.

    Raises:
        InvalidInput: there is no cold store, no policy, or none of one of these columns.
    """
    settings = internals_of(store).cold
    policies = settings.policies()
    known = {policy.column_name for policy in policies}
    for name in columns:
        if name not in known:
            raise InvalidInput(f"column {name} has no tier policy; 'schemaless tier set {name} --after 180d' sets one")
    chosen = [policy for policy in policies if not columns or policy.column_name in columns]
    if not chosen:
        raise InvalidInput("no column has a tier policy; 'schemaless tier set COLUMN --after 180d' sets one")
    cold_store(internals_of(store))
    texts = tuple(f"{policy.column_name} {policy.after_days}" for policy in chosen)
    return TierSpec(texts, server_time(store).isoformat(), **options)


def cold_store(internals: Internals) -> ColdStore:
    """Return where the cold files are.

    Raises:
        InvalidInput: this was never set.
    """
    found = internals.cold.store()
    if found is None:
        raise InvalidInput("the datastore has no cold store; 'schemaless tier store URI' sets one")
    return found


class Body(NamedTuple):
    """A stored body that a reference replaces.

    Attributes:
        digest: its SHA-256.
        length: its length.
    """

    digest: bytes
    length: int


class _ShardWork:
    """The work on one shard by one runner."""

    def __init__(self, store: Datastore, run: ShardRun) -> None:
        self._internals = internals_of(store)
        self._run = run
        self._state = run.state
        self._shard = run.state.shard
        self._shards = self._internals.shards
        self._database = self._shards.database(self._shard)
        self._spec = TierSpec.of(run.job)
        self._rules = self._spec.rules()
        self._cold = cold_store(self._internals)
        self._target = open_target(self._cold.uri)
        self._files = ShardFiles(self._shards, self._shard)
        self._counters = run.state.counters
        self._settings = self._shards.run(self._shard, log_settings)
        self._has_deltas = True
        for name in ("files", "file_bytes", "text_bytes", "bases", "changed"):
            self._counters.setdefault(name, 0)

    def all(self) -> None:
        """Make all eligible cells of the shard cold, file by file."""
        state = self._state
        if not state.top_id:
            low, high = self._shards.rows(self._shard, select_id_span(self._database))[0]
            state.first_id, state.top_id = int(low or 0), int(high or 0)
            state.checkpoint = max(0, state.first_id - 1)
        self._has_deltas = self._any_deltas()
        self._resume()
        while (first_id := self._next_eligible()) is not None:
            self._one_file(first_id)
            self._run.checkpoint()
        self._run.finish()

    def _next_eligible(self) -> int | None:
        """Return the added_id of the next eligible cell, and advance the checkpoint to the one before it."""
        state = self._state
        for after, up_to, _ in self._internals.id_blocks(
            self._shard, _BLOCK_ROWS, after=state.checkpoint, up_to=state.top_id
        ):
            self._run.gate()
            rows = self._shards.rows(self._shard, select_eligible(self._database, after, up_to, self._rules, limit=1))
            if rows:
                state.checkpoint = int(rows[0][0]) - 1
                return int(rows[0][0])
            state.checkpoint = up_to
        return None

    def _any_deltas(self) -> bool:
        """Return whether the shard has deltas; ``record_deltas`` tells of later ones."""
        blocks = self._internals.id_blocks(self._shard, _BLOCK_ROWS)
        statements = (select_has_deltas(self._database, after, up_to) for after, up_to, _ in blocks)
        return any(self._shards.rows(self._shard, statement)[0][0] for statement in statements)

    def _resume(self) -> None:
        """Go on with the file that an earlier runner has made live, or delete what it had not."""
        number = self._counters.get("file")
        for file in [] if number is None else self._files.all(file_id=number):
            if file.state == "live":
                self._go_on(file)
                self._state.checkpoint = max(self._state.checkpoint, file.last_id)
            else:
                self._discard(file)
        self._counters["file"] = None

    def _discard(self, file: ColdFile) -> None:
        """Delete a file that is not live, also if an erasure has deleted it before it was written."""
        self._files.condemn(file, "writing")
        now = [each.state for each in self._files.all(file_id=file.file_id) if each.generation == file.generation]
        if now != ["live"]:
            delete_object(self._target, self._files, file)

    def _go_on(self, file: ColdFile) -> None:
        """Replace the bodies of a live file's cells that an earlier runner has not replaced."""
        listed = dict(cells_of(*content_in(self._target, file)))
        for part in parts(listed, _READ_CELLS):
            by_id = {cell.added_id: cell for cell in part}
            hot: list[ColdCell] = []
            bodies: dict[int, Body] = {}
            for stored in self._internals.read_stored(self._shard, sorted(by_id), cold=False):
                text = self._text(stored)
                if text is not None and text.text == by_id[stored.added_id].text:
                    hot.append(text)
                    bodies[stored.added_id] = Body(digest_of(stored.body), len(stored.body))
            self._replace(file, hot, {cell.added_id: place for cell, place in listed.items()}, bodies)

    def _one_file(self, first_id: int) -> None:
        """Write the next file, and replace the bodies of its cells."""
        state = self._state
        # Listed before a body is read, so that an erasure that comes later finds the file.
        file = self._files.list_new(self._cold.incarnation, first_id, state.top_id)
        self._counters["file"] = file.file_id
        self._run.checkpoint()
        content, published = None, False
        try:
            cells, bodies, up_to = self._read()
            if cells:
                content = content_of(cells, self._shard)
                published = self._publish(file, cells, content, up_to)
        finally:
            if not published:
                self._discard(file)
        if published and content is not None:
            self._replace(file, cells, content.places, bodies)
        # A file that an erasure has condemned is written again.
        if published or not cells:
            state.checkpoint = up_to
        self._counters["file"] = None

    def _read(self) -> tuple[list[ColdCell], dict[int, Body], int]:
        """Read the next eligible cells, as many as fill a file.

        Returns:
            The cells, their bodies by added_id, and the added_id up to which all eligible ones are there.
        """
        state = self._state
        cells: list[ColdCell] = []
        bodies: dict[int, Body] = {}
        text_bytes, up_to = 0, state.checkpoint
        for after, end, _ in self._internals.id_blocks(self._shard, _BLOCK_ROWS, after=up_to, up_to=state.top_id):
            sql = select_eligible(self._database, after, end, self._rules, _BLOCK_ROWS)
            size = _YIELDING_READ_BYTES if self._run.yields else _READ_BYTES
            for part in parts(self._shards.rows(self._shard, sql), _READ_CELLS, size, lambda row: int(row[1])):
                self._run.gate()
                self._run.spend(sum(int(row[1]) for row in part))
                began_s = time.monotonic()
                read = list(self._internals.read_stored(self._shard, [int(row[0]) for row in part]))
                self._run.rest(time.monotonic() - began_s)
                for cell in sorted(read, key=lambda cell: cell.added_id):
                    text = self._text(cell)
                    if text is not None:
                        cells.append(text)
                        bodies[cell.added_id] = Body(digest_of(cell.body), len(cell.body))
                        text_bytes += len(text.text)
                    if text_bytes >= self._spec.file_text_bytes:
                        return cells, bodies, cell.added_id
            up_to = end
        return cells, bodies, up_to

    def _text(self, cell: StoredCell) -> ColdCell | None:
        """Return a cell as the file has it; None if it stays as it is."""
        if is_erased(cell.body) or is_reference(cell.body):
            return None
        try:
            text, _ = exact_text(cell.body, self._internals.limits, self._internals.dictionaries)
            if len(text) > self._internals.limits.decoded_bytes:
                raise too_large(self._internals.limits.decoded_bytes)
        except PER_CELL_ERRORS as error:
            self._leave(cell, type(error).__name__, getattr(error, "message", str(error)))
            return None
        created_at = cell.created_at.isoformat()
        return ColdCell(cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, bytes(text), created_at)

    def _leave(self, cell: StoredCell, reason: str, message: str) -> None:
        self._state.left_cells += 1
        key = cell.row_key.bytes, cell.column_name, cell.ref_key
        self._run.fail(Failure(self._shard, cell.added_id, *key, reason, message))

    def _publish(self, file: ColdFile, cells: Sequence[ColdCell], content: Content, up_to: int) -> bool:
        """Put a file into the cold store, compare it with what was written, and make it live.

        Returns:
            False if an erasure has condemned the file since it was listed.

        Raises:
            ColdFileDamaged: the store has something else.
        """
        self._run.gate()
        try:
            put_object(self._target, file, content.data, file.token)
            self._run.gate()
            check_written(self._target, file, cells, content)
        except (Vanished, ColdBodyMissing, ColdFileDamaged):
            if self._files.all("writing", file_id=file.file_id):
                raise
            return False
        written: dict[str, int | str] = {
            "first_id": min(content.places),
            "last_id": max(content.places),
            "cells": len(cells),
            "text_bytes": content.text_bytes,
            "file_bytes": len(content.data),
            "sha256": content.sha256,
        }
        if not self._files.publish(file, written):
            return False
        self._counters["files"] += 1
        self._counters["file_bytes"] += len(content.data)
        self._counters["text_bytes"] += content.text_bytes
        return True

    def _replace(
        self,
        file: ColdFile,
        cells: Iterable[ColdCell],
        places: Mapping[int, tuple[int, int]],
        bodies: Mapping[int, Body],
    ) -> None:
        """Replace the bodies of a live file's cells by references, a part at a time.

        A delta comes before the version that it depends on, because a cold cell is not read for others.
        """
        ordered = iter(sorted(cells, key=lambda cell: cell[1:4]))
        while part := list(islice(ordered, _YIELDING_CELLS if self._run.yields else _REPLACED_AT_ONCE)):
            self._run.gate()
            began_s = time.monotonic()
            references = {
                cell.added_id: reference_body(file.file_id, *places[cell.added_id], cell.text) for cell in part
            }
            self._replace_part(file, part, bodies, references)
            self._run.rest(time.monotonic() - began_s)

    def _replace_part(
        self,
        file: ColdFile,
        part: Sequence[ColdCell],
        bodies: Mapping[int, Body],
        references: Mapping[int, bytes],
    ) -> None:
        based: set[int] = set()

        def operation(connection: Connection) -> bool:
            if self._settings is not None:
                connection.ensure(self._settings)
            if connection.rows(select_last_event(self._database))[0][0] is None:
                connection.execute(insert_lock_row(self._database))
            with connection.transaction():
                # As for deltas: an eraser that waits for the lock finds what this transaction has written.
                ((_, has_new_deltas),) = connection.rows(lock_log(self._database))
                if not connection.rows(lock_live_file(self._database, file.file_id)):
                    return False
                based.clear()
                # A migration that was cancelled, or one after this job was, may have made deltas since it has begun.
                while self._has_deltas or has_new_deltas:
                    # A delta that stays needs its own base, so those of the part count once they are known to stay.
                    cells = [cell[:4] for cell in part if cell.added_id not in based]
                    found = dependents(connection, self._database, CELLS, cells)
                    needed = {(row[1], row[2], base_of(row[4])) for row in found}
                    kept = {cell.added_id for cell in part if cell[1:4] in needed} - based
                    if not kept:
                        break
                    based.update(kept)
                changes = [
                    (cell.added_id, bodies[cell.added_id].digest, references[cell.added_id])
                    for cell in part
                    if cell.added_id not in based
                ]
                if changes:
                    connection.execute(update_bodies(self._database, changes))
            return True

        if not self._shards.run(self._shard, operation, writes=True):
            raise JobConflict(
                f"cold file {file.name} was rewritten or removed while its cells became cold; run the command again"
            )
        statement = select_stored_digests(self._database, references)
        for added_id, *_, digest, _ in self._shards.rows(self._shard, statement):
            if digest == digest_of(references[added_id]):
                self._state.cells += 1
                self._state.bytes_before += bodies[added_id].length
                self._state.bytes_after += len(references[added_id])
            elif added_id in based:
                self._counters["bases"] += 1
            else:
                self._counters["changed"] += 1


def work(store: Datastore, run: ShardRun) -> None:
    """Make the eligible cells of one shard cold; runs in a worker."""
    _ShardWork(store, run).all()


def _check(store: Datastore, spec: TierSpec, shards: Sequence[int]) -> None:
    cold_store(internals_of(store))
    check_possible(internals_of(store), shards)


def check_possible(internals: Internals, shards: Iterable[int]) -> None:
    """Check that cold files can be read, and that no move has left tables of these shards, which may refer to some.

    Raises:
        InvalidInput: pyarrow is not installed.
        JobConflict: there are such tables.
        ServerError: a cluster's primary cannot be reached.
    """
    load_cold()
    for shard in shards:
        for copy in copy_tables(internals, shard):
            raise JobConflict(
                f"{copy.cluster} still has the table {copy.name} of shard {shard}, which a move has left; run "
                "'schemaless shards drop-moved' first"
            )


TIER: Final = JobKind(
    "tier",
    TierSpec,
    table_weights,
    work,
    _check,
    before=lambda store, job: record_sizes(store, job, "before"),
    after=lambda store, job: record_sizes(store, job, "after"),
)
