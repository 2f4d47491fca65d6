"""The fast path of MessagePack and JSON text: packages of the ``[fast]`` extra, used where they give the same result.

Whatever they refuse goes to the reference, which decides and words the error. So an engine with the extra reads, writes
and refuses exactly what one without it does.
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
"""So many levels the typed decoders read by themselves; deeper documents take the reference.

Making one takes 2 ms for 8 levels and doubles with each, so the second is made when a document first needs it.
"""

MISSED: Final = object()
"""This is no document: ``JSONText.parse_quick`` returns it where it gives up."""


IS_WANTED: Final = os.environ.get("SCHEMALESS_FAST") != "0"
"""Whether the ``[fast]`` extra is used where it is present; ``SCHEMALESS_FAST=0`` in the environment at import: no."""


def optional(name: str) -> ModuleType | None:
    """Import a package of the ``[fast]`` extra, or return None where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class Gate:
    """A gate tells, at C speed, that a document is exactly in the JSON data model; "no" means only that it cannot tell.

    ``ormsgpack`` with every passthrough option and no ``default`` refuses all strangers but bytes and its own wrappers;
    ``orjson`` refuses those, and more than 254 levels. Each lets something through that the other one does not.
    """

    def __init__(self, ormsgpack: ModuleType, orjson: ModuleType) -> None:
        """Take both packages' calls, and their options; each call raises TypeError for what it refuses."""
        self.pack: Callable[[JSONDocument, None, int], bytes] = ormsgpack.packb
        self.pack_options: int = (
            ormsgpack.OPT_PASSTHROUGH_DATACLASS
            | ormsgpack.OPT_PASSTHROUGH_DATETIME
            | ormsgpack.OPT_PASSTHROUGH_ENUM
            | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
            | ormsgpack.OPT_PASSTHROUGH_TUPLE
            | ormsgpack.OPT_PASSTHROUGH_UUID
        )
        self.dump: Callable[[JSONDocument, None, int], bytes] = orjson.dumps
        self.dump_options: int = (
            orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
        )

    def passes(self, document: JSONDocument) -> bool:
        """Return whether ``document`` is in the data model; False where only the reference can tell."""
        try:
            self.pack(document, None, self.pack_options)
            self.dump(document, None, self.dump_options)
        except TypeError as refusal:
            if not is_own(refusal):
                raise
            return False
        return True

    def text(self, document: JSONDocument) -> bytes | None:
        """Return compact JSON text for comparing, never for storing (it spells NaN ``null``), or None."""
        try:
            return self.dump(document, None, self.dump_options)
        except TypeError as refusal:
            if not is_own(refusal):
                raise
            return None


class Typed:
    """A typed decoder reads, at C speed, what is exactly in the JSON data model and not too deep, with ``msgspec``.

    A decoder of the data model as a type refuses bin, ext, keys that are not str and what lies deeper by itself; one
    without a type takes them, and is no faster.
    """

    def __init__(self, decoder: Callable[[Any], Any], msgspec: ModuleType) -> None:
        self._make = decoder
        self._first: Callable[[Payload], JSONDocument] = decoder(_levels(TYPED_LEVELS[0])).decode
        self._second: Callable[[Payload], JSONDocument] | None = None
        self._stranger: type[Exception] = msgspec.ValidationError
        self._refusals: tuple[type[Exception], ...] = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

    def decode(self, payload: Payload, depth: int) -> JSONDocument:
        """Return the document, or ``MISSED`` where only the reference can tell: too deep, wrong, or a deep caller."""
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
    """Return a gate, and ``msgspec``'s typed decoder of that name; None for what is not installed."""
    ormsgpack, orjson, msgspec = map(optional, ("ormsgpack", "orjson", "msgspec"))
    return (
        Gate(ormsgpack, orjson) if ormsgpack and orjson else None,
        Typed(getattr(msgspec, decoder).Decoder, msgspec) if msgspec else None,
    )


def _levels(levels: int) -> Any:
    """Return the JSON data model as a type, ``levels`` deep, with scalars only at the bottom."""
    scalar = None | bool | int | float | str
    level: Any = scalar
    for _ in range(levels):
        level = scalar | list[level] | dict[str, level]
    return level
