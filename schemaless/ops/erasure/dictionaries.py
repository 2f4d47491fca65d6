"""Searches compression dictionaries for values of documents that are being erased.

A dictionary is trained on documents and may contain parts of them. Once a document is erased, it is no
longer possible to tell which dictionaries contain its values, so they are searched just before the erasure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack

from schemaless.cell import StoredCell
from schemaless.errors import CorruptBody
from schemaless.store.internals import Internals

MIN_VALUE_BYTES: Final = 6
"""Minimum length of a string, or number of digits of an integer, that is searched for; shorter ones match by chance."""


class DictionarySearch:
    """Searches all dictionaries of a datastore for values of cells.

    Args:
        internals: the datastore.

    Attributes:
        found: ids of the dictionaries that contain a value of a cell passed to ``see``.
    """

    def __init__(self, internals: Internals) -> None:
        self.found: set[int] = set()
        rows = internals.dictionary_replicas.catalog.rows().values()
        self._contents = {row.id: row.content for row in rows if row.content is not None}

    @property
    def needed(self) -> bool:
        """Whether there are dictionaries to search."""
        return bool(self._contents)

    def see(self, cell: StoredCell) -> None:
        """Search the dictionaries for the values of a cell; those of a cold one are searched in its file."""
        try:
            document = cell.decode().body
        except CorruptBody:
            return
        self.search(document)

    def search(self, document: Any) -> None:
        """Search the dictionaries for the values of a document."""
        for value in values_of(document):
            for number, content in self._contents.items():
                if number not in self.found and value in content:
                    self.found.add(number)


def values_of(document: Any) -> Iterator[bytes]:
    """Yield the strings and integers of a document, as they would appear in a dictionary, if they are long enough."""
    stack = [document]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, str):
            encoded = value.encode(errors="surrogatepass")
            if len(encoded) >= MIN_VALUE_BYTES:
                yield encoded
        elif isinstance(value, int) and not isinstance(value, bool) and len(str(value)) >= MIN_VALUE_BYTES:
            yield str(value).encode()
            if -(1 << 63) <= value < 1 << 64:
                yield msgpack.packb(value)
