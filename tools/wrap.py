"""Wraps the paragraphs of Markdown files that have a line of more than 120 characters; the others stay as they are.

    python tools/wrap.py docs/operations.md

Code, tables, headings and links of an image stay in one line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 120
OTHER = ("|", "#", "<", "```")
"""Beginnings of lines that are not part of a paragraph."""
MARKER = re.compile(r"(?:[-*+>]|\d+\.|#+)$")
"""Matches a word that would begin a list, a quotation or a heading at the start of a line."""


def too_long(text: str) -> list[str]:
    """Return the lines of a page that are too long and could be wrapped."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line for line in prose.splitlines() if len(line) > WIDTH and line not in wrapped(line).splitlines()]


def filled(words: list[str], first: str, rest: str) -> Iterator[str]:
    """Yield the lines of a paragraph; ``first`` and ``rest`` are the indents of the first and the other lines."""
    line: list[str] = []
    indent = first
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        together = f"{word} {following}" if MARKER.match(following) else word
        if line and len(indent) + len(" ".join([*line, together])) > WIDTH and not MARKER.match(word):
            yield indent + " ".join(line)
            line, indent = [], rest
        line.append(word)
    yield indent + " ".join(line)


def wrapped(text: str) -> str:
    """Return a page, wrapped."""
    out: list[str] = []
    lines = text.split("\n")
    code = False
    while lines:
        line = lines.pop(0)
        code ^= line.lstrip().startswith("```")
        if code or not line.strip() or line.lstrip().startswith(OTHER) or line.startswith("    "):
            out.append(line)
            continue
        paragraph = [line]
        while lines and lines[0].strip() and not re.match(r" *(?:[-*] |\d+\. )", lines[0]):
            if lines[0].lstrip().startswith(OTHER):
                break
            paragraph.append(lines.pop(0))
        if max(map(len, paragraph)) > WIDTH:
            first = re.match(r" *(?:(?:[-*]|\d+\.) +)?", line)
            assert first is not None
            rest = " " * len(first[0])
            words = re.findall(
                r"(?:`[^`]*`|[^\s`]|`)+", " ".join(part.strip() for part in paragraph)[len(first[0].lstrip()) :]
            )
            paragraph = [*filled(words, first[0], rest)]
        out += paragraph
    return "\n".join(out)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(wrapped(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
