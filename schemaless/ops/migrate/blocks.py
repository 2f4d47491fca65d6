"""Blocks: runs of consecutive rows that a migration reads and replaces together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BlockBounds:
    """Limits on the blocks that a shard is divided into.

    Attributes:
        first_rows: rows in the first block. The size of later blocks is derived from how long statements take.
        most_rows: maximum number of rows in a block.
        most_bytes: maximum memory for the bodies of a block, in bytes.
        next_pass_s: pause between passes over a shard when the migration follows new writes, in seconds.
    """

    first_rows: int = 64
    most_rows: int = 2_000
    most_bytes: int = 16 << 20
    next_pass_s: float = 5.0


BLOCK_BOUNDS: Final = BlockBounds()


def groups(
    long_bodies: Iterable[tuple[int, int]], free_bytes: int, block_bytes: int
) -> Iterator[tuple[list[int], bool]]:
    """Group long bodies so that each group fits in the memory of a block.

    Args:
        long_bodies: the added_id and the length of each body.
        free_bytes: memory still free in the current block.
        block_bytes: memory of a whole block.

    Yields:
        The added_ids of a group, and whether it fits in the current block. Only the first group can; every other group
        is processed as a block by itself.
    """
    ids: list[int] = []
    fits, remaining_bytes = True, free_bytes
    for added_id, length in long_bodies:
        if length > remaining_bytes:
            if ids:
                yield ids, fits
            ids, fits, remaining_bytes = [], False, block_bytes
        ids.append(added_id)
        remaining_bytes -= length
    if ids:
        yield ids, fits
