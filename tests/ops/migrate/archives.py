"""Cells and archive files for the tests of archives."""

from __future__ import annotations

import hashlib
from pathlib import Path

from schemaless.ops.migrate.archive import ArchivedCell, ArchiveWriter


def cell(number: int, body: bytes | None = None) -> ArchivedCell:
    return ArchivedCell(
        number,
        number.to_bytes(16, "big"),
        "BASE",
        number * 7,
        f"2026-01-31 23:59:59.{number % 1_000_000:06}+00:00",
        b'{"n": %d}' % number if body is None else body,
        hashlib.sha256(b"new %d" % number).digest(),
    )


def writer(folder: Path, *, shard: int = 3, job_id: int = 7, epoch: int = 1, **options: int) -> ArchiveWriter:
    return ArchiveWriter.create(
        folder, datastore="trips", shard=shard, shard_count=8, job_id=job_id, epoch=epoch, **options
    )


def small_file(folder: Path, *, close: bool = True) -> tuple[Path, list[list[ArchivedCell]]]:
    """Write a file of three chunks; return its path and the cells of each chunk."""
    chunks = [[cell(1), cell(2)], [cell(3, b""), cell(4, b"\xc1\x10rest")], [cell(5)]]
    made = writer(folder)
    for chunk in chunks:
        made.append(chunk)
    if close:
        made.close()
    else:
        made._drop()
    return made.path, chunks
