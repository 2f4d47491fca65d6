"""Division of items into parts of limited size."""

from __future__ import annotations

import pytest

from schemaless.base.parts import parts


@pytest.mark.parametrize(
    ("sizes", "most_items", "expected"),
    [
        ([], 9, []),
        ([0, 40, 60, 0], 9, [[0, 40, 60, 0]]),
        ([40, 61, 39], 9, [[40], [61, 39]]),
        ([10, 250, 20, 0], 9, [[10], [250], [20, 0]]),
        ([1, 2, 3, 4, 5], 2, [[1, 2], [3, 4], [5]]),
    ],
)
def test_parts_keep_both_limits(sizes, most_items, expected):
    """The items of a part keep the limits on their number and size; a larger item is by itself."""
    assert list(parts(sizes, most_items, 100, lambda size: size)) == expected
