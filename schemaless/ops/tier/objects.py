"""Whole cold files: what they hold, whether they hold what they should, and their deletion."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator

from schemaless.errors import ColdFileDamaged
from schemaless.store.cold.content import ColdCell, Content, load_cold
from schemaless.store.cold.files import ColdFile, ShardFiles
from schemaless.store.cold.targets import Target, unavailable


def cells_of(file: ColdFile, data: bytes) -> Iterator[tuple[ColdCell, tuple[int, int]]]:
    """Yield the cells of a file's content with their row group and row, without those that were erased.

    Raises:
        ColdFileDamaged: it is not such a file.
    """
    pa, parquet = load_cold(), load_cold("pyarrow.parquet")
    try:
        opened = parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group, use_threads=False)
            names = ("added_id", "row_key", "column_name", "ref_key", "created_at")
            times = table["created_at"].cast(pa.timestamp("us")).cast(pa.string()).to_pylist()
            columns = [table[name].to_pylist() for name in names[:4]]
            texts = table["body"].cast(pa.binary()).to_pylist()
            for row, (added_id, key, column, ref_key, text, at) in enumerate(zip(*columns, texts, times, strict=True)):
                if text is not None:
                    cell = ColdCell(added_id, uuid.UUID(key).bytes, column, ref_key, text, f"{at}+00:00")
                    yield cell, (group, row)
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise ColdFileDamaged(file.file_id, f"{file.name} cannot be read: {error}") from error


def content_in(target: Target, file: ColdFile) -> bytes:
    """Read a file.

    Raises:
        ColdFileDamaged: it does not exist, or its checksum is another.
        ColdStoreUnavailable: the cold store does not answer.
    """
    try:
        with unavailable(target.uri):
            data = target.read(file.name)
    except FileNotFoundError as error:
        raise ColdFileDamaged(file.file_id, f"{file.name} does not exist in {target.uri}") from error
    if file.sha256 and hashlib.sha256(data).hexdigest() != file.sha256:
        raise ColdFileDamaged(file.file_id, f"{file.name} in {target.uri} has another SHA-256 than when it was written")
    return data


def check_written(target: Target, file: ColdFile, cells: Iterable[ColdCell], content: Content) -> None:
    """Read a file back, and compare every document with the one that was written.

    Raises:
        ColdFileDamaged: the cold store has something else.
    """
    data = content_in(target, file)
    if hashlib.sha256(data).hexdigest() != content.sha256:
        raise ColdFileDamaged(file.file_id, f"{file.name} was read back with other bytes than were written")
    found = {cell.added_id: (cell[:5], place) for cell, place in cells_of(file, data)}
    if found != {cell.added_id: (cell[:5], content.places[cell.added_id]) for cell in cells}:
        raise ColdFileDamaged(file.file_id, f"{file.name} has other cells or documents than were written")


def delete_object(target: Target, files: ShardFiles, file: ColdFile) -> None:
    """Delete the object of a file that is condemned or deleted, and record that."""
    with unavailable(target.uri):
        target.delete([file.name])
    files.deleted(file)
