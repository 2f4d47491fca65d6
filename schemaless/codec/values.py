"""Checks, before a payload is decoded, that it does not have too many values.

The size of a payload says little about memory: 4 MB of empty lists become 310 MB of Python objects. Lists, objects,
scalars and every occurrence of an object's key count as values.
"""

from __future__ import annotations

import re
from typing import Final

MAX_VALUES: Final = 4 << 20
"""Maximum number of lists, objects, keys and scalars in a document; they take about 500 MB, plus any long strings."""

STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Matches the strings in JSON text, including keys."""

_SPACES: Final = b" \t\n\r"


def _sizes() -> tuple[int, ...]:
    """Return the size in bytes of fixed-size MessagePack scalars by first byte, and 0 for all other types."""
    sizes = [1] * 256
    sizes[0x80:0xA0] = [0] * 32
    sizes[0xA0:0xC0] = range(1, 33)
    sizes[0xC4:0xE0] = (0, 0, 0, 0, 0, 0, 5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18, *[0] * 7)
    return tuple(sizes)


_SIZES: Final = _sizes()
_COUNTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Arrays and maps: size of the length field in bytes, and values per entry."""

_MEASURED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""bin, ext and str: size of the length field in bytes."""


def messagepack_exceeds(payload: bytes | bytearray, limit: int) -> bool:
    """Return whether a payload declares more than ``limit`` values; malformed input is left to the decoder."""
    end = len(payload)
    if end <= limit:  # a value takes at least a byte
        return False
    announced = 1
    visited = at = 0
    while visited < announced <= limit and at < end:
        first = payload[at]
        visited += 1
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
    """Return whether JSON text has more than ``limit`` values; malformed input is left to the parser."""
    if len(text) < 2 * limit:  # each value takes at least a byte, plus a comma, colon or bracket
        return False
    if _marks(text) <= limit:
        return False
    bare = STRINGS.sub(b"0", text).translate(None, _SPACES)
    return _marks(bare) - bare.count(b"[]") - bare.count(b"{}") > limit


def _marks(text: bytes | bytearray) -> int:
    """Count values by separators: an upper bound, exact if no list or object is empty and no string has separators."""
    return 1 + text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")
