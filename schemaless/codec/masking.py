"""Replaces the values of documents before a dictionary is trained on them, so that it contains no one's data.

Cells compressed with a dictionary need it unchanged, so data that a dictionary holds verbatim cannot be erased.
Masking removes such data and keeps only what else helps compression: keys, nesting, and each value's length and kind.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Hashable
from typing import Final, Literal

from schemaless.cell import JSONDocument
from schemaless.codec.documents import depth_of

Values = Literal["masked", "common", "real"]
"""Values that a dictionary may hold: none; those that occur in many rows; or all."""

MIN_ROWS: Final = 20
"""Minimum number of rows in which a key must occur to be kept; half of the rows if there are fewer than 40."""

MIN_SHARE: Final = 0.02
"""Minimum fraction of rows in which a key must occur to be kept."""

_MAX_DEPTH: Final = 100
_DIGITS: Final = "0123456789"
_TO_DIGITS: Final = bytes(ord(_DIGITS[byte % 10]) for byte in range(256))
_DIGIT_RUN: Final = re.compile(r"[0-9]+")
_RUN: Final = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|(?:(?![a-zA-Z0-9_])\w)+")
_ALPHABETS: Final = {"a": string.ascii_lowercase, "A": string.ascii_uppercase, "0": _DIGITS}


class Mask:
    """Mask for documents; its random characters are as frequent as in the documents it has seen.

    Letters and digits of strings and the digits of numbers are replaced by random ones; case, punctuation, length and
    sign are kept. So are booleans and nulls, and keys that occur in enough rows; rarer keys count as data and are
    replaced too.

    Call ``see`` for all documents first. The same documents in the same order give the same result.

    Args:
        rows: number of rows that the documents belong to.
        keep_common: also keep values that occur in enough rows, by the same rule as for keys.
    """

    def __init__(self, rows: int, *, keep_common: bool = False) -> None:
        self._needed = max(min(MIN_ROWS, rows // 2), int(rows * MIN_SHARE), 2)
        self._keep_common = keep_common
        self._rows_of: dict[Hashable, set[bytes]] = {}
        self._kept: set[Hashable] = set()
        self._characters: Counter[str] = Counter()
        self._tables: dict[str, str] = {}
        self._random = random.Random(0)  # noqa: S311 - nothing secret

    def see(self, row_key: bytes, document: JSONDocument) -> None:
        """Count the keys, values and characters of a document."""
        stack = [document]
        while stack:
            value = stack.pop()
            if type(value) is dict:
                for key in value:
                    self._count(row_key, key)
                stack += value.values()
            elif type(value) is list:
                stack += value
            elif type(value) is str or type(value) is int or type(value) is float:
                if type(value) is str:
                    self._characters.update(value)
                if self._keep_common:
                    self._count(row_key, (type(value), value))

    def mask(self, document: JSONDocument) -> JSONDocument | None:
        """Return the document with its values replaced; None if it is nested too deeply to be worth training on."""
        return None if depth_of(document) > _MAX_DEPTH else self._masked(document)

    def _count(self, row_key: bytes, item: Hashable) -> None:
        if item in self._kept:
            return
        if type(item) is str:
            self._characters.update(item)
        rows = self._rows_of.setdefault(item, set())
        rows.add(row_key)
        if len(rows) >= self._needed:
            self._kept.add(item)
            del self._rows_of[item]

    def _masked(self, value: JSONDocument) -> JSONDocument:
        if type(value) is dict:
            return {key if key in self._kept else self._text(key): self._masked(item) for key, item in value.items()}
        if type(value) is list:
            return [self._masked(item) for item in value]
        if type(value) is str:
            return value if (str, value) in self._kept else self._text(value)
        if type(value) is int or type(value) is float:
            return value if (type(value), value) in self._kept else self._number(value)
        return value

    def _text(self, text: str) -> str:
        return _RUN.sub(self._run, text)

    def _run(self, found: re.Match[str]) -> str:
        run = found.group()
        first = run[0]
        kind = "0" if first in _DIGITS else "other" if first > "z" else "a" if first >= "a" else "A"
        table = self._tables.get(kind) or self._table(kind)
        return "".join([table[byte] for byte in self._random.randbytes(len(run))])

    def _table(self, kind: str) -> str:
        """Return 256 random characters of a kind, weighted by their frequencies in the documents."""
        alphabet = _ALPHABETS.get(kind)
        weights = {
            character: count
            for character, count in sorted(self._characters.items())
            if (character in alphabet if alphabet else character > "z" and character.isalnum())
        }
        drawn = self._random.choices(list(weights), list(weights.values()), k=256)
        return self._tables.setdefault(kind, "".join(drawn))

    def _number(self, value: float) -> float:
        digits, e, exponent = repr(value).partition("e")
        first = next((place for place, digit in enumerate(digits) if digit in _DIGITS[1:]), None)
        if first is None:
            return value  # 0, inf or nan
        drawn = _DIGIT_RUN.sub(self._digits, digits)
        # A number of the same length, because MessagePack writes an integer in as many bytes as its size needs.
        leading = _DIGITS[1 + self._random.getrandbits(8) % 9]
        return type(value)(f"{digits[:first]}{leading}{drawn[first + 1 :]}{e}{exponent}")

    def _digits(self, found: re.Match[str]) -> str:
        return self._random.randbytes(len(found.group())).translate(_TO_DIGITS).decode("ascii")
