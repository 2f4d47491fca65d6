"""Base class of the serializers, which turn documents into payloads and back. ``registry`` lists them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from schemaless.cell import JSONDocument
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.values import MAX_VALUES
from schemaless.errors import BodyTooLarge, NotCanonical, TooManyValues

BIG_INTEGER: Final = "integer beyond 64 bits"
LONE_SURROGATE: Final = "lone surrogate"
NUL_IN_TEXT: Final = "NUL in a string"
TOO_MANY_VALUES: Final = "too many values for its size"
SHORT_AS_TEXT: Final = "packed is not shorter"

Payload = bytes | bytearray


class NotHeld(Exception):
    """Signals, within the codec, that JSON text is to be stored instead; ``args[0]`` is the reason."""


def one_line(refusal: Exception) -> str:
    """Return an exception's message, or the name of its class if the message is empty."""
    return str(refusal) or type(refusal).__name__


def too_many_values(values: int) -> TooManyValues:
    """Return the error for a payload with more than ``values`` values."""
    return TooManyValues(f"more than {values:,} lists, objects, keys and scalars")


def unreadable_values() -> BodyTooLarge:
    """Return the error for a document with more values than readers accept."""
    return BodyTooLarge(
        f"body has more than {MAX_VALUES:,} lists, objects, keys and scalars, which readers refuse; split the document"
    )


class Serializer(ABC):
    """Base class of serializers. Instances of one subclass differ only in speed.

    Attributes:
        id: the high four bits of the format byte, 0 to 14. It is stored and must never change.
        name: the first half of a codec's name.
        is_text: whether payloads are JSON text, the fallback for documents that other serializers cannot represent.
        other_spelling: error message for a payload that decodes but is not canonical.
        table_bits: log2 of the size of zstd's match tables when a dictionary is used, or None for the level's default.
            Smaller tables stay in the processor's caches; they suit payloads in which large tables find few further
            matches.
        native: whether the native code that this serializer's speed depends on is installed.
    """

    id: ClassVar[int]
    name: ClassVar[str]
    is_text: ClassVar[bool] = False
    other_spelling: ClassVar[str]
    table_bits: ClassVar[int | None] = None
    native: bool = True

    @abstractmethod
    def __init__(self, *, fast: bool) -> None:
        """Use the installed packages of the ``[fast]`` extra if ``fast``, and none otherwise."""

    @abstractmethod
    def dumps(self, document: JSONDocument, *, checked: bool = False) -> bytes:
        """Serialize a document.

        Args:
            checked: whether the document is known to be in the JSON data model because a parser returned it.

        Raises:
            InvalidBody: the document is outside the JSON data model.
            NotHeld: the document is valid, but this serializer cannot represent it.
        """

    @abstractmethod
    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Parse a payload.

        Args:
            payload: the complete payload.
            depth: maximum nesting of lists and objects.
            values: maximum number of lists, objects, keys and scalars.

        Raises:
            CorruptBody: the payload does not decode (a subclass says why).
        """

    @abstractmethod
    def exceeds(self, payload: Payload, values: int) -> bool:
        """Return whether the undecoded payload is known to hold more than ``values`` values."""

    @abstractmethod
    def may_hold_nan(self, payload: Payload) -> bool:
        """Return False if the payload certainly has no NaN or infinity, without decoding it."""

    def check_canonical(self, payload: Payload, document: JSONDocument) -> None:
        """Check that ``payload`` is exactly what ``dumps`` writes for ``document``, which was decoded from it.

        Raises:
            NotCanonical: ``dumps`` writes other bytes.
        """
        try:
            canonical = self.dumps(document, checked=True) == payload
        except NotHeld:  # only the longer, non-canonical payload was long enough for this many values
            canonical = False
        if not canonical:
            raise NotCanonical(self.other_spelling)
