"""Published size ratios between codecs, which the capacity model uses if you have not measured your own documents."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from schemaless.errors import InvalidInput

SOURCE: Final = "Uber's encoding test of 2016, on 2,219 trips"

SIZES_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"legacy": 132_852_837, "json+zlib": 23_560_699, "msgpack+zlib": 18_312_106}
)
"""Total size of the test's trips in bytes, by codec, for those codecs that schemaless supports."""


def ratio(codec: str, before: str = "legacy") -> float:
    """Return the size of bodies in ``codec`` relative to their size in ``before``.

    Other documents may have twice that ratio, or half: measure your own with ``schemaless migrate plan``.

    Raises:
        InvalidInput: There is no published size for one of the codecs.

    >>> round(ratio("msgpack+zlib"), 3), round(ratio("msgpack+zlib", "json+zlib"), 3)
    (0.138, 0.777)
    """
    for name in (codec, before):
        if name not in SIZES_BYTES:
            raise InvalidInput(
                f"no published ratio for codec {name!r}, only for {', '.join(SIZES_BYTES)}; give a ratio"
            )
    return SIZES_BYTES[codec] / SIZES_BYTES[before]
