"""Escaping of untrusted text, such as file names, URLs and documents, for terminals and spreadsheets.

Control characters can move a terminal's cursor, rename its window or hide text. Those of C0 and C1, characters that
change the writing direction, and line separators are escaped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final

_LINES: Final = (0x09, 0x0A)
_DIRECTIONS: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SEPARATORS: Final = (0x2028, 0x2029)
_WIDE: Final = (*_DIRECTIONS, *_SEPARATORS, *range(0xD800, 0xE000))
_SPELLED: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}" for code in _WIDE
}
_SPELLED_BUT_LINES: Final = {code: text for code, text in _SPELLED.items() if code not in _LINES}
_IN_JSON: Final = {code: f"\\u{code:04x}" for code in _SPELLED if code >= 0x7F}
_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def shown(text: str, *, one_line: bool = False) -> str:
    r"""Escape control characters; newlines and tabs are kept unless ``one_line``.

    >>> shown("a\x1b[2J\u202eb\n")
    'a\\x1b[2J\\u202eb\n'
    """
    return text.translate(_SPELLED if one_line else _SPELLED_BUT_LINES)


def shown_json(text: str) -> str:
    """Escape control characters in JSON text without changing its meaning; JSON already escapes C0."""
    return text.translate(_IN_JSON)


class JSONTerminal:
    """Binary file that writes lines of JSON to a terminal with control characters escaped."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink

    def write(self, lines: bytes) -> None:
        """Write complete lines."""
        self._sink.write(shown_json(lines.decode()).encode())

    def flush(self) -> None:
        """Flush the underlying file."""
        self._sink.flush()


class CSVText:
    """CSV writer for spreadsheets that escapes text which would be taken for a formula."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._writer = csv.writer(self._text, lineterminator="\r\n")

    def writerow(self, fields: Iterable[Any]) -> None:
        """Append a row."""
        self._writer.writerow([_harmless(field) if isinstance(field, str) else field for field in fields])

    def getvalue(self) -> str:
        """Return the CSV text."""
        return self._text.getvalue()


def csv_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows of JSON values as CSV, with a column for each figure; lists are left out, unknown values are empty.

    The name of a nested figure begins with that of what it is in: ``{"size": {"low": 1}}`` is in the column size_low.
    """
    flat = [dict(_figures(row, "")) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    writer = CSVText()
    writer.writerow(columns)
    for row in flat:
        writer.writerow(row.get(name) for name in columns)
    return writer.getvalue()


def _figures(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _figures(value, f"{prefix}{name}_")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", value


def _harmless(field: str) -> str:
    text = shown(field, one_line=True)
    if not text.lstrip().startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
