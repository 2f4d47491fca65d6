"""Counts what is stored, and estimates what a migration would reclaim."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from schemaless.cell import StoredCell
from schemaless.cluster.topology import check_shard
from schemaless.codec.envelope import describe_body
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, Codec
from schemaless.errors import BodyTooLarge, CorruptBody, InvalidInput, VerificationFailed
from schemaless.jobs.job import Failure
from schemaless.jobs.tally import MigrateReport, Tally, total_of
from schemaless.mysql import statements
from schemaless.store.datastore import Datastore

_LEAVES: Final = (CorruptBody, BodyTooLarge, VerificationFailed)
_BLOCK_ROWS: Final = 500
_SAMPLE_CELLS: Final = 64
_SAMPLE_BLOCKS: Final = 4


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
    result = Plan(MigrateReport(0, codec.name))
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
                    tally = _tally(result.report, shard, column_name)
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
                    _tally(result.report, shard, cell.column_name).kept_as_text[recoded.keep_reason] += 1
    whole = total_of(sampled.values())
    for (number, column_name), tally in result.report.tallies.items():
        if number == shard:
            sample = sampled.get(column_name, whole)
            ratio = sample.bytes_after / sample.bytes_before if sample.bytes_before else 1.0
            tally.bytes_after = round(tally.bytes_before * ratio)


def _tally(report: MigrateReport, shard: int, column_name: str) -> Tally:
    return report.tallies.setdefault((shard, column_name), Tally())


def _leave(report: MigrateReport, cell: StoredCell, reason: str, message: str) -> None:
    tally = _tally(report, cell.shard, cell.column_name)
    tally.left[reason] += 1
    tally.left_bytes += len(cell.body)
    report.failures.append(
        Failure(cell.shard, cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, reason, message)
    )


def _shards(store: Datastore, shards: Iterable[int] | None) -> list[int]:
    return [check_shard(shard, store.shard_count) for shard in (range(store.shard_count) if shards is None else shards)]


def _check_codec(codec: Codec) -> None:
    if codec.serializer is None:
        raise InvalidInput("legacy bodies cannot be re-encoded to legacy; name a codec such as msgpack+zlib")
