"""How many values a payload would become, which is told before any is made, at a cost that the limit bounds.

Bytes do not tell what a document takes: 4 MB of empty lists become 310 MB of Python objects. Counted are lists,
objects, scalars, and the keys of objects, each as often as it stands there.
"""

from __future__ import annotations

import re
from typing import Final

MAX_VALUES: Final = 4 << 20
"""One document has at most so many lists, objects, keys and scalars; they take about 500 MB, long texts aside."""

STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""This matches the strings of JSON text, keys included."""

_SPACES: Final = b" \t\n\r"


def _sizes() -> tuple[int, ...]:
    """Return how many bytes each value of MessagePack takes that holds no others, by its first byte; 0 for the rest."""
    sizes = [1] * 256
    sizes[0x80:0xA0] = [0] * 32
    sizes[0xA0:0xC0] = range(1, 33)
    sizes[0xC4:0xE0] = (0, 0, 0, 0, 0, 0, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18, *[0] * 7)
    return tuple(sizes)


_SIZES: Final = _sizes()
_COUNTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""These are arrays and maps: the width of their length, and how many values each of these stands for."""

_MEASURED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""These are bin, ext and str: the width of their length in bytes."""


def messagepack_exceeds(payload: bytes | bytearray, limit: int) -> bool:
    """Return whether MessagePack announces more than ``limit`` values; what is malformed is left to its decoder."""
    end = len(payload)
    if end <= limit:  # a value takes at least a byte
        return False
    announced = 1
    seen = at = 0
    while seen < announced <= limit and at < end:
        first = payload[at]
        seen += 1
        size = _SIZES[first]
        if size:
            at += size
            continue
        at += 1
        if first < 0x90:
            announced += 2 * (first & 15)
        elif first < 0xA0:
            announced += first & 15
        elif first in _COUNTED:
            width, values = _COUNTED[first]
            announced += values * int.from_bytes(payload[at : at + width], "big")
            at += width
        else:
            width = _MEASURED[first]
            at += width + int.from_bytes(payload[at : at + width], "big") + (0xC7 <= first <= 0xC9)
    return announced > limit


def text_exceeds(text: bytes | bytearray, limit: int) -> bool:
    """Return whether JSON text has more than ``limit`` values. What is malformed is left to its parser to say."""
    if len(text) < 2 * limit:  # a value takes a byte, and a comma, a colon or a bracket
        return False
    if _marks(text) <= limit:
        return False
    bare = STRINGS.sub(b"0", text).translate(None, _SPACES)
    return _marks(bare) - bare.count(b"[]") - bare.count(b"{}") > limit


def _marks(text: bytes | bytearray) -> int:
    """Return how many values there are where no list or object is empty, and no string holds any of these."""
    return 1 + text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")
