"""Reads legacy bodies: bare JSON text, parsed exactly like ``json.loads(body.decode("utf-8"))``.

Also detects when parsing loses information, so that the text is kept, and guesses the format of bytes that are not
JSON.
"""

from __future__ import annotations

import json
import math
import zlib
from functools import partial
from typing import Final, NamedTuple

from schemaless.cell import JSONDocument
from schemaless.codec.documents import MAX_DEPTH, check_finite
from schemaless.codec.engine import ENGINE, Engine
from schemaless.codec.fast import MISSED
from schemaless.codec.json_text import IntegerTooLong, NotJSONText, parse_text
from schemaless.codec.messagepack import pack_reference, unpack_reference
from schemaless.codec.serializers import (
    BIG_INTEGER,
    LONE_SURROGATE,
    NUL_IN_TEXT,
    SHORT_AS_TEXT,
    TOO_MANY_VALUES,
    NotHeld,
    Payload,
)
from schemaless.codec.values import MAX_VALUES
from schemaless.errors import CorruptBody, UnreadableLegacy

DUPLICATE_KEYS: Final = "duplicate keys"
OVERFLOW: Final = "number beyond a double"

LOSSES: Final = (DUPLICATE_KEYS, OVERFLOW)
"""Kinds of information that parsing JSON text can lose; text that would lose any is kept under every codec."""

KEEP_REASONS: Final = (*LOSSES, BIG_INTEGER, LONE_SURROGATE, NUL_IN_TEXT, TOO_MANY_VALUES, SHORT_AS_TEXT)
"""Reasons to keep JSON text, in order of precedence; all but ``LOSSES`` depend on the serializer."""


class LegacyDocument(NamedTuple):
    """A document parsed from JSON text.

    Attributes:
        value: the document, as ``json.loads`` returns it.
        keep_reason: why a MessagePack codec keeps the text (one of ``KEEP_REASONS``), or None.
    """

    value: JSONDocument
    keep_reason: str | None


def read_legacy(
    text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES, *, engine: Engine = ENGINE
) -> LegacyDocument:
    """Parse a legacy body and detect whether parsing loses information.

    Digits beyond the precision of a double do not count as a loss, since ``json.loads`` drops them too.

    Args:
        text: a body without an envelope.
        depth: maximum nesting of lists and objects.
        values: maximum number of lists, objects, keys and scalars.
        engine: with or without the ``[fast]`` extra; the result is the same.

    Raises:
        UnreadableLegacy: the body is not JSON text; the message says what it looks like.
        NestingTooDeep: more levels than ``depth``.
        TooManyValues: more than ``values`` values.
    """
    quick = read_quickly(text, depth, engine, values)
    return read_exactly(text, depth, values) if quick is None else LegacyDocument(quick[0], None)


def read_json(text: bytes, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> LegacyDocument:
    """Parse JSON text that is not a stored body, such as a line of a file; errors do not mention envelopes."""
    try:
        return read_legacy(text, depth, values)
    except UnreadableLegacy as refusal:
        raise UnreadableLegacy(refusal.message.removeprefix("no envelope, and ")) from None


def check_text_finite(text: bytes) -> None:
    """Check that text, which ``read_json`` has accepted, has no ``NaN``, ``Infinity`` or ``-Infinity``.

    A number such as ``1e400``, which Python reads as infinity, is JSON and passes.

    Raises:
        InvalidBody: the text has one of them; the message gives the path of the first one.
    """
    if ENGINE.json.may_hold_nan(text):
        check_finite(json.loads(text, parse_float=lambda number: None))


def parse_legacy(
    text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES, *, engine: Engine = ENGINE
) -> JSONDocument:
    """Parse a legacy body without detecting losses.

    Raises:
        UnreadableLegacy: the body is not JSON text.
        NestingTooDeep: more levels than ``depth``.
        TooManyValues: more than ``values`` values.
    """
    try:
        return engine.json.parse(text, depth, values)
    except NotJSONText as refusal:
        raise _unreadable(text, refusal) from None


def read_quickly(
    text: Payload, depth: int, engine: Engine, values: int = MAX_VALUES
) -> tuple[JSONDocument, bytes] | None:
    r"""Return the document and its compact text if the fast path proves that nothing is lost, else None.

    Fast parsers silently drop duplicate keys. Writing the document again and comparing the texts detects that. If
    whitespace or escapes differ, the numbers of quotes are compared instead: two per string plus one per ``\"`` in a
    string. A dropped member removes at least the two quotes of its key, and no other difference adds quotes unless
    ``text`` spells one as ``\u0022``. Without ``\u0022``, equal counts therefore prove that no member was dropped.
    """
    gate = engine.json.gate
    if gate is None:
        return None
    value = engine.json.parse_quick(text, depth, values)
    if value is MISSED:
        return None
    shown = gate.text(value)
    if shown is None:
        return None
    if shown == text or (shown.count(b'"') == text.count(b'"') and (b"\\" not in text or rb"\u0022" not in text)):
        return value, shown
    return None


def read_exactly(text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> LegacyDocument:
    """Reference implementation of ``read_legacy``, with the stock parser.

    Raises:
        UnreadableLegacy: the text is not JSON.
        NestingTooDeep: more levels than ``depth``.
        TooManyValues: more than ``values`` values.
    """
    lost = set()

    def members(pairs: list[tuple[str, JSONDocument]]) -> dict[str, JSONDocument]:
        members = dict(pairs)
        if len(members) != len(pairs):
            lost.add(DUPLICATE_KEYS)
        return members

    def number(literal: str) -> float:
        value = float(literal)
        if math.isinf(value):
            lost.add(OVERFLOW)
        return value

    try:
        value = parse_text(text, depth, values, partial(json.loads, object_pairs_hook=members, parse_float=number))
    except NotJSONText as refusal:
        raise _unreadable(text, refusal) from None
    if not lost:
        try:
            pack_reference(value)
        except NotHeld as refusal:
            lost.add(refusal.args[0])
    return LegacyDocument(value, next((reason for reason in KEEP_REASONS if reason in lost), None))


def _unreadable(text: Payload, refusal: NotJSONText) -> UnreadableLegacy:
    if isinstance(refusal, IntegerTooLong):
        return UnreadableLegacy(f"no envelope, and JSON text that cannot be read: {refusal}")
    return UnreadableLegacy(f"no envelope, and not JSON text ({refusal}); it looks like {looks_like(bytes(text))}")


def looks_like(body: bytes) -> str:
    """Guess the format of bytes that are neither enveloped nor JSON text.

    The guess is for error messages only; nothing is decoded because of it.
    """
    for prefix, noun in _PREFIXES:
        if body.startswith(prefix):
            return noun
    if not body:
        return "an empty body"
    if _inflates(body):
        return "a bare zlib stream"
    if len(body) > 4 and _inflates(body[4:]):
        return "the output of MySQL's COMPRESS()"
    if body[0] == 0x80 and body[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"} and body.endswith(b"."):
        return "a Python pickle"
    if len(body) > 7 and not any(body[1:8:4]) and not any(body[2:8:4]):
        return "UTF-32 text" if not any(body[3:8:4]) or not any(body[0:8:4]) else "binary data"
    if len(body) > 3 and (not any(body[1:16:2]) or not any(body[0:16:2])):
        return "UTF-16 text"
    return _looks_like_text(body) or _looks_like_msgpack(body) or "binary data"


_PREFIXES: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "a bare zstd frame"),
    (b"\x04\x22\x4d\x18", "an LZ4 frame"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\xef\xbb\xbf", "UTF-8 text with a byte order mark"),
    (b"\xff\xfe\x00\x00", "UTF-32 text"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\xac\xed\x00\x05", "a serialized Java object"),
)


def _inflates(body: bytes) -> bool:
    if body[0] & 0x0F != 8 or body[0] >> 4 > 7 or int.from_bytes(body[:2], "big") % 31:
        return False
    try:
        zlib.decompressobj().decompress(body, 64)
    except zlib.error:
        return False
    return True


def _looks_like_text(body: bytes) -> str | None:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        try:
            body.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            pass
        else:
            return "text with raw surrogates, which UTF-8 does not allow"
        if body[:1] in b'{["':
            return "JSON text in an encoding other than UTF-8"
        return None
    if any(ord(character) < 32 and character not in "\t\n\r" for character in text[:64]):
        return None
    if text[:1] in "{[":
        return "JSON text that is cut short or damaged"
    return "text of another kind"


def _looks_like_msgpack(body: bytes) -> str | None:
    try:
        unpack_reference(body)
    except CorruptBody:
        return None
    return "bare MessagePack"
