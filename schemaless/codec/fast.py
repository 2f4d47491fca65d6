"""Fast path for MessagePack and JSON text, built on the packages of the ``[fast]`` extra.

Input that these packages reject goes to the reference implementation, which decides and words the error. An engine with
the extra therefore accepts, writes and rejects exactly what an engine without it does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from schemaless.cell import JSONDocument
from schemaless.codec.refusals import is_own
from schemaless.codec.serializers import Payload

TYPED_LEVELS: Final = (8, 12)
"""Maximum nesting of each of the two typed decoders; deeper documents take the reference path.

Building a decoder takes 2 ms for 8 levels and twice as long for each further level, so the second is built on first
use.
"""

MISSED: Final = object()
"""Sentinel that ``Typed.decode`` and ``JSONText.parse_quick`` return when only the reference can decide."""

IS_WANTED: Final = os.environ.get("SCHEMALESS_FAST") != "0"
"""Whether to use the ``[fast]`` extra if installed; ``SCHEMALESS_FAST=0`` in the environment at import disables it."""


def optional(name: str) -> ModuleType | None:
    """Import a package of the ``[fast]`` extra, or return None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class Gate:
    """Checks at C speed that a document is in the JSON data model; after a negative answer, the reference decides.

    ``ormsgpack`` with every passthrough option and no ``default`` rejects all foreign types but bytes and its own
    wrappers. ``orjson`` rejects those two, and documents with more than 254 levels. Each accepts something that the
    other rejects.
    """

    def __init__(self, ormsgpack: ModuleType, orjson: ModuleType) -> None:
        """Set up both packages; their calls raise TypeError for values they reject."""
        self.pack: Callable[[JSONDocument, None, int], bytes] = ormsgpack.packb
        self.pack_options = _passthrough(ormsgpack, "DATACLASS", "DATETIME", "ENUM", "SUBCLASS", "TUPLE", "UUID")
        self.dump: Callable[[JSONDocument, None, int], bytes] = orjson.dumps
        self.dump_options = _passthrough(orjson, "DATACLASS", "DATETIME", "SUBCLASS")

    def passes(self, document: JSONDocument) -> bool:
        """Return True if ``document`` is in the data model, False if only the reference can decide."""
        try:
            self.pack(document, None, self.pack_options)
            self.dump(document, None, self.dump_options)
        except TypeError as refusal:
            if not is_own(refusal):
                raise
            return False
        return True

    def text(self, document: JSONDocument) -> bytes | None:
        """Return compact JSON text for comparison only (NaN becomes ``null``), or None if ``orjson`` rejects it."""
        try:
            return self.dump(document, None, self.dump_options)
        except TypeError as refusal:
            if not is_own(refusal):
                raise
            return None


def _passthrough(package: ModuleType, *kinds: str) -> int:
    # Each option is a bit of its own.
    return sum(getattr(package, f"OPT_PASSTHROUGH_{kind}") for kind in kinds)


class Typed:
    """Typed ``msgspec`` decoder for documents of moderate depth.

    Typing the decoder with the JSON data model makes it reject bin, ext, non-str keys and deeper nesting. An untyped
    decoder would accept them and is no faster.
    """

    def __init__(self, decoder: Callable[[Any], Any], msgspec: ModuleType) -> None:
        self._make = decoder
        self._first: Callable[[Payload], JSONDocument] = decoder(_levels(TYPED_LEVELS[0])).decode
        self._second: Callable[[Payload], JSONDocument] | None = None
        self._stranger: type[Exception] = msgspec.ValidationError
        self._refusals: tuple[type[Exception], ...] = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

    def decode(self, payload: Payload, depth: int) -> JSONDocument:
        """Return the document, or ``MISSED`` if it is too deep or invalid, or the caller's stack is too deep."""
        if depth < TYPED_LEVELS[-1]:
            return MISSED
        try:
            return self._first(payload)
        except self._stranger:
            pass
        except self._refusals:
            return MISSED
        if self._second is None:
            self._second = self._make(_levels(TYPED_LEVELS[-1])).decode
        try:
            return self._second(payload)
        except self._refusals:
            return MISSED


def fast_path(decoder: str) -> tuple[Gate | None, Typed | None]:
    """Return a gate, and a typed decoder from ``msgspec.<decoder>``; None for each whose packages are not installed."""
    ormsgpack, orjson, msgspec = map(optional, ("ormsgpack", "orjson", "msgspec"))
    return (
        Gate(ormsgpack, orjson) if ormsgpack and orjson else None,
        Typed(getattr(msgspec, decoder).Decoder, msgspec) if msgspec else None,
    )


def _levels(levels: int) -> Any:
    """Return the JSON data model as a type with ``levels`` levels of lists and objects."""
    scalar = None | bool | int | float | str
    level: Any = scalar
    for _ in range(levels):
        level = scalar | list[level] | dict[str, level]
    return level
