"""The JSON data model: allowed types, maximum depth, and equality of documents.

This pure-Python module is the reference; the fast paths must agree with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

from schemaless.cell import JSONDocument
from schemaless.errors import InvalidBody

MAX_DEPTH: Final = 512
"""Maximum nesting of lists and objects; a scalar has depth 0, ``[]`` has depth 1."""

MAX_INTEGER_DIGITS: Final = 4300
"""Python's default limit on the digits of an integer parsed from text (``sys.set_int_max_str_digits``)."""

KEY_ORDER: Final = "the order of keys"
"""The difference between documents whose objects have the same members in another order."""

_TYPES: Final = frozenset({dict, list, str, int, float, bool, type(None)})
_LONGEST_INTEGER_BITS: Final = (10**MAX_INTEGER_DIGITS).bit_length()
_SPLIT_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BARE_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


def check_document(document: JSONDocument) -> None:
    """Check that ``document`` is in the JSON data model and at most 512 levels deep.

    Allowed types are dict with str keys, list, str, int, float, bool and None. Subclasses are rejected, because reading
    would not return them.

    Raises:
        InvalidBody: a value is not allowed; the message gives the path of the first one in document order.
    """
    for path, value in _values(document):
        if type(value) not in _TYPES:
            raise InvalidBody(f"{_spell(path)}: {_complaint(value)}")


def check_finite(document: JSONDocument) -> None:
    """Check that ``document``, which ``check_document`` has accepted, has no NaN or infinity: JSON has neither.

    Raises:
        InvalidBody: a float is not finite; the message gives the path of the first one in document order.
    """
    for path, value in _values(document):
        if type(value) is float and not math.isfinite(value):
            raise InvalidBody(
                f"{_spell(path)}: {value!r} is not a JSON number; write None or a str instead, or accept NaN and "
                "infinities with allow_nan=True (--allow-nan)"
            )


def check_has_text(document: JSONDocument) -> None:
    """Check that JSON text can represent ``document``, which ``check_document`` has accepted.

    Raises:
        InvalidBody: a str contains a surrogate pair as two characters, which JSON text cannot distinguish from the
            character that the pair encodes; or an integer has more than 4,300 digits, which Python does not read back.
    """
    for path, value in _values(document):
        if type(value) is int and value.bit_length() >= _LONGEST_INTEGER_BITS and abs(value) >= 10**MAX_INTEGER_DIGITS:
            raise InvalidBody(f"{_spell(path)}: int has more than {MAX_INTEGER_DIGITS} digits; store it as a str")
        for string in (value, *path[-1:]):
            if type(string) is str and _SPLIT_PAIR.search(string):
                raise InvalidBody(
                    f"{_spell(path)}: str holds a surrogate pair as two characters; join them with "
                    "s.encode('utf-16', 'surrogatepass').decode('utf-16')"
                )


def depth_of(document: JSONDocument) -> int:
    """Return the nesting depth of lists and objects; 0 for a scalar."""
    deepest = 0
    iterators = [iter((document,))]
    while iterators:
        for value in iterators[-1]:
            if type(value) is dict:
                iterators.append(iter(value.values()))
            elif type(value) is list:
                iterators.append(iter(value))
            else:
                continue
            deepest = max(deepest, len(iterators) - 1)
            break
        else:
            iterators.pop()
    return deepest


def identical(left: JSONDocument, right: JSONDocument, *, key_order: bool = True) -> bool:
    """Return whether two documents are the same, value by value.

    1 differs from 1.0, True from 1, 0.0 from -0.0; NaN equals NaN.

    Args:
        left: a document.
        right: a document.
        key_order: whether the order of keys counts.
    """
    return first_difference(left, right, key_order=key_order) is None


def first_difference(original: JSONDocument, decoded: object, *, key_order: bool = True) -> str | None:
    """Return what has become of a document, in a phrase without values, or None if both are the same.

    Args:
        original: a document.
        decoded: what a decoder has returned for it.
        key_order: whether the order of keys counts.
    """
    pairs: list[tuple[Any, Any]] = [(original, decoded)]
    while pairs:
        one, other = pairs.pop()
        kind = type(one)
        if kind is not type(other):
            return f"{kind.__name__} comes back as {type(other).__name__}"
        if kind is dict:
            if one.keys() != other.keys():
                return "a key is missing" if one.keys() - other.keys() else "a key is added"
            if key_order and list(one) != list(other):
                return KEY_ORDER
            pairs.extend((value, other[key]) for key, value in one.items())
        elif kind is list:
            if len(one) != len(other):
                return "a list comes back longer or shorter"
            pairs.extend(zip(one, other, strict=True))
        elif not _same_float(one, other) if kind is float else one != other:
            return f"{kind.__name__} comes back with another value"
    return None


def _same_float(one: float, other: float) -> bool:
    if one != one or other != other:  # NaN is the only value that is not equal to itself
        return one != one and other != other
    return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)


def _values(document: JSONDocument) -> Iterator[tuple[list[object], JSONDocument]]:
    """Yield every value with its path, depth first, so that the depth limit stops cycles."""
    path: list[object] = []
    iterators: list[Iterator[tuple[object, JSONDocument]]] = [iter(((None, document),))]
    while iterators:
        for step, value in iterators[-1]:
            if path:
                path[-1] = step
            yield path, value
            kind = type(value)
            if kind is dict:
                for key in value:
                    if type(key) is not str:
                        raise InvalidBody(
                            f"{_spell(path)}: key {_short(key)} is {type(key).__name__}, not str; "
                            "keys of JSON objects are str"
                        )
                inner = iter(value.items())
            elif kind is list:
                inner = iter(enumerate(value))
            else:
                continue
            if len(iterators) > MAX_DEPTH:
                raise InvalidBody(
                    f"{_spell(path[:8])}...: more than {MAX_DEPTH} levels of lists and objects, "
                    "or a list or object that contains itself"
                )
            iterators.append(inner)
            path.append(None)
            break
        else:
            iterators.pop()
            if path:
                path.pop()


def _spell(path: list[object]) -> str:
    spelled = "body"
    for step in path:
        if type(step) is str and _BARE_KEY.match(step):
            spelled += f".{step}"
        else:
            spelled += f"[{_short(step)}]"
    return spelled


def _complaint(value: object) -> str:
    kind = type(value)
    base = next((base.__name__ for base in (bool, int, float, str, list, dict) if isinstance(value, base)), None)
    if base is not None:
        return f"{kind.__name__} is a subclass of {base}; convert it to {base} first"
    if isinstance(value, tuple):
        return f"{kind.__name__} is not a JSON type; make it a list"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{kind.__name__} is not a JSON type; decode it to a str first"
    return f"{kind.__name__} is not a JSON type; convert it first"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
