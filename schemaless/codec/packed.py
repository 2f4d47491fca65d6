"""Packed serializer: the reference writer, and dispatch to the native extension if it is installed.

``FORMAT.md`` has the grammar and defines each choice that the grammar leaves open, so a document has exactly one
encoding.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Generator, Sequence
from datetime import date
from itertools import pairwise
from typing import Any, ClassVar, Final

from schemaless.cell import JSONDocument
from schemaless.codec import documents
from schemaless.codec.compressors import Codec
from schemaless.codec.documents import MAX_DEPTH, MAX_INTEGER_DIGITS
from schemaless.codec.fast import optional
from schemaless.codec.json_text import write_text
from schemaless.codec.packed_reader import (
    ARRAY,
    BARE,
    BIGINT,
    BITS,
    DATE,
    DAY_SECONDS,
    DECIMAL,
    DECIMAL_TEXT,
    DOUBLE,
    EPOCH,
    FALSE,
    HEX,
    INT,
    INT_MAX,
    INT_MIN,
    LINE,
    MANTISSA_MAX,
    NULL,
    OBJECT,
    POWERS,
    PREVIOUS,
    SUFFIX,
    TEXT,
    TIME_OF_DAY,
    TIMESTAMP,
    TRUE,
    TUPLES,
    TYPED,
    TYPED_MIN,
    UUID,
    VALUES_PER_BYTE,
    WRAP,
    ZERO,
    traverse,
    unpack_reference,
)
from schemaless.codec.refusals import is_own
from schemaless.codec.serializers import (
    BIG_INTEGER,
    LONE_SURROGATE,
    NUL_IN_TEXT,
    TOO_MANY_VALUES,
    NotHeld,
    Payload,
    Serializer,
    too_many_values,
    unreadable_values,
)
from schemaless.codec.values import MAX_VALUES, text_exceeds

_DOUBLE_COST: Final = 32
"""Cost of a double when a scale is chosen; a decimal costs the scale. One long float must not raise the scale."""

_KINDS: Final = {bool: FALSE, int: INT, float: DOUBLE, str: TEXT, list: ARRAY, dict: OBJECT, type(None): NULL}
_TIME_OF_DAY: Final = re.compile(r"([0-9]{2}):([0-5][0-9]):([0-5][0-9])", re.ASCII)
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_TIMESTAMP: Final = re.compile(
    rf"{_DATE.pattern}([T ])([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{{1,9}}))?({SUFFIX})", re.ASCII
)
_DECIMAL_TEXT: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.([0-9]{1,9}))?", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_HEX: Final = re.compile(r"(?:[0-9a-f]{2}){1,127}", re.ASCII)

_Spelled = tuple[bytes, int]
"""Schema bytes for a node of typed strings, and the number that encodes one string."""


class Packed(Serializer):
    """Columnar encoding of one document, by ``schemaless_packed`` if it is installed, else by the reference.

    Both write the same bytes and reject the same input; all error messages come from the reference.
    """

    id = 2  # stored; never renumber
    name = "packed"
    table_bits: ClassVar[int | None] = 14
    other_spelling = "a packed payload that is not canonical: a scale, predictor or format that no writer would choose"

    def __init__(self, *, fast: bool) -> None:
        native = optional("schemaless_packed") if fast else None
        self.native: bool = native is not None
        self._pack: Callable[[JSONDocument], bytes | None] | None = native.pack if native else None
        self._unpack: Callable[[Payload, int, int], JSONDocument] | None = native.unpack if native else None

    def dumps(self, document: JSONDocument, *, checked: bool = False) -> bytes:
        """Serialize a document as packed."""
        payload = None if self._pack is None else self._pack(document)
        if payload is None:
            if not checked:
                documents.check_document(document)
            payload = pack_reference(document)
        return payload

    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        """Parse a payload; raises the same errors as ``unpack_reference``."""
        if self._unpack is not None:
            try:
                return self._unpack(payload, depth, values)
            except OverflowError:
                raise too_many_values(values) from None
            except ValueError as refusal:
                if not is_own(refusal):
                    raise
                # Fall through: the reference words the error.
        return unpack_reference(payload, depth, values)

    def may_hold_nan(self, payload: Payload) -> bool:
        """Return whether the payload has the last bytes of a NaN or an infinity, which may be part of other values."""
        if 0x7F not in payload and 0xFF not in payload:
            return False
        # A double is little-endian. After a split, an empty part stands between two of the bytes searched for.
        return any(
            (part or last)[-1] >= 0xF0 for last in (b"\x7f", b"\xff") for part in bytes(payload).split(last)[:-1]
        )

    def exceeds(self, payload: Payload, values: int) -> bool:
        """Return False: a packed payload does not show its number of values before it is decoded."""
        return False

    def is_preferred(self, payload: bytes, document: JSONDocument, text: Payload | None, codec: Codec) -> bool:
        """Return whether the payload is long enough to be compressed, or shorter than the JSON text.

        Args:
            payload: result of ``dumps``.
            document: the document that was serialized.
            text: the JSON text that would be stored instead; None for compact text.
            codec: the codec to encode with.

        Raises:
            BodyTooLarge: the document has more values than readers accept.
        """
        if len(payload) > MAX_VALUES // (2 * VALUES_PER_BYTE) and text_exceeds(write_text(document), MAX_VALUES):
            raise unreadable_values()
        if len(payload) >= codec.compress_min_bytes:
            return True
        return len(payload) < len(write_text(document) if text is None else text)


def pack_reference(document: JSONDocument) -> bytes:
    """Serialize a checked document.

    Raises:
        NotHeld: packed cannot represent the document.
    """
    return _Writer().payload(document)


class _Writer:
    def __init__(self) -> None:
        self._schema = bytearray()
        self._tokens = bytearray()
        self._text = bytearray()
        self._values = 0

    def payload(self, document: JSONDocument) -> bytes:
        traverse(self._node([document]))
        head = bytearray()
        _varints(head, (len(self._schema), len(self._tokens)))
        payload = b"".join((head, self._schema, self._tokens, self._text))
        if self._values > VALUES_PER_BYTE * len(payload):
            raise NotHeld(TOO_MANY_VALUES)
        return payload

    def _node(self, values: list[Any]) -> Generator[Any, None, None]:
        self._values += len(values)
        kinds = bytearray(map(_kind_of, values))
        of: dict[int, list[Any]] = {}
        for kind, value in zip(kinds, values, strict=True):
            of.setdefault(kind, []).append(value)
        scale = _split_floats(kinds, of) if DOUBLE in of else 0
        typed = _typed(of[TEXT]) if len(of.get(TEXT, ())) >= TYPED_MIN else None
        if typed is not None:
            kinds = kinds.replace(bytes((TEXT,)), bytes((TYPED,)))
            del of[TEXT]
        self._write_kinds(kinds)
        if INT in of:
            self._numbers(of[INT])
        if of.get(DECIMAL):
            (self._tokens if len(values) == 1 else self._schema).append(scale)
            self._numbers(of[DECIMAL])
        self._strings(of.get(TEXT, ()))
        if typed is not None:
            form, content = typed
            self._schema += form
            if isinstance(content, bytes):
                self._text += content
            else:
                self._numbers(content)
        doubles = of.get(DOUBLE, ())
        self._text += struct.pack(f"<{len(doubles)}d", *doubles)
        self._strings([_digits_of(number) for number in of.get(BIGINT, ())])
        if ARRAY in of:
            yield from self._arrays(of[ARRAY])
        if OBJECT in of:
            yield from self._objects(of[OBJECT])

    def _write_kinds(self, kinds: bytearray) -> None:
        mask = sum({BITS[kind] for kind in kinds})
        if len(kinds) == 1:
            _varints(self._tokens, (mask + 1 if kinds[0] == TRUE else mask,))
            return
        _varints(self._schema, (mask,))
        if mask not in BARE:
            self._tokens += kinds

    def _numbers(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            _varints(self._tokens, (_zigzag(numbers[0]),))
            return
        by_zero = [_zigzag(number) for number in numbers]
        steps = [after - before for before, after in pairwise(numbers)]
        by_previous = [by_zero[0], *map(_zigzag, steps)]
        by_line = by_previous[:2] + [_zigzag(after - before) for before, after in pairwise(steps)]
        choices = {ZERO: by_zero, PREVIOUS: by_previous, LINE: by_line}
        predictor = min(choices, key=lambda choice: sum(map(int.bit_length, choices[choice])))
        self._schema.append(predictor)
        _varints(self._tokens, choices[predictor])

    def _strings(self, strings: Sequence[str]) -> None:
        for string in strings:
            content = _utf8(string)
            if b"\0" in content:
                raise NotHeld(NUL_IN_TEXT)
            self._text += content
            self._text.append(0)

    def _arrays(self, arrays: list[list[Any]]) -> Generator[Any, None, None]:
        lengths = [len(array) for array in arrays]
        if len(arrays) > 1:
            if lengths[0] in TUPLES and lengths.count(lengths[0]) == len(lengths):
                self._schema.append(lengths[0])
                for column in zip(*arrays, strict=True):
                    yield self._node(list(column))
                return
            self._schema.append(0)
        self._numbers(lengths)
        items = [item for array in arrays for item in array]
        if items:
            yield self._node(items)

    def _objects(self, objects: list[dict[str, Any]]) -> Generator[Any, None, None]:
        columns: dict[str, list[Any]] = {}
        shapes: dict[tuple[str, ...], int] = {}
        rows = []
        for members in objects:
            rows.append(shapes.setdefault(tuple(members), len(shapes)))
            for key, value in members.items():
                columns.setdefault(key, []).append(value)
        _varints(self._schema, (len(shapes), len(columns)))
        for key in columns:
            content = _utf8(key)
            _varints(self._schema, (len(content),))
            self._schema += content
        numbers = {key: number for number, key in enumerate(columns)}
        for shape in shapes if len(shapes) > 1 else ():
            _varints(self._schema, (len(shape),))
            after = 0
            for key in shape:
                number = numbers[key]
                _varints(self._schema, (0 if number == after else number + 1,))
                after = number + 1
        if len(shapes) > 1 or not columns:
            _varints(self._tokens, rows)
        for column in columns.values():
            yield self._node(column)


def _kind_of(value: JSONDocument) -> int:
    kind = _KINDS[type(value)]
    if value is True:
        return TRUE
    return BIGINT if kind == INT and not INT_MIN <= value <= INT_MAX else kind


def _varints(section: bytearray, values: Sequence[int]) -> None:
    for value in values:
        while value > 127:
            section.append(value & 127 | 128)
            value >>= 7
        section.append(value)


def _zigzag(number: int) -> int:
    residual = (number - INT_MIN & WRAP) + INT_MIN
    return residual << 1 if residual >= 0 else ~(residual << 1)


def _utf8(string: str) -> bytes:
    try:
        return string.encode()
    except UnicodeEncodeError:
        raise NotHeld(LONE_SURROGATE) from None


def _digits_of(number: int) -> str:
    if abs(number) >= 10**MAX_INTEGER_DIGITS:
        raise NotHeld(BIG_INTEGER)
    return str(number)


def _split_floats(kinds: bytearray, of: dict[int, list[Any]]) -> int:
    """Split a node's floats into decimals and doubles at the smallest of the cheapest scales, and return that scale."""
    floats = of.pop(DOUBLE)
    fitting: list[int | None] = []
    scale = cheapest = _DOUBLE_COST * len(floats) + 1
    for candidate, power in enumerate(POWERS):
        numbers = [_fitted(value, power) for value in floats]
        doubles = numbers.count(None)
        cost = candidate * (len(floats) - doubles) + _DOUBLE_COST * doubles
        if cost < cheapest:
            scale, cheapest, fitting = candidate, cost, numbers
        if not doubles:
            break  # a larger scale costs more
    held = iter(fitting)
    for at, kind in enumerate(kinds):
        if kind == DOUBLE and next(held) is not None:
            kinds[at] = DECIMAL
    of[DECIMAL] = [number for number in fitting if number is not None]
    of[DOUBLE] = [value for value, number in zip(floats, fitting, strict=True) if number is None]
    return scale


def _fitted(value: float, power: float) -> int | None:
    scaled = value * power
    if not -MANTISSA_MAX <= scaled <= MANTISSA_MAX:
        return None
    number = round(scaled)
    return number if number / power == value and (number or math.copysign(1.0, value) > 0) else None


def _typed(strings: list[str]) -> tuple[bytes, list[int] | bytes] | None:
    """Return the format that all strings share and their encoded content, or None."""
    for spelled in (_time_of_day, _timestamp, _date, _decimal_text):
        typed = _alike(strings, spelled)
        if typed is not None:
            return typed
    first = strings[0]
    if all(map(_UUID.fullmatch, strings)):
        return bytes((UUID,)), bytes.fromhex("".join(strings).replace("-", ""))
    if len({len(string) for string in strings}) == 1 and all(map(_HEX.fullmatch, strings)):
        return bytes((HEX, len(first))), bytes.fromhex("".join(strings))
    return None


def _alike(strings: list[str], spelled: Callable[[str], _Spelled | None]) -> tuple[bytes, list[int]] | None:
    forms = set()
    numbers = []
    for string in strings:
        form_and_number = spelled(string)
        if form_and_number is None or not INT_MIN <= form_and_number[1] <= INT_MAX:
            return None
        forms.add(form_and_number[0])
        numbers.append(form_and_number[1])
    return (forms.pop(), numbers) if len(forms) == 1 else None


def _time_of_day(string: str) -> _Spelled | None:
    match = _TIME_OF_DAY.fullmatch(string)
    return match and (bytes((TIME_OF_DAY,)), int(match[1]) * 3_600 + int(match[2]) * 60 + int(match[3]))


def _date(string: str) -> _Spelled | None:
    match = _DATE.fullmatch(string)
    days = match and _days(*match.groups())
    return None if days is None else (bytes((DATE,)), days)


def _timestamp(string: str) -> _Spelled | None:
    match = _TIMESTAMP.fullmatch(string)
    days = match and _days(*match.group(1, 2, 3))
    if match is None or days is None:
        return None
    seconds = days * DAY_SECONDS + int(match[5]) * 3_600 + int(match[6]) * 60 + int(match[7])
    fraction = match[8] or ""
    form = b"".join((bytes((TIMESTAMP,)), match[4].encode(), bytes((len(fraction),)), match[9].encode(), b"\0"))
    return form, seconds * 10 ** len(fraction) + int(fraction or 0)


def _decimal_text(string: str) -> _Spelled | None:
    match = _DECIMAL_TEXT.fullmatch(string)
    if match is None:
        return None
    number = int(string.replace(".", ""))
    negative_zero = not number and string[0] == "-"
    return None if negative_zero else (bytes((DECIMAL_TEXT, len(match[1] or ""))), number)


def _days(year: str, month: str, of_month: str) -> int | None:
    try:
        return date(int(year), int(month), int(of_month)).toordinal() - EPOCH
    except ValueError as refusal:
        if not is_own(refusal):
            raise
        return None
