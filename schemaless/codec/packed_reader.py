"""Reference reader for packed payloads, with the constants and formats that the writer shares.

``FORMAT.md`` has the grammar. Time and memory are bounded by the payload's length.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import date
from itertools import chain, islice, repeat
from typing import Any, Final

from schemaless.cell import JSONDocument
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.refusals import is_own
from schemaless.codec.values import MAX_VALUES
from schemaless.errors import MalformedPayload, NestingTooDeep, TooManyValues

# stored; never renumber
NULL: Final = 0
FALSE: Final = 1
TRUE: Final = 2
INT: Final = 3
DECIMAL: Final = 4
TEXT: Final = 5
ARRAY: Final = 6
OBJECT: Final = 7
TYPED: Final = 8
DOUBLE: Final = 9
BIGINT: Final = 10
BITS: Final = (1, 2, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Bit of each kind in a node's mask."""

BARE: Final = frozenset(BITS[INT:])
"""Masks of nodes of a single kind other than null and bool; these have no kind byte per value."""

TIME_OF_DAY: Final = 0
TIMESTAMP: Final = 1
DATE: Final = 2
DECIMAL_TEXT: Final = 3
UUID: Final = 4
HEX: Final = 5

ZERO: Final = 0
PREVIOUS: Final = 1
LINE: Final = 2

VALUES_PER_BYTE: Final = 4
"""Maximum number of values per byte of payload."""

TYPED_MIN: Final = 4
"""Minimum number of strings in a typed node."""

TUPLES: Final = range(2, 9)
"""Lengths of arrays that are written as columns, if all arrays of a node have the same length."""

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
MANTISSA_MAX: Final = 1 << 53
WRAP: Final = (1 << 64) - 1
POWERS: Final = tuple(float(10**scale) for scale in range(16))
"""Powers of ten by scale; all are exact doubles."""

EPOCH: Final = date(1970, 1, 1).toordinal()
DAYS: Final = range(date.min.toordinal() - EPOCH, date.max.toordinal() - EPOCH + 1)
DAY_SECONDS: Final = 86_400
TIMES_OF_DAY: Final = range(100 * 3_600)
SUFFIX: Final = r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"

_ORDER: Final = (INT, DECIMAL, TEXT, TYPED, DOUBLE, BIGINT, ARRAY, OBJECT)
_SINGLE: Final = {1: NULL, 2: FALSE, 3: TRUE} | {BITS[kind]: kind for kind in _ORDER if kind != TYPED}
_BIGINT: Final = re.compile(rb"-?[1-9][0-9]{0,4299}")
_SUFFIX: Final = re.compile(SUFFIX, re.ASCII)

_Node = Generator[Any, Any, list[Any]]
"""Generator that reads a node: yields child nodes, is sent their values, and returns its own."""


def unpack_reference(payload: bytes | bytearray, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
    """Parse a payload.

    Args:
        payload: the complete payload.
        depth: maximum nesting of lists and objects.
        values: maximum number of lists, objects, keys and scalars.

    Raises:
        NestingTooDeep: more levels than ``depth``.
        TooManyValues: more than ``values`` values.
        MalformedPayload: the payload violates the grammar.
    """
    return _Reader(bytes(payload), depth, values).document()


def traverse(root: Generator[Any, Any, Any]) -> Any:
    """Run a generator that yields generators, depth first, without Python recursion, and return its result."""
    stack = [root]
    sent = None
    while stack:
        try:
            stack.append(stack[-1].send(sent))
            sent = None
        except StopIteration as done:
            stack.pop()
            sent = done.value
    return sent


class _Section:
    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        self._content = content
        self._at = 0

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) != count:
            raise self._short()
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._content) - self._at)

    def varint(self) -> int:
        return self.varints(1)[0]

    def varints(self, count: int) -> list[int]:
        content, at, values = self._content, self._at, []
        try:
            for _ in range(count):
                value = content[at]
                at += 1
                if value > 127:
                    value, at = _longer(content, at, value & 127)
                values.append(value)
        except IndexError:
            raise self._short() from None
        self._at = at
        return values

    def strings(self, count: int) -> list[bytes]:
        content, at, values = self._content, self._at, []
        for _ in range(count):
            end = content.find(0, at)
            if end < 0:
                raise self._short()
            values.append(content[at:end])
            at = end + 1
        self._at = at
        return values

    def check_end(self) -> None:
        remaining = len(self._content) - self._at
        if remaining:
            raise MalformedPayload(f"{remaining} bytes of {self._name} follow the packed document")

    def _short(self) -> MalformedPayload:
        return MalformedPayload(f"the packed document continues past the end of its {self._name}")


def _longer(content: bytes, at: int, value: int) -> tuple[int, int]:
    for shift in range(7, 70, 7):
        digit = content[at]
        at += 1
        value |= (digit & 127) << shift
        if digit < 128:
            if not digit or value > WRAP:
                break
            return value, at
    raise MalformedPayload("a packed varint is not in its shortest form, or exceeds 64 bits")


class _Reader:
    def __init__(self, payload: bytes, depth: int, values: int) -> None:
        whole = _Section("payload", payload)
        schema_bytes, token_bytes = whole.varints(2)
        self._schema = _Section("schema", whole.take(schema_bytes))
        self._tokens = _Section("tokens", whole.take(token_bytes))
        self._text = _Section("text", whole.rest())
        self._most = self._left = VALUES_PER_BYTE * len(payload)
        self._depth = depth
        self._limit = self._allowed = values

    def document(self) -> JSONDocument:
        values = traverse(self._node(1, 0))
        for section in (self._schema, self._tokens, self._text):
            section.check_end()
        return values[0]

    def _node(self, count: int, level: int) -> _Node:
        self._left -= count
        if self._left < 0:
            raise MalformedPayload(f"more than {self._most} packed values, the most that the payload's length allows")
        self._count(count)
        kinds = self._kinds(count)
        present = {kind: kinds.count(kind) for kind in set(kinds)}
        values: dict[int, Iterable[Any]] = {NULL: repeat(None), FALSE: repeat(False), TRUE: repeat(True)}
        for kind in _ORDER:
            here = present.get(kind, 0)
            if not here:
                continue
            if kind == ARRAY:
                column = yield from self._arrays(here, self._below(level))
            elif kind == OBJECT:
                column = yield from self._objects(here, self._below(level))
            else:
                column = self._scalars(kind, here, count)
            if here == count:
                return column
            values[kind] = column
        sources = {kind: iter(values[kind]) for kind in present}
        return [next(sources[kind]) for kind in kinds]

    def _count(self, values: int) -> None:
        self._allowed -= values
        if self._allowed < 0:
            raise TooManyValues(f"more than {self._limit:,} lists, objects, keys and scalars")

    def _kinds(self, count: int) -> bytes:
        if count == 1:
            mask = self._tokens.varint()
            if mask not in _SINGLE:
                raise MalformedPayload(f"a packed value has the invalid mask {mask}")
            return bytes((_SINGLE[mask],))
        mask = self._schema.varint()
        if mask in BARE:
            return bytes((BITS.index(mask),)) * count
        if not 0 < mask < 2 * BITS[BIGINT] or (mask & BITS[TEXT] and mask & BITS[TYPED]):
            raise MalformedPayload(f"{count} packed values have the invalid mask {mask}")
        kinds = self._tokens.take(count)
        present = set(kinds)
        if max(present) > BIGINT or mask != sum({BITS[kind] for kind in present}):
            raise MalformedPayload(f"{count} packed values have mask {mask}, but their kinds do not match it")
        return kinds

    def _below(self, level: int) -> int:
        if level == self._depth:
            raise NestingTooDeep(f"more than {self._depth} levels of lists and objects")
        return level + 1

    def _numbers(self, count: int) -> list[int]:
        predictor = self._schema.byte() if count > 1 else ZERO
        if predictor > LINE:
            raise MalformedPayload(f"a packed predictor is {predictor}")
        number = step = 0
        numbers = []
        for varint in self._tokens.varints(count):
            residual = varint >> 1 ^ -(varint & 1)
            if predictor == ZERO:
                numbers.append(residual)
                continue
            before = number
            number = (number + step + residual - INT_MIN & WRAP) + INT_MIN
            if predictor == LINE and numbers:
                step = number - before
            numbers.append(number)
        return numbers

    def _scalars(self, kind: int, count: int, of: int) -> list[Any]:
        if kind == INT:
            return self._numbers(count)
        if kind == DECIMAL:
            return self._decimals(count, (self._tokens if of == 1 else self._schema).byte())
        if kind == TEXT:
            return [_text(string) for string in self._text.strings(count)]
        if kind == TYPED:
            return self._typed(count)
        if kind == DOUBLE:
            return list(struct.unpack(f"<{count}d", self._text.take(8 * count)))
        return [_bigint(string) for string in self._text.strings(count)]

    def _decimals(self, count: int, scale: int) -> list[float]:
        if scale >= len(POWERS):
            raise MalformedPayload(f"a packed decimal has the invalid scale {scale}")
        numbers = self._numbers(count)
        if max(numbers) > MANTISSA_MAX or min(numbers) < -MANTISSA_MAX:
            raise MalformedPayload("a packed decimal is beyond 2^53")
        power = POWERS[scale]
        return [number / power for number in numbers]

    def _typed(self, count: int) -> list[str]:
        if count < TYPED_MIN:
            raise MalformedPayload(f"a packed node has {count} typed strings, fewer than {TYPED_MIN}")
        typed = self._schema.byte()
        if typed in (UUID, HEX):
            digits = self._schema.byte() if typed == HEX else 32
            if not digits or digits % 2 or digits > 254:
                raise MalformedPayload(f"packed hexadecimal text has an invalid length of {digits} digits")
            content = self._text.take(count * (digits // 2)).hex()
            strings = [content[start : start + digits] for start in range(0, count * digits, digits)]
            return strings if typed == HEX else [uuid_text(string) for string in strings]
        write = self._writer_of(typed)
        return [write(number) for number in self._numbers(count)]

    def _writer_of(self, typed: int) -> Callable[[int], str]:
        """Return the function that formats the numbers of a typed node."""
        if typed == TIME_OF_DAY:
            return time_of_day
        if typed == DATE:
            return day
        if typed not in (TIMESTAMP, DECIMAL_TEXT):
            raise MalformedPayload(f"packed strings have the unknown type {typed}")
        separator = self._schema.take(1) if typed == TIMESTAMP else b"T"
        digits = self._schema.byte()
        suffix = b"".join(iter(lambda: self._schema.take(1), b"\0")) if typed == TIMESTAMP else b""
        if digits > 9 or separator not in (b"T", b" ") or not _SUFFIX.fullmatch(suffix.decode("latin-1")):
            raise MalformedPayload("packed strings have an unknown form")
        if typed == DECIMAL_TEXT:
            return lambda number: decimal_text(number, digits)
        between, ending = separator.decode(), suffix.decode()
        return lambda number: timestamp(number, between, digits, ending)

    def _arrays(self, count: int, level: int) -> _Node:
        form = self._schema.byte() if count > 1 else 0
        if form in TUPLES:
            columns = yield from self._nodes(repeat(count, form), level)
            return list(map(list, zip(*columns, strict=True)))
        if form:
            raise MalformedPayload(f"packed arrays have the unknown form {form}")
        lengths = self._numbers(count)
        if min(lengths) < 0 or (count > 1 and lengths[0] in TUPLES and lengths.count(lengths[0]) == count):
            raise MalformedPayload("packed arrays have lengths that a writer would have written in another form")
        total = sum(lengths)
        items = iter((yield self._node(total, level)) if total else ())
        return [list(islice(items, length)) for length in lengths]

    def _objects(self, count: int, level: int) -> _Node:
        keys, shapes = self._shapes()
        if len(shapes) == 1 and keys:
            columns = yield from self._nodes(self._keyed(repeat(count, len(keys))), level)
            return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
        rows = self._tokens.varints(count)
        _check_order(rows, len(shapes), "shapes")
        owners = [0] * len(keys)
        for number, uses in Counter(rows).items():
            for key in shapes[number]:
                owners[key] += uses
        cursors = list(map(iter, (yield from self._nodes(self._keyed(owners), level))))
        return [{keys[key]: next(cursors[key]) for key in shapes[row]} for row in rows]

    def _keyed(self, counts: Iterable[int]) -> Iterator[int]:
        """Yield ``counts``, and count each occurrence of a key as a value towards the limit."""
        for count in counts:
            self._count(count)
            yield count

    def _nodes(self, counts: Iterable[int], level: int) -> _Node:
        columns = []
        for count in counts:
            column = yield self._node(count, level)
            columns.append(column)
        return columns

    def _shapes(self) -> tuple[list[str], list[list[int]]]:
        """Return the keys of a node's objects, and the shapes as lists of indexes into them."""
        shape_count, key_count = self._schema.varints(2)
        keys = [_text(self._schema.take(self._schema.varint())) for _ in range(key_count)]
        shapes = [list(range(key_count))] if shape_count == 1 else [self._shape() for _ in range(shape_count)]
        _check_order(chain.from_iterable(shapes), key_count, "keys")
        if len(set(keys)) != key_count or len(set(map(tuple, shapes))) != shape_count:
            raise MalformedPayload("two packed keys or shapes are the same")
        if any(len(set(shape)) != len(shape) for shape in shapes):
            raise MalformedPayload("a packed shape has a key twice")
        return keys, shapes

    def _shape(self) -> list[int]:
        shape: list[int] = []
        after = 0
        for spelled in self._schema.varints(self._schema.varint()):
            if spelled == after + 1:
                raise MalformedPayload(f"a packed shape spells out key {after}, which must be written as 0")
            shape.append(spelled - 1 if spelled else after)
            after = shape[-1] + 1
        return shape


def _check_order(numbers: Iterable[int], count: int, noun: str) -> None:
    """Check that ``numbers`` contains 0 to ``count - 1``, with first occurrences in ascending order."""
    seen = 0
    for number in numbers:
        if number >= seen:
            if number > seen or number == count:
                raise MalformedPayload(f"the first occurrences of packed {noun} are not in ascending order")
            seen += 1
    if seen != count:
        raise MalformedPayload(f"{count - seen} of {count} packed {noun} do not occur")


def _text(string: bytes) -> str:
    try:
        return string.decode("utf-8")
    except UnicodeDecodeError as refusal:
        raise MalformedPayload(f"a packed string is not UTF-8 ({refusal.reason})") from None


def _bigint(string: bytes) -> int:
    try:
        number = int(string) if _BIGINT.fullmatch(string) else 0
    except ValueError as refusal:  # sys.set_int_max_str_digits() is lower than Python's own limit
        if not is_own(refusal):
            raise
        raise MalformedPayload(f"a packed integer: {refusal}") from None
    if INT_MIN <= number <= INT_MAX:
        raise MalformedPayload("a packed big integer is not an integer beyond 64 bits")
    return number


def time_of_day(number: int) -> str:
    """Return seconds as ``HH:MM:SS``.

    Raises:
        MalformedPayload: the number does not fit this form.
    """
    if number not in TIMES_OF_DAY:
        raise MalformedPayload(f"a packed time of day is invalid: {number}")
    return f"{number // 3_600:02}:{number // 60 % 60:02}:{number % 60:02}"


def day(number: int) -> str:
    """Return days since 1970-01-01 as ``YYYY-MM-DD``.

    Raises:
        MalformedPayload: the number does not fit this form.
    """
    if number not in DAYS:
        raise MalformedPayload(f"a packed date is {number}")
    return date.fromordinal(number + EPOCH).isoformat()


def timestamp(number: int, separator: str, digits: int, suffix: str) -> str:
    """Format a number of ticks since 1970-01-01, 10^digits per second, as a timestamp.

    Raises:
        MalformedPayload: the number does not fit this form.
    """
    seconds, fraction = divmod(number, 10**digits)
    days, second = divmod(seconds, DAY_SECONDS)
    point = f".{fraction:0{digits}}" if digits else ""
    return f"{day(days)}{separator}{time_of_day(second)}{point}{suffix}"


def decimal_text(number: int, digits: int) -> str:
    """Format a number whose last ``digits`` digits follow the decimal point."""
    shown = f"{abs(number):0{digits + 1}}"
    point = f".{shown[-digits:]}" if digits else ""
    return f"{'-' if number < 0 else ''}{shown[: len(shown) - digits]}{point}"


def uuid_text(digits: str) -> str:
    """Insert the hyphens of a UUID into 32 hexadecimal digits."""
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
