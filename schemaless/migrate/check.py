"""Looks at every cell: is it where it belongs, and does it decode to what a writer of this store would write?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from schemaless.cell import CellKey, StoredCell, check_column_name, check_ref_key
from schemaless.codec.envelope import check_canonical, describe_body
from schemaless.errors import CorruptBody, InvalidCell, SchemalessError, ShardIdentityMismatch
from schemaless.jobs.workers import Workers, run_shards, store_for
from schemaless.mysql.errors import DatabaseMissing
from schemaless.store.datastore import Datastore, Opening

_MOST_FAULTS: Final = 10_000
"""That a worker names of a shard; all are counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it should be.

    Attributes:
        kind: the name of the exception that a reader would meet, ``Misplaced`` or ``InvalidCell``.
        shard: the shard that it is in.
        key: the cell, or None where the shard itself is at fault.
        added_id: the cell's place in its shard, or None.
        message: what is wrong.
    """

    kind: str
    shard: int
    key: CellKey | None
    added_id: int | None
    message: str

    def __str__(self) -> str:
        where = f"shard {self.shard}" if self.key is None else f"shard {self.shard}, cell {self.key}"
        return f"{self.kind}: {where}: {self.message}"


@dataclass(slots=True)
class CheckReport:
    """What a check went over.

    Attributes:
        by_codec: cells for each codec, as stored.
        faults: how many of each kind.
    """

    shards: int = 0
    cells: int = 0
    body_bytes: int = 0
    by_codec: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: CheckReport) -> None:
        """Add another report to this one."""
        self.shards += other.shards
        self.cells += other.cells
        self.body_bytes += other.body_bytes
        self.by_codec.update(other.by_codec)
        self.faults.update(other.faults)


def check(
    store: Datastore,
    shards: Iterable[int] | None = None,
    *,
    on_fault: Callable[[Fault], None] = lambda fault: None,
    on_ids: Callable[[int], None] = lambda more: None,
) -> CheckReport:
    """Decode every cell, prove that its payload is canonical, and verify its place and its shard's identity.

    Args:
        store: the datastore.
        shards: numbers of the shards to look at; all unless given.
        on_fault: called with each fault as it is found.
        on_ids: called with how many added_ids it has come further since the last call, as ``Datastore.id_span`` counts.

    Raises:
        ServerError: a server cannot be reached: that is no finding about its cells.
    """
    report = CheckReport()

    def fault(kind: str, shard: int, cell: StoredCell | None, message: str) -> None:
        report.faults[kind] += 1
        key, added_id = (None, None) if cell is None else (cell.key, cell.added_id)
        on_fault(Fault(kind, shard, key, added_id, message))

    for shard in range(store.shard_count) if shards is None else shards:
        report.shards += 1
        try:
            # Also where this process has done so before: a check trusts no earlier answer.
            store.shards.verify(shard, store.shards.node_of(shard))
            _check_cells(store, shard, report, fault, on_ids)
        except (ShardIdentityMismatch, DatabaseMissing) as error:
            fault(type(error).__name__, shard, None, str(error))
    return report


@dataclass(slots=True)
class _Found:
    """What a worker sends back of one shard."""

    report: CheckReport
    faults: list[Fault]
    error: SchemalessError | None = None


def check_one(opening: Opening, shard: int) -> _Found:
    """Check one shard; runs in a worker."""
    faults: list[Fault] = []
    try:
        report = check(
            store_for(opening),
            [shard],
            on_fault=lambda fault: faults.append(fault) if len(faults) < _MOST_FAULTS else None,
        )
    except SchemalessError as error:
        return _Found(CheckReport(), faults, error)
    return _Found(report, faults)


def check_with_workers(
    store: Datastore,
    hands: Workers,
    shards: Iterable[int] | None = None,
    *,
    on_fault: Callable[[Fault], None] = lambda fault: None,
    on_shard: Callable[[int], None] = lambda more: None,
) -> CheckReport:
    """``check`` with many workers, a shard at a time each.

    Args:
        store: the datastore.
        hands: who works.
        shards: as in ``check``.
        on_fault: called with each fault, up to 10,000 of a shard, when that is through.
        on_shard: called with 1 for each shard that is through.

    Raises:
        ServerError: as ``check``.
    """
    report = CheckReport()
    chosen = range(store.shard_count) if shards is None else shards
    for found in run_shards(hands, check_one, ((store.opening, shard) for shard in chosen)):
        if found.error is not None:
            raise found.error
        report.add(found.report)
        for fault in found.faults:
            on_fault(fault)
        on_shard(1)
    return report


def _check_cells(
    store: Datastore,
    shard: int,
    report: CheckReport,
    fault: Callable[[str, int, StoredCell | None, str], None],
    on_ids: Callable[[int], None],
) -> None:
    last_id = 0
    for cell in store.scan_shard(shard):
        report.cells += 1
        report.body_bytes += len(cell.body)
        on_ids(cell.added_id - last_id if last_id else 1)
        last_id = cell.added_id
        with suppress(CorruptBody):
            report.by_codec[describe_body(cell.body).name] += 1
        for kind, message in faults_of(store, cell):
            fault(kind, shard, cell, message)


def faults_of(store: Datastore, cell: StoredCell) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a cell, as the kind of a ``Fault`` and its message."""
    home = store.shard_of(cell.row_key)
    if home != cell.shard:
        yield "Misplaced", f"its row_key belongs to shard {home}, so no read finds it here"
    try:
        check_column_name(cell.column_name)
        check_ref_key(cell.ref_key)
    except InvalidCell as error:
        yield "InvalidCell", str(error)
    try:
        cell.decode()
        check_canonical(cell.body, store.dictionaries)
    except CorruptBody as error:
        yield type(error).__name__, error.message
