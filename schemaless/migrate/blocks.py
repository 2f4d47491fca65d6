"""Blocks: the runs of a shard's rows that a migration reads and replaces together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BlockBounds:
    """How a shard is cut into blocks, which are read and replaced one after the other.

    Attributes:
        first_rows: rows of the first block; how long its statements take says how many the next one has.
        most_rows: rows of a block, at most.
        most_bytes: what the bodies of a block take in memory, at most.
        next_pass_s: how long a run that follows waits before it goes over a shard again.
    """

    first_rows: int = 64
    most_rows: int = 2_000
    most_bytes: int = 16 << 20
    next_pass_s: float = 5.0


BLOCK_BOUNDS: Final = BlockBounds()
"""A run cuts shards so unless its caller says otherwise."""


def groups(longer: Iterable[tuple[int, int]], room: int, block: int) -> Iterator[tuple[list[int], bool]]:
    """Cut ids with their bodies' lengths into what fits into the memory of a ``block`` together.

    Yields:
        Ids, and whether they fit into the room that is left in this block; the first group may, the others take a
        block's memory each.
    """
    ids: list[int] = []
    fit, left = True, room
    for added_id, length in longer:
        if length > left:
            if ids:
                yield ids, fit
            ids, fit, left = [], False, block
        ids.append(added_id)
        left -= length
    if ids:
        yield ids, fit
