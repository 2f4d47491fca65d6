"""Proves what a migration left behind: bodies, replicas and the archive; all of it, or blocks of neighbouring cells.

Changes nothing but, at the end of ``finalise``, the job's state.
"""

from __future__ import annotations

import bisect
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from schemaless.cell import CellKey, StoredCell
from schemaless.cluster.topology import Node, check_shard
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import counts_as, describe_body
from schemaless.codec.recode import recode
from schemaless.errors import CorruptBody, InvalidInput, SchemalessError, ServerError, ShardIdentityMismatch
from schemaless.jobs.job import Failure
from schemaless.jobs.ledger import FAILURES_KEPT
from schemaless.jobs.workers import Workers, run_shards, store_for
from schemaless.migrate.archive import ArchivedCell
from schemaless.migrate.archive_files import ArchiveFile
from schemaless.migrate.check import Fault, faults_of
from schemaless.migrate.originals import (
    Originals,
    StoredDigest,
    bodies_of,
    digest_of,
    digested,
    in_chunks,
    same_meaning,
    stored_digests,
)
from schemaless.migrate.reencode import LEAVES
from schemaless.migrate.replicas import ReplicaLags, differing, top_beyond
from schemaless.migrate.spec import MigrateSpec
from schemaless.mysql.errors import DatabaseMissing
from schemaless.store.datastore import Datastore, Opening

LAG_TIMEOUT_S: Final = 30.0
ERASED: Final = "Erased"
"""The kind of fault of an archived cell that is not in the store any more."""

FAULTS_TOLD: Final = 1_000
"""Of each kind; all are counted."""

_BLOCK_ROWS: Final = 500
_CHUNK_CELLS: Final = 500
_CHUNK_BYTES: Final = 4 << 20


@dataclass(slots=True)
class VerifyReport:
    """What was looked at, and found.

    Attributes:
        cells: cells that were decoded.
        by_codec: the same, as stored.
        left: cells that the job had left and named, by reason; no faults.
        blocks: blocks of cells that were looked at.
        blocks_of: blocks that there are.
        seed: what the sample was drawn with; None where all was looked at.
        compared: cells that were compared with a replica, by the replica's address.
        archived: cells of the archive that were looked up.
        records: cells in each of the archive's files, those that stand there twice counted twice.
        torn: files of the archive whose last frame is not whole, with its bytes.
        faults: how many of each kind.
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
    records: Counter[ArchiveFile] = field(default_factory=Counter)
    torn: dict[Path, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: VerifyReport) -> None:
        """Add another report to this one; the seed stays."""
        self.shards += other.shards
        self.cells += other.cells
        self.body_bytes += other.body_bytes
        self.by_codec.update(other.by_codec)
        self.left.update(other.left)
        self.blocks += other.blocks
        self.blocks_of += other.blocks_of
        self.compared.update(other.compared)
        self.archived += other.archived
        self.records.update(other.records)
        self.torn.update(other.torn)
        self.faults.update(other.faults)


def verify(
    store: Datastore,
    shards: Iterable[int] | None = None,
    *,
    wanted: MigrateSpec | None = None,
    named: Iterable[Failure] = (),
    sample: float | None = None,
    seed: int | None = None,
    archive: Originals | None = None,
    replicas: bool = True,
    lag_timeout_s: float = LAG_TIMEOUT_S,
    on_fault: Callable[[Fault], None] = lambda fault: None,
    on_ids: Callable[[int], None] = lambda more: None,
) -> VerifyReport:
    """Look at cells on the primary, on each replica that the topology names, and in the archive.

    On the primary each is decoded and has to be what a writer of this store would write, in its place, and in the codec
    that was wanted. On a replica it has to be the same bytes. Each original has to be there still, under its key,
    added_id and created_at, as the body that took its place, or as another body of the same document.

    Args:
        store: the datastore.
        shards: numbers of the shards; all unless given.
        wanted: the migration whose work this is; None for bodies in whatever codec.
        named: cells that the job left and named: that they are as they were is no fault.
        sample: the share of blocks to look at, over 0 and below 1; at least one for each shard. None for all.
        seed: for the sample; drawn unless given.
        archive: the originals; None to do without.
        replicas: whether to compare with them.
        lag_timeout_s: how long a replica may take to catch up where it differs.
        on_fault: called with each fault as it is found, with the first thousand of each kind.
        on_ids: called with how many added_ids it has come further since the last call, as ``Datastore.id_span`` counts.

    Raises:
        InvalidInput: there is no such shard, or no such sample.
        CorruptArchive: a file of the archive is damaged.
        ServerError: a primary cannot be reached: that is no finding about its cells.
    """
    if sample is not None and not 0 < sample < 1:
        raise InvalidInput(f"a sample is a share of the cells, over 0 and below 1, got {sample!r}")
    chosen = range(store.shard_count) if shards is None else shards
    numbers = [check_shard(shard, store.shard_count) for shard in chosen]
    work = _Verification(store, wanted, {(left.shard, left.added_id): left for left in named}, on_fault)
    if sample is not None:
        work.report.seed = secrets.randbits(32) if seed is None else seed
    for shard in numbers:
        work.report.shards += 1
        try:
            # Also where this process has done so before: a verification trusts no earlier answer.
            store.shards.verify(shard, store.shards.node_of(shard))
        except (ShardIdentityMismatch, DatabaseMissing) as error:
            work.fault(type(error).__name__, shard, None, None, str(error))
            continue
        blocks = work.chosen(shard, sample)
        looked_at: list[tuple[int, int]] = []
        nodes = store.topology.cluster_of(shard).replicas if replicas else ()
        for after, up_to, rows in blocks:
            seen = work.look(shard, after, up_to)
            for node in nodes:
                work.compare(shard, node, after, up_to, seen, lag_timeout_s)
            if sample is not None:
                looked_at.append((after, up_to))
            # The first block begins somewhere above 0.
            on_ids(up_to - after if after else rows)
        for node in nodes:
            work.compare_ends(shard, node)
        if archive is not None:
            cells = archive.of_shard(shard)
            work.look_up(shard, cells if sample is None else _within(cells, looked_at))
    if archive is not None:
        work.report.records.update(archive.records)
        work.report.torn.update(archive.torn)
    return work.report


def verify_with_workers(
    store: Datastore,
    hands: Workers,
    shards: Iterable[int] | None = None,
    *,
    wanted: MigrateSpec | None = None,
    named: Iterable[Failure] = (),
    sample: float | None = None,
    seed: int | None = None,
    archive: Originals | None = None,
    replicas: bool = True,
    lag_timeout_s: float = LAG_TIMEOUT_S,
    on_fault: Callable[[Fault], None] = lambda fault: None,
    on_shard: Callable[[int], None] = lambda more: None,
) -> VerifyReport:
    """``verify`` with many workers, a shard at a time each; they need the archive's files where this process has them.

    Args:
        store: the datastore.
        hands: who works.
        shards: as in ``verify``, and so are the next ones.
        wanted: what the bodies should be in.
        named: cells that the job left.
        sample: the share of blocks to look at.
        seed: for the sample.
        archive: the originals.
        replicas: whether to compare with them.
        lag_timeout_s: how long a replica may take.
        on_fault: called with the faults of a shard when that is through.
        on_shard: called with 1 for each shard that is through.

    Raises:
        SchemalessError: as ``verify``.
    """
    total = VerifyReport()
    if archive is not None:
        total.torn.update(archive.torn)
    if sample is not None:
        total.seed = secrets.randbits(32) if seed is None else seed
    names: dict[int, list[Failure]] = {}
    for left in named:
        names.setdefault(left.shard, []).append(left)
    told: Counter[str] = Counter()

    def arguments(shard: int) -> tuple[Any, ...]:
        options = {
            "wanted": wanted,
            "named": names.get(shard, []),
            "sample": sample,
            "seed": total.seed,
            "archive": None if archive is None else archive.only(shard),
            "replicas": replicas,
            "lag_timeout_s": lag_timeout_s,
        }
        return store.opening, shard, options

    chosen = range(store.shard_count) if shards is None else shards
    for found in run_shards(hands, verify_one, map(arguments, chosen)):
        if isinstance(found, SchemalessError):
            raise found
        report, faults = found
        total.add(report)
        for fault in faults:
            told[fault.kind] += 1
            if told[fault.kind] <= FAULTS_TOLD:
                on_fault(fault)
        on_shard(1)
    return total


def verify_one(
    opening: Opening, shard: int, options: Mapping[str, Any]
) -> tuple[VerifyReport, list[Fault]] | SchemalessError:
    """Verify one shard; runs in a worker."""
    faults: list[Fault] = []
    try:
        return verify(store_for(opening), [shard], on_fault=faults.append, **options), faults
    except SchemalessError as error:
        return error


class _Verification:
    """A verification on its way."""

    def __init__(
        self,
        store: Datastore,
        wanted: MigrateSpec | None,
        named: Mapping[tuple[int, int], Failure],
        on_fault: Callable[[Fault], None],
    ) -> None:
        self.report = VerifyReport()
        self._store = store
        self._wanted = wanted
        self._named = named
        self._on_fault = on_fault
        counts = Counter(shard for shard, _ in named)
        self._crowded = {shard for shard, count in counts.items() if count >= FAILURES_KEPT}
        self._given_up: set[tuple[Node, int | None]] = set()

    def fault(self, kind: str, shard: int, key: CellKey | None, added_id: int | None, message: str) -> None:
        self.report.faults[kind] += 1
        if self.report.faults[kind] <= FAULTS_TOLD:
            self._on_fault(Fault(kind, shard, key, added_id, message))

    def chosen(self, shard: int, sample: float | None) -> Iterator[tuple[int, int, int]]:
        """Yield the blocks to look at, as ``Datastore.id_blocks`` does."""
        blocks: Iterable[tuple[int, int, int]] = self._store.id_blocks(shard, _BLOCK_ROWS)
        if sample is not None:
            every = list(blocks)
            self.report.blocks_of += len(every)
            # Of each shard its own, so that the same seed gives the same blocks whichever shards are looked at.
            draw = random.Random(f"{self.report.seed} {shard}")  # noqa: S311 - no secret
            count = min(len(every), max(1, round(sample * len(every))))
            blocks = sorted(draw.sample(every, count))
        for block in blocks:
            self.report.blocks += 1
            if sample is None:
                self.report.blocks_of += 1
            yield block

    def look(self, shard: int, after: int, up_to: int) -> dict[int, StoredDigest]:
        """Decode a block's cells; return their digests."""
        seen: dict[int, StoredDigest] = {}
        report = self.report
        for cell in self._store.scan_shard(shard, after=after, up_to=up_to):
            report.cells += 1
            report.body_bytes += len(cell.body)
            seen[cell.added_id] = digested(cell)
            left = self._named.get((shard, cell.added_id))
            try:
                report.by_codec[describe_body(cell.body).name] += 1
                due = self._wanted is not None and _is_due(self._wanted, cell, self._store.dictionaries)
            except CorruptBody:
                due = False
            faults = list(faults_of(self._store, cell))
            if due or faults:
                reason = left.reason if left is not None else self._left_too(shard, cell)
                if reason is not None:
                    report.left[reason] += 1
                    continue
            for kind, message in faults:
                self.fault(kind, shard, cell.key, cell.added_id, message)
            if due and not faults and self._wanted is not None:
                self.fault(
                    "NotReencoded",
                    shard,
                    cell.key,
                    cell.added_id,
                    f"it is {describe_body(cell.body).name}, not {self._wanted.target}; was it written after the "
                    "last pass? Run the migration again",
                )
        return seen

    def _left_too(self, shard: int, cell: StoredCell) -> str | None:
        """Why the job has left a cell that it did not name, since there were too many; None where it has not."""
        if self._wanted is None or shard not in self._crowded:
            return None
        try:
            recode(
                cell.body,
                self._wanted.codec(self._store.dictionaries),
                dictionaries=self._store.dictionaries,
                limits=self._store.opening.limits,
            )
        except LEAVES as error:
            return type(error).__name__
        return None

    def compare(
        self, shard: int, node: Node, after: int, up_to: int, seen: Mapping[int, StoredDigest], lag_timeout_s: float
    ) -> None:
        """Compare a block with a replica; one that lags is given up for its shard, one that does not answer for all."""
        with self._asking(shard, node, lag_timeout_s) as asked:
            if asked:
                self._compare(shard, node, differing(self._store, shard, node, after, up_to, seen, lag_timeout_s))
                self.report.compared[str(node)] += len(seen)

    def compare_ends(self, shard: int, node: Node) -> None:
        """Find cells on a replica behind the primary's last one, which are in no block."""
        with self._asking(shard, node, 0) as asked:
            if asked and (top := top_beyond(self._store, shard, node)) is not None:
                message = f"on replica {node} it is there, but the primary has no cell with such an added_id"
                self.fault("ReplicaDiffers", shard, None, top, message)

    @contextmanager
    def _asking(self, shard: int, node: Node, lag_timeout_s: float) -> Iterator[bool]:
        """Make what a replica raises a fault; gives False where it was given up before."""
        if (node, shard) in self._given_up or (node, None) in self._given_up:
            yield False
            return
        try:
            yield True
        except ReplicaLags:
            self._given_up.add((node, shard))
            message = f"replica {node} had not caught up after {lag_timeout_s:g} s; verify again once it has"
            self.fault("ReplicaLags", shard, None, None, message)
        except (ShardIdentityMismatch, DatabaseMissing) as error:
            self._given_up.add((node, shard))
            self.fault(type(error).__name__, shard, None, None, f"replica {node}: {error}")
        except ServerError as error:
            if error.node != str(node):
                raise
            self._given_up.add((node, None))
            self.fault(type(error).__name__, shard, None, None, f"replica {error}; it was not compared from here on")

    def _compare(
        self, shard: int, node: Node, found: list[tuple[int, StoredDigest | None, StoredDigest | None]]
    ) -> None:
        for added_id, ours, theirs in found:
            cell = ours or theirs
            assert cell is not None
            what = (
                "is not there"
                if theirs is None
                else "is there, but not on the primary"
                if ours is None
                else "has another body"
                if ours._replace(digest=theirs.digest, body_bytes=theirs.body_bytes) == theirs
                else "has another key or created_at"
            )
            self.fault("ReplicaDiffers", shard, cell.key, added_id, f"on replica {node} it {what}")

    def look_up(self, shard: int, cells: Iterable[ArchivedCell]) -> None:
        """Find what has become of archived cells."""
        for chunk in in_chunks(cells, _CHUNK_CELLS, _CHUNK_BYTES):
            self.report.archived += len(chunk)
            found = stored_digests(self._store, shard, (cell.added_id for cell in chunk))
            others: dict[int, ArchivedCell] = {}
            for cell in chunk:
                stored = found.get(cell.added_id)
                if stored is None:
                    self._archive_fault(ERASED, shard, cell, "it is not in the store any more")
                elif stored.key != cell.key:
                    self._archive_fault("ArchivedElsewhere", shard, cell, f"its added_id is that of {stored.key} now")
                elif datetime.fromisoformat(stored.created_at) != datetime.fromisoformat(cell.created_at):
                    self._archive_fault(
                        "ArchivedElsewhere", shard, cell, f"created_at was {cell.created_at}, is {stored.created_at}"
                    )
                elif stored.digest not in (cell.new_digest, digest_of(cell.body)):
                    others[cell.added_id] = cell
            wanted = [found[added_id] for added_id in others]
            for added_id, body in bodies_of(self._store, shard, wanted, _CHUNK_BYTES):
                cell = others[added_id]
                if not same_meaning(self._store, cell.body, body):
                    self._archive_fault(
                        "ArchivedChanged", shard, cell, "its body is another document than the original"
                    )

    def _archive_fault(self, kind: str, shard: int, cell: ArchivedCell, message: str) -> None:
        self.fault(kind, shard, cell.key, cell.added_id, message)


def _is_due(spec: MigrateSpec, cell: StoredCell, dictionaries: Dictionaries) -> bool:
    """Whether a migration would have to replace a cell's body.

    Raises:
        CorruptBody: it cannot be told.
    """
    if spec.columns and cell.column_name not in spec.columns:
        return False
    if spec.sources and describe_body(cell.body).name not in spec.sources:
        return False
    return not counts_as(cell.body, spec.codec(dictionaries), dictionaries)


def _within(cells: Iterable[ArchivedCell], blocks: Sequence[tuple[int, int]]) -> Iterator[ArchivedCell]:
    """Yield the cells of ascending blocks ``(after, up_to)``."""
    ends = [up_to for _, up_to in blocks]
    for cell in cells:
        position = bisect.bisect_left(ends, cell.added_id)
        if position < len(blocks) and cell.added_id > blocks[position][0]:
            yield cell
