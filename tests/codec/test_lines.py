"""Lines of NDJSON: whole, unpacked, and never longer than memory is for."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from schemaless.codec import lines
from schemaless.codec.lines import check_line, open_lines
from schemaless.errors import InvalidInput

pytestmark = pytest.mark.once


def zstd_frames(text: bytes) -> bytes:
    """Return two frames and a skippable one, which parallel compressors write."""
    half = len(text) // 2
    frames = [zstandard.ZstdCompressor().compress(part) for part in (text[:half], text[half:])]
    return b"\x50\x2a\x4d\x18\x02\x00\x00\x00??".join([b"", *frames])


@pytest.fixture(params=[bytes, gzip.compress, zstd_frames], ids=["plain", "gzip", "zstd"])
def packed(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    made: Callable[[bytes], bytes] = request.param
    return made


def with_checksum(text: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(text)


@pytest.mark.parametrize("compress", [gzip.compress, with_checksum], ids=["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "tail", "checksum", "middle"])
def test_open_lines_of_a_damaged_file_says_so(damage: str, compress: Callable[[bytes], bytes]) -> None:
    """A download that was cut off is no end of file."""
    text = b"".join(b"[%d]\n" % number for number in range(10_000))
    packed = bytearray(compress(text))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    elif damage == "tail":
        packed += b"garbage"
    elif damage == "checksum":
        packed[-8 if compress is gzip.compress else -1] ^= 1
    else:
        packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)

    with pytest.raises(InvalidInput, match=r"cannot read cells.gz after line \d+: "):
        list(open_lines(io.BytesIO(bytes(packed)), "cells.gz"))


def test_open_lines_of_an_empty_file_gives_none() -> None:
    """Nothing is no fault."""
    assert list(open_lines(io.BytesIO(b""), "x")) == []
    assert list(open_lines(io.BytesIO(gzip.compress(b"")), "x")) == []


def test_open_lines_of_a_line_that_is_too_long_names_it(
    packed: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest line comes whole, one byte more is refused with its number; cut, the lines behind it still come."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 5_000_000)
    longest, longer = b"1" * 4_999_999 + b"\n", b"2" * 12_000_000 + b"\n"
    text = packed(b"[0]\n" + longest + longer + b"[3]\n" + longer[:-1])
    found = list(open_lines(io.BytesIO(text), "x", cut=True))
    whole = open_lines(io.BytesIO(text), "x")

    assert [len(line) for line in found] == [4, 5_000_000, 5_000_001, 4, 5_000_001]
    assert (found[1], found[3]) == (longest, b"[3]\n")
    for line in (found[2], found[4]):
        with pytest.raises(InvalidInput, match=r"longer than [0-9,]+ bytes, the limit for one document"):
            check_line(line)
    assert [next(whole), next(whole)] == [b"[0]\n", longest]
    with pytest.raises(InvalidInput, match="x, line 3: longer than"):
        next(whole)


@pytest.mark.long
@pytest.mark.guarantee("bounded-memory")
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_open_lines_of_one_huge_line_takes_bounded_memory(kind: str) -> None:
    """Half a megabyte of gzip, or 16 KB of zstd, that holds one line of 500 MB ends in an error that names the line."""
    packer = io.BytesIO()
    opened: Any = (
        gzip.GzipFile(fileobj=packer, mode="wb")
        if kind == "gzip"
        else zstandard.ZstdCompressor().stream_writer(packer, closefd=False)
    )
    with opened as file:
        for _ in range(500):
            file.write(b"x" * 1_000_000)
    packer.seek(0)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"bomb.gz, line 1: longer than 67,174,400 bytes"):
            list(open_lines(packer, "bomb.gz"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 256 << 20
