"""Proves what a migration left behind: bodies, replicas and the archive; all of it, or blocks of neighbouring cells.

Changes nothing.
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

from schemaless.cell import CellKey, StoredCell
from schemaless.cells.dictionary_replicas import differences
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import counts_as, describe_body
from schemaless.codec.recode import recode
from schemaless.datastore import Datastore
from schemaless.errors import (
    CorruptBody,
    DictionaryDamaged,
    InvalidInput,
    SchemalessError,
    ServerError,
    ShardIdentityMismatch,
    ShardMoving,
)
from schemaless.events import Advanced, Event, Listener, nobody, only
from schemaless.internals import internals_of
from schemaless.jobs.job import Failure
from schemaless.jobs.job_store import FAILURES_KEPT
from schemaless.jobs.worker import store_for
from schemaless.jobs.workers import Workers, run_shards
from schemaless.migrate.archive import ArchivedCell
from schemaless.migrate.archive_files import ArchiveFile
from schemaless.migrate.faults import Fault, faults_of
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
from schemaless.migrate.tally import Counts
from schemaless.opening import Opening, opening_of
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node

LAG_TIMEOUT_S: Final = 30.0
ERASED: Final = "Erased"
"""This is the kind of fault of an archived cell that is not in the store any more."""

FAULTS_TOLD: Final = 1_000
"""So many are told of each kind; all are counted."""

_MOST_FAULTS: Final = 10_000
"""A worker tells so many of a shard; all are counted."""

_CHUNK_CELLS: Final = 500
_CHUNK_BYTES: Final = 4 << 20


@dataclass(slots=True)
class Proof(Counts):
    """What a proof looked at, and found.

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


@dataclass(frozen=True, slots=True)
class Depth:
    """How deep a proof goes: cells by themselves, and what else is named here.

    Attributes:
        wanted: the migration whose work this is; None for bodies in whatever codec.
        named: cells that the job left and named: that they are as they were is no fault.
        sample: the share of blocks to look at, over 0 and below 1; at least one for each shard. None for all.
        seed: for the sample; drawn unless given.
        archive: the originals; None to do without.
        replicas: whether to compare with them.
        lag_timeout_s: how long a replica may take to catch up where it differs.
        told: of each kind of fault that many are told, None for no limit; all are counted.
        block_rows: how many neighbouring cells are looked at, and compared, at a time; None looks at all cells of a
            shard in one go, and compares nothing.
    """

    wanted: MigrateSpec | None = None
    named: Sequence[Failure] = ()
    sample: float | None = None
    seed: int | None = None
    archive: Originals | None = None
    replicas: bool = True
    lag_timeout_s: float = LAG_TIMEOUT_S
    told: int | None = FAULTS_TOLD
    block_rows: int | None = 500

    def of(self, shard: int, seed: int | None) -> Depth:
        """Return the same for one shard alone: what a worker needs."""
        named = [left for left in self.named if left.shard == shard]
        archive = None if self.archive is None else self.archive.only(shard)
        return replace(self, named=named, seed=seed, archive=archive)


CELLS: Final = Depth(told=None, block_rows=None)
"""This depth looks at each cell by itself, and at the identity of its shard."""


def check(
    store: Datastore, shards: Iterable[int] | None = None, *, hands: Workers | None = None, listener: Listener = nobody
) -> Proof:
    """Decode every cell, prove that its payload is canonical, and verify its place and its shard's identity.

    It is ``verify`` to the depth ``CELLS``, with its arguments, and a look at the dictionaries: in the catalog and on
    each cluster they have to be the bytes that were written.
    """
    report = verify(store, shards, CELLS, hands=hands, listener=listener)
    for message in differences(internals_of(store).dictionary_replicas):
        report.faults[DictionaryDamaged.__name__] += 1
        listener(Fault(DictionaryDamaged.__name__, None, None, None, message))
    return report


def verify(
    store: Datastore,
    shards: Iterable[int] | None = None,
    depth: Depth | None = None,
    *,
    hands: Workers | None = None,
    listener: Listener = nobody,
) -> Proof:
    """Look at cells on the primary, on each replica that the topology names, and in the archive.

    On the primary each is decoded and has to be what a writer of this store would write, in its place, and in the codec
    that was wanted. On a replica it has to be the same bytes. Each original has to be there still, under its key,
    added_id and created_at, as the body that took its place, or as another body of the same document.

    Args:
        shards: numbers of the shards; all unless given.
        depth: how deep it goes; cells and replicas unless given.
        hands: who works, a shard at a time each; they need the archive's files where this process has them. This
            process alone unless given.
        listener: told each ``Fault`` as it is found, and each advance, in added_ids as ``Datastore.id_span`` counts;
            with workers, a shard's faults when it is through, and each advance in shards.

    Raises:
        InvalidInput: there is no such shard, or no such sample.
        CorruptArchive: a file of the archive is damaged.
        ServerError: a primary cannot be reached: that is no finding about its cells.
    """
    depth = depth or Depth()
    if depth.sample is not None and not 0 < depth.sample < 1:
        raise InvalidInput(f"a sample is a share of the cells, over 0 and below 1, got {depth.sample!r}")
    numbers = internals_of(store).chosen_shards(shards)
    total = Proof()
    if depth.archive is not None:
        total.torn.update(depth.archive.torn)
    if depth.sample is not None:
        total.seed = secrets.randbits(32) if depth.seed is None else depth.seed
    told: Counter[str] = Counter()

    def tell(event: Event) -> None:
        if isinstance(event, Fault):
            told[event.kind] += 1
            if depth.told is not None and told[event.kind] > depth.told:
                return
        listener(event)

    if hands is None:
        gone: set[Node] = set()
        for shard in numbers:
            total.add(_ShardProof(store, shard, depth.of(shard, total.seed), tell, gone).proof())
        return total
    opening = opening_of(store)
    for result in run_shards(
        hands, _verify_one, ((opening, number, depth.of(number, total.seed)) for number in numbers)
    ):
        if isinstance(result, SchemalessError):
            raise result
        report, faults = result
        total.add(report)
        for fault in faults:
            tell(fault)
        listener(Advanced())
    return total


def _verify_one(opening: Opening, shard: int, depth: Depth) -> tuple[Proof, list[Fault]] | SchemalessError:
    """Verify one shard; runs in a worker."""
    faults: list[Fault] = []

    def keep(fault: Fault) -> None:
        if len(faults) < _MOST_FAULTS:
            faults.append(fault)

    try:
        return _ShardProof(store_for(opening), shard, depth, only(Fault, keep), set()).proof(), faults
    except SchemalessError as error:
        return error


class _ShardProof:
    """The proof of one shard, on its way.

    Args:
        depth: how deep it goes; what it names is of this shard alone.
        listener: told each fault, and each advance in added_ids.
        gone: replicas that do not answer, and are not asked any more.
    """

    def __init__(self, store: Datastore, shard: int, depth: Depth, listener: Listener, gone: set[Node]) -> None:
        self._report = Proof(shards=1)
        self._store = store
        self._internals = internals_of(store)
        self._shard = shard
        self._depth = depth
        self._named = {left.added_id: left for left in depth.named}
        self._listener = listener
        self._gone = gone
        self._behind: set[Node] = set()
        self._last_id = 0

    def proof(self) -> Proof:
        """Look at all of it, and return what was found."""
        store, shard, archive = self._store, self._shard, self._depth.archive
        try:
            # Also where this process has done so before: a proof trusts no earlier answer.
            internals_of(store).shards.verify(shard, internals_of(store).shards.node_of(shard))
            self._walk(internals_of(store).topology.cluster_of(shard).replicas if self._depth.replicas else ())
        except (ShardIdentityMismatch, ShardMoving, DatabaseMissing) as error:
            self._fault(type(error).__name__, None, None, str(error))
        if archive is not None:
            self._report.records.update(archive.records)
            self._report.torn.update(archive.torn)
        return self._report

    def _walk(self, nodes: Sequence[Node]) -> None:
        depth = self._depth
        if depth.block_rows is None:
            self._look(0, None, digests=False)
            return
        looked_at: list[tuple[int, int]] = []
        for after, up_to in self._blocks(depth.block_rows):
            seen = self._look(after, up_to, digests=bool(nodes))
            for node in nodes:
                self._compare(node, after, up_to, seen)
            if depth.sample is not None:
                looked_at.append((after, up_to))
        for node in nodes:
            self._compare_ends(node)
        if depth.archive is not None:
            cells = depth.archive.of_shard(self._shard)
            self._look_up(cells if depth.sample is None else _within(cells, looked_at))

    def _blocks(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks to look at, by the added_id before and the last one."""
        report, sample = self._report, self._depth.sample
        blocks: Iterable[tuple[int, int, int]] = self._internals.id_blocks(self._shard, rows)
        if sample is not None:
            every = list(blocks)
            report.blocks_of = len(every)
            # Of each shard its own, so that the same seed gives the same blocks whichever shards are looked at.
            draw = random.Random(f"{self._depth.seed} {self._shard}")  # noqa: S311 - no secret
            count = min(len(every), max(1, round(sample * len(every))))
            blocks = sorted(draw.sample(every, count))
        for after, up_to, _ in blocks:
            report.blocks += 1
            if sample is None:
                report.blocks_of += 1
            yield after, up_to

    def _look(self, after: int, up_to: int | None, *, digests: bool) -> dict[int, StoredDigest]:
        """Decode a block's cells, to the shard's end where none is given; return their digests where wanted."""
        seen: dict[int, StoredDigest] = {}
        report, wanted = self._report, self._depth.wanted
        for cell in self._store.scan_shard(self._shard, after=after, up_to=up_to):
            report.cells += 1
            report.body_bytes += len(cell.body)
            if digests:
                seen[cell.added_id] = digested(cell)
            self._listener(Advanced(cell.added_id - self._last_id if self._last_id else 1))
            self._last_id = cell.added_id
            left = self._named.get(cell.added_id)
            try:
                report.by_codec[describe_body(cell.body).name] += 1
                due = wanted is not None and _is_due(wanted, cell, self._internals.dictionaries)
            except CorruptBody:
                due = False
            faults = list(faults_of(self._store, cell))
            if due or faults:
                reason = left.reason if left is not None else self._left_too(cell)
                if reason is not None:
                    report.left[reason] += 1
                    continue
            for kind, message in faults:
                self._fault(kind, cell.key, cell.added_id, message)
            if due and not faults and wanted is not None:
                self._fault(
                    "NotReencoded",
                    cell.key,
                    cell.added_id,
                    f"it is {describe_body(cell.body).name}, not {wanted.target}; was it written after the "
                    "last pass? Run the migration again",
                )
        return seen

    def _left_too(self, cell: StoredCell) -> str | None:
        """Why the job has left a cell that it did not name, since there were too many; None where it has not."""
        wanted = self._depth.wanted
        if wanted is None or len(self._named) < FAILURES_KEPT:
            return None
        try:
            recode(
                cell.body,
                wanted.codec(self._internals.dictionaries),
                dictionaries=self._internals.dictionaries,
                limits=self._internals.limits,
            )
        except LEAVES as error:
            return type(error).__name__
        return None

    def _compare(self, node: Node, after: int, up_to: int, seen: Mapping[int, StoredDigest]) -> None:
        """Compare a block with a replica; one that lags is given up for its shard, one that does not answer for all."""
        with self._asking(node) as asked:
            if not asked:
                return
            lag_timeout_s = self._depth.lag_timeout_s
            for added_id, ours, theirs in differing(self._store, self._shard, node, after, up_to, seen, lag_timeout_s):
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
                self._fault("ReplicaDiffers", cell.key, added_id, f"on replica {node} it {what}")
            self._report.compared[str(node)] += len(seen)

    def _compare_ends(self, node: Node) -> None:
        """Find cells on a replica behind the primary's last one, which are in no block."""
        with self._asking(node) as asked:
            if asked and (top := top_beyond(self._store, self._shard, node)) is not None:
                message = f"on replica {node} it is there, but the primary has no cell with such an added_id"
                self._fault("ReplicaDiffers", None, top, message)

    @contextmanager
    def _asking(self, node: Node) -> Iterator[bool]:
        """Make what a replica raises a fault; gives False where it was given up before."""
        if node in self._behind or node in self._gone:
            yield False
            return
        try:
            yield True
        except ReplicaLags:
            self._behind.add(node)
            message = (
                f"replica {node} had not caught up after {self._depth.lag_timeout_s:g} s; verify again once it has"
            )
            self._fault("ReplicaLags", None, None, message)
        except (ShardIdentityMismatch, ShardMoving, DatabaseMissing) as error:
            self._behind.add(node)
            self._fault(type(error).__name__, None, None, f"replica {node}: {error}")
        except ServerError as error:
            if error.node != str(node):
                raise
            self._gone.add(node)
            self._fault(type(error).__name__, None, None, f"replica {error}; it was not compared from here on")

    def _look_up(self, cells: Iterable[ArchivedCell]) -> None:
        """Find what has become of archived cells."""
        for chunk in in_chunks(cells, _CHUNK_CELLS, _CHUNK_BYTES):
            self._report.archived += len(chunk)
            by_id = stored_digests(self._store, self._shard, (cell.added_id for cell in chunk))
            others: dict[int, ArchivedCell] = {}
            for cell in chunk:
                stored = by_id.get(cell.added_id)
                if stored is None:
                    self._archived_fault(ERASED, cell, "it is not in the store any more")
                elif stored.key != cell.key:
                    self._archived_fault("ArchivedElsewhere", cell, f"its added_id is that of {stored.key} now")
                elif datetime.fromisoformat(stored.created_at) != datetime.fromisoformat(cell.created_at):
                    self._archived_fault(
                        "ArchivedElsewhere", cell, f"created_at was {cell.created_at}, is {stored.created_at}"
                    )
                elif stored.digest not in (cell.new_digest, digest_of(cell.body)):
                    others[cell.added_id] = cell
            wanted = [by_id[added_id] for added_id in others]
            for added_id, body in bodies_of(self._store, self._shard, wanted, _CHUNK_BYTES):
                cell = others[added_id]
                if not same_meaning(self._store, cell.body, body):
                    self._archived_fault("ArchivedChanged", cell, "its body is another document than the original")

    def _archived_fault(self, kind: str, cell: ArchivedCell, message: str) -> None:
        self._fault(kind, cell.key, cell.added_id, message)

    def _fault(self, kind: str, key: CellKey | None, added_id: int | None, message: str) -> None:
        self._report.faults[kind] += 1
        self._listener(Fault(kind, self._shard, key, added_id, message))


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
