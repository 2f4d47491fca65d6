"""Layout of tables for a terminal's width, breaking lines only between words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len

_GAP: Final = "  "
_TRIED_ROWS: Final = 50
# Keeps a number with its unit, and "to" with the preceding word.
_BREAK: Final = re.compile(r"(?<!\d) (?!to )|(?<=\d) (?!to )(?=[^A-Za-z%])")
_ASIDE: Final = re.compile(r" (?=\()")


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int, width: int | None
) -> tuple[list[str], list[str]]:
    """Return the lines of a table's header and rows.

    If the table is too wide, values are wrapped between words. If it is still too wide, there is no header, and each
    row becomes a block with one name and value per line.

    Args:
        columns: column names.
        rows: rows, each with one value per column.
        text_columns: number of left-aligned text columns; the others are right-aligned figures.
        width: width of the terminal, or None for no limit.
    """
    cells = [list(columns), *(list(row) for row in rows)]
    widths = [max(cell_len(row[number]) for row in cells) for number in range(len(columns))]
    if width is not None:
        least = [max(cell_len(atom) for row in cells for atom in _atoms(row[number])) for number in range(len(columns))]
        room = width - len(_GAP) * (len(columns) - 1)
        if sum(least) > room:
            return [], _blocks(columns, rows, width)
        _shrink(widths, least, room, cells[:_TRIED_ROWS])
    set_rows = [list(_set_row(row, widths, text_columns, bottom=number == 0)) for number, row in enumerate(cells)]
    return set_rows[0], [line for lines in set_rows[1:] for line in lines]


def wrapped(text: str, width: int) -> list[str]:
    """Wrap text to ``width`` between words; text in brackets starts on a new line."""
    if cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    for part in _ASIDE.split(text):
        line = ""
        for atom in _atoms(part):
            longer = f"{line} {atom}" if line else atom
            if line and cell_len(longer) > width:
                lines.append(line)
                longer = atom
            line = longer
        lines.append(line)
    return lines


def _shrink(widths: list[int], least: list[int], room: int, cells: Sequence[Sequence[str]]) -> None:
    """Narrow columns until they fit into ``room``, at each step the one whose narrowing adds the fewest lines."""
    heights = [[len(wrapped(value, width)) for value, width in zip(row, widths, strict=True)] for row in cells]

    def lines_without_one(number: int) -> list[int]:
        return [len(wrapped(row[number], widths[number] - 1)) for row in cells]

    tried = {number: lines_without_one(number) for number in range(len(widths)) if widths[number] > least[number]}
    while sum(widths) > room:
        costs = {
            number: sum(
                max([*row[:number], lines, *row[number + 1 :]]) for row, lines in zip(heights, narrower, strict=True)
            )
            for number, narrower in tried.items()
        }
        number = min(costs, key=lambda candidate: (costs[candidate], least[candidate] - widths[candidate]))
        widths[number] -= 1
        for row, lines in zip(heights, tried.pop(number), strict=True):
            row[number] = lines
        if widths[number] > least[number]:
            tried[number] = lines_without_one(number)


def _atoms(text: str) -> list[str]:
    return _BREAK.split(text)


def _set_row(row: Sequence[str], widths: Sequence[int], text_columns: int, *, bottom: bool) -> Iterator[str]:
    """Yield the lines of a row; with ``bottom``, values with fewer lines are aligned to the last line."""
    values = [wrapped(value, width) for value, width in zip(row, widths, strict=True)]
    height = max(map(len, values))
    for number in range(height):
        parts = []
        for column, (lines, width) in enumerate(zip(values, widths, strict=True)):
            at = number - (height - len(lines) if bottom else 0)
            text = lines[at] if 0 <= at < len(lines) else ""
            space = " " * (width - cell_len(text))
            parts.append(text + space if column < text_columns else space + text)
        yield _GAP.join(parts).rstrip()


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a block of lines per row: the first non-empty value, and the others below it."""
    names = max(map(cell_len, columns))
    lines: list[str] = []
    for row in rows:
        filled = [(name, value) for name, value in zip(columns, row, strict=True) if value]
        for number, (name, value) in enumerate(filled):
            if number == 0:
                lines += wrapped(value if value.startswith(name) else f"{name} {value}", width)
                continue
            label = f"{_GAP}{name}{' ' * (names - cell_len(name))}{_GAP}"
            for line in wrapped(value, max(1, width - cell_len(label))):
                lines.append(f"{label}{line}".rstrip())
                label = " " * cell_len(label)
    return lines
