"""The JSON data model: what a document may hold, how deep it goes, and when two are identical.

Pure Python, and the law: the fast path is taken only where they agree with what stands here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from schemaless.cell import JSONDocument
from schemaless.errors import InvalidBody

MAX_DEPTH: Final = 512
"""No document has more levels of lists and objects, one inside the other; a scalar has none, ``[]`` has one."""

MAX_INTEGER_DIGITS: Final = 4300
"""Python reads no longer integer from text unless it is told otherwise (``sys.set_int_max_str_digits``)."""

_TYPES: Final = frozenset({dict, list, str, int, float, bool, type(None)})
_LONGEST_INTEGER_BITS: Final = (10**MAX_INTEGER_DIGITS).bit_length()
_SPLIT_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BARE_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


def check_document(document: JSONDocument) -> None:
    """Raise unless ``document`` is exactly in the JSON data model, at most 512 levels deep.

    dict with str keys, list, str, int, float, bool and None; subclasses are not: no reader gives them back.

    Raises:
        InvalidBody: something is not; the message names the first, in document order, by its path.
    """
    for path, value in _values(document):
        if type(value) not in _TYPES:
            raise InvalidBody(f"{_spell(path)}: {_complaint(value)}")


def check_has_text(document: JSONDocument) -> None:
    """Raise unless JSON text can hold ``document``, which ``check_document`` has passed.

    Raises:
        InvalidBody: a str holds a surrogate pair as two characters, which JSON text cannot tell from the character that
            they stand for; or an integer has more than 4,300 digits, which Python does not read back.
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
    """Return how many levels of lists and objects stand one inside the other; 0 for a scalar."""
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

    1 is not 1.0, True is not 1, 0.0 is not -0.0, NaN is NaN.

    Args:
        left: a document.
        right: a document.
        key_order: whether objects with the same members in another order differ.
    """
    pairs: list[tuple[JSONDocument, JSONDocument]] = [(left, right)]
    while pairs:
        one, other = pairs.pop()
        kind = type(one)
        if kind is not type(other):
            return False
        if kind is dict:
            if one.keys() != other.keys() or (key_order and list(one) != list(other)):
                return False
            pairs.extend((value, other[key]) for key, value in one.items())
        elif kind is list:
            if len(one) != len(other):
                return False
            pairs.extend(zip(one, other, strict=True))
        elif kind is float:
            if not _same_float(one, other):
                return False
        elif one != other:
            return False
    return True


def _same_float(one: float, other: float) -> bool:
    if one != one or other != other:  # NaN, the only value that is not equal to itself
        return one != one and other != other
    return one == other and math.copysign(1.0, one) == math.copysign(1.0, other)


def _values(document: JSONDocument) -> Iterator[tuple[list[object], JSONDocument]]:
    """Yield every value with its path, depth first, so that a cycle ends at the depth limit."""
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
                    "or one that holds itself"
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
