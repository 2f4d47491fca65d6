"""Re-encodes legacy bodies in place: read, decode, encode, verify, and replace only what is still what was read.

A cell's key, ``added_id`` and ``created_at`` stay. A run keeps no state: what is done shows in the bytes, so a run that
was killed is run again, and finds what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from schemaless.cell import CellKey, StoredCell
from schemaless.cluster.topology import check_shard
from schemaless.codec.envelope import describe_body, is_enveloped
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, Codec
from schemaless.errors import BodyTooLarge, CorruptBody, InvalidInput, VerificationFailed
from schemaless.mysql import statements
from schemaless.mysql.pool import Connection
from schemaless.store.datastore import Datastore

_LEAVES: Final = (CorruptBody, BodyTooLarge, VerificationFailed)
"""What ``recode`` raises for a body that is better left as it is; one such body does not stop the others."""

_BLOCK_ROWS: Final = 500
"""Rows that one statement looks at, so that none runs long on a shard where little is left to do."""

_CHUNK_CELLS: Final = 200
_CHUNK_BYTES: Final = 1 << 20
_SAMPLE_CELLS: Final = 64
_SAMPLE_BLOCKS: Final = 4
_ROUNDS: Final = 10
_KEPT_FAILURES: Final = 1_000


@dataclass(slots=True)
class Tally:
    """Cells and their body bytes, of one shard and column.

    Attributes:
        cells: bodies replaced (by a run), or to be replaced (in a plan).
        bytes_before: what those took.
        bytes_after: what they take now; in a plan, an estimate.
        kept_as_text: of those, how many stayed JSON text under an envelope, by reason.
        left: bodies that were not replaced, by reason.
        left_bytes: what those take.
    """

    cells: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    kept_as_text: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    left_bytes: int = 0

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.cells += other.cells
        self.bytes_before += other.bytes_before
        self.bytes_after += other.bytes_after
        self.kept_as_text.update(other.kept_as_text)
        self.left.update(other.left)
        self.left_bytes += other.left_bytes

    @property
    def reclaimed_bytes(self) -> int:
        """Body bytes that are no longer needed."""
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell whose body was left as it is."""

    key: CellKey
    shard: int
    added_id: int
    reason: str
    message: str


@dataclass(slots=True)
class MigrateReport:
    """What a run did, or a plan found.

    Attributes:
        tallies: by shard and column_name.
        failures: cells left as they are, the first thousand of them; ``Tally.left`` counts all.
    """

    codec: str
    tallies: dict[tuple[int, str], Tally] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def tally(self, shard: int, column_name: str) -> Tally:
        """Return the tally of a shard and column, a new one if need be."""
        return self.tallies.setdefault((shard, column_name), Tally())

    def total(self) -> Tally:
        """Return the sum over shards and columns."""
        return _sum(self.tallies.values())

    def by_column(self) -> dict[str, Tally]:
        """Return the sums by column_name."""
        return {
            name: _sum(tally for (_, column), tally in self.tallies.items() if column == name)
            for name in sorted({column for _, column in self.tallies})
        }


def _sum(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


def run(
    store: Datastore,
    codec: Codec = DEFAULT,
    shards: Iterable[int] | None = None,
    *,
    on_ids: Callable[[int], None] = lambda more: None,
) -> MigrateReport:
    """Re-encode every legacy body.

    Each new body is decoded again and compared with what the old one meant, before it replaces it; the replacement
    happens only where the stored bytes are still the ones that were read.

    Args:
        store: the datastore.
        codec: what to re-encode to.
        shards: numbers of the shards; all unless given.
        on_ids: called with how many added_ids it has come further since the last call, as ``Datastore.id_span`` counts.

    Raises:
        InvalidInput: the codec is ``legacy``, or there is no such shard.
        ServerError: a server cannot be reached; what was done is kept.
    """
    _check_codec(codec)
    report = MigrateReport(codec.name)
    for shard in _shards(store, shards):
        for after, up_to, rows in store.id_blocks(shard, _BLOCK_ROWS):
            for chunk in _chunks(store.scan_shard(shard, after=after, up_to=up_to, legacy_only=True)):
                _replace(store, shard, codec, chunk, report)
            # The first block begins somewhere above 0.
            on_ids(up_to - after if after else rows)
    return report


def _replace(store: Datastore, shard: int, codec: Codec, cells: list[StoredCell], report: MigrateReport) -> None:
    """Re-encode and replace a chunk of cells; those that changed meanwhile are read and tried again."""
    pending = cells
    for _ in range(_ROUNDS):
        changes: list[tuple[StoredCell, bytes, str | None]] = []
        for cell in pending:
            try:
                recoded = recode(cell.body, codec)
            except _LEAVES as error:
                _leave(report, cell, type(error).__name__, getattr(error, "message", str(error)))
            else:
                changes.append((cell, recoded.body, recoded.keep_reason))
        pending = []
        for sql, part in _statements(store, shard, changes, report):
            affected, resent = _update(store, shard, sql)
            now = None if affected == len(part) else _read_again(store, shard, part)
            for cell, body, keep_reason in part:
                found = cell if now is None else now.get(cell.added_id)
                # Of the bodies that are the new ones now, this statement replaced as many as the server said, another
                # run the others; which of them is not known, nor needed. After a lost reply the server's number is
                # not that of the first attempt.
                if now is None or (found is not None and found.body == body and (resent or affected > 0)):
                    affected -= 1
                    tally = report.tally(shard, cell.column_name)
                    tally.cells += 1
                    tally.bytes_before += len(cell.body)
                    tally.bytes_after += len(body)
                    if keep_reason is not None:
                        tally.kept_as_text[keep_reason] += 1
                elif found is None:
                    report.tally(shard, cell.column_name).left["erased meanwhile"] += 1
                elif is_enveloped(found.body):
                    # Another run was there first.
                    continue
                else:
                    pending.append(found)
        if not pending:
            return
    for cell in pending:
        _leave(report, cell, "Contended", f"it changed under each of {_ROUNDS} attempts; run the migration again")


def _update(store: Datastore, shard: int, sql: bytes) -> tuple[int, bool]:
    """Send an UPDATE; return how many rows it matched, and whether it had to be sent again after a lost reply."""
    attempts = 0

    def operation(connection: Connection) -> int:
        nonlocal attempts
        attempts += 1
        return connection.execute(sql).affected

    return store.shards.run(shard, operation, writes=True), attempts > 1


def _read_again(
    store: Datastore, shard: int, part: list[tuple[StoredCell, bytes, str | None]]
) -> dict[int, StoredCell]:
    """Read the cells of a statement that matched fewer rows than it named."""
    sql = statements.select_by_id(store.shards.database(shard), [cell.added_id for cell, _, _ in part])
    return {cell.added_id: cell for cell in store.read_stored(shard, sql)}


def _statements(
    store: Datastore, shard: int, changes: list[tuple[StoredCell, bytes, str | None]], report: MigrateReport
) -> Iterator[tuple[bytes, list[tuple[StoredCell, bytes, str | None]]]]:
    """Cut changes into UPDATE statements that the server's ``max_allowed_packet`` takes."""
    if not changes:
        return
    sql = statements.update_bodies(
        store.shards.database(shard), ((cell.added_id, cell.body, body) for cell, body, _ in changes)
    )
    limit = store.shards.run(shard, _packet_limit)
    if len(sql) <= limit:
        yield sql, changes
    elif len(changes) == 1:
        cell, body, _ = changes[0]
        _leave(
            report,
            cell,
            "BodyTooLarge",
            f"its new body has {len(body):,} bytes, and its UPDATE {len(sql):,}; raise the server's max_allowed_packet",
        )
    else:
        middle = len(changes) // 2
        yield from _statements(store, shard, changes[:middle], report)
        yield from _statements(store, shard, changes[middle:], report)


def _packet_limit(connection: Connection) -> int:
    return connection.max_allowed_packet - 1024


def _leave(report: MigrateReport, cell: StoredCell, reason: str, message: str) -> None:
    tally = report.tally(cell.shard, cell.column_name)
    tally.left[reason] += 1
    tally.left_bytes += len(cell.body)
    if len(report.failures) < _KEPT_FAILURES:
        report.failures.append(Failure(cell.key, cell.shard, cell.added_id, reason, message))


@dataclass(slots=True)
class Plan:
    """What a run would find and do.

    Attributes:
        report: for each shard and column, the legacy cells and bytes, exactly, and the bytes after, estimated.
        stored: cells and body bytes by column and codec, exactly.
        sampled_cells: how many legacy bodies were re-encoded for the estimate.
    """

    report: MigrateReport
    stored: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    sampled_cells: int = 0


def plan(
    store: Datastore,
    codec: Codec = DEFAULT,
    shards: Iterable[int] | None = None,
    *,
    on_ids: Callable[[int], None] = lambda more: None,
) -> Plan:
    """Count what is stored, and re-encode a sample to estimate what a run would reclaim. Changes nothing.

    Every row is counted, in blocks; a few runs of neighbouring cells in each shard are re-encoded, and their ratio is
    taken for the rest of their shard and column.

    Args:
        store: the datastore.
        codec: what a run would re-encode to.
        shards: numbers of the shards; all unless given.
        on_ids: as in ``run``.

    Raises:
        InvalidInput: the codec is ``legacy``, or there is no such shard.
    """
    _check_codec(codec)
    result = Plan(MigrateReport(codec.name))
    for shard in _shards(store, shards):
        blocks: list[tuple[int, int]] = []
        for after, up_to, rows in store.id_blocks(shard, _BLOCK_ROWS):
            sql = statements.select_census(store.shards.database(shard), after, up_to)
            census: Any = store.shards.rows(shard, sql)
            legacy_here = 0
            for column_name, head, cells, body_bytes in census:
                name = _codec_name(bytes(head))
                count, size = result.stored.get((column_name, name), (0, 0))
                result.stored[column_name, name] = (count + cells, size + int(body_bytes))
                if name == "legacy":
                    tally = result.report.tally(shard, column_name)
                    tally.cells += cells
                    tally.bytes_before += int(body_bytes)
                    legacy_here += cells
            if legacy_here:
                blocks.append((after, up_to))
            on_ids(up_to - after if after else rows)
        _estimate(store, shard, codec, blocks, result)
    return result


def _codec_name(head: bytes) -> str:
    """Return the codec that a body's first two bytes name."""
    try:
        # Padded: the census fetched no more, and length is not the question here.
        return describe_body(head + bytes(8)).name
    except CorruptBody:
        return "unknown"


def _estimate(store: Datastore, shard: int, codec: Codec, blocks: list[tuple[int, int]], result: Plan) -> None:
    """Fill in ``bytes_after`` of a shard's tallies from a sample."""
    sampled: dict[str, Tally] = {}
    step = max(1, len(blocks) // _SAMPLE_BLOCKS)
    for after, up_to in blocks[::step][:_SAMPLE_BLOCKS]:
        for position, cell in enumerate(store.scan_shard(shard, after=after, up_to=up_to, legacy_only=True)):
            if position == _SAMPLE_CELLS:
                break
            result.sampled_cells += 1
            sample = sampled.setdefault(cell.column_name, Tally())
            sample.cells += 1
            sample.bytes_before += len(cell.body)
            try:
                recoded = recode(cell.body, codec)
            except _LEAVES as error:
                sample.bytes_after += len(cell.body)
                _leave(result.report, cell, type(error).__name__, getattr(error, "message", str(error)))
            else:
                sample.bytes_after += len(recoded.body)
                if recoded.keep_reason is not None:
                    result.report.tally(shard, cell.column_name).kept_as_text[recoded.keep_reason] += 1
    whole = _sum(sampled.values())
    for (number, column_name), tally in result.report.tallies.items():
        if number == shard:
            sample = sampled.get(column_name, whole)
            ratio = sample.bytes_after / sample.bytes_before if sample.bytes_before else 1.0
            tally.bytes_after = round(tally.bytes_before * ratio)


def _chunks(cells: Iterator[StoredCell]) -> Iterator[list[StoredCell]]:
    chunk: list[StoredCell] = []
    size = 0
    for cell in cells:
        chunk.append(cell)
        size += len(cell.body)
        if len(chunk) == _CHUNK_CELLS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _shards(store: Datastore, shards: Iterable[int] | None) -> list[int]:
    return [check_shard(shard, store.shard_count) for shard in (range(store.shard_count) if shards is None else shards)]


def _check_codec(codec: Codec) -> None:
    if codec.serializer is None:
        raise InvalidInput("legacy bodies cannot be re-encoded to legacy; name a codec such as msgpack+zlib")
