"""Fails every allocation of a call, one after the other. Run by ``test_out_of_memory.py``.

Prints, for each number of allocations that fail in a row, how many calls raised MemoryError. Exits with an error where
a call gives a wrong result, or raises anything else.
"""

from __future__ import annotations

import ctypes
import datetime
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import schemaless_packed as native
import zstandard

from schemaless.codec.compressors import Zlib, Zstd
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.packed import pack_reference
from schemaless.codec.registry import codec_named

IN_A_ROW = (1, 2, 10)
MAKERS = [int, None, None, bytes.decode, lambda value: datetime.date.fromisoformat(value.decode())]
ROW = (42, b"ab", None, "\xe9x", datetime.date(2026, 1, 31))

allocator = ctypes.PyDLL(None)
allocator.stop_failing.restype = ctypes.c_long


def document(number: int) -> dict[str, Any]:
    """Return a document with every kind of node, and keys that no document before it had."""
    return {
        f"id {number}": number,
        "decimals": [1.5, 2.25, number / 8],
        "doubles": [0.1 + number, 1e300, 5e-324],
        "texts": [f"\xe9{number}", "b", "\xfc", "ASCII"],
        "times": [f"2024-01-01T00:00:{second:02}Z" for second in range(5)],
        "uuids": [f"{number + index:08x}-0000-0000-0000-000000000000" for index in range(5)],
        "hex": [f"{index:06x}" for index in range(5)],
        "integers": [number, 1, -1, 2**62],
        "large": [2**70 + number, 2**80],
        "mixed": [None, True, False, 1, 1.5, "a", [1], {f"k{number}": 1}],
        "same": [{f"x{number}": index, "y": str(index)} for index in range(4)],
        "different": [{"p": 1}, {f"q{number}": 2}, {f"q{number}": 1, "p": 5}, {}],
        "tuples": [[1, 2.5], [3, 4.5], [5, 6.5]],
        "lists": [[], [1], [1, 2, 3]],
        "nested": [[[{"a": [number]}]]],
    }


def reply() -> bytes:
    """Return the packets of three rows and an end."""
    row = b"\x0242" + b"\x02ab" + b"\xfb" + b"\x03\xc3\xa9x" + b"\x0a2026-01-31"
    packets = [row] * 3 + [b"\xfe\0\0\2\0"]
    return b"".join(struct.pack("<I", len(each) | number << 24) + each for number, each in enumerate(packets))


def prepared(operation: str, number: int) -> tuple[Callable[[], Any], Callable[[Any], bool]]:
    """Return a call, and whether what it gives is right."""
    given = document(number)
    payload = pack_reference(given)
    long_payload = payload * 5
    stream = zlib.compress(long_payload)
    here = reply()
    match operation:
        case "pack":
            return lambda: native.pack(given), lambda found: found == payload
        case "unpack":
            return lambda: native.unpack(payload, MAX_DEPTH), lambda found: found == given
        case "unpack_bytearray":
            copy = bytearray(payload)
            return lambda: native.unpack(copy, MAX_DEPTH), lambda found: found == given
        case "unpack_damaged":
            return lambda: refused(payload[:-1]), lambda found: found == "refused"
        case "inflate":
            return lambda: native.inflate(stream, 1 << 22), lambda found: found == long_payload
        case "deflate":
            level = 1 + number % 9
            return lambda: native.deflate(long_payload, level), lambda found: zlib.decompress(found) == long_payload
        case "zlib":
            # Longer than the window, which zlib allocates only then.
            longer = long_payload * 100
            its_stream = zlib.compress(longer)
            return lambda: Zlib(fast=False).decompress(its_stream, 1 << 22), lambda found: found == longer
        case "zstd":
            zstd, codec = Zstd(fast=False), codec_named("msgpack+zstd")
            return lambda: zstd.decompress(
                zstd.compress(long_payload, codec), 1 << 22
            ), lambda found: found == long_payload
        case "unsized_zstd":
            frame = zstandard.ZstdCompressor(write_content_size=False).compress(long_payload)
            return lambda: Zstd(fast=False).decompress(frame, 1 << 22), lambda found: found == long_payload
        case "packets":
            return lambda: native.packets(here, 0), lambda found: len(found[0]) == 4 and found[1:] == (len(here), 4)
        case "rows":
            expected = ([ROW] * 3, b"\xfe\0\0\2\0", len(here), 4)
            return lambda: native.rows(here, 0, MAKERS), lambda found: found == expected
    raise AssertionError(operation)


def refused(payload: bytes) -> str:
    """Return that a payload is refused."""
    try:
        native.unpack(payload, MAX_DEPTH)
    except ValueError:
        return "refused"
    return "read"


def stop_failing() -> int:
    """Stop failing allocations; return how many there were."""
    while True:
        try:
            return int(allocator.stop_failing())
        except MemoryError:
            pass


def main() -> None:
    """Go on until a call succeeds before the allocation comes that is to fail."""
    (operation,) = sys.argv[1:]
    for count in IN_A_ROW:
        failed = number = asked = 0
        while asked >= number:
            number += 1
            call, is_right = prepared(operation, number)
            found = None
            allocator.fail_allocations(number, count)
            try:
                found = call()
            except MemoryError:
                asked = stop_failing()
                failed += 1
            else:
                asked = stop_failing()
                assert is_right(found), (operation, number)
        print(failed)


if __name__ == "__main__":
    main()
