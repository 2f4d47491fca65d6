"""Generates a seeded history of writes with growth, a weekly cycle, noise, several columns and gaps between added_ids.

Benchmarks, demos and tests use it for reports over months of data, which no real corpus provides. Unlike an
application, it writes cells with explicit added_id and created_at.
"""

from __future__ import annotations

import math
import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from schemaless.base.keys import row_key_for
from schemaless.bench.corpora import words_of
from schemaless.codec.envelope import encode_body
from schemaless.codec.registry import codec_named
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.placement import shard_for
from schemaless.wire.sql.parts import blob, blob_hex, cell_table, insert, moment

_WORDS: Final = words_of(
    "accepted airport bay bridge car city driver east fare for from left meters north of on pickup rider right south "
    "stop street the to trip uptown west"
)
_ROWS: Final = 400
"""Rows per INSERT."""


@dataclass(frozen=True, slots=True)
class Column:
    """Write pattern of one column.

    Attributes:
        name: name of the column.
        cells_per_day: mean number of cells per weekday, before growth.
        text_bytes: median size of the documents as JSON text.
        spread: standard deviation of the logarithm of the size.
        weekend_share: number of cells on a Saturday or Sunday, relative to that on a weekday.
        codec: name of the codec.
        legacy_days: number of initial days whose bodies are legacy JSON text.
    """

    name: str
    cells_per_day: float
    text_bytes: float
    spread: float = 0.6
    weekend_share: float = 1.0
    codec: str = "msgpack+zlib"
    legacy_days: int = 0


@dataclass(frozen=True, slots=True)
class PastWrites:
    """Parameters of a history.

    Attributes:
        seed: random seed; the same seed gives the same history.
        days: number of days before ``until``.
        until: first day without cells, UTC.
        columns: the columns to write.
        growth_per_day: daily growth as a fraction.
        noise: standard deviation of the logarithm of a day's number of cells.
        gap_bytes: skip one added_id per this many body bytes; 0 for no gaps.
    """

    seed: int
    days: int
    until: date
    columns: tuple[Column, ...]
    growth_per_day: float = 0.004
    noise: float = 0.05
    gap_bytes: int = 100


class Made(NamedTuple):
    """A generated cell.

    Attributes:
        text_bytes: size of the document as JSON text.
    """

    shard: int
    added_id: int
    row_key: uuid.UUID
    column_name: str
    body: bytes
    created_at: datetime
    text_bytes: int


def cells(history: PastWrites, shard_count: int) -> Iterator[Made]:
    """Yield the cells of a history in chronological order."""
    drawn = random.Random(history.seed)
    text = " ".join(drawn.choices(_WORDS, k=40_000))
    last_ids = [0] * shard_count
    codecs = {column.name: codec_named(column.codec) for column in history.columns}
    count = 0
    for number in range(history.days):
        day = history.until - timedelta(days=history.days - number)
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        arrivals: list[tuple[float, Column]] = []
        for column in history.columns:
            expected = column.cells_per_day * (1 + history.growth_per_day) ** number
            expected *= column.weekend_share if day.weekday() >= 5 else 1.0
            cells_today = round(expected * math.exp(drawn.gauss(0.0, history.noise)))
            # More cells by day than at night.
            arrivals += [(_hour(drawn) * 3600, column) for _ in range(cells_today)]
        for second, column in sorted(arrivals, key=lambda arrival: arrival[0]):
            count += 1
            size = int(column.text_bytes * math.exp(drawn.gauss(0.0, column.spread)))
            begin = drawn.randrange(0, len(text) // 2)
            document = {"number": count, "fare": round(drawn.random() * 90, 2), "note": text[begin : begin + size]}
            legacy = number < column.legacy_days
            body = encode_body(document, codec_named("legacy") if legacy else codecs[column.name])
            row_key = row_key_for(f"{history.seed} {count}")
            shard = shard_for(row_key.bytes, shard_count)
            last_ids[shard] += 1
            yield Made(
                shard,
                last_ids[shard],
                row_key,
                column.name,
                body,
                midnight + timedelta(seconds=second),
                len(body) if legacy else _text_bytes(document),
            )
            if history.gap_bytes:
                last_ids[shard] += len(body) // history.gap_bytes


def write(store: Datastore, history: PastWrites) -> int:
    """Write a history into an empty datastore, and return the number of cells.

    Raises:
        ServerError: a server is unreachable or rejects a statement.
    """
    waiting: defaultdict[int, list[Made]] = defaultdict(list)
    count = 0
    for made in cells(history, store.shard_count):
        count += 1
        waiting[made.shard].append(made)
        if len(waiting[made.shard]) == _ROWS:
            _insert(store, waiting.pop(made.shard))
    for rest in waiting.values():
        _insert(store, rest)
    return count


def _insert(store: Datastore, made: list[Made]) -> None:
    internals = internals_of(store)
    shard = made[0].shard
    rows = [
        (cell.added_id, blob_hex(cell.row_key.bytes), cell.column_name, 1, blob(cell.body), moment(cell.created_at))
        for cell in made
    ]
    columns = "added_id, row_key, column_name, ref_key, body, created_at"
    # Rows that exist are kept.
    internals.shards.execute(shard, insert(cell_table(internals.shards.database(shard)), columns, rows, ignore=True))


def _hour(drawn: random.Random) -> float:
    return min(23.999, max(0.0, drawn.triangular(0, 24, 15)))


def _text_bytes(document: object) -> int:
    return len(encode_body(document, codec_named("legacy")))
