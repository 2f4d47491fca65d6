"""What every command prints with: data to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Final, TextIO

import click
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from schemaless.terminal.progress import Progress
from schemaless.terminal.shown import JSONTerminal, shown, shown_json
from schemaless.terminal.tables import table_lines

if TYPE_CHECKING:  # it would have --help import SQLAlchemy
    from schemaless.cell import CellKey
    from schemaless.numbers import Interval

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_STOPPED: Final = 3

_PICTURES_PER_S = 4.0

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class ReadOnlyCommand(click.Command):
    """Command that never changes stored data; an interrupted one reports that nothing was changed."""


class _Console(Console):
    """Rich's, without pictures for names such as ``:car:`` and without what terminals obey.

    A reader that has gone is left to ``main``. Lines are broken between words only: one with a path or URL that is
    wider than the terminal is left to the terminal, so that it can be copied.
    """

    def __init__(self, file: TextIO, **options: Any) -> None:
        super().__init__(file=file, highlight=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        texts = [shown(item) if isinstance(item, str) else item for item in objects]
        words = (word for text in texts if isinstance(text, str) for word in text.split())
        if any(cell_len(word) > self.width for word in words):
            options["soft_wrap"] = True
        super().print(*texts, **options)

    def on_broken_pipe(self) -> None:
        raise


def out() -> Console:
    """Return the console for data. Where standard output is no terminal, lines are not wrapped."""
    return _Console(sys.stdout, soft_wrap=not sys.stdout.isatty())


def line_break() -> str:
    """Return what breaks a long sentence in the middle: a terminal breaks it where it ends itself."""
    return " " if sys.stdout.isatty() else "\n"


def err(*, wrap: bool = False) -> Console:
    """Return the console for progress, notes and errors. Long lines are the terminal's business unless ``wrap``."""
    return _Console(sys.stderr, soft_wrap=not wrap)


def error(message: str) -> None:
    """Print one error line."""
    err().print(f"[bold red]schemaless:[/] {escape(shown(redacted(message), one_line=True))}")


def redacted(text: str) -> str:
    """Return ``text`` with the passwords in its URLs hidden: what was typed in the wrong place is shown as well."""
    text = re.sub(r"(://[^\s:/@]*:)\S+@", r"\1***@", text)
    return re.sub(r"([?&][a-z_]*pass[a-z_]*=)[^\s&]+", r"\1***", text)


def note(message: str) -> None:
    """Print one line about what goes on."""
    err().print(escape(shown(message, one_line=True)))


def data_sink() -> IO[bytes] | JSONTerminal:
    """Return what lines of JSON are written to: standard output, byte for byte unless it is a terminal."""
    return JSONTerminal(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer


def print_json(data: Any) -> None:
    """Print ``data`` as one JSON object on standard output."""
    sys.stdout.write(json_text(data) + "\n")


def json_text(data: Any) -> str:
    """Return JSON text for standard output, escaped where that could not carry it (lone surrogates, an old locale).

    A terminal gets no control characters in it, and none that turn the direction: escaped, they are the same JSON.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, default=str)
    if sys.stdout.isatty():
        text = shown_json(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=2, default=str)
    return text


def print_table(title: str | None, columns: list[str], rows: list[list[str]], *, text_columns: int = 1) -> None:
    """Print a table on standard output: the first ``text_columns`` to the left, the others, figures, to the right.

    Fitted to the terminal, or to COLUMNS where that is set; else each row is one line.
    """
    console = out()
    if title is not None:
        console.print(f"[bold]{escape(title)}[/]")
    fitted = console.width if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal() else None
    values = [[shown(value, one_line=True) for value in row] for row in rows]
    header, lines = table_lines(columns, values, text_columns=text_columns, width=fitted)
    for line in header:
        console.print(f"[bold]{escape(line)}[/]", soft_wrap=True)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def bytes_text(count: float) -> str:
    """Return a number of bytes for people: powers of 1,024, three figures."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def size_text(count: int | None, unknown: str = "-") -> str:
    """Return a number of bytes for people, or what stands for one that is not known."""
    return unknown if count is None else bytes_text(count)


def estimate_text(estimate: Interval, text: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Return an estimate for people: its middle, and its interval in brackets unless it is exact."""
    if estimate.exact:
        return text(estimate.mid)
    low, mid, high = map(text, estimate)
    unit = high.partition(" ")[2]
    if unit and low.endswith(f" {unit}") and mid.endswith(f" {unit}"):
        return f"{mid} ({low.removesuffix(f' {unit}')} to {high.removesuffix(f' {unit}')})"
    return f"{mid} ({low} to {high})"


def estimate_json(estimate: Interval, *, digits: int | None = None) -> dict[str, Any]:
    """Return an estimate for ``print_json``: whole numbers, or so many digits behind the point."""
    return {
        "low": round(estimate.low, digits),
        "mid": round(estimate.mid, digits),
        "high": round(estimate.high, digits),
        "exact": estimate.exact,
    }


def facts(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by their names, for ``print_json``: intervals by their ends, times in ISO 8601."""
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(fact: Any) -> Any:
    if hasattr(fact, "exact"):
        return estimate_json(fact)
    if isinstance(fact, datetime):
        return fact.isoformat()
    return list(fact) if isinstance(fact, tuple) else fact


def key_json(key: CellKey) -> dict[str, Any]:
    """Return a cell's key for ``print_json``, its row_key in text."""
    return {**key._asdict(), "row_key": str(key.row_key)}


@contextmanager
def progress(description: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show progress with rate and time left, on standard error.

    One line that is redrawn where standard error is a terminal, else a line every five seconds and none for what ends
    sooner.

    Yields:
        A listener that takes how many units there are, and how many more are done.
    """
    console = err()
    listener = Progress(shown(description, one_line=True), total, unit, None if console.is_terminal else note)
    if console.is_terminal:
        with Live(listener, console=console, refresh_per_second=_PICTURES_PER_S):
            yield listener
    else:
        yield listener
