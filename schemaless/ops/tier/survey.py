"""What is hot, what is cold, what would become cold, and whether the cold files are whole."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.base.numbers import counted
from schemaless.cell import CellKey
from schemaless.codec.envelope import REFERENCE_BYTES
from schemaless.codec.exact_text import exact_text
from schemaless.codec.references import reference_of, with_text
from schemaless.errors import ColdBodyMissing, ColdFileDamaged, CorruptBody
from schemaless.ops.migrate.reencode import PER_CELL_ERRORS
from schemaless.ops.tier.cooling import cold_store
from schemaless.ops.tier.sql import Rule, count_tiers, select_eligible, select_references
from schemaless.store.cells.sql import Row
from schemaless.store.cold.content import ColdCell, content_of
from schemaless.store.cold.files import ColdFile, ShardFiles, State
from schemaless.store.cold.objects import cells_of, content_in
from schemaless.store.cold.targets import open_target
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals, internals_of

_BLOCK_ROWS: Final = 20_000
_SAMPLE_TEXT_BYTES: Final = 4 << 20
_SAMPLE_CELLS: Final = 500
_PAGE_CELLS: Final = 2_000


@dataclass(slots=True)
class Tiers:
    """The cells of a column, or of several, that are not erased.

    Attributes:
        cells: number of cells.
        body_bytes: size of their bodies in the database.
        cold_cells: number of cold ones.
        cold_text_bytes: size of their documents as JSON text.
        eligible_cells: number of those that become cold in the next run.
        eligible_bytes: size of their bodies.
    """

    cells: int = 0
    body_bytes: int = 0
    cold_cells: int = 0
    cold_text_bytes: int = 0
    eligible_cells: int = 0
    eligible_bytes: int = 0

    @property
    def freed_bytes(self) -> int:
        """Size of the bodies that the next run replaces, less that of the references."""
        return self.eligible_bytes - REFERENCE_BYTES * self.eligible_cells

    def __add__(self, other: Tiers) -> Tiers:
        return Tiers(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(slots=True)
class Survey:
    """What shards have of both tiers.

    Attributes:
        columns: the cells, by column.
        files: number of cold files, by state.
        file_bytes: size of the live files.
        condemned_bytes: size of the condemned files that still exist.
        file_share: predicted size of cold files relative to the bodies that they replace, from a sample; None without
            eligible cells.
        sampled_cells: number of cells in the sample.
    """

    columns: dict[str, Tiers] = field(default_factory=dict)
    files: Counter[State] = field(default_factory=Counter)
    file_bytes: int = 0
    condemned_bytes: int = 0
    file_share: float | None = None
    sampled_cells: int = 0

    @property
    def total(self) -> Tiers:
        """The cells of all columns."""
        return sum(self.columns.values(), Tiers())

    @property
    def new_file_bytes(self) -> int:
        """Predicted size of the files that the next run writes."""
        return round(self.total.eligible_bytes * (self.file_share or 0))


def survey(
    store: Datastore, rules: Sequence[Rule], shards: Sequence[int], listener: Listener = ignore_events
) -> Survey:
    """Count cells and files; with ``rules``, also what becomes cold, and predict the size of its files.

    It reads the head and length of every body, and for the prediction up to 4 MB of JSON text from each of a few
    shards.
    """
    internals = internals_of(store)
    found = Survey()
    body_bytes = file_bytes = 0
    for shard in shards:
        database = internals.shards.database(shard)
        for after, up_to, _ in internals.id_blocks(shard, _BLOCK_ROWS):
            for name, *numbers in internals.shards.rows(shard, count_tiers(database, after, up_to, rules)):
                tiers = Tiers(*(int(number or 0) for number in numbers))
                found.columns[str(name)] = found.columns.get(str(name), Tiers()) + tiers
        for file in ShardFiles(internals.shards, shard).all():
            found.files[file.state] += 1
            found.file_bytes += file.file_bytes if file.state == "live" else 0
            found.condemned_bytes += file.file_bytes if file.state == "condemned" else 0
        if rules and body_bytes < _SAMPLE_TEXT_BYTES:
            sampled = list(_sample(internals, shard, rules))
            if sampled:
                found.sampled_cells += len(sampled)
                body_bytes += sum(length for _, length in sampled)
                file_bytes += len(content_of([cell for cell, _ in sampled], shard).data)
        listener(Advanced(1))
    found.file_share = file_bytes / body_bytes if body_bytes else None
    return found


def _sample(internals: Internals, shard: int, rules: Sequence[Rule]) -> Iterator[tuple[ColdCell, int]]:
    """Yield eligible cells from a shard, with the lengths of their bodies."""
    database = internals.shards.database(shard)
    text_bytes = 0
    for after, up_to, _ in internals.id_blocks(shard, _BLOCK_ROWS):
        rows = internals.shards.rows(shard, select_eligible(database, after, up_to, rules, _SAMPLE_CELLS))
        for cell in internals.read_stored(shard, [int(row[0]) for row in rows]) if rows else ():
            try:
                text = bytes(exact_text(cell.body, internals.limits, internals.dictionaries)[0])
            except PER_CELL_ERRORS:
                continue  # a run leaves it as it is
            created_at = cell.created_at.isoformat()
            yield (
                ColdCell(cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, text, created_at),
                len(cell.body),
            )
            text_bytes += len(text)
        if text_bytes >= _SAMPLE_TEXT_BYTES:
            return


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a cold file, or with a cell that refers to one.

    Attributes:
        shard: number of the shard.
        key: key of the cell; None if it is about a file.
        message: what is wrong.
    """

    shard: int
    key: CellKey | None
    message: str


@dataclass(slots=True)
class Verified:
    """Result of ``verify``.

    Attributes:
        files: number of live files that were read.
        file_bytes: their size.
        cells: number of cold cells that were compared.
        faults: what is wrong.
    """

    files: int = 0
    file_bytes: int = 0
    cells: int = 0
    faults: list[Fault] = field(default_factory=list)


def verify(store: Datastore, shards: Iterable[int], listener: Listener = ignore_events) -> Verified:
    """Read every live file of some shards, compare its checksum, and look up every cold cell in its file.

    Raises:
        ColdStoreUnavailable: the cold store does not answer.
        InvalidInput: the datastore has no cold store.
    """
    internals = internals_of(store)
    target = open_target(cold_store(internals).uri)
    found = Verified()
    for shard in shards:
        files = ShardFiles(internals.shards, shard)
        missing: Counter[int] = Counter()
        for after, up_to, _ in internals.id_blocks(shard, _BLOCK_ROWS):
            missing.update(files.references(after, up_to))
        for file in files.all("live"):
            missing.pop(file.file_id, None)
            try:
                read, data = content_in(target, file)
                cells = {place: cell for cell, place in cells_of(read, data)}
            except (ColdBodyMissing, ColdFileDamaged) as error:
                found.faults.append(Fault(shard, None, error.message))
                continue
            found.files += 1
            found.file_bytes += len(data)
            for row in _references(internals, file):
                found.cells += 1
                fault = _fault(row, cells)
                if fault is not None:
                    key = CellKey(uuid.UUID(bytes=row[1]), row[2], row[3])
                    found.faults.append(Fault(shard, key, f"{read.name}: {fault}"))
        found.faults += [
            Fault(
                shard,
                None,
                f"{counted(count, 'cell refers', 'cells refer')} to cold file {number:x}, which is not live",
            )
            for number, count in sorted(missing.items())
        ]
        listener(Advanced(1))
    return found


def _references(internals: Internals, file: ColdFile) -> Iterator[Row]:
    """Yield the rows of the cells that refer to a file."""
    database, after, more = internals.shards.database(file.shard), file.first_id - 1, True
    while more:
        statement = select_references(database, after, file.last_id, file.file_id, _PAGE_CELLS)
        rows: Sequence[Any] = internals.shards.rows(file.shard, statement)
        yield from rows
        more = len(rows) == _PAGE_CELLS
        after = int(rows[-1][0]) if rows else after


def _fault(row: Row, cells: Mapping[tuple[int, int], ColdCell]) -> str | None:
    """Return in words how a reference and its file differ; None if they do not."""
    try:
        reference = reference_of(row[4])
        cell = cells.get((reference.group, reference.row))
        if cell is None:
            return f"row {reference.row} of row group {reference.group} does not exist or has no document"
        if cell[:4] != row[:4]:
            return f"row {reference.row} of row group {reference.group} belongs to another cell"
        with_text(row[4], cell.text)
    except CorruptBody as error:
        return error.message
    return None
