"""How long bodies are in another codec, as measured: what the model takes where nothing of one's own was measured."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from schemaless.errors import InvalidInput

__all__ = ["SIZES_BYTES", "SOURCE", "ratio"]

SOURCE: Final = "Uber's encoding test of 2016, on 2,219 trips"

SIZES_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"legacy": 132_852_837, "json+zlib": 23_560_699, "msgpack+zlib": 18_312_106}
)
"""All the trips together took so many bytes, in those of its codecs that can be stored here."""


def ratio(codec: str, before: str = "legacy") -> float:
    """Return how long a body in ``codec`` is, as a part of what it is in ``before``.

    Of other documents it may be twice that, or half: measure some of your own (``schemaless migrate plan``).

    Raises:
        InvalidInput: one of the two was not measured there.

    >>> round(ratio("msgpack+zlib"), 3), round(ratio("msgpack+zlib", "json+zlib"), 3)
    (0.138, 0.777)
    """
    for name in (codec, before):
        if name not in SIZES_BYTES:
            raise InvalidInput(f"no ratio was measured for {name!r}, only for {', '.join(SIZES_BYTES)}; give it")
    return SIZES_BYTES[codec] / SIZES_BYTES[before]
