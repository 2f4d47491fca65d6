"""What a page of the feed means for an index: which entries are written, and which deleted; pure.

Every read of a row is one snapshot, so the refs that are read of one row at different times form a chain: of any two,
one is the later in every source column. Cells are never deleted. That is what makes the guard of each write enough:
entries are written and deleted only by who has read the row as late as the entry's writer, or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemaless.indexes.definition import Definition, Value

Part = tuple[Value, ...]
"""A part has the values of those fields of an index that are in one column's documents."""


class Change(NamedTuple):
    """A cell of the page, by what is in it.

    Attributes:
        now: what is in the cell.
        before: what is in the version before it; all None where there is none.
    """

    row_key: bytes
    column: str
    now: Part
    before: Part


class RowState(NamedTuple):
    """A row as it was read.

    Attributes:
        refs: the latest ref_key of each source column; -1 where there is none.
        parts: what is in these cells, by column.
    """

    refs: tuple[int, ...]
    parts: Mapping[str, Part]


class Entry(NamedTuple):
    """What an index says of a row."""

    row_key: bytes
    values: tuple[Value, ...]
    refs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageWrites:
    """What is to be done for a page, by the shard that it is done in: first all that is written, then what is deleted.

    Attributes:
        upserts: entries to be written.
        deletes: row_key and refs of entries to be deleted.
    """

    upserts: dict[int, list[Entry]] = field(default_factory=dict)
    deletes: dict[int, list[tuple[bytes, tuple[int, ...]]]] = field(default_factory=dict)


def page_writes(
    definition: Definition, shard_count: int, changes: Iterable[Change], rows: Mapping[bytes, RowState]
) -> PageWrites:
    """Return what a page means.

    A row's entry is written where one of the page's cells, or the version before it, says something else than the
    latest one. It is deleted in the shards that these cells and the versions before them name, but for its own.

    Args:
        definition: the index's.
        shard_count: of the datastore.
        changes: the page's cells, of source columns only.
        rows: each row of these cells, read behind the page.
    """
    writes = PageWrites()
    changed: set[bytes] = set()
    old: dict[bytes, set[int]] = {}
    shard_column = definition.shard_field.column
    for row_key, column, now, before in changes:
        if before != rows[row_key].parts[column]:
            changed.add(row_key)
        if column == shard_column:
            # The shard field is the first of all, so it is the first of its column's.
            shards = {definition.shard_of(part[0], shard_count) for part in (now, before)}
            old.setdefault(row_key, set()).update(shard for shard in shards if shard is not None)
    for row_key, state in sorted(rows.items()):
        values = values_of(definition, state.parts)
        shard = definition.shard_of(values[0], shard_count)
        if shard is not None and row_key in changed:
            writes.upserts.setdefault(shard, []).append(Entry(row_key, values, state.refs))
        for left in old.get(row_key, set()) - {shard}:
            assert left is not None
            writes.deletes.setdefault(left, []).append((row_key, state.refs))
    return writes


def values_of(definition: Definition, parts: Mapping[str, Part]) -> tuple[Value, ...]:
    """Return the values of all fields, of those that are in each column's documents."""
    left = {column: iter(part) for column, part in parts.items()}
    return tuple(next(left[field.column]) for field in definition.all_fields)
