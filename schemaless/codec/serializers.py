"""Documents to payloads and back: JSON text and MessagePack, each with a reference and a fast path.

The reference is the stock ``msgpack`` and ``json`` with the rules of ``documents``. The fast path is taken only where
it gives the same result; whatever it refuses goes to the reference, which decides and words the error. So an engine
with the ``[fast]`` extra reads, writes and refuses exactly what one without it does.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import msgpack

from schemaless.cell import JSONDocument
from schemaless.codec import documents
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.values import MAX_VALUES, STRINGS, packed_exceeds, text_exceeds
from schemaless.errors import (
    InvalidBody,
    MalformedPayload,
    NestingTooDeep,
    TooManyValues,
    TrailingBytes,
    TruncatedBody,
)

TYPED_LEVELS: Final = (8, 12)
"""Levels that the typed decoders read by themselves; deeper documents take the reference.

Making one takes 2 ms for 8 levels and doubles with each, so the second is made when a document first needs it.
"""

BIG_INTEGER: Final = "integer beyond 64 bits"
LONE_SURROGATE: Final = "lone surrogate"
NUL_IN_TEXT: Final = "NUL in a string"
TOO_MANY_VALUES: Final = "more values than its bytes pay for"
SHORT_AS_TEXT: Final = "no longer as text"

Payload = bytes | bytearray

_BYTES_THAT_OPEN: Final = bytes((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
_BYTES_THAT_DO_NOT_OPEN: Final = bytes(byte for byte in range(256) if byte not in _BYTES_THAT_OPEN)
_EMPTY_BIN: Final = (b"\xc4\x00", b"\xc5\x00\x00", b"\xc6\x00\x00\x00\x00")
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_WRITE_TEXT: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_WRITE_ASCII: Final = json.JSONEncoder(ensure_ascii=True, check_circular=False, separators=(",", ":")).encode


MISSED: Final = object()
"""No document: what ``JSONText.parse_quick`` returns where it gives up."""


class NotHeld(Exception):
    """A serializer cannot hold a document, or not in fewer bytes; ``args[0]`` is the reason. Never leaves the codec."""


class NotJSONText(Exception):
    """Bytes are not JSON text; ``args[0]`` says why. Never leaves the codec."""


def optional(name: str) -> ModuleType | None:
    """Import a package of the ``[fast]`` extra, or return None where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class Gate:
    """Tells, at C speed, that a document is exactly in the JSON data model; "no" only means that it could not tell.

    ``ormsgpack`` with every passthrough option and no ``default`` refuses all strangers but bytes and its own wrappers;
    ``orjson`` refuses those, and more than 254 levels. Each lets something through that the other one does not.
    """

    def __init__(self, ormsgpack: ModuleType, orjson: ModuleType) -> None:
        self._pack: Callable[[object, None, int], bytes] = ormsgpack.packb
        self._pack_options: int = (
            ormsgpack.OPT_PASSTHROUGH_DATACLASS
            | ormsgpack.OPT_PASSTHROUGH_DATETIME
            | ormsgpack.OPT_PASSTHROUGH_ENUM
            | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
            | ormsgpack.OPT_PASSTHROUGH_TUPLE
            | ormsgpack.OPT_PASSTHROUGH_UUID
        )
        self._dump: Callable[[object, None, int], bytes] = orjson.dumps
        self._dump_options: int = (
            orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
        )

    def packed(self, document: JSONDocument) -> bytes | None:
        """Return ``document`` as MessagePack, or None where only the reference can tell."""
        try:
            packed = self._pack(document, None, self._pack_options)
            self._dump(document, None, self._dump_options)
        except TypeError:
            return None
        return packed

    def packed_model(self, document: JSONDocument) -> bytes | None:
        """The same for what a parser returned, which holds no strangers."""
        try:
            return self._pack(document, None, self._pack_options)
        except TypeError:
            return None

    def text(self, document: JSONDocument) -> bytes | None:
        """Return compact JSON text for comparing, never for storing (it spells NaN ``null``), or None."""
        try:
            return self._dump(document, None, self._dump_options)
        except TypeError:
            return None


class Typed:
    """Decodes at C speed what is exactly in the JSON data model and not too deep, with ``msgspec``.

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


class MessagePack:
    """MessagePack, as small as it goes: no ext types, no bin, str keys, the shortest form of everything."""

    def __init__(self, *, fast: bool) -> None:
        ormsgpack, orjson, msgspec = (optional(name) if fast else None for name in ("ormsgpack", "orjson", "msgspec"))
        self.gate = Gate(ormsgpack, orjson) if ormsgpack and orjson else None
        self._typed = Typed(msgspec.msgpack.Decoder, msgspec) if msgspec else None

    def dumps(self, document: JSONDocument) -> bytes:
        """Return a document's payload.

        Raises:
            InvalidBody: it is outside the JSON data model.
            NotHeld: it is inside, but MessagePack cannot hold it.
        """
        if self.gate is not None:
            packed = self.gate.packed(document)
            if packed is not None:
                return packed
        documents.check_document(document)
        return pack_reference(document)

    def dumps_model(self, document: JSONDocument) -> bytes:
        """Return the payload of what a parser returned: known to be in the data model.

        Raises:
            NotHeld: MessagePack cannot hold it.
        """
        if self.gate is not None:
            packed = self.gate.packed_model(document)
            if packed is not None:
                return packed
        return pack_reference(document)

    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Return a payload's document.

        Args:
            payload: the whole of it.
            depth: the most levels of lists and objects that it may have.
            values: the most lists, objects, keys and scalars that it may have.

        Raises:
            TooManyValues: it announces more than ``values``.
            TruncatedBody: it ends before the document does.
            TrailingBytes: it goes on after the document.
            NestingTooDeep: more levels than ``depth``.
            MalformedPayload: anything else.
        """
        if self._typed is not None:
            if len(payload) > values:
                _refuse_values(packed_exceeds(payload, values), values)
            document = self._typed.decode(payload, depth)
            if document is not MISSED:
                return document
        return unpack_reference(payload, depth, values)


class JSONText:
    """JSON text in UTF-8: compact where this store writes it, any where it reads it."""

    def __init__(self, *, fast: bool) -> None:
        ormsgpack, orjson, msgspec = (optional(name) if fast else None for name in ("ormsgpack", "orjson", "msgspec"))
        self.gate = Gate(ormsgpack, orjson) if ormsgpack and orjson else None
        self._typed = Typed(msgspec.json.Decoder, msgspec) if msgspec else None

    def dumps(self, document: JSONDocument) -> bytes:
        """Return a document's text.

        Raises:
            InvalidBody: it is outside the JSON data model, or no JSON text reads back as it.
        """
        if self.gate is None or self.gate.packed(document) is None:
            documents.check_document(document)
            try:
                pack_reference(document)
            except NotHeld:
                documents.check_has_text(document)
        try:
            return self.dumps_model(document)
        except ValueError as refusal:  # sys.set_int_max_str_digits() is lower than Python's own limit
            raise InvalidBody(f"body: {refusal}") from None

    def dumps_model(self, document: JSONDocument) -> bytes:
        """Return the text of what a decoder returned: known to be in the data model, and to have a text."""
        try:
            return _WRITE_TEXT(document).encode()
        except UnicodeEncodeError:  # a lone surrogate: JSON has an escape for it, UTF-8 has nothing
            return _WRITE_ASCII(document).encode()

    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Return a payload's document.

        Raises:
            MalformedPayload: it is not JSON text.
            NestingTooDeep: more levels than ``depth``.
            TooManyValues: more than ``values``.
        """
        try:
            return self.parse(payload, depth, values)
        except NotJSONText as refusal:
            raise MalformedPayload(f"the payload is not JSON text: {refusal}") from None

    def parse(self, text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Return ``json.loads(text.decode("utf-8"))``.

        Raises:
            NotJSONText: there is no such thing.
            NestingTooDeep: more levels than ``depth``.
            TooManyValues: more than ``values``.
            RecursionError: the caller's own stack is too deep for the parser.
        """
        quick = self.parse_quick(text, depth, values)
        return _parse(text, depth, values) if quick is MISSED else quick

    def parse_quick(self, text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Return what ``parse`` would, or ``MISSED`` where only the reference can tell.

        What comes back was spelled without NaN, infinities and numbers beyond a double; keys may have come twice.

        Raises:
            TooManyValues: more than ``values``.
        """
        if self._typed is None:
            return MISSED
        if len(text) > values:
            _refuse_values(text_exceeds(text, values), values)
        return self._typed.decode(text, depth)


def nesting_of(text: Payload) -> int:
    """Return how deep the brackets of JSON text go, without parsing it: a parser may run out of stack first."""
    depth = deepest = 0
    for bracket in STRINGS.sub(b"", text).translate(None, _NOT_BRACKETS):
        depth += _STEPS[bracket]
        deepest = max(deepest, depth)
    return deepest


def text_of(text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> str:
    """Return ``text`` as a str, once its depth is known to be allowed: only a deep caller can exhaust the stack then.

    Raises:
        NotJSONText: it is not UTF-8.
        NestingTooDeep: more levels than ``depth``.
        TooManyValues: more than ``values``.
    """
    _refuse_values(text_exceeds(text, values), values)
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as refusal:
        raise NotJSONText(f"not UTF-8 ({refusal.reason} at byte {refusal.start})") from None
    if text.count(b"[") + text.count(b"{") > depth and nesting_of(text) > depth:
        raise NestingTooDeep(f"more than {depth} levels of lists and objects")
    return decoded


def _refuse_values(exceeds: bool, values: int) -> None:
    if exceeds:
        raise TooManyValues(f"more than {values:,} lists, objects, keys and scalars")


def _parse(text: Payload, depth: int, values: int) -> JSONDocument:
    try:
        return json.loads(text_of(text, depth, values))
    except ValueError as refusal:
        raise NotJSONText(one_line(refusal)) from None


def pack_reference(document: JSONDocument) -> bytes:
    """Return what is known to be in the data model as MessagePack, with the stock library.

    Raises:
        NotHeld: MessagePack cannot hold it.
    """
    try:
        packed: bytes = msgpack.packb(document)
    except OverflowError:
        raise NotHeld(BIG_INTEGER) from None
    except UnicodeEncodeError:
        raise NotHeld(LONE_SURROGATE) from None
    return packed


def unpack_reference(payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
    """Return a payload's document, with the stock library.

    Raises:
        TooManyValues: it announces more than ``values``.
        TruncatedBody: it ends before the document does.
        TrailingBytes: it goes on after the document.
        NestingTooDeep: more levels than ``depth``.
        MalformedPayload: ext types, bin, keys that are not str, bad UTF-8, the byte that MessagePack never uses.
    """
    if not payload:
        raise TruncatedBody("the MessagePack payload is empty")
    _refuse_values(packed_exceeds(payload, values), values)
    try:
        document = msgpack.unpackb(payload, strict_map_key=True, max_bin_len=0, max_ext_len=0, ext_hook=_refuse_ext)
    except msgpack.exceptions.StackError:
        raise NestingTooDeep(f"more than {depth} levels of lists and objects") from None
    except msgpack.exceptions.ExtraData as refusal:
        raise TrailingBytes(f"{len(refusal.extra)} bytes follow the MessagePack document") from None
    except UnicodeDecodeError as refusal:
        raise MalformedPayload(f"a MessagePack str is not UTF-8 ({refusal.reason})") from None
    except (ValueError, TypeError) as refusal:
        if "incomplete input" in str(refusal):
            raise TruncatedBody("the MessagePack payload ends before its document") from None
        raise MalformedPayload(f"not MessagePack as this store writes it: {one_line(refusal)}") from None
    if len(payload.translate(None, _BYTES_THAT_DO_NOT_OPEN)) > depth and documents.depth_of(document) > depth:
        raise NestingTooDeep(f"more than {depth} levels of lists and objects")
    if any(spelling in payload for spelling in _EMPTY_BIN):  # the one length that max_bin_len=0 lets through
        try:
            documents.check_document(document)
        except InvalidBody as refusal:
            raise MalformedPayload(f"not MessagePack as this store writes it: {refusal}") from None
    return document


def _refuse_ext(code: int, data: bytes) -> object:
    raise ValueError(f"ext type {code}")


def one_line(refusal: Exception) -> str:
    """Return what an exception says, or its name where it says nothing."""
    return str(refusal) or type(refusal).__name__


def _levels(levels: int) -> Any:
    """Return the JSON data model as a type, ``levels`` deep, with scalars only at the bottom."""
    scalar = None | bool | int | float | str
    level: Any = scalar
    for _ in range(levels):
        level = scalar | list[level] | dict[str, level]
    return level
