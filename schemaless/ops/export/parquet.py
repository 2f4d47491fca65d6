"""Parquet files of cells. With the same version of pyarrow, the same cells and columns produce the same bytes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from schemaless.base.optional import load
from schemaless.errors import ExportFailed
from schemaless.ops.export.manifest import DataFile, ShardEntry, cells_folder, file_name, latest_folder
from schemaless.store.arrow.batches import Batch, Batches
from schemaless.store.arrow.fields import ERASED, TypedColumn
from schemaless.store.cells.sql import Row
from schemaless.store.cold.targets import Target

_ROWS_PER_GROUP: Final = 32_768
"""Number of rows per row group. It is fixed, so that the file does not depend on the size of the feed's pages."""

_LATEST: Final = "latest.parquet"
_KEY: Final = ["row_key", "column_name"]

_OPTIONS: Final = {"compression": "zstd", "compression_level": 3, "use_dictionary": ["column_name", "shard"]}
"""Settings of the writer. Keys and bodies hardly repeat, so encoding them with a dictionary would cost time and save
nothing."""


class GroupWriter:
    """Writes batches to a Parquet file in memory, in row groups of a fixed number of rows.

    Args:
        schema: schema of the batches.
    """

    def __init__(self, schema: Any) -> None:
        self._pa = load()
        self._sink = self._pa.BufferOutputStream()
        self._schema = schema
        self._writer = load("pyarrow.parquet").ParquetWriter(self._sink, schema, **_OPTIONS)
        self._pending: list[Any] = []
        self._rows = 0

    def add(self, batch: Any) -> None:
        """Add a record batch or a table."""
        self._pending.append(batch if hasattr(batch, "combine_chunks") else self._pa.Table.from_batches([batch]))
        self._rows += batch.num_rows
        if self._rows >= _ROWS_PER_GROUP:
            self._write(whole=False)

    def close(self) -> Any:
        """Return the file as a buffer."""
        self._write(whole=True)
        self._writer.close()
        return self._sink.getvalue()

    def _write(self, *, whole: bool) -> None:
        if not self._rows:
            return
        table = self._pa.concat_tables(self._pending)
        start = 0
        while self._rows >= _ROWS_PER_GROUP or (whole and self._rows):
            group = table.slice(start, _ROWS_PER_GROUP)
            # Chunks would show in the bytes of the file.
            self._writer.write_table(group.combine_chunks(), row_group_size=_ROWS_PER_GROUP)
            start += group.num_rows
            self._rows -= group.num_rows
        self._pending = [table.slice(start)] if self._rows else []


class CellFile:
    """A file of cells that is being built.

    Args:
        columns: the typed columns.
        batches: builds the batches.

    Attributes:
        rows: number of cells.
        body_bytes: size of their bodies as JSON text.
    """

    def __init__(self, columns: Sequence[TypedColumn], batches: Batches) -> None:
        self.rows: int = 0
        self.body_bytes: int = 0
        self._columns = columns
        self._batches = batches
        self._writer = GroupWriter(batches.schema)
        self._nulls = [Counter[str]() for _ in columns]
        self._skipped: dict[str, str] = {}

    def add(self, rows: Sequence[Row], shard: int) -> None:
        """Add cells, in the order of their added_ids.

        Raises:
            CorruptBody: a body does not decode; the error names the cell.
        """
        if not rows:
            return
        batch: Batch = self._batches.batch(rows, shard)
        self._writer.add(batch.batch)
        self.rows += len(rows)
        self.body_bytes += batch.body_bytes
        for total, nulls in zip(self._nulls, batch.nulls, strict=True):
            total.update(nulls)
        self._skipped |= {str(added_id): error for added_id, error in batch.skipped.items()}

    def close(self, after: int, up_to: int) -> tuple[DataFile, Any]:
        """Return the file's description and its content, as a buffer."""
        nulls = {column.name: dict(counts) for column, counts in zip(self._columns, self._nulls, strict=True)}
        fields = tuple(column.declared for column in self._columns)
        name, size = file_name(after, up_to), self.body_bytes
        file = DataFile(name, after, up_to, self.rows, 0, size, "", fields, nulls, self._skipped)
        return _described(file, self._writer.close())


def _described(file: DataFile, content: Any) -> tuple[DataFile, Any]:
    """Return a file's description with the size and checksum of its content, and the content."""
    return replace(file, bytes=len(content), sha256=hashlib.sha256(content).hexdigest()), content


def read_table(target: Target, name: str) -> Any:
    """Return the table of a Parquet file.

    Raises:
        ExportFailed: it cannot be read.
    """
    try:
        return load("pyarrow.parquet").read_table(target.open_input(name), partitioning=None)
    except (OSError, load().ArrowException) as error:
        raise ExportFailed(
            f"{target.uri}: cannot read {name}: {error}; if it is damaged, delete it, and run 'schemaless export "
            "parquet' again, which writes missing files again"
        ) from error


def _written(table: Any) -> Any:
    """Return a table as a Parquet file in a buffer."""
    writer = GroupWriter(table.schema)
    writer.add(table)
    return writer.close()


def without_documents(
    target: Target, name: str, file: DataFile, erased: Mapping[int, int]
) -> tuple[DataFile, Any] | None:
    """Return the description and the content of a file without the documents of some cells, whose rows are kept.

    Args:
        target: where the file is.
        name: its name.
        file: its description.
        erased: numbers of the erasures by added_id.

    Returns:
        None if the file has none of these documents.

    Raises:
        ExportFailed: the file cannot be read.
    """
    pa = load()
    table = read_table(target, name)
    compute = load("pyarrow.compute")
    concerned = compute.is_in(table["added_id"], pa.array(sorted(erased), pa.int64()))
    held = table.filter(compute.and_(concerned, compute.is_valid(table["body"])))["added_id"].to_pylist()
    skipped = {added_id: error for added_id, error in file.skipped.items() if int(added_id) not in erased}
    if not held and skipped == file.skipped:
        return None
    nulls = {name: dict(counts) for name, counts in file.nulls.items()}
    for position, field_ in list(enumerate(table.schema))[table.schema.get_field_index("body") :]:
        values = table.column(position)
        removed = compute.sum(compute.and_(concerned, compute.is_valid(values))).as_py() or 0
        if removed and field_.name != "body":
            counts = nulls.setdefault(field_.name, {})
            counts[ERASED] = counts.get(ERASED, 0) + removed
        table = table.set_column(position, field_, compute.if_else(concerned, pa.scalar(None, field_.type), values))
    counted = Counter(file.erased) + Counter(str(erased[added_id]) for added_id in held)
    lengths = compute.sum(compute.binary_length(table["body"])).as_py() or 0
    changed = replace(file, body_bytes=lengths, nulls=nulls, skipped=skipped, erased=dict(counted))
    return _described(changed, _written(table))


def merged(tables: Sequence[Any], files: Sequence[DataFile]) -> tuple[DataFile, Any]:
    """Return the description and the content of a file that merges the cells of several files, in order.

    Args:
        tables: the files' tables; a column that only some of them have is null in the others.
        files: their descriptions, for consecutive ranges of added_ids.
    """
    table = load().concat_tables(tables, promote_options="default")
    nulls: dict[str, Counter[str]] = {}
    for file in files:
        for name, counts in file.nulls.items():
            nulls.setdefault(name, Counter()).update(counts)
    after, up_to = files[0].after, files[-1].up_to
    file = DataFile(
        file_name(after, up_to),
        after,
        up_to,
        table.num_rows,
        0,
        sum(file.body_bytes for file in files),
        "",
        tuple(dict.fromkeys(declared for file in files for declared in file.fields)),
        {name: dict(counts) for name, counts in nulls.items()},
        {added_id: error for file in files for added_id, error in file.skipped.items()},
        dict(sum((Counter(file.erased) for file in files), Counter())),
    )
    return _described(file, _written(table))


def latest_file(target: Target, shard: int, entry: ShardEntry, *, lost: bool = False) -> tuple[DataFile, Any]:
    """Return the description and the content of a shard's file of the latest versions: the highest ref_key of each key.

    An erased cell keeps its row, with a null body. Without that row, an older version would become the latest one.

    The content is the previous file's, updated with the files written since; if the previous file is ``lost``, it is
    that of all files.

    Raises:
        ExportFailed: a file cannot be read.
    """
    pa = load()
    old = entry.latest
    names = [f"{latest_folder(shard)}/{old.name}"] if old is not None and not lost else []
    since = 0 if old is None or lost else old.up_to
    names += [f"{cells_folder(shard)}/{file.name}" for file in entry.files if file.up_to > since]
    table = pa.concat_tables([read_table(target, name) for name in names], promote_options="default")
    latest = newest(table)
    up_to = max([since, *(file.up_to for file in entry.files)])
    fields = entry.files[-1].fields if entry.files else ()
    erased = {} if old is None else old.erased
    file = DataFile(_LATEST, 0, up_to, latest.num_rows, 0, 0, "", fields, erased=erased)
    return _described(file, _written(latest))


def newest(table: Any) -> Any:
    """Return a table's rows with the highest ref_key for each row_key and column, in added_id order."""
    pa = load()
    keys = table.select([*_KEY, "ref_key"]).append_column("place", pa.array(range(table.num_rows), pa.int64()))
    order = keys.sort_by([("row_key", "ascending"), ("column_name", "ascending"), ("ref_key", "descending")])
    first = order.group_by(_KEY, use_threads=False).aggregate([("place", "first")])
    return table.take(first["place_first"]).sort_by("added_id").combine_chunks()
