"""Common frame, style and tables of report pages.

Pages have no scripts and load no other files. They work in light and dark mode, at any width and on paper. All text
goes through ``html.escape``, and the figures of charts are also available as tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from html import escape
from typing import Final

_DATE: Final = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_NAME: Final = re.compile(r"(?<![\w./:-])(?=[\w./:-]{3,24}(?![\w./:-]))[\w./:]+(?:-\d[\w./:]*)+")
"""Dates, and names such as ``cluster-1``, unless they are long."""

_WHOLE: Final = re.compile(r"\([^)]*\)|[0-9][0-9.,]* [kMGTP]i?B\b")

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --paper: #ffffff; --line: #d5dae0; --card: #f5f7f9;
  --accent: #1f539b; --green: #0f7f6d; --orange: #b85c00; --red: #b3323c; --grey: #7d8795; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e8ebef; --soft: #a2abb8; --paper: #14171b;
  --line: #363d47; --card: #1d2127; --accent: #63a4ee; --green: #86e5d2; --orange: #f0943a; --red: #f0747c;
  --grey: #8a94a2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .2rem; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; }
.soft { color: var(--soft); font-size: .875rem; overflow-wrap: anywhere; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; margin: 1.2rem 0; }
.answer { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem .9rem; }
.answer b { display: block; font-size: 1.3rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; min-width: 5rem; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; }
.day { white-space: nowrap; }
.wraps td { white-space: normal; }
tr.front td { color: var(--accent); font-weight: 600; }
dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: .6rem 0; } summary { cursor: pointer; }
@media print { :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 11pt; } section { break-inside: avoid; }
  section.long { break-inside: auto; } .wide { overflow: visible; } details > * { display: block; } }
"""


CARDS: Final = """
@media screen and (max-width: 600px) {
  .cards, .cards tbody, .cards tr, .cards td { display: block; }
  .cards thead { display: none; }
  .cards tbody { display: grid; gap: .6rem; }
  .cards tr { background: var(--card); border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .7rem;
    display: flex; flex-direction: column; }
  .cards td, .cards td:first-child { position: static; background: none; border: 0; padding: .1rem 0; text-align: left;
    white-space: normal; overflow-wrap: anywhere; }
  .cards td:empty { display: none; }
  .cards td::before { content: attr(data-label) ": "; color: var(--soft); font-weight: 400; }
  .cards td:first-child::before { content: none; }
  .cards td:first-child { font-weight: 600; }
}
"""
"""CSS that shows the rows of tables of class ``cards`` as cards on phones; their cells have ``data-label``."""


def html_page(title: str, below: str, sections: Iterable[str], *, style: str = "") -> str:
    """Return a complete HTML page.

    Args:
        title: Heading and title of the page.
        below: Line of text below the heading.
        sections: HTML of each section; empty ones are omitted.
        style: Additional CSS, after ``STYLE``.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">{escaped(below)}</p>\n'
        + "\n".join(filter(None, sections))
        + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, content: str, *, long: bool = False) -> str:
    """Return a section; a ``long`` one may be split across printed pages."""
    return f"<section{' class=long' if long else ''}><h2>{escape(title)}</h2>{content}</section>"


def answers(boxes: Iterable[tuple[str, str]]) -> str:
    """Return a row of boxes, each with a short text in large type and a longer one below it."""
    inner = "".join(f'<div class="answer"><b>{escape(big)}</b>{escape(small)}</div>' for big, small in boxes)
    return f'<div class="answers">{inner}</div>'


def escaped(text: str) -> str:
    """Escape text, and keep dates from wrapping."""
    return _DATE.sub(r'<span class="day">\g<0></span>', escape(text))


def unbroken(text: str) -> str:
    """Escape text of a table, and keep dates and short names from wrapping."""
    return _NAME.sub(r'<span class="day">\g<0></span>', escape(text))


def _wrapping(text: str) -> str:
    """Escape a figure for a cell that wraps, and keep intervals and sizes from wrapping inside."""
    return _WHOLE.sub(r'<span class="day">\g<0></span>', unbroken(text))


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    front: Container[int] = (),
    text: Collection[int] = (),
    label: str | None = None,
    cards: bool = False,
    wraps: bool = False,
) -> str:
    """Return a table that scrolls horizontally if it is too wide.

    Args:
        header: Names of the columns.
        rows: Texts of the cells.
        front: Numbers of rows to highlight.
        text: Numbers of columns whose text may wrap; the others contain figures or short names.
        label: Name of the table for readers who cannot see it, if no heading names it.
        cards: Whether rows become cards on phones; the page includes ``CARDS``.
        wraps: Also wrap figures, in front of their intervals, for tables with many columns.
    """
    figure = _wrapping if wraps else escape

    def cell(tag: str, place: int, value: str, attribute: str = "") -> str:
        kinds = [kind for kind, holds in (("text", place in text), ("long", text and len(value) > 40)) if holds]
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<{tag}{attribute}{kind}>{(unbroken if place in text else figure)(value)}</{tag}>"

    head = "".join(cell("th", place, name, ' scope="col"') for place, name in enumerate(header))
    labels = [f' data-label="{escape(name)}"' if cards else "" for name in header]
    body = "".join(
        f"<tr{' class=front' if number in front else ''}>"
        f"{''.join(cell('td', place, value, labels[place]) for place, value in enumerate(row))}</tr>"
        for number, row in enumerate(rows)
    )
    named = "" if label is None else f' role="region" aria-label="{escape(label)}"'
    inner = f"<table{' class=cards' if cards else ''}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    kind = "wide wraps" if wraps else "wide"
    return f'<div class="{kind}" tabindex="0"{named}>{inner}</div>'


def table_of(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a table of rows by heading."""
    rows = list(rows)
    return table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a definition list."""
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in pairs) + "</dl>"
