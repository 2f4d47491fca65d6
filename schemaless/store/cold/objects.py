"""Whole cold files: what they hold, whether they hold what they should, and their deletion."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from schemaless.errors import ColdBodyMissing, ColdFileDamaged
from schemaless.store.cold.content import ColdCell, Content, load_cold
from schemaless.store.cold.files import ColdFile, ShardFiles, shard_folder, successor_of, unknown_file
from schemaless.store.cold.targets import TEMPORARY, Target, check_marked, unavailable


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


def content_in(target: Target, file: ColdFile) -> tuple[ColdFile, bytes]:
    """Read a file, or, if its object is gone, the last later generation in the store.

    A database that was restored from a backup, or promoted without the latest rows, may list an older generation.

    Returns:
        The file that was read, with its size and checksum, and its content.

    Raises:
        ColdBodyMissing: the store has neither the file nor a later generation.
        ColdFileDamaged: its checksum is another.
        ColdStoreUnavailable: the cold store does not answer, or is not mounted.
    """
    found, gone = file, set[str]()
    while True:
        with unavailable(target.uri):
            try:
                data = target.read(found.name)
                break
            except FileNotFoundError as error:
                # A listing may show objects that were deleted.
                gone.add(found.name.rpartition("/")[2])
                successor = successor_of(file, set(target.names(file.folder)) - gone)
                if successor is None:
                    check_marked(target)
                    raise ColdBodyMissing(
                        file.file_id, f"does not exist in {target.uri}, nor does a later generation: {file.name}"
                    ) from error
                found = successor
    if found.sha256 and hashlib.sha256(data).hexdigest() != found.sha256:
        raise ColdFileDamaged(
            file.file_id, f"{found.name} in {target.uri} has another SHA-256 than when it was written"
        )
    return (found if found is file else _described(found, data)), data


def _described(file: ColdFile, data: bytes) -> ColdFile:
    """Return a file that no row describes, with what its row would say."""
    pa, compute, parquet = (load_cold(name) for name in ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))
    try:
        table = parquet.read_table(pa.BufferReader(data), columns=["added_id", "body"], page_checksum_verification=True)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ColdFileDamaged(file.file_id, f"{file.name} cannot be read: {error}") from error
    found = replace(file, file_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    if not table.num_rows:
        return replace(found, text_bytes=0)
    first_id, last_id = compute.min_max(table["added_id"]).as_py().values()
    text_bytes = compute.sum(compute.binary_length(table["body"])).as_py() or 0
    return replace(found, cells=table.num_rows, first_id=first_id, last_id=last_id, text_bytes=text_bytes)


def own_names(target: Target, shard: int, incarnation: str) -> list[str]:
    """Return the names of the files in a shard's folder, without the folder.

    Raises:
        ColdStoreUnavailable: the cold store does not answer, or is not mounted.
    """
    with unavailable(target.uri):
        names = target.names(shard_folder(incarnation, shard))
    # After it, so that no empty list is that of a folder that is not mounted.
    check_marked(target)
    return [name for name in names if unknown_file(shard, incarnation, name) is not None]


def reconcile(
    target: Target, files: ShardFiles, shard: int, incarnation: str, last_event: int, gate: Callable[[], None]
) -> int:
    """Bring a shard's list of files up to date with the objects in the store.

    A database that was restored from a backup, or promoted without the latest rows, may list generations that were
    deleted since, and lack later files. Later generations take the place of the former; the others are listed as
    condemned, so that erasures find them, and sweeps delete them. What is left of deleted files is deleted.

    Args:
        target: the cold store.
        files: the files that the shard lists.
        shard: number of the shard.
        incarnation: that of the datastore; objects of others are not listed or deleted.
        last_event: the last event of the shard's log of erased cells.
        gate: called before each file; raises if the work has to end.

    Returns:
        Number of deleted objects.

    Raises:
        ColdStoreUnavailable: the cold store does not answer, or is not mounted.
    """
    own = shard_folder(incarnation, shard)
    # Before the rows, because a file is listed before it is written.
    names = own_names(target, shard, incarnation)
    damaged = _adopt_successors(target, files, files.all("live"), last_event, gate)
    states = {file.name: file.state for file in files.all()}
    deleted = 0
    for name in sorted(names):
        unknown, state = unknown_file(shard, incarnation, name), states.get(f"{own}/{name}")
        if unknown is None or unknown.file_id in damaged or state not in (None, "deleted"):
            continue
        gate()
        if state is None:
            try:
                found, data = content_in(target, unknown)
                if found.generation != unknown.generation:
                    continue
                unknown = _described(unknown, data)
            except ColdBodyMissing:
                continue
            except ColdFileDamaged:
                pass  # listed without a checksum, as if it had never been complete
            files.register(unknown)
        else:
            delete_object(target, files, unknown)
            deleted += 1
    return deleted


def _adopt_successors(
    target: Target, files: ShardFiles, live: Iterable[ColdFile], last_event: int, gate: Callable[[], None]
) -> set[int]:
    """List later generations of live files whose objects are gone; return the numbers of those that have none."""
    with unavailable(target.uri):
        folders = {file.folder for file in live}
        present = {f"{folder}/{name}" for folder in folders for name in target.names(folder)}
    damaged = set()
    for file in live:
        if file.name in present:
            continue
        gate()
        try:
            found, _ = content_in(target, file)
        except (ColdBodyMissing, ColdFileDamaged):
            # 'tier verify' names its cells. Nothing that is left of it is deleted.
            damaged.add(file.file_id)
        else:
            if found.generation != file.generation:
                files.adopt(found, file, last_event)
    return damaged


def put_object(target: Target, file: ColdFile, data: object, writer: str) -> None:
    """Write the object of a file, which is not live before it was read back.

    Args:
        target: the cold store.
        file: the file.
        data: its content.
        writer: identifies the writer.

    Raises:
        ColdStoreUnavailable: the cold store does not answer, or is not mounted.
        Vanished: another process has deleted the temporary file.
    """
    check_marked(target)
    with unavailable(target.uri):
        target.put(file.name, data, writer)


def check_written(target: Target, file: ColdFile, cells: Iterable[ColdCell], content: Content) -> None:
    """Read a file back, and compare every document with the one that was written.

    Raises:
        ColdBodyMissing, ColdFileDamaged: the cold store has something else, or nothing.
    """
    _, data = content_in(target, file)
    if hashlib.sha256(data).hexdigest() != content.sha256:
        raise ColdFileDamaged(file.file_id, f"{file.name} was read back with other bytes than were written")
    found = {cell.added_id: (cell[:5], place) for cell, place in cells_of(file, data)}
    if found != {cell.added_id: (cell[:5], content.places[cell.added_id]) for cell in cells}:
        raise ColdFileDamaged(file.file_id, f"{file.name} has other cells or documents than were written")


def delete_object(target: Target, files: ShardFiles, file: ColdFile) -> None:
    """Delete the object of a file that is condemned or deleted, and record that."""
    name = file.name.rpartition("/")[2]
    with unavailable(target.uri):
        # A writer that was killed may have left its temporary file.
        left = [f"{TEMPORARY}/{each}" for each in target.names(TEMPORARY) if each.endswith(name)]
        target.delete([file.name, *left])
    files.deleted(file)
