"""Reads NDJSON lines from a plain stream or one compressed by gzip or zstd, with a limit on line length."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final

import zstandard

from schemaless.codec.envelope import DEFAULT_LIMITS
from schemaless.errors import InvalidInput

MAX_LINE_BYTES: Final = DEFAULT_LIMITS.decoded_bytes + (64 << 10)
"""Maximum line length in bytes: the largest document that readers accept, plus the other fields of a dump's line."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""First bytes of a zstd frame, or of a skippable one, with which parallel compressors begin."""

_ZSTD_INPUT_BYTES: Final = 1 << 10
"""Compressed bytes to decompress at a time; small, because they can expand 30,000 times."""

_SKIP_BYTES: Final = 1 << 20


def open_lines(stream: IO[bytes], source: str, *, cut: bool = False) -> Iterator[bytes]:
    """Yield a binary stream's lines, decompressing gzip and zstd, which are recognised by their first bytes.

    Args:
        stream: the stream.
        source: name of the stream, for errors.
        cut: truncate a line that is too long so that ``check_line`` rejects it, and continue with the next line.

    Raises:
        InvalidInput: the stream cannot be read or decompressed, or a line is too long and ``cut`` is not set.
    """
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[type-var]
    number = 0
    try:
        head = buffered.peek(4)[:4]
        lines: Any = buffered
        if head.startswith(_GZIP):
            lines = gzip.GzipFile(fileobj=buffered)
        elif _ZSTD.match(head):
            lines = io.BufferedReader(_ZstdFrames(buffered))
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                if not cut:
                    raise InvalidInput(f"{source}, line {number}: {_TOO_LONG}")
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = lines.readline(_SKIP_BYTES)
            yield line
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise InvalidInput(f"cannot read {source} after line {number}: {error}") from None


class _ZstdFrames(io.RawIOBase):
    """The contents of zstd frames. zstandard's own reader takes a stream that was cut off for a complete one."""

    def __init__(self, compressed: IO[bytes]) -> None:
        self._compressed = compressed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._input = b""
        self._output = memoryview(b"")
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            self._input = self._input or self._compressed.read(_ZSTD_INPUT_BYTES)
            if not self._input:
                if self._begun:
                    raise EOFError("the compressed data ended inside a zstd frame")
                return 0
            self._begun = True
            self._output = memoryview(self._frame.decompress(self._input))
            self._input = b""
            if self._frame.eof:
                self._input = self._frame.unused_data
                self._frame = zstandard.ZstdDecompressor().decompressobj()
                self._begun = False
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count


_TOO_LONG: Final = f"longer than {MAX_LINE_BYTES:,} bytes, the limit for one document; put one document on each line"


def check_line(line: bytes) -> None:
    """Check the length of a line from ``open_lines(..., cut=True)``.

    Raises:
        InvalidInput: the line was longer than ``MAX_LINE_BYTES``.
    """
    if len(line) > MAX_LINE_BYTES:
        raise InvalidInput(_TOO_LONG)
