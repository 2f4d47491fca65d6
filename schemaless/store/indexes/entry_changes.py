"""The entries that a page of the change feed adds, changes and deletes; pure functions, without I/O.

Every read of a row is one snapshot and cells are never deleted, so the refs read from a row at different times are
totally ordered: of any two, one is at least as late in every source column. Each write is therefore guarded by refs
alone: an entry is only replaced or deleted by a worker that read the row in the same state as the entry's
writer did, or in a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemaless.store.indexes.definition import Definition, Value

Part = tuple[Value, ...]
"""The values of an index's fields that are taken from one column."""


class Change(NamedTuple):
    """A cell of the page.

    Attributes:
        row_key: the cell's row.
        column: the cell's column.
        now: the field values in the cell.
        before: the field values in the version before it; all None if there is none.
    """

    row_key: bytes
    column: str
    now: Part
    before: Part


class RowState(NamedTuple):
    """The latest versions of a row's source columns.

    Attributes:
        refs: the latest ref_key of each source column; -1 for a column without cells.
        parts: the field values in these cells, by column.
    """

    refs: tuple[int, ...]
    parts: Mapping[str, Part]


class Entry(NamedTuple):
    """An index entry: a row, its field values, and the versions that they were taken from."""

    row_key: bytes
    values: tuple[Value, ...]
    refs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageWrites:
    """The writes for a page, by the shard of the entry. All upserts must be committed before the first delete.

    Attributes:
        upserts: entries to write.
        deletes: row_key and refs of entries to delete.
    """

    upserts: dict[int, list[Entry]] = field(default_factory=dict)
    deletes: dict[int, list[tuple[bytes, tuple[int, ...]]]] = field(default_factory=dict)


def entry_of(definition: Definition, shard_count: int, row_key: bytes, state: RowState) -> tuple[int | None, Entry]:
    """Return the entry that a row should have, and its shard: None if the row should have no entry."""
    remaining = {column: iter(part) for column, part in state.parts.items()}
    values = tuple(next(remaining[field.column]) for field in definition.all_fields)
    return definition.shard_of(values[0], shard_count), Entry(row_key, values, state.refs)


def page_writes(
    definition: Definition, shard_count: int, changes: Iterable[Change], rows: Mapping[bytes, RowState]
) -> PageWrites:
    """Return the writes that bring the entries of a page's rows up to date.

    A row's entry is written if one of its cells in the page follows a version whose field values differ from those of
    the row's latest version. It is deleted from all other shards in which the row's cells in the page or their previous
    versions placed it.

    Args:
        definition: the index's definition.
        shard_count: the datastore's number of shards.
        changes: the page's cells of source columns.
        rows: the state of each of their rows, read after the page.
    """
    writes = PageWrites()
    changed: set[bytes] = set()
    old_shards: dict[bytes, set[int]] = {}
    shard_column = definition.shard_field.column
    for row_key, column, now, before in changes:
        if before != rows[row_key].parts[column]:
            changed.add(row_key)
        if column == shard_column:
            # The shard field is the first field, hence the first value of its column's part.
            shards = {definition.shard_of(part[0], shard_count) for part in (now, before)}
            old_shards.setdefault(row_key, set()).update(shard for shard in shards if shard is not None)
    for row_key, state in sorted(rows.items()):
        shard, entry = entry_of(definition, shard_count, row_key, state)
        if shard is not None and row_key in changed:
            writes.upserts.setdefault(shard, []).append(entry)
        for old_shard in old_shards.get(row_key, set()) - {shard}:
            assert old_shard is not None
            writes.deletes.setdefault(old_shard, []).append((row_key, state.refs))
    return writes
