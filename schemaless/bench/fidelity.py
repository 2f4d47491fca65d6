"""Compares a decoded document with the original and describes the difference by one of a fixed set of phrases."""

from __future__ import annotations

import re
from typing import Final

from schemaless.cell import JSONDocument
from schemaless.codec.documents import KEY_ORDER, first_difference, identical
from schemaless.codec.engine import ENGINE
from schemaless.codec.serializers import NotHeld
from schemaless.errors import InvalidBody

_VALUE: Final = re.compile(r"`[^`]*`|'[^']*'|-?[0-9][0-9.e+]{5,}")


def difference(document: JSONDocument, decoded: object) -> str:
    """Describe the first difference in a phrase without values, so that documents can be grouped by it."""
    found = first_difference(document, decoded, key_order=False)
    return found or (KEY_ORDER if _in_model(decoded) else "the document comes back different")


def _in_model(value: object) -> bool:
    try:
        ENGINE.json.dumps(value)
    except InvalidBody:
        return False
    return True


def packed_text(document: JSONDocument) -> bytes | None:
    """Return a document as MessagePack for comparison, or None if MessagePack cannot represent it."""
    try:
        return ENGINE.msgpack.dumps(document)
    except (NotHeld, InvalidBody):
        return None


def is_same(decoded: object, document: JSONDocument, expected: bytes | None) -> bool:
    """Return whether ``decoded`` equals ``document``, comparing MessagePack if ``expected`` is given, else values."""
    if expected is not None:
        return packed_text(decoded) == expected
    return _in_model(decoded) and identical(document, decoded)


def worded(refusal: Exception) -> str:
    """Format an exception in one line without values, so that documents can be grouped by it."""
    text = _VALUE.sub("...", " ".join(str(refusal).split()))
    return f"{type(refusal).__name__}: {text[:100]}" if text else type(refusal).__name__
