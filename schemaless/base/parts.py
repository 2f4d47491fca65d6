"""Division of items into parts: of limited size, such as the rows of one statement, or by key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from schemaless.base.type_variables import T

K = TypeVar("K")


def parts(
    items: Iterable[T],
    most_items: float = math.inf,
    most_size: float = math.inf,
    size_of: Callable[[T], int] = lambda item: 0,
) -> Iterator[list[T]]:
    """Divide items into consecutive parts that are not empty; an item larger than ``most_size`` has its own part.

    >>> list(parts([1, 2, 3, 9, 1], most_size=5, size_of=lambda item: item))
    [[1, 2], [3], [9], [1]]
    """
    part: list[T] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if part and (len(part) >= most_items or size + item_size > most_size):
            yield part
            part, size = [], 0
        part.append(item)
        size += item_size
    if part:
        yield part


def grouped(items: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Collect items by key, in their order.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[K, list[T]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups
