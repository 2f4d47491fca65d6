"""Merges small files of an export."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.logger import log
from schemaless.base.parts import parts
from schemaless.errors import LeaseLost
from schemaless.ops.export.manifest import (
    DataFile,
    ShardEntry,
    ShardWriter,
    cells_folder,
    read_shard,
    unlisted_files,
)
from schemaless.ops.export.parquet import merged, read_table
from schemaless.store.cold.targets import Target, lacking_space

_ATTEMPTS: Final = 3
"""Maximum number of attempts to compact a shard while another process is writing to it."""

_POLL_S: Final = 5.0
"""Pause between looks at a disk that has too little free, in seconds."""


@dataclass(slots=True)
class Compacted:
    """Result of a compaction.

    Attributes:
        files_before: number of files before it.
        files_after: number of files after it.
        busy: shards that were left unchanged, because another process kept writing to them.
    """

    files_before: int = 0
    files_after: int = 0
    busy: list[int] = field(default_factory=list)


def groups(entry: ShardEntry, file_bytes: int) -> Iterator[list[DataFile]]:
    """Return runs of files to merge; the bodies of each run add up to at most ``file_bytes``."""
    every = parts(entry.files, most_size=file_bytes, size_of=lambda file: file.body_bytes)
    return (group for group in every if len(group) > 1)


def compact_shard(target: Target, shard: int, file_bytes: int, min_free_bytes: int | None = None) -> ShardEntry:
    """Merge the small files of a shard, delete files that its manifest does not list, and return its entry.

    Before each merge, it waits while a local target's disk has less than ``min_free_bytes`` free.

    Raises:
        LeaseLost: another process has started writing to the shard.
        ExportFailed: a file cannot be read or written.
    """
    unlisted = unlisted_files(target, shard, lambda: read_shard(target, shard))
    entry = read_shard(target, shard)
    if entry.pending is not None or not (unlisted or any(groups(entry, file_bytes))):
        # A change that is under way is its writer's, or the next exporter's.
        return entry
    writer = ShardWriter(target, shard)
    if writer.entry.pending is not None:
        raise LeaseLost(f"another process is writing shard {shard} of the export in {target.uri}")
    folder = cells_folder(shard)
    for group in list(groups(writer.entry, file_bytes)):
        _wait_for_space(target, min_free_bytes)
        with writer.reading():
            file, content = merged([read_table(target, f"{folder}/{file.name}") for file in group], group)
        replaced = [each.name for each in group]
        file = writer.announce(file, replaced)
        writer.replace(folder, file, content, replaced)
        writer.complete()
    writer.sweep()
    return writer.entry


def _wait_for_space(target: Target, min_free_bytes: int | None) -> None:
    waits = False
    while (reason := lacking_space(target, min_free_bytes)) is not None:
        if not waits:
            log.warning("export compact: waits, because %s", reason)
        waits = True
        time.sleep(_POLL_S)


def compact(
    target: Target,
    file_bytes: int,
    shards: Sequence[int],
    listener: Listener = ignore_events,
    *,
    min_free_bytes: int | None = None,
) -> Compacted:
    """Merge the small files of shards; raises what ``compact_shard`` does, except ``LeaseLost``."""
    result = Compacted()
    listener(Total(len(shards)))
    for shard in shards:
        result.files_before += len(read_shard(target, shard).files)
        for _ in range(_ATTEMPTS):
            with suppress(LeaseLost):
                entry = compact_shard(target, shard, file_bytes, min_free_bytes)
                break
        else:
            entry = read_shard(target, shard)
            result.busy.append(shard)
        result.files_after += len(entry.files)
        listener(Advanced(1))
    return result
