"""The content of a cold file, and its row groups as they are read.

The columns are those of an export. Rows are sorted by key, so that versions of a document compress well and other
readers can prune by row_key; a row group has about ``GROUP_BYTES`` of JSON text. Nothing is written into statistics
that an erasure would have to remove.
"""

from __future__ import annotations

import errno
import hashlib
import uuid
from array import array
from binascii import hexlify
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from schemaless.base.optional import load
from schemaless.base.parts import parts
from schemaless.codec.references import Reference
from schemaless.errors import ColdFileDamaged
from schemaless.store.cold.targets import Target

GROUP_BYTES: Final = 256 << 10
"""JSON text per row group, in bytes; a longer document has a group of its own."""

FILE_BYTES: Final = 32 << 20
"""JSON text per file, in bytes: half of the default cache, so that reading in another order than that of the file
decodes each row group once."""

_GROUP_ROWS: Final = 4_096
_KEY_BYTES: Final = 1 << 20
"""Upper limit of the keys and times of a row group, in bytes."""

_LEVEL: Final = 9
_OPTIONS: Final = {
    "compression": "zstd",
    "compression_level": _LEVEL,
    "use_dictionary": ["column_name", "shard"],
    "write_statistics": ["row_key", "column_name", "ref_key", "added_id", "created_at"],
    "write_page_checksum": True,
}
_READ: Final = ("row_key", "column_name", "ref_key", "body")

_TAIL_BYTES: Final = 128 << 10
"""Number of bytes to read from the end of a file; footers are seldom longer."""

_MAX_FOOTER_BYTES: Final = 16 << 20
_UUID_CHARACTERS: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)

load_cold: Final = partial(load, extra="cold")
"""Import pyarrow or one of its modules."""


class ColdCell(NamedTuple):
    """A cell to write into a cold file.

    Attributes:
        added_id: position in the shard's change feed.
        row_key: the row.
        column_name: the column.
        ref_key: the version.
        text: the document as ``exact_text`` returns it.
        created_at: as text with its UTC offset, as in a row of the table.
    """

    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    text: bytes
    created_at: str


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a cold file.

    Attributes:
        data: the bytes, as a buffer.
        sha256: their checksum in hexadecimal.
        text_bytes: size of the documents as JSON text.
        places: row group and row of each cell, by added_id.
    """

    data: Any
    sha256: str
    text_bytes: int
    places: dict[int, tuple[int, int]]


def base_fields() -> list[Any]:
    """Return the Arrow fields that exports and cold files have in common."""
    pa = load()
    return [
        pa.field("row_key", pa.string(), nullable=False),
        pa.field("column_name", pa.string(), nullable=False),
        pa.field("ref_key", pa.int64(), nullable=False),
        pa.field("added_id", pa.int64(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("body", pa.string()),
    ]


def base_arrays(rows: Sequence[Any], shard: int, texts: Sequence[Any]) -> list[Any]:
    """Return the Arrow arrays for ``base_fields``.

    Args:
        rows: rows of the table ``cell``, or of the same form; their bodies are not used.
        shard: their shard.
        texts: the JSON text of each, or None.
    """
    pa = load()
    created_at = pa.array([row[5] for row in rows], pa.string())
    return [
        _uuids(b"".join([row[1] for row in rows]), len(rows)),
        pa.array([row[2] for row in rows], pa.string()),
        pa.array([row[3] for row in rows], pa.int64()),
        pa.array([row[0] for row in rows], pa.int64()),
        pa.repeat(pa.scalar(shard, pa.int32()), len(rows)),
        created_at.cast(pa.timestamp("us", tz="UTC")),
        pa.array(texts, pa.string()),
    ]


def _uuids(keys: bytes, count: int) -> Any:
    """Format UUIDs as text, one character position of all UUIDs at a time.

    Ten times as fast as a loop over UUIDs.
    """
    assert len(keys) == 16 * count
    digits = hexlify(keys)
    text = bytearray(b"-") * (_UUID_CHARACTERS * count)
    digit = 0
    for position in range(_UUID_CHARACTERS):
        if position not in _HYPHENS:
            text[position::_UUID_CHARACTERS] = digits[digit::32]
            digit += 1
    pa = load()
    offsets = array("i", range(0, _UUID_CHARACTERS * count + 1, _UUID_CHARACTERS))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(bytes(text))])


def content_of(cells: Sequence[ColdCell], shard: int) -> Content:
    """Return the content of a cold file with these cells, of one shard. The same cells give the same bytes.

    Raises:
        InvalidInput: pyarrow is not installed.
    """
    pa = load_cold()
    schema = pa.schema(base_fields())
    places: dict[int, tuple[int, int]] = {}
    ordered = sorted(cells, key=lambda cell: cell[1:4])
    with _writing(schema) as (sink, writer):
        for number, group in enumerate(parts(ordered, _GROUP_ROWS, GROUP_BYTES, lambda cell: len(cell.text))):
            arrays = base_arrays(group, shard, [cell.text for cell in group])
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=len(group))
            places.update((cell.added_id, (number, row)) for row, cell in enumerate(group))
    return _content(sink, sum(len(cell.text) for cell in cells), places)


def without_documents(data: bytes, erased: Collection[int]) -> Content | None:
    """Return a file's content without the documents of some cells, whose rows keep their places with a null body.

    Args:
        data: the file's content.
        erased: the added_ids of the cells.

    Returns:
        None if the file has none of these documents.

    Raises:
        InvalidInput: pyarrow is not installed.
        OSError, pyarrow.ArrowException: the content is damaged.
    """
    pa, compute = load_cold(), load_cold("pyarrow.compute")
    places: dict[int, tuple[int, int]] = {}
    text_bytes, removed = 0, 0
    wanted = pa.array(sorted(erased), pa.int64())
    with (
        closing(_parquet(pa.BufferReader(data), None, whole=True)) as file,
        _writing(file.schema_arrow) as (sink, writer),
    ):
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False).combine_chunks()
            ids, body = table["added_id"], table["body"]
            concerned = compute.is_in(ids, wanted)
            removed += compute.sum(compute.and_(concerned, compute.is_valid(body))).as_py() or 0
            body = compute.if_else(concerned, pa.scalar(None, pa.string()), body)
            table = table.set_column(table.schema.get_field_index("body"), table.schema.field("body"), body)
            writer.write_table(table, row_group_size=table.num_rows)
            text_bytes += compute.sum(compute.binary_length(body)).as_py() or 0
            places.update((added_id, (number, row)) for row, added_id in enumerate(ids.to_pylist()))
    return _content(sink, text_bytes, places) if removed else None


@contextmanager
def _writing(schema: Any) -> Iterator[tuple[Any, Any]]:
    sink = load_cold().BufferOutputStream()
    with closing(load_cold("pyarrow.parquet").ParquetWriter(sink, schema, **_OPTIONS)) as writer:
        yield sink, writer


def _content(sink: Any, text_bytes: int, places: dict[int, tuple[int, int]]) -> Content:
    data = sink.getvalue()
    return Content(data, hashlib.sha256(data).hexdigest(), text_bytes, places)


class Damaged(Exception):
    """A cold file has other contents than its row, its footer or a reference says."""


@dataclass(frozen=True, slots=True)
class Group:
    """A decoded row group.

    Attributes:
        columns: its row_keys, column_names, ref_keys and bodies, as Arrow arrays.
        size: the memory that it takes, in bytes.
    """

    columns: tuple[Any, Any, Any, Any]
    size: int

    def text(self, reference: Reference, row_key: bytes, column_name: str, ref_key: int) -> bytes | None:
        """Return the JSON text of a cell; None if it was removed from the file.

        Raises:
            ColdFileDamaged: the row has another key.
        """
        row = reference.row
        if row >= len(self.columns[3]):
            raise ColdFileDamaged(
                reference.file, f"row group {reference.group} has {len(self.columns[3])} rows, but no row {row}"
            )
        *key, body = (column[row] for column in self.columns)
        found = tuple(scalar.as_py() for scalar in key)
        if found != (str(uuid.UUID(bytes=row_key)), column_name, ref_key):
            raise ColdFileDamaged(
                reference.file, f"row {row} of row group {reference.group} has the key ({', '.join(map(str, found))})"
            )
        return body.as_buffer().to_pybytes() if body.is_valid else None


class Footer(NamedTuple):
    """The decoded footer of a file, and the memory that it takes, in bytes."""

    metadata: Any
    size: int


def read_group(
    target: Target, name: str, file_bytes: int, number: int, max_text_bytes: int, footer: Footer | None
) -> tuple[Group, Footer]:
    """Read and decode a row group. Sizes are checked before anything is inflated.

    Args:
        target: where the file is.
        name: its name.
        file_bytes: its size; 0 if unknown.
        number: number of the row group.
        max_text_bytes: maximum size of the row group's texts.
        footer: the file's footer, if known.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: the file is damaged.
        OSError: the file cannot be read.
    """
    pa = load_cold()
    source = target.open_input(name)
    with pa.OSFile(source) if isinstance(source, str) else source as file:
        try:
            return _read_group(file, file_bytes, number, max_text_bytes, footer)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            # pyarrow raises OSError for damaged pages too.
            _read_all(file)
            raise Damaged(str(error)) from error


def _read_group(
    file: Any, file_bytes: int, number: int, max_text_bytes: int, footer: Footer | None
) -> tuple[Group, Footer]:
    size = file.size()
    if file_bytes and size != file_bytes:
        raise Damaged(f"it has {size:,} bytes, but had {file_bytes:,} when it was written")
    metadata = _footer(file, size) if footer is None else footer.metadata
    parquet = _parquet(file, metadata)
    if not metadata.num_row_groups:
        # It took the place of a file whose documents were all erased.
        raise FileNotFoundError(errno.ENOENT, "it has no documents any more")
    if number >= metadata.num_row_groups:
        raise Damaged(f"it has {metadata.num_row_groups:,} row groups, but no row group {number}")
    group = metadata.row_group(number)
    sizes = [group.column(column).total_uncompressed_size for column in range(group.num_columns)]
    if sum(sizes) > max_text_bytes + _KEY_BYTES:
        raise Damaged(
            f"row group {number} claims {sum(sizes):,} bytes, more than a document may have ({max_text_bytes:,})"
        )
    table = parquet.read_row_group(number, columns=list(_READ), use_threads=False)
    # A row group is one chunk; combining chunks would copy it.
    row_keys, names, ref_keys, bodies = (
        column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in map(table.column, _READ)
    )
    if footer is None:
        footer = Footer(metadata, 4 * metadata.serialized_size)
    return Group((row_keys, names, ref_keys, bodies), table.nbytes), footer


def _footer(file: Any, size: int) -> Any:
    """Return a file's metadata. An object store is asked once, except for a long footer."""
    tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    footer_bytes = int.from_bytes(tail[-8:-4], "little")
    if not 0 < footer_bytes <= min(_MAX_FOOTER_BYTES, size - 8):
        raise Damaged(f"its end claims a footer of {footer_bytes:,} bytes")
    if footer_bytes > len(tail) - 8:
        tail = file.read_at(footer_bytes + 8, size - footer_bytes - 8)
    return load_cold("pyarrow.parquet").read_metadata(load_cold().BufferReader(tail))


def _parquet(source: Any, metadata: Any, *, whole: bool = False) -> Any:
    return load_cold("pyarrow.parquet").ParquetFile(
        source,
        metadata=metadata,
        pre_buffer=not whole and not isinstance(source, load_cold().OSFile),
        page_checksum_verification=True,
    )


def _read_all(file: Any) -> None:
    """Read a file to its end; raises the error of a store that does not answer."""
    file.seek(0)
    while file.read(1 << 20):
        pass
