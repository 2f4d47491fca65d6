"""Proposes typed columns from a sample of documents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from schemaless.errors import InvalidInput
from schemaless.store.arrow.fields import KEY_COLUMNS, TypedColumn, Unfit, typed_columns

_TYPES: Final = ("bool", "int", "float", "uuid", "time", "text")
"""Types in the order in which they are tried; the first that can represent every value at a path is proposed."""

_MAX_LEVELS: Final = 4
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed typed column.

    Attributes:
        column: the column.
        present: share of the sampled documents that have a value at its path.
    """

    column: TypedColumn
    present: float


def propose(documents: Iterable[tuple[str, Any]], least: float = 0.05) -> list[Proposal]:
    """Return typed columns that represent every value of the sample exactly.

    Args:
        documents: pairs of column_name and document.
        least: leave out paths present in less than this share of their column's documents.
    """
    values: dict[tuple[str, tuple[str, ...]], list[Any]] = {}
    counts: Counter[str] = Counter()
    for column_name, document in documents:
        counts[column_name] += 1
        _collect(document, column_name, (), values)
    proposals: list[Proposal] = []
    names: set[str] = set(KEY_COLUMNS)
    for (column_name, path), found in values.items():
        present = len(found) / counts[column_name]
        kind = next((each for each in _TYPES if _holds(each, found)), None)
        name = _NOT_IN_NAMES.sub("_", path[-1].lower()).strip("_")
        if name in names:
            name = _NOT_IN_NAMES.sub("_", "_".join(path).lower()).strip("_")
        if kind is None or present < least or name in names:
            continue
        try:
            (column,) = typed_columns([TypedColumn(name, column_name, path, kind).declared], None)
        except InvalidInput:
            # A key that the syntax of fields cannot name.
            continue
        if column.path == path:
            names.add(name)
            proposals.append(Proposal(column, present))
    return proposals


def _collect(
    value: Any, column_name: str, path: tuple[str, ...], values: dict[tuple[str, tuple[str, ...]], list[Any]]
) -> None:
    if type(value) is dict and len(path) < _MAX_LEVELS:
        for key, inner in value.items():
            _collect(inner, column_name, (*path, key), values)
    elif path and value is not None and type(value) not in (dict, list):
        values.setdefault((column_name, path), []).append(value)


def _holds(kind: str, values: Iterable[Any]) -> bool:
    read = TypedColumn("x", "x", ("x",), kind).read
    try:
        for value in values:
            read(value)
    except Unfit:
        return False
    return True
