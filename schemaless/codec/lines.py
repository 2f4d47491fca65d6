"""Reads NDJSON lines from a plain or gzipped stream, with a limit on line length."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final

from schemaless.codec.envelope import DEFAULT_LIMITS
from schemaless.errors import InvalidInput

MAX_LINE_BYTES: Final = DEFAULT_LIMITS.decoded_bytes + (64 << 10)
"""Maximum line length in bytes: the largest document that readers accept, plus the other fields of a dump's line."""

_GZIP: Final = b"\x1f\x8b"
_SKIP_BYTES: Final = 1 << 20


def open_lines(stream: IO[bytes], source: str, *, cut: bool = False) -> Iterator[bytes]:
    """Yield a binary stream's lines, decompressing gzip.

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
        lines: Any = gzip.GzipFile(fileobj=buffered) if buffered.peek(2)[:2] == _GZIP else buffered
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                if not cut:
                    raise InvalidInput(f"{source}, line {number}: {_TOO_LONG}")
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = lines.readline(_SKIP_BYTES)
            yield line
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"cannot read {source} after line {number}: {error}") from None


_TOO_LONG: Final = f"longer than {MAX_LINE_BYTES:,} bytes, the limit for one document; put one document on each line"


def check_line(line: bytes) -> None:
    """Check the length of a line from ``open_lines(..., cut=True)``.

    Raises:
        InvalidInput: the line was longer than ``MAX_LINE_BYTES``.
    """
    if len(line) > MAX_LINE_BYTES:
        raise InvalidInput(_TOO_LONG)
