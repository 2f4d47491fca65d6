"""NDJSON: the lines of a file or stream, plain or gzipped, none of them longer than a document may be."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final

from schemaless.codec.envelope import DEFAULT_LIMITS
from schemaless.errors import InvalidInput

MAX_LINE_BYTES: Final = DEFAULT_LIMITS.decoded_bytes + (64 << 10)
"""No line is longer: it has a document as large as readers take, and what a dump's line has beside it."""

_GZIP: Final = b"\x1f\x8b"
_SKIP_BYTES: Final = 1 << 20


def open_lines(stream: IO[bytes], source: str, *, cut: bool = False) -> Iterator[bytes]:
    """Yield a binary stream's lines, unpacked where it begins like gzip.

    Args:
        stream: the stream.
        source: its name, for errors.
        cut: yield so much of a line that is too long that ``check_line`` refuses it, and go on with the next one.

    Raises:
        InvalidInput: it cannot be read, or not be unpacked to its end; or, unless ``cut``, a line is too long.
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


_TOO_LONG: Final = f"longer than {MAX_LINE_BYTES:,} bytes, which no document may be; one document stands on each line"


def check_line(line: bytes) -> None:
    """Raise where a line is longer than ``open_lines`` gives any.

    Raises:
        InvalidInput: it is.
    """
    if len(line) > MAX_LINE_BYTES:
        raise InvalidInput(_TOO_LONG)
