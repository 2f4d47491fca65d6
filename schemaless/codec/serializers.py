"""What a serializer is: an id, a name, and a document's way to a payload and back. The registry has all of them."""

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
TOO_MANY_VALUES: Final = "more values than its bytes pay for"
SHORT_AS_TEXT: Final = "no longer as text"

Payload = bytes | bytearray


class NotHeld(Exception):
    """A serializer cannot hold a document, or not in fewer bytes; ``args[0]`` is the reason. It stays in the codec."""


def one_line(refusal: Exception) -> str:
    """Return what an exception says, or its name where it says nothing."""
    return str(refusal) or type(refusal).__name__


def too_many_values(values: int) -> TooManyValues:
    """Return what is raised where a payload has more than ``values``."""
    return TooManyValues(f"more than {values:,} lists, objects, keys and scalars")


def unreadable_values() -> BodyTooLarge:
    """Return what is raised where a document has more values than readers accept."""
    return BodyTooLarge(
        f"body has more than {MAX_VALUES:,} lists, objects, keys and scalars, which readers refuse; split the document"
    )


class Serializer(ABC):
    """One way to write documents as payloads. A subclass is a serializer; its instances differ in speed alone.

    Attributes:
        id: the high four bits of the format byte, 0 to 14; it is stored, so it never changes.
        name: the first half of a codec's name.
        is_text: whether its payloads are JSON text, which stands in where another serializer has no payload.
        counts_as: the ids that a body may have which was asked for in this serializer: its own, and what stands in.
        yields_to_text: whether JSON text may be stored although there is a payload; ``is_preferred`` tells.
        compares: whether ``envelope.same_document`` compares by its payloads, so that it cannot prove them.
        other_spelling: what is said of a payload that decodes, and is not what ``dumps`` gives.
        table_bits: how large the tables of places in a dictionary of zstd are, as a power of two; None for what zstd's
            level has. Small ones stay in a processor's caches, where payloads repeat little that only large ones find.
        native: whether everything is installed that its speed takes.
    """

    id: ClassVar[int]
    name: ClassVar[str]
    is_text: ClassVar[bool] = False
    counts_as: ClassVar[tuple[int, ...]]
    yields_to_text: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    other_spelling: ClassVar[str]
    table_bits: ClassVar[int | None] = None
    native: bool = True

    @abstractmethod
    def __init__(self, *, fast: bool) -> None:
        """Take the packages of the ``[fast]`` extra that are there if ``fast``, and none otherwise."""

    @abstractmethod
    def dumps(self, document: JSONDocument, *, checked: bool = False) -> bytes:
        """Return a document's payload.

        Args:
            checked: whether it is known to be in the JSON data model, since a parser returned it.

        Raises:
            InvalidBody: it is outside the JSON data model.
            NotHeld: it is inside, but there is no payload for it.
        """

    @abstractmethod
    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Return a payload's document.

        Args:
            payload: the whole of it.
            depth: the most levels of lists and objects that it may have.
            values: the most lists, objects, keys and scalars that it may have.

        Raises:
            CorruptBody: one of its family, which says what is wrong.
        """

    @abstractmethod
    def exceeds(self, payload: Payload, values: int) -> bool:
        """Return whether a payload has more than ``values``, as far as its bytes tell before it is decoded."""

    def is_preferred(
        self, payload: bytes, document: JSONDocument, text: Payload | None, compress_min_bytes: int
    ) -> bool:
        """Return whether a document's payload is to be stored, and not its JSON text.

        Args:
            payload: what ``dumps`` gave.
            document: what it was given.
            text: the JSON text that would stand in; None for compact text.
            compress_min_bytes: payloads shorter than this are stored uncompressed.

        Raises:
            BodyTooLarge: the document has more values than readers accept.
        """
        return True

    def check_canonical(self, payload: Payload, document: JSONDocument) -> None:
        """Raise unless a payload is the one spelling that a writer gives ``document``, which was read from it.

        Raises:
            NotCanonical: it is another one.
        """
        try:
            canonical = self.dumps(document, checked=True) == payload
        except NotHeld:  # the payload was longer than the right one, and so paid for more values
            canonical = False
        if not canonical:
            raise NotCanonical(self.other_spelling)
