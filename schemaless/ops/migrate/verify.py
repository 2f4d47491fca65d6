"""Verify the result of a migration, read-only: bodies on the primary, copies on replicas, originals in the archive.

A verification covers every cell or a sample of blocks.
"""

from __future__ import annotations

import bisect
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from schemaless.base.events import Advanced, Event, Listener, ignore_events, only
from schemaless.base.keys import cell_key
from schemaless.cell import CellKey, StoredCell
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import check_canonical, counts_as, describe_body, is_delta, is_reference
from schemaless.codec.recode import recode
from schemaless.codec.references import reference_of
from schemaless.errors import (
    CorruptBody,
    DictionaryDamaged,
    InvalidCell,
    InvalidInput,
    ServerError,
    ShardIdentityMismatch,
    ShardMoving,
)
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.job_store import FAILURES_KEPT
from schemaless.ops.jobs.worker import store_for
from schemaless.ops.jobs.workers import Workers, run_shards
from schemaless.ops.migrate.archive import ArchivedCell
from schemaless.ops.migrate.originals import Match, Missing, Originals, StoredDigest, compared, digested, in_chunks
from schemaless.ops.migrate.reencode import PER_CELL_ERRORS
from schemaless.ops.migrate.replicas import Difference, PrimaryWaits, ReplicaComparison, ReplicaLags
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import select_live_cold_files
from schemaless.ops.migrate.tally import Counts
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import Opening, opening_of
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node

LAG_TIMEOUT_S: Final = 30.0
ERASED: Final = "Erased"
"""Kind of fault for an archived cell that was erased or is no longer in the store."""

_MOST_FAULTS: Final = 10_000
"""Maximum number of faults that a worker returns for a shard; all are counted."""

_CHUNK_CELLS: Final = 500


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """A fault found by ``check`` or ``verify``.

    Attributes:
        kind: name of the exception that reading the cell would raise, or of the contradiction, such as ``Misplaced``.
        shard: shard number; None for a fault of the whole datastore.
        key: key of the cell; None for a fault of the shard itself.
        added_id: the cell's added_id, or None.
        message: description of the fault.
    """

    kind: str
    shard: int | None
    key: CellKey | None
    added_id: int | None
    message: str

    def __str__(self) -> str:
        if self.shard is None:
            return f"{self.kind}: {self.message}"
        where = f"shard {self.shard}" if self.key is None else f"shard {self.shard}, cell {self.key}"
        return f"{self.kind}: {where}: {self.message}"


@dataclass(slots=True)
class VerifyReport(Counts):
    """Result of a verification.

    Attributes:
        shards: number of shards.
        cells: cells decoded.
        body_bytes: total size of their bodies.
        by_codec: cells decoded, by stored codec.
        left: cells that the job left unchanged, by reason; they are not faults.
        blocks: number of blocks read.
        blocks_of: total number of blocks.
        seed: seed of the sample; None if every block was read.
        compared: cells compared with a replica, by the replica's address.
        archived: archived cells looked up.
        records: cells in each archive file by file name, duplicates included.
        torn: size of the incomplete last frame in bytes, by archive file.
        missing: originals that the job recorded and that are missing from the archive.
        faults: number of faults by kind.
    """

    shards: int = 0
    cells: int = 0
    body_bytes: int = 0
    by_codec: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    blocks: int = 0
    blocks_of: int = 0
    seed: int | None = None
    compared: Counter[str] = field(default_factory=Counter)
    archived: int = 0
    records: dict[str, int] = field(default_factory=dict)
    torn: dict[Path, int] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What a verification checks in addition to the individual cells.

    Attributes:
        wanted: parameters of the migration to verify; None accepts every codec.
        named: cells that the job left unchanged and recorded; they are not faults.
        sample: share of the blocks to read, above 0 and below 1; at least one block per shard is read. None for all.
        seed: seed of the sample; random by default.
        archive: originals to compare with; None to skip the archive.
        replicas: whether to compare with replicas.
        lag_timeout_s: maximum time to wait for a replica that differs to catch up, in seconds.
        block_rows: cells per block; None scans each shard as a whole and compares it with neither replicas nor the
            archive.
        cold: read the documents of cold cells, too. Otherwise only their references are checked, against the list of
            the shard's cold files.
    """

    wanted: MigrateSpec | None = None
    named: Sequence[Failure] = ()
    sample: float | None = None
    seed: int | None = None
    archive: Originals | None = None
    replicas: bool = True
    lag_timeout_s: float = LAG_TIMEOUT_S
    block_rows: int | None = 500
    cold: bool = False

    def of(self, shard: int, seed: int | None) -> VerifyOptions:
        """Return the part of the options that the worker for one shard needs, with the seed of the sample."""
        named = [failure for failure in self.named if failure.shard == shard]
        archive = None if self.archive is None else self.archive.only(shard)
        return replace(self, named=named, seed=seed, archive=archive)


CELLS: Final = VerifyOptions(block_rows=None)
"""Options of ``check``: verify each cell on its own, and the identity of its shard."""


def check(
    store: Datastore,
    shards: Iterable[int] | None = None,
    *,
    cold: bool = False,
    workers: Workers | None = None,
    listener: Listener = ignore_events,
) -> VerifyReport:
    """Verify each cell individually, the identity of each shard, and the dictionaries.

    A cell must decode to a canonical payload and be in the shard of its key. The reference of a cold cell must be to a
    file of its shard; with ``cold``, its document is read and decoded as well. The dictionaries in the catalog and on
    each cluster must be intact. The other arguments and the errors are the same as for ``verify``.

    Raises:
        ColdStoreUnavailable: with ``cold``: the cold store does not answer.
    """
    report = verify(store, shards, replace(CELLS, cold=cold), workers=workers, listener=listener)
    for message in internals_of(store).dictionary_replicas.differences():
        report.faults[DictionaryDamaged.__name__] += 1
        listener(Fault(DictionaryDamaged.__name__, None, None, None, message))
    return report


def verify(
    store: Datastore,
    shards: Iterable[int] | None = None,
    options: VerifyOptions | None = None,
    *,
    workers: Workers | None = None,
    listener: Listener = ignore_events,
) -> VerifyReport:
    """Compare cells on the primary, on every replica in the topology, and in the archive.

    On the primary, each cell must decode to a canonical payload, be in the shard of its key, and be stored in the codec
    of the migration. A replica must hold the same bytes. Each archived cell must still exist with the same key,
    added_id and created_at, and its stored body must be the one that the migration wrote or the same document.

    Args:
        store: the datastore.
        shards: shard numbers, all by default.
        options: what to check; cells and replicas by default.
        workers: workers that verify one shard each at a time; they need the archive files under the same paths as this
            process. By default this process verifies the shards itself.
        listener: receives each ``Fault`` as it is found and the progress in added_ids, as counted by
            ``Datastore.id_span``. With workers, it receives the faults of a shard when the shard is finished, and the
            progress in shards.

    Returns:
        The counts of cells and faults.

    Raises:
        InvalidInput: a shard does not exist, or the sample is out of range.
        CorruptArchive: a file of the archive is damaged.
        ServerError: a primary cannot be reached. An unreachable replica is reported as a fault instead.
    """
    options = options or VerifyOptions()
    if options.sample is not None and not 0 < options.sample < 1:
        raise InvalidInput(f"the sample must be a share of the cells, above 0 and below 1, got {options.sample!r}")
    numbers = internals_of(store).chosen_shards(shards)
    total = VerifyReport()
    if options.archive is not None:
        total.torn.update(options.archive.torn)
    if options.sample is not None:
        total.seed = secrets.randbits(32) if options.seed is None else options.seed
    if workers is None:
        unreachable: set[Node] = set()
        for shard in numbers:
            work = _ShardVerification(store, shard, options.of(shard, total.seed), listener, unreachable)
            total.add(work.run())
        return total
    opening = opening_of(store)
    arguments = ((opening, number, options.of(number, total.seed)) for number in numbers)
    for report, faults in run_shards(workers, _verify_one, arguments):
        total.add(report)
        for fault in faults:
            listener(fault)
        listener(Advanced())
    return total


def _verify_one(opening: Opening, shard: int, options: VerifyOptions) -> tuple[VerifyReport, list[Fault]]:
    faults: list[Fault] = []

    def keep(fault: Fault) -> None:
        if len(faults) < _MOST_FAULTS:
            faults.append(fault)

    return _ShardVerification(store_for(opening), shard, options, only(Fault, keep), set()).run(), faults


class _ShardVerification:
    """Verification of one shard.

    Args:
        store: the datastore.
        shard: shard number.
        options: options of this shard.
        listener: receives each fault, and the progress in added_ids.
        unreachable: replicas that did not respond and are not tried again; shared between shards.
    """

    def __init__(
        self, store: Datastore, shard: int, options: VerifyOptions, listener: Listener, unreachable: set[Node]
    ) -> None:
        self._report = VerifyReport(shards=1)
        self._store = store
        self._internals = internals_of(store)
        self._shard = shard
        self._options = options
        self._named = {left.added_id: left.reason for left in options.named}
        self._listener = listener
        self._unreachable = unreachable
        self._skipped: set[Node] = set()
        self._last_id = 0
        self._cold_files: dict[int, tuple[int, int]] = {}

    def run(self) -> VerifyReport:
        shard, archive = self._shard, self._options.archive
        try:
            # Check again even if this process has checked it before: a verification must not rely on cached results.
            self._internals.shards.verify(shard, self._internals.shards.node_of(shard))
            self._verify_cells(self._internals.topology.cluster_of(shard).replicas if self._options.replicas else ())
        except (ShardIdentityMismatch, ShardMoving, DatabaseMissing) as error:
            self._fault(type(error).__name__, None, None, str(error))
        if archive is not None:
            self._report.records.update(archive.records)
            self._report.torn.update(archive.torn)
        return self._report

    def _verify_cells(self, replicas: Sequence[Node]) -> None:
        options = self._options
        if options.block_rows is None:
            self._verify_block(0, None, digests=False)
            return
        sampled: list[tuple[int, int]] = []
        for after, up_to in self._blocks(options.block_rows):
            on_primary = self._verify_block(after, up_to, digests=bool(replicas))
            for node in replicas:
                self._compare(node, after, up_to, on_primary)
            if options.sample is not None:
                sampled.append((after, up_to))
        for node in replicas:
            self._compare_ends(node)
        if options.archive is not None:
            cells = options.archive.cells()
            self._look_up(cells if options.sample is None else _within(cells, sampled))

    def _blocks(self, rows: int) -> Iterator[tuple[int, int]]:
        report, sample = self._report, self._options.sample
        blocks: Iterable[tuple[int, int, int]] = self._internals.id_blocks(self._shard, rows)
        if sample is not None:
            every = list(blocks)
            report.blocks_of = len(every)
            # One generator per shard, so that a seed selects the same blocks whichever shards are verified.
            draw = random.Random(f"{self._options.seed} {self._shard}")  # noqa: S311 - no secret
            count = min(len(every), max(1, round(sample * len(every))))
            blocks = sorted(draw.sample(every, count))
        for after, up_to, _ in blocks:
            report.blocks += 1
            if sample is None:
                report.blocks_of += 1
            yield after, up_to

    def _verify_block(self, after: int, up_to: int | None, *, digests: bool) -> dict[int, StoredDigest]:
        """Verify the cells of a block, or of the rest of the shard if ``up_to`` is None, on the primary.

        Returns:
            The cells' digests by added_id; empty unless ``digests`` is set.
        """
        on_primary: dict[int, StoredDigest] = {}
        report, wanted = self._report, self._options.wanted
        for cell in self._internals.scan(self._shard, after=after, up_to=up_to, cold=self._options.cold):
            report.cells += 1
            report.body_bytes += len(cell.body)
            if digests:
                on_primary[cell.added_id] = digested(cell)
            self._listener(Advanced(cell.added_id - self._last_id if self._last_id else 1))
            self._last_id = cell.added_id
            try:
                report.by_codec[describe_body(cell.body).name] += 1
                due = wanted is not None and _is_due(wanted, cell, self._internals.dictionaries)
            except CorruptBody:
                due = False
            faults = list(_misplaced(self._store, cell))
            if is_reference(cell.body):
                faults += self._reference_faults(cell)
            if self._options.cold or not is_reference(cell.body):
                faults += _damage(self._store, cell)
            if due and not faults and wanted is not None:
                stored = describe_body(cell.body).name
                message = (
                    f"it is stored as {stored}, not as {wanted.target}; it was probably written after the migration's "
                    "last pass: run the migration again"
                )
                faults = [("NotReencoded", message)]
            if faults and (reason := self._reason_left(cell)) is not None:
                report.left[reason] += 1
                continue
            for kind, message in faults:
                self._fault(kind, cell.key, cell.added_id, message)
        return on_primary

    def _reference_faults(self, cell: StoredCell) -> Iterator[tuple[str, str]]:
        """Yield the kind and the message of a fault of a reference, which is visible without its file."""
        try:
            number = reference_of(cell.body).file
        except CorruptBody as error:
            if not self._options.cold:
                yield type(error).__name__, error.message
            return
        if number not in self._cold_files:
            sql = select_live_cold_files(self._internals.shards.database(self._shard))
            rows = self._internals.shards.rows(self._shard, sql)
            self._cold_files = {int(file): (int(first), int(last)) for file, first, last in rows}
        first, last = self._cold_files.get(number, (1, 0))
        if not first <= cell.added_id <= last:
            known = f"which has cells from {first} to {last}" if first <= last else "which the shard does not have"
            yield "ReferenceWrong", f"its document is in cold file {number}, {known}"

    def _reason_left(self, cell: StoredCell) -> str | None:
        """Return why the job left a cell unchanged, or None if it did not.

        A job records a limited number of such cells; beyond that limit the cell is re-encoded here to find out.
        """
        wanted = self._options.wanted
        if cell.added_id in self._named:
            return self._named[cell.added_id]
        if wanted is None or len(self._named) < FAILURES_KEPT:
            return None
        try:
            recode(
                cell.body,
                wanted.codec(self._internals.dictionaries),
                dictionaries=self._internals.dictionaries,
                limits=self._internals.limits,
            )
        except PER_CELL_ERRORS as error:
            return type(error).__name__
        return None

    @contextmanager
    def _comparison(self, node: Node) -> Iterator[ReplicaComparison | None]:
        """Turn errors of a replica into faults, and yield the comparison if the replica is still usable.

        A replica that lags is skipped for the rest of the shard; an unreachable one, for the rest of the run.
        """
        if node in self._skipped or node in self._unreachable:
            yield None
            return
        try:
            yield ReplicaComparison(self._store, self._shard, node, self._options.lag_timeout_s)
        except (ReplicaLags, PrimaryWaits, ShardIdentityMismatch, ShardMoving, DatabaseMissing) as error:
            self._skipped.add(node)
            self._fault(type(error).__name__, None, None, f"replica {node}: {error}")
        except ServerError as error:
            if error.node != str(node):
                raise
            self._unreachable.add(node)
            self._fault(type(error).__name__, None, None, f"replica {error}; its remaining cells were not compared")

    def _compare(self, node: Node, after: int, up_to: int, on_primary: Mapping[int, StoredDigest]) -> None:
        with self._comparison(node) as comparison:
            if comparison is not None:
                for difference in comparison.differing(after, up_to, on_primary):
                    cell = difference.primary or difference.replica
                    key = None if cell is None else cell.key
                    self._fault("ReplicaDiffers", key, difference.added_id, _described(difference, node))
                self._report.compared[str(node)] += len(on_primary)

    def _compare_ends(self, node: Node) -> None:
        """Report a replica's highest added_id if it is beyond the primary's, since no block covers it."""
        with self._comparison(node) as comparison:
            if comparison is not None and (top := comparison.top_beyond()) is not None:
                message = f"it exists on replica {node}, but the primary has no cell with such a high added_id"
                self._fault("ReplicaDiffers", None, top, message)

    def _look_up(self, cells: Iterable[ArchivedCell]) -> None:
        for chunk in in_chunks(cells, _CHUNK_CELLS):
            self._report.archived += len(chunk)
            for cell, stored, match in compared(self._store, self._shard, chunk):
                kind, message = "ArchivedElsewhere", None
                if stored is None:
                    kind, message = ERASED, "it is archived, but no longer in the store"
                elif match is Match.OTHER:
                    message = f"its added_id now belongs to cell {stored.key}"
                elif datetime.fromisoformat(stored.created_at) != datetime.fromisoformat(cell.created_at):
                    message = f"its created_at was {cell.created_at}, now it is {stored.created_at}"
                elif match is Match.ERASED:
                    kind, message = ERASED, "it was erased, but the archive still has its original"
                elif match is Match.CHANGED:
                    kind, message = "ArchivedChanged", "its stored body does not contain the original document"
                if message is not None:
                    self._fault(kind, cell.key, cell.added_id, message)

    def _fault(self, kind: str, key: CellKey | None, added_id: int | None, message: str) -> None:
        self._report.faults[kind] += 1
        self._listener(Fault(kind, self._shard, key, added_id, message))


def _described(difference: Difference, node: Node) -> str:
    primary, replica = difference.primary, difference.replica
    if replica is None:
        return f"it is missing on replica {node}"
    if primary is None:
        return f"it exists on replica {node}, but not on the primary"
    same = primary._replace(digest=replica.digest, body_bytes=replica.body_bytes) == replica
    return f"it has a different {'body' if same else 'key or created_at'} on replica {node}"


def _misplaced(store: Datastore, cell: StoredCell) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of each fault of a cell's key."""
    home = store.shard_of(cell.row_key)
    if home != cell.shard:
        yield "Misplaced", f"its row_key belongs to shard {home}, so reads do not find it here"
    try:
        cell_key(*cell.key)
    except InvalidCell as error:
        yield "InvalidCell", str(error)


def _damage(store: Datastore, cell: StoredCell) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of the fault of a cell's body, if it has one."""
    try:
        cell.decode()
        check_canonical(cell.body, internals_of(store).dictionaries)
    except CorruptBody as error:
        yield type(error).__name__, error.message


def _is_due(spec: MigrateSpec, cell: StoredCell, dictionaries: Dictionaries) -> bool:
    """Return whether a migration would replace the body of a cell.

    Raises:
        CorruptBody: the body's codec cannot be determined.
    """
    if spec.columns and cell.column_name not in spec.columns:
        return False
    if spec.sources and describe_body(cell.body).name not in spec.sources:
        return False
    if is_delta(cell.body) and spec.history is False:
        return True
    return not counts_as(cell.body, spec.codec(dictionaries), dictionaries)


def _within(cells: Iterable[ArchivedCell], blocks: Sequence[tuple[int, int]]) -> Iterator[ArchivedCell]:
    """Yield the cells that are in one of the ascending blocks ``(after, up_to)``."""
    ends = [up_to for _, up_to in blocks]
    for cell in cells:
        position = bisect.bisect_left(ends, cell.added_id)
        if position < len(blocks) and cell.added_id > blocks[position][0]:
            yield cell
