"""Exact JSON text of a stored body, as written by dumps and exports.

A body that is stored as JSON text keeps that text byte for byte, with its duplicate keys and its spelling of numbers.
Any other body becomes compact text, the same with and without the ``[fast]`` extra.
"""

from __future__ import annotations

import re
from typing import Final

from schemaless.cell import JSONDocument
from schemaless.codec.compressors import too_large
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.engine import ENGINE, Engine
from schemaless.codec.envelope import DEFAULT_LIMITS, Limits, is_enveloped, unseal
from schemaless.codec.fast import Gate
from schemaless.codec.legacy import parse_legacy
from schemaless.codec.serializers import Payload

_EXPONENT: Final = re.compile(rb"[0-9]e-?[0-9]+(?:[,\]}]|\Z)")
"""Matches numbers that ``orjson`` may write with an exponent; a match inside a string only costs time."""

_FLOAT64: Final = b"\xcb"
_FLOAT32: Final = b"\xca"
"""MessagePack's marker for 32-bit floats. The store reads them, but writes only doubles."""

_NOT_FINITE: Final = re.compile(rb"[\xca\xcb][\x7f\xff]")


def exact_text(
    body: bytes,
    limits: Limits = DEFAULT_LIMITS,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    *,
    engine: Engine = ENGINE,
) -> tuple[Payload, JSONDocument]:
    """Decode a stored body to JSON text in UTF-8.

    Args:
        body: any stored body.
        limits: maximum decoded size, depth and number of values.
        dictionaries: source of the zstd dictionary that ``body`` names, if any.
        engine: with or without the ``[fast]`` extra; the result is the same.

    Returns:
        The text, and the document that it parses to.

    Raises:
        CorruptBody: the body does not decode (a subclass says why).
    """
    if is_enveloped(body):
        serializer, payload = unseal(body, limits, engine, dictionaries)
        document = serializer.loads(payload, limits.depth, limits.values)
        if serializer.is_text:
            return payload, document
        gate = engine.json.gate
        text = None if gate is None or serializer is not engine.msgpack else _quick_text(gate, document, payload)
        return engine.json.dumps(document, checked=True) if text is None else text, document
    if len(body) > limits.decoded_bytes:
        raise too_large(limits.decoded_bytes)
    return body, parse_legacy(body, limits.depth, limits.values, engine=engine)


def _quick_text(gate: Gate, document: JSONDocument, payload: Payload) -> bytes | None:
    """Return ``orjson``'s text, or None if the stock ``json`` might write it differently.

    The two differ in floats only: ``orjson`` writes ``1e16`` for ``1e+16``, ``0.00001`` for ``1e-05``, and ``null`` for
    NaN and infinities.
    """
    text = gate.text(document)
    if text is None or (_FLOAT64 not in payload and _FLOAT32 not in payload):
        return text
    if b"0.0000" in text or _EXPONENT.search(text) is not None:
        return None
    return None if b"null" in text and _NOT_FINITE.search(payload) is not None else text
