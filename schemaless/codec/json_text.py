"""Documents to JSON text and back: the stock ``json`` with the rules of ``documents``, and its fast path."""

from __future__ import annotations

import json
from typing import Final

from schemaless.cell import JSONDocument
from schemaless.codec import documents
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.fast import MISSED, fast_path
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
    """Bytes are not JSON text; ``args[0]`` says why. It stays in the codec."""


class JSONText(Serializer):
    """JSON text in UTF-8: compact where this store writes it, any where it reads it."""

    id = 0  # stored; never renumber
    name = "json"
    is_text = True
    counts_as = (0,)

    def __init__(self, *, fast: bool) -> None:
        self.gate, self._typed = fast_path("json") if fast else (None, None)

    def dumps(self, document: JSONDocument, *, checked: bool = False) -> bytes:
        """Return a document's text.

        Raises:
            InvalidBody: it is outside the JSON data model, or no JSON text reads back as it.
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
        """Return a payload's document.

        Raises:
            MalformedPayload: it is not JSON text; and as ``parse``.
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
        if len(text) > values and text_exceeds(text, values):
            raise too_many_values(values)
        return self._typed.decode(text, depth)

    def exceeds(self, payload: Payload, values: int) -> bool:
        """Return whether text has more than ``values``."""
        return text_exceeds(payload, values)

    def check_canonical(self, payload: Payload, document: JSONDocument) -> None:
        """Do nothing: a store keeps text as it came, in any spelling."""


def write_text(document: JSONDocument) -> bytes:
    """Return the compact text of what is known to be in the data model, and to have a text."""
    try:
        return _WRITE_TEXT(document).encode()
    except UnicodeEncodeError:  # a lone surrogate: JSON has an escape for it, UTF-8 has nothing
        return _WRITE_ASCII(document).encode()


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
    if text_exceeds(text, values):
        raise too_many_values(values)
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as refusal:
        raise NotJSONText(f"not UTF-8 ({refusal.reason} at byte {refusal.start})") from None
    if text.count(b"[") + text.count(b"{") > depth and nesting_of(text) > depth:
        raise NestingTooDeep(f"more than {depth} levels of lists and objects")
    return decoded


def _parse(text: Payload, depth: int, values: int) -> JSONDocument:
    try:
        return json.loads(text_of(text, depth, values))
    except ValueError as refusal:
        if not is_own(refusal, "json"):
            raise
        raise NotJSONText(one_line(refusal)) from None
