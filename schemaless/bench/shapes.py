"""Infers the common shape of documents, independent of any schema language.

A shape describes one position in the documents: counts of each kind of value, the range of integers, the keys of
objects and their order, and the items of lists. ``Shape.is_map`` distinguishes free-form objects from records.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from schemaless.cell import JSONDocument

_SEQUENCES_KEPT: Final = 4096
"""Maximum number of distinct key orders to keep; records have few."""

_MAP_MIN_KEYS: Final = 16
_MAP_MAX_PRESENCE: Final = 0.1
_DATA_MIN_KEYS: Final = 4
_DATA_KEY: Final = re.compile(
    r"[0-9]+|[0-9]{4}-[0-9]{2}(-[0-9]{2}.*)?|[0-9a-f]{16,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
)


class Shape:
    """Shape of the values at one position.

    Attributes:
        kinds: number of values of each kind: ``null``, ``bool``, ``int``, ``float``, ``str``, ``list``, ``object``.
        lowest: lowest integer, or 0 if none is negative.
        highest: highest integer, or 0 if none is positive.
        empty_lists: number of empty lists.
        items: shape of the items of lists, or None.
        fields: shapes of the members of objects, by key.
    """

    __slots__ = ("_sequences", "empty_lists", "fields", "highest", "items", "kinds", "lowest")

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.lowest: int = 0
        self.highest: int = 0
        self.empty_lists: int = 0
        self.items: Shape | None = None
        self.fields: dict[str, Shape] = {}
        self._sequences: Counter[tuple[str, ...]] = Counter()

    def add(self, value: JSONDocument) -> None:
        """Add a value to the statistics."""
        kind = _KINDS[type(value)]
        self.kinds[kind] += 1
        if kind == "int":
            self.lowest = min(self.lowest, value)
            self.highest = max(self.highest, value)
        elif kind == "list":
            if value:
                if self.items is None:
                    self.items = Shape()
                for item in value:
                    self.items.add(item)
            else:
                self.empty_lists += 1
        elif kind == "object":
            keys = tuple(value)
            if keys in self._sequences or len(self._sequences) < _SEQUENCES_KEPT:
                self._sequences[keys] += 1
            for key, member in value.items():
                field = self.fields.get(key)
                if field is None:
                    field = self.fields[key] = Shape()
                field.add(member)

    @property
    def total(self) -> int:
        """Number of values."""
        return self.kinds.total()

    def depth(self) -> int:
        """Return the nesting depth of lists and objects."""
        deepest = 0
        level: list[Shape] = [self]
        while level := [inner for shape in level for inner in (*shape.fields.values(), shape.items) if inner]:
            deepest += 1
        return deepest

    def merged(self, other: Shape) -> Shape:
        """Return the combined shape of two positions."""
        both = Shape()
        both.kinds = self.kinds + other.kinds
        both.lowest, both.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        both.empty_lists = self.empty_lists + other.empty_lists
        both.items = self.items.merged(other.items) if self.items and other.items else self.items or other.items
        for key in (*self.fields, *(key for key in other.fields if key not in self.fields)):
            mine, theirs = self.fields.get(key), other.fields.get(key)
            merged = mine.merged(theirs) if mine and theirs else mine or theirs
            assert merged is not None
            both.fields[key] = merged
        both._sequences = Counter(dict((self._sequences + other._sequences).most_common(_SEQUENCES_KEPT)))
        return both

    def is_map(self) -> bool:
        """Return whether the objects are maps: free-form keys with values of one kind.

        Keys are free-form if there are at least 4 and all look like data (numbers, dates, hashes, UUIDs), or if there
        are at least 16 and an object has less than a tenth of them on average.
        """
        if len(self.fields) < _DATA_MIN_KEYS:
            return False
        kinds = {kind for field in self.fields.values() for kind in field.kinds if kind != "null"}
        if len(kinds) > 1 and kinds != {"int", "float"}:
            return False
        if all(_DATA_KEY.fullmatch(key) for key in self.fields):
            return True
        present = sum(field.total for field in self.fields.values())
        return len(self.fields) >= _MAP_MIN_KEYS and present < _MAP_MAX_PRESENCE * (
            self.kinds["object"] * len(self.fields)
        )

    def map_values(self) -> Shape:
        """Return the combined shape of a map's values."""
        values = Shape()
        for field in self.fields.values():
            values = values.merged(field)
        return values

    def ordered_keys(self) -> list[str]:
        """Return the keys in an order consistent with every object, if possible.

        If objects disagree, the order contradicts few of them.
        """
        rank: dict[str, float] = {}
        into: dict[str, Counter[str]] = {key: Counter() for key in self.fields}
        after: dict[str, set[str]] = {key: set() for key in self.fields}
        for sequence, times in self._sequences.items():
            for position, key in enumerate(sequence):
                rank[key] = rank.get(key, 0.0) + times * position / len(sequence)
                if position:
                    into[key][sequence[position - 1]] += times
                    after[sequence[position - 1]].add(key)
        rank = {key: rank.get(key, 0.0) / shape.total for key, shape in self.fields.items()}
        ready = [(rank[key], key) for key in self.fields if not into[key]]
        heapq.heapify(ready)
        remaining = dict.fromkeys(self.fields)
        ordered = []
        while remaining:
            # With no key free of predecessors, pick the one that violates the fewest objects.
            key = ready[0][1] if ready else min(remaining, key=lambda key: (into[key].total(), rank[key], key))
            if ready:
                heapq.heappop(ready)
            del remaining[key]
            ordered.append(key)
            for later in after[key]:
                if later in remaining:
                    del into[later][key]
                    if not into[later]:
                        heapq.heappush(ready, (rank[later], later))
        return ordered


_KINDS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    dict: "object",
}


def shape_of(documents: Iterable[JSONDocument]) -> Shape:
    """Return the combined shape of documents."""
    shape = Shape()
    for document in documents:
        shape.add(document)
    return shape
