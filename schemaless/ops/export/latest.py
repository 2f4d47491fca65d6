"""The file of the latest versions: for each row and column, the cell with the highest ref_key.

An erased cell keeps its row, with a null body. Without that row, an older version would become the latest one.
"""

from __future__ import annotations

from typing import Any, Final

from schemaless.ops.export.manifest import DataFile, ShardEntry, cells_folder, latest_folder
from schemaless.ops.export.parquet import described, read_table, written
from schemaless.ops.export.target import Target
from schemaless.store.arrow.batches import load

NAME: Final = "latest.parquet"
_KEY: Final = ["row_key", "column_name"]


def latest_file(target: Target, shard: int, entry: ShardEntry, *, lost: bool = False) -> tuple[DataFile, Any]:
    """Return the description and the content of a shard's file of the latest versions.

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
    content = written(newest(table))
    up_to = max([since, *(file.up_to for file in entry.files)])
    rows = load("pyarrow.parquet").ParquetFile(pa.BufferReader(content)).metadata.num_rows
    fields = entry.files[-1].fields if entry.files else ()
    erased = {} if old is None else old.erased
    return described(DataFile(NAME, 0, up_to, rows, 0, 0, "", fields, erased=erased), content), content


def newest(table: Any) -> Any:
    """Return a table's rows with the highest ref_key for each row_key and column, in added_id order."""
    pa = load()
    keys = table.select([*_KEY, "ref_key"]).append_column("place", pa.array(range(table.num_rows), pa.int64()))
    order = keys.sort_by([("row_key", "ascending"), ("column_name", "ascending"), ("ref_key", "descending")])
    first = order.group_by(_KEY, use_threads=False).aggregate([("place", "first")])
    return table.take(first["place_first"]).sort_by("added_id").combine_chunks()
