"""Output of commands: data on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from textwrap import indent
from typing import IO, Any, Final, TextIO

import click
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from schemaless.base.numbers import Interval, bytes_text, use_binary_units
from schemaless.cell import CellKey
from schemaless.ui.terminal.progress import Progress
from schemaless.ui.terminal.shown import JSONTerminal, shown, shown_json
from schemaless.ui.terminal.tables import table_lines

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_STOPPED: Final = 3

_REFRESHES_PER_S = 4.0

_quiet = False
_as_json = False


def set_json(context: click.Context, option: click.Parameter, given: bool) -> None:
    """Set whether the command prints JSON; a callback of Click."""
    global _as_json
    _as_json = given


class _Console(Console):
    """Rich's console without control characters, without emoji codes such as ``:car:``, and with markup on request.

    ``main`` handles a closed pipe. Lines are broken only between words: a line with a path or URL that is wider than
    the terminal is left to the terminal to wrap, so that it can be copied.
    """

    def __init__(self, file: TextIO, **options: Any) -> None:
        super().__init__(file=file, highlight=False, emoji=False, markup=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        texts = [shown(item) if isinstance(item, str) else item for item in objects]
        words = (word for text in texts if isinstance(text, str) for word in text.split())
        if any(cell_len(word) > self.width for word in words):
            options["soft_wrap"] = True
        super().print(*texts, **options)

    def on_broken_pipe(self) -> None:
        raise


def as_json() -> bool:
    """Return whether the command was given ``--json``."""
    return _as_json


def out() -> Console:
    """Return the console for text, which prints nothing with ``--json``; lines are wrapped only on a terminal."""
    return _Console(sys.stdout, soft_wrap=not sys.stdout.isatty(), quiet=_as_json)


def line_break() -> str:
    """Return a line break for a long sentence: a space on a terminal, which wraps lines, or else a newline."""
    return " " if sys.stdout.isatty() else "\n"


def begin_output(*, quiet: bool, binary: bool = False) -> None:
    """Begin the output of a command.

    Args:
        quiet: Omit progress and notes, but no errors.
        binary: Show sizes in powers of 1,024.
    """
    global _quiet, _as_json
    _quiet, _as_json = quiet, False
    use_binary_units(binary)


def err(*, wrap: bool = False) -> Console:
    """Return the console for progress and notes; long lines are left to the terminal unless ``wrap``."""
    # Not a terminal if quiet: a live display would swallow the lines of standard output, too.
    return _Console(sys.stderr, soft_wrap=not wrap, quiet=_quiet, force_terminal=False if _quiet else None)


def error(message: str) -> None:
    """Print one error line."""
    text = escape(shown(redacted(message), one_line=True))
    _Console(sys.stderr, soft_wrap=True).print(f"[bold red]schemaless:[/] {text}", markup=True)


def redacted(text: str) -> str:
    """Hide the passwords in URLs: an error message may quote a URL that was typed in the wrong place."""
    text = re.sub(r"(://[^\s:/@]*:)\S+@", r"\1***@", text)
    return re.sub(r"([?&][a-z_]*pass[a-z_]*=)[^\s&]+", r"\1***", text)


def note(message: str) -> None:
    """Print one line on standard error, unless the command is quiet."""
    err().print(shown(message, one_line=True))


def hint(message: str) -> None:
    """Print a note about the text of a command, which ``--json`` replaces by the result."""
    if not _as_json:
        note(message)


def data_sink() -> IO[bytes] | JSONTerminal:
    """Return standard output for lines of JSON; on a terminal, control characters are escaped."""
    return JSONTerminal(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer


def print_result(data: Any) -> None:
    """Print the result of a command as JSON on standard output with ``--json``; without it, do nothing."""
    if _as_json:
        print_json(data)


def print_json(data: Any) -> None:
    """Print ``data`` as one JSON value on standard output."""
    sys.stdout.write(json_text(data) + "\n")


def print_json_array(items: Iterable[Any]) -> None:
    """Print a JSON array on standard output, without holding more than one item in memory."""
    empty = True
    for item in items:
        sys.stdout.write(("[\n" if empty else ",\n") + indent(json_text(item), "  "))
        empty = False
    sys.stdout.write("[]\n" if empty else "\n]\n")


def json_text(data: Any) -> str:
    """Return JSON text for standard output, as ASCII if the encoding cannot represent it (an old locale, say).

    On a terminal, control characters and those that change the writing direction are escaped, which does not change the
    meaning. NaN and infinities, which are not JSON, become the strings "NaN", "Infinity" and "-Infinity".
    """
    try:
        text = json.dumps(data, indent=2, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        data = json.loads(json.dumps(data, default=str), parse_constant=str)
        text = json.dumps(data, indent=2, ensure_ascii=False)
    if sys.stdout.isatty():
        text = shown_json(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=2, default=str)
    return text


def print_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, text_columns: int = 1
) -> None:
    """Print a table on standard output, with the first ``text_columns`` left-aligned and the others right-aligned.

    It is fitted to the terminal, or to COLUMNS if set; otherwise each row is one line. In the columns on the right,
    integers have separators; None is a hyphen, and times are shown to the minute.
    """
    console = out()
    if title is not None:
        console.print(title, style="bold")
    fitted = console.width if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal() else None
    values = [[_text_of(value, place < text_columns) for place, value in enumerate(row)] for row in rows]
    header, lines = table_lines(columns, values, text_columns=text_columns, width=fitted)
    for line in header:
        console.print(line, style="bold", soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)


def _text_of(value: Any, is_text: bool) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, int) and not is_text:
        return f"{value:,}"
    return "-" if value is None else shown(str(value), one_line=True)


def print_rows(
    title: str | None,
    rows: Sequence[Mapping[str, Any]],
    noun: str | None = None,
    *,
    text_columns: int = 1,
    most: int = 64,
) -> None:
    """Print a table of rows by heading, if there are any; of more than ``most`` nouns, say that --json lists them."""
    if noun is not None and len(rows) > most:
        hint(f"{len(rows)} {noun} are too many to print; --json lists all")
    elif rows:
        print_table(title, list(rows[0]), [list(row.values()) for row in rows], text_columns=text_columns)


MOST_SHOWN_DAYS: Final = 36_525
"""Days beyond which no number is shown, only "over 100 years": so many are an artefact of a tiny growth."""

_A_CENTURY: Final = "over 100 years"


def day_count_text(days: float) -> str:
    """Format a number of days, rounded down, without a unit: ``212``, ``over 100 years``, or ``never`` if infinite."""
    if math.isinf(days):
        return "never"
    return _A_CENTURY if days > MOST_SHOWN_DAYS else f"{math.floor(days):,}"


def day_counts_text(days: Interval) -> str:
    """Format an estimated number of days, without a unit: ``212 (180 to 250)``, ``212 (180 or more)``, ``never``."""
    low, mid, high = map(day_count_text, days)
    if low in (high, _A_CENTURY):
        return low
    return f"{mid} ({low} to {high})" if high[0].isdigit() else f"{mid} ({low} or more)"


def days_long_text(days: Interval) -> str:
    """Format an estimated number of days with its unit: ``212 days (180 to 250)``, ``over 100 years``."""
    mid, bracket, ends = day_counts_text(days).partition(" (")
    return f"{mid}{' days' if mid[0].isdigit() else ''}{bracket}{ends}"


def speed_text(mb_per_s: float) -> str:
    """Format a rate in MB (1,000,000 bytes) a second, the unit of thresholds."""
    return f"{mb_per_s:.1f} MB/s" if mb_per_s >= 0.1 else f"{mb_per_s * 1e3:.0f} kB/s"


def size_text(count: int | None, unknown: str = "-") -> str:
    """Format a number of bytes, or return ``unknown`` for None."""
    return unknown if count is None else bytes_text(count)


def estimate_text(estimate: Interval, text: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Format an estimate: the middle, followed by the interval in brackets unless it is exact."""
    if estimate.exact:
        return text(estimate.mid)
    low, mid, high = map(text, estimate)
    unit = high.partition(" ")[2]
    if unit and low.endswith(f" {unit}") and mid.endswith(f" {unit}"):
        return f"{mid} ({low.removesuffix(f' {unit}')} to {high.removesuffix(f' {unit}')})"
    return f"{mid} ({low} to {high})"


def change_text(
    decrease: Interval | float, text: Callable[[Interval], str], less: str = "less", more: str = "more"
) -> str:
    """Format by how much something gets less, ``6.29 MB less``; a negative decrease becomes ``6.29 MB more``."""
    low, mid, high = change = Interval.of(decrease)
    if mid >= 0:
        return f"{text(change)} {less}".rstrip()
    return f"{text(Interval(-high, -mid, -low))} {more}"


def bytes_change_text(decrease: float, less: str = "less", more: str = "more") -> str:
    """Format by how many bytes something gets less; see ``change_text``."""
    return change_text(decrease, lambda size: bytes_text(size.mid), less, more)


def estimate_json(estimate: Interval, *, digits: int | None = None) -> dict[str, Any]:
    """Return an estimate for ``print_result``, rounded to ``digits`` decimals, or to whole numbers."""
    return {
        "low": round(estimate.low, digits),
        "mid": round(estimate.mid, digits),
        "high": round(estimate.high, digits),
        "exact": estimate.exact,
    }


def facts(value: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Return the named attributes of a value for ``print_result``, some under other keys, with times in ISO 8601."""
    return {key: _plain(getattr(value, name)) for key, name in (dict(zip(names, names, strict=True)) | renamed).items()}


def _plain(fact: Any) -> Any:
    if hasattr(fact, "exact"):
        return estimate_json(fact)
    if isinstance(fact, datetime):
        return fact.isoformat()
    return list(fact) if isinstance(fact, tuple) else fact


def key_json(key: CellKey) -> dict[str, Any]:
    """Return a cell's key for ``print_result``, with the row_key as text."""
    return {**key._asdict(), "row_key": str(key.row_key)}


@contextmanager
def progress(description: str, total: int | None, unit: str) -> Iterator[Progress]:
    """Show progress with rate and remaining time on standard error, unless the command is quiet.

    On a terminal, one line is redrawn; otherwise a line is printed every five seconds.

    Yields:
        A listener for ``Total`` and ``Advanced`` events.
    """
    console = err()
    listener = Progress(shown(description, one_line=True), total, unit, None if console.is_terminal else note)
    if console.is_terminal:
        with Live(listener, console=console, refresh_per_second=_REFRESHES_PER_S):
            yield listener
    else:
        yield listener
