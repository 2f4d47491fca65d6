"""Blocks as MyRocks compresses them: what their dictionaries save, and what they cannot."""

from __future__ import annotations

import random

import pytest

from schemaless.planning.sampling.block_trial import BLOCK_BYTES, stored_bytes

pytestmark = pytest.mark.once

DRAWN = random.Random(5)


def rows(bodies: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return rows with random keys."""
    return [(DRAWN.randbytes(16), body) for body in bodies]


def test_random_bodies_keep_their_size():
    """No block is compressed with itself as its dictionary, not even if there are few blocks."""
    for count in (1, 2, 40):
        windows = [rows([DRAWN.randbytes(2_000) for _ in range(8)]) for _ in range(count)]

        assert sum(stored_bytes(windows, "BASE")) > 8 * count * 2_000


def test_a_block_like_another_one_is_stored_as_a_reference_to_it():
    """The dictionary is a whole block: long repetitions count, wherever in the file they are."""
    bodies = [DRAWN.randbytes(2_000) for _ in range(8)]
    windows = [rows(bodies) for _ in range(40)]

    raw = 40 * BLOCK_BYTES
    assert sum(stored_bytes(windows, "BASE")) < 0.1 * raw
    assert len(stored_bytes(windows, "BASE")) == len(windows)


def test_the_size_of_a_block_is_divided_among_its_windows():
    """In proportion to the raw bytes; a window without rows has none."""
    short, long = rows([b"x" * 100]), rows([DRAWN.randbytes(8_000)])
    first, empty, last = stored_bytes([short, [], long], "BASE")

    assert empty == 0
    assert 0 < first < last
    assert stored_bytes([[], []], "BASE") == [0, 0]
