"""What every command prints with: data to standard output, progress and errors to standard error."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # it would have --help import SQLAlchemy
    from schemaless.store.sampling import Estimate

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_STOPPED: Final = 3

_PLAIN_LINE_EVERY_S = 5.0

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


class _Console(Console):
    """Rich's, without pictures for names such as ``:car:``; a reader that has gone is left to ``main``."""

    def __init__(self, file: TextIO, **options: Any) -> None:
        super().__init__(file=file, highlight=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        raise


def out() -> Console:
    """Return the console for data. Where standard output is no terminal, lines are not wrapped."""
    return _Console(sys.stdout, soft_wrap=not sys.stdout.isatty())


def err(*, wrap: bool = False) -> Console:
    """Return the console for progress, notes and errors. Long lines are the terminal's business unless ``wrap``."""
    return _Console(sys.stderr, soft_wrap=not wrap)


def error(message: str) -> None:
    """Print one error line."""
    err().print(f"[bold red]schemaless:[/] {escape(redacted(message))}")


def redacted(text: str) -> str:
    """Return ``text`` with the passwords in its URLs hidden: what was typed in the wrong place is shown as well."""
    text = re.sub(r"(://[^\s:/@]*:)\S+@", r"\1***@", text)
    return re.sub(r"([?&][a-z_]*pass[a-z_]*=)[^\s&]+", r"\1***", text)


def note(message: str) -> None:
    """Print one line about what goes on."""
    err().print(escape(message))


def print_json(data: Any) -> None:
    """Print ``data`` as one JSON object on standard output."""
    sys.stdout.write(json_text(data) + "\n")


def json_text(data: Any) -> str:
    """Return JSON text for standard output, escaped where that could not carry it (lone surrogates, an old locale)."""
    text = json.dumps(data, indent=2, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=2, default=str)
    return text


def print_table(title: str | None, columns: list[str], rows: list[list[str]], *, text_columns: int = 1) -> None:
    """Print a table on standard output: the first ``text_columns`` to the left, the others, figures, to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position < text_columns else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(value) for value in row))
    _Console(sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)


def bytes_text(count: float) -> str:
    """Return a number of bytes for people: powers of 1,024, three figures."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def estimate_text(estimate: Estimate, text: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Return an estimate for people: its middle, and its interval in brackets unless it is exact."""
    if estimate.exact:
        return text(estimate.mid)
    low, mid, high = (text(value) for value in (estimate.low, estimate.mid, estimate.high))
    unit = high.partition(" ")[2]
    if unit and low.endswith(f" {unit}") and mid.endswith(f" {unit}"):
        return f"{mid} ({low.removesuffix(f' {unit}')} to {high.removesuffix(f' {unit}')})"
    return f"{mid} ({low} to {high})"


def estimate_json(estimate: Estimate, *, digits: int | None = None) -> dict[str, Any]:
    """Return an estimate for ``print_json``: whole numbers, or so many digits behind the point."""
    return {
        "low": round(estimate.low, digits),
        "mid": round(estimate.mid, digits),
        "high": round(estimate.high, digits),
        "exact": estimate.exact,
    }


class _Rate(ProgressColumn):
    """Units a second, since the start."""

    def render(self, task: Task) -> Text:
        if not task.elapsed or not task.completed:
            return Text("")
        return Text(f"{task.completed / task.elapsed:,.0f} {task.fields['unit']}/s")


@contextmanager
def progress(description: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """Show progress with rate and time left, on standard error.

    A bar where standard error is a terminal, else a line every five seconds and none for what ends sooner.

    Yields:
        A function that takes how many more units are done.
    """
    console = err()
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        with Progress(*columns, console=console, transient=False) as bar:
            task = bar.add_task(description, total=total, unit=unit)
            yield lambda more: bar.advance(task, more)
        return

    started = last = time.monotonic()
    done = 0

    def advance(more: int) -> None:
        nonlocal done, last
        done += more
        now = time.monotonic()
        if now - last < _PLAIN_LINE_EVERY_S:
            return
        last = now
        rate = done / (now - started)
        line = f"{description}: {done:,} {unit}, {rate:,.0f} {unit}/s"
        if total and rate:
            line += f", {done / total:.0%}, {max(0, total - done) / rate:,.0f} s left"
        note(line)

    yield advance
