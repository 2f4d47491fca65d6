"""JSON text serializer: the stock ``json`` with the rules of ``documents``, plus a fast path."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Final

from schemaless.cell import JSONDocument
from schemaless.codec import documents
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.fast import MISSED, Gate, fast_path
from schemaless.codec.messagepack import pack_reference
from schemaless.codec.refusals import is_own
from schemaless.codec.serializers import NotHeld, Payload, Serializer, one_line, too_many_values
from schemaless.codec.values import MAX_VALUES, STRINGS, text_exceeds
from schemaless.errors import InvalidBody, MalformedPayload, NestingTooDeep

_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_WRITE_TEXT: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_WRITE_ASCII: Final = json.JSONEncoder(ensure_ascii=True, check_circular=False, separators=(",", ":")).encode


class NotJSONText(Exception):
    """Signals, within the codec, that bytes are not JSON text; ``args[0]`` is the reason."""


class IntegerTooLong(NotJSONText):
    """Signals that text has an integer with more digits than Python reads (``sys.set_int_max_str_digits``)."""


class JSONText(Serializer):
    """JSON text in UTF-8. Writes compact text, and reads any valid text."""

    id = 0  # stored; never renumber
    name = "json"
    is_text = True

    def __init__(self, *, fast: bool) -> None:
        self.gate: Gate | None
        self.gate, self._typed = fast_path("json") if fast else (None, None)

    def dumps(self, document: JSONDocument, *, checked: bool = False) -> bytes:
        """Serialize a document as compact JSON text.

        Raises:
            InvalidBody: the document is outside the JSON data model, or JSON text cannot represent it.
        """
        if checked:
            return write_text(document)
        if self.gate is None or not self.gate.passes(document):
            documents.check_document(document)
            try:
                pack_reference(document)
            except NotHeld:
                documents.check_has_text(document)
        try:
            return write_text(document)
        except ValueError as refusal:  # sys.set_int_max_str_digits() is lower than Python's own limit
            if not is_own(refusal, "json"):
                raise
            raise InvalidBody(f"body: {refusal}") from None

    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Parse a payload.

        Raises:
            MalformedPayload: the payload is not JSON text. All other errors are those of ``parse``.
        """
        try:
            return self.parse(payload, depth, values)
        except NotJSONText as refusal:
            raise MalformedPayload(f"the payload is not JSON text: {refusal}") from None

    def parse(self, text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Return ``json.loads(text.decode("utf-8"))``.

        Raises:
            NotJSONText: ``text`` is not JSON in UTF-8.
            NestingTooDeep: more levels than ``depth``.
            TooManyValues: more than ``values`` values.
            RecursionError: the caller's stack is too deep for the parser.
        """
        quick = self.parse_quick(text, depth, values)
        return parse_text(text, depth, values) if quick is MISSED else quick

    def parse_quick(self, text: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Parse on the fast path, or return ``MISSED`` if only the stock ``json`` can decide.

        A parsed text contains no NaN, infinity or number beyond the range of a double; it may contain duplicate keys.

        Raises:
            TooManyValues: more than ``values`` values.
        """
        if self._typed is None:
            return MISSED
        if len(text) > values and text_exceeds(text, values):
            raise too_many_values(values)
        return self._typed.decode(text, depth)

    def may_hold_nan(self, payload: Payload) -> bool:
        """Return whether the text has ``NaN`` or ``Infinity``, which may be in a string."""
        # The search for one byte is many times as fast.
        return (0x4E in payload and b"NaN" in payload) or (0x49 in payload and b"Infinity" in payload)

    def exceeds(self, payload: Payload, values: int) -> bool:
        """Return whether the text has more than ``values`` values."""
        return text_exceeds(payload, values)

    def check_canonical(self, payload: Payload, document: JSONDocument) -> None:
        """Accept any spelling: text is stored byte for byte."""


def write_text(document: JSONDocument) -> bytes:
    """Write compact text for a document that has already been checked."""
    try:
        return _WRITE_TEXT(document).encode()
    except UnicodeEncodeError:  # a lone surrogate has a JSON escape but no UTF-8 encoding
        return _WRITE_ASCII(document).encode()


def nesting_of(text: Payload) -> int:
    """Return the nesting depth of JSON text without parsing it, since a parser might exhaust the stack."""
    depth = deepest = 0
    for bracket in STRINGS.sub(b"", text).translate(None, _NOT_BRACKETS):
        depth += _STEPS[bracket]
        deepest = max(deepest, depth)
    return deepest


def parse_text(
    text: Payload, depth: int, values: int, loads: Callable[[str], JSONDocument] = json.loads
) -> JSONDocument:
    """Parse text with the stock ``json``, after checking it against the limits, which bounds the stack that it needs.

    Args:
        text: the text.
        depth: maximum nesting of lists and objects.
        values: maximum number of lists, objects, keys and scalars.
        loads: ``json.loads``, perhaps with hooks.

    Raises:
        NotJSONText: ``text`` is not JSON in UTF-8.
        NestingTooDeep: more levels than ``depth``.
        TooManyValues: more than ``values`` values.
    """
    if text_exceeds(text, values):
        raise too_many_values(values)
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as refusal:
        raise NotJSONText(f"not UTF-8 ({refusal.reason} at byte {refusal.start})") from None
    if text.count(b"[") + text.count(b"{") > depth and nesting_of(text) > depth:
        raise NestingTooDeep(f"more than {depth} levels of lists and objects")
    try:
        return loads(decoded)
    except ValueError as refusal:
        if not is_own(refusal, "json"):
            raise
        if isinstance(refusal, json.JSONDecodeError):
            raise NotJSONText(one_line(refusal)) from None
        limit = sys.get_int_max_str_digits()
        raise IntegerTooLong(f"an integer has more than {limit:,} digits; Python does not read it") from None
