"""MessagePack serializer: the stock ``msgpack`` with the rules of ``documents``, plus a fast path."""

from __future__ import annotations

import re
from typing import Final

import msgpack

from schemaless.cell import JSONDocument
from schemaless.codec import documents
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.fast import MISSED, fast_path
from schemaless.codec.refusals import is_own
from schemaless.codec.serializers import (
    BIG_INTEGER,
    LONE_SURROGATE,
    NotHeld,
    Payload,
    Serializer,
    one_line,
    too_many_values,
)
from schemaless.codec.values import MAX_VALUES, messagepack_exceeds
from schemaless.errors import InvalidBody, MalformedPayload, NestingTooDeep, TrailingBytes, TruncatedBody

_BYTES_THAT_OPEN: Final = bytes((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
_BYTES_THAT_DO_NOT_OPEN: Final = bytes(byte for byte in range(256) if byte not in _BYTES_THAT_OPEN)
_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""Matches the first bytes of a double that is NaN or infinite; they do not occur in UTF-8."""

_EMPTY_BIN: Final = (b"\xc4\x00", b"\xc5\x00\x00", b"\xc6\x00\x00\x00\x00")


class MessagePack(Serializer):
    """MessagePack in its shortest form, with str keys and without ext or bin types."""

    id = 1  # stored; never renumber
    name = "msgpack"
    other_spelling = "MessagePack that is not canonical: a duplicate key, or a form that is not the shortest"

    def __init__(self, *, fast: bool) -> None:
        self._gate, self._typed = fast_path("msgpack") if fast else (None, None)

    def dumps(self, document: JSONDocument, *, checked: bool = False) -> bytes:
        """Serialize a document as MessagePack."""
        gate = self._gate
        if gate is not None:
            try:
                payload = gate.pack(document, None, gate.pack_options)
                if not checked:
                    gate.dump(document, None, gate.dump_options)
            except TypeError as refusal:
                if not is_own(refusal):
                    raise
                # Fall through: only the reference can decide.
            else:
                return payload
        if not checked:
            documents.check_document(document)
        return pack_reference(document)

    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Parse a payload; raises the same errors as ``unpack_reference``."""
        if self._typed is not None:
            if len(payload) > values and messagepack_exceeds(payload, values):
                raise too_many_values(values)
            document = self._typed.decode(payload, depth)
            if document is not MISSED:
                return document
        return unpack_reference(payload, depth, values)

    def may_hold_nan(self, payload: Payload) -> bool:
        """Return whether the payload has the first bytes of a NaN or an infinity, which may be part of other values."""
        # The search for one byte is many times as fast, and small documents often have neither.
        return (0x7F in payload or 0xFF in payload) and _NOT_FINITE.search(payload) is not None

    def exceeds(self, payload: Payload, values: int) -> bool:
        """Return whether a payload announces more than ``values`` values."""
        return messagepack_exceeds(payload, values)


def pack_reference(document: JSONDocument) -> bytes:
    """Serialize a checked document with the stock library.

    Raises:
        NotHeld: MessagePack cannot represent the document.
    """
    try:
        payload: bytes = msgpack.packb(document)
    except OverflowError:
        raise NotHeld(BIG_INTEGER) from None
    except UnicodeEncodeError:
        raise NotHeld(LONE_SURROGATE) from None
    return payload


def unpack_reference(payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
    """Parse a payload with the stock library.

    Raises:
        TooManyValues: the payload announces more than ``values`` values.
        TruncatedBody: the payload ends before the document does.
        TrailingBytes: bytes follow the document.
        NestingTooDeep: more levels than ``depth``.
        MalformedPayload: ext or bin types, non-str keys, invalid UTF-8, or the byte that MessagePack never uses.
    """
    if not payload:
        raise TruncatedBody("the MessagePack payload is empty")
    if messagepack_exceeds(payload, values):
        raise too_many_values(values)
    try:
        document = msgpack.unpackb(payload, strict_map_key=True, max_bin_len=0, max_ext_len=0, ext_hook=_refuse_ext)
    except msgpack.exceptions.StackError:
        raise NestingTooDeep(f"more than {depth} levels of lists and objects") from None
    except msgpack.exceptions.ExtraData as refusal:
        raise TrailingBytes(f"{len(refusal.extra)} bytes follow the MessagePack document") from None
    except UnicodeDecodeError as refusal:
        raise MalformedPayload(f"a MessagePack str is not UTF-8 ({refusal.reason})") from None
    except (ValueError, TypeError) as refusal:
        if not is_own(refusal, "msgpack"):
            raise
        if "incomplete input" in str(refusal):
            raise TruncatedBody("the MessagePack payload ends before the document is complete") from None
        raise MalformedPayload(f"not MessagePack as this store writes it: {one_line(refusal)}") from None
    if len(payload.translate(None, _BYTES_THAT_DO_NOT_OPEN)) > depth and documents.depth_of(document) > depth:
        raise NestingTooDeep(f"more than {depth} levels of lists and objects")
    if any(spelling in payload for spelling in _EMPTY_BIN):  # max_bin_len=0 still accepts an empty bin
        try:
            documents.check_document(document)
        except InvalidBody as refusal:
            raise MalformedPayload(f"not MessagePack as this store writes it: {refusal}") from None
    return document


def _refuse_ext(code: int, data: bytes) -> object:
    raise ValueError(f"ext type {code}")
