"""``Datastore.arrow``: the history of a column as a stream of record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from schemaless.base.keys import check_column_name, check_type
from schemaless.base.optional import load
from schemaless.codec.exact_text import exact_text
from schemaless.errors import InvalidInput
from schemaless.store.arrow.batches import Batches
from schemaless.store.arrow.fields import typed_columns
from schemaless.store.cells.sql import Row
from schemaless.store.internals import Internals
from schemaless.topology.model import check_shard

Since = datetime | Mapping[int, int] | None
"""Where to start: a time, the location of each shard, or the beginning."""

_PAGE_CELLS: Final = 1_000


def record_batches(
    internals: Internals, column: str | None, fields: Iterable[str], since: Since, shards: Iterable[int] | None
) -> Any:
    """Return a ``pyarrow.RecordBatchReader``; see ``Datastore.arrow``."""
    schema, batches = _schema_and_batches(internals, column, fields, since, shards)
    return load().RecordBatchReader.from_batches(schema, batches)


def each_batch(
    internals: Internals, column: str | None, fields: Iterable[str], since: Since, shards: Iterable[int] | None
) -> Iterator[Any]:
    """Yield the batches of ``record_batches`` directly; a reader would call the iterator from C++ code."""
    # An empty batch imports pyarrow and all that it uses, for longer than an event loop's other tasks can wait.
    internals.shards.runtime.blocking(lambda: Batches((), exact_text).batch((), 0))
    _, batches = _schema_and_batches(internals, column, fields, since, shards)
    yield from batches


def _schema_and_batches(
    internals: Internals, column: str | None, fields: Iterable[str], since: Since, shards: Iterable[int] | None
) -> tuple[Any, Iterator[Any]]:
    if column is not None:
        check_column_name(column)
    columns = typed_columns(fields, None if column is None else [column])
    limits, dictionaries = internals.limits, internals.dictionaries
    batches = Batches(columns, lambda body: exact_text(body, limits, dictionaries))
    chosen = internals.chosen_shards(shards)
    starts = _starts(internals, chosen, since)
    not_before = since if isinstance(since, datetime) else None

    def read() -> Iterator[Any]:
        for shard in chosen:
            for page in internals.changes.pages(shard, starts[shard], _PAGE_CELLS, column, "primary"):
                rows = page.rows if not_before is None else _stored_since(page.rows, not_before)
                if rows:
                    yield batches.batch(rows, shard).batch

    return batches.schema, read()


def _starts(internals: Internals, shards: Sequence[int], since: Since) -> dict[int, int]:
    if since is None:
        return dict.fromkeys(shards, 0)
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidInput(f"since must be a time with an offset, such as datetime.now(UTC), got {since!r}")
        return {shard: internals.location_since(shard, since) for shard in shards}
    for shard, location in check_type(since, Mapping, "since").items():  # type: ignore[type-abstract]
        check_shard(shard, internals.topology.shard_count)
        if type(location) is not int or not 0 <= location < 1 << 64:
            raise InvalidInput(f"since must give an added_id for each shard, got {location!r} for shard {shard}")
    return {shard: since.get(shard, 0) for shard in shards}


def _stored_since(rows: Sequence[Row], not_before: datetime) -> list[Row]:
    return [row for row in rows if datetime.fromisoformat(row[5]) >= not_before]
