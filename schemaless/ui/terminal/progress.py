"""The progress line: its figures, and its layout for terminals of any width."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from schemaless.base.events import Advanced, Event, Total
from schemaless.base.numbers import size_units

_LONGEST_BAR: Final = 40
_SHORTEST_BAR: Final = 8
_PLAIN_LINE_EVERY_S: Final = 5.0


_COUNTS: Final = ((1e9, " G"), (1e6, " M"), (1e3, " k"))
_SLOW: Final = ((1, "s"), (60, "min"), (3_600, "h"))


def amount_text(done: float, total: float | None, unit: str) -> str:
    """Format done and total in the same unit: ``12.3 of 94.2 MB``, ``1.2 of 3.4 M cells``."""
    most = max(done, total or 0)
    if unit == "bytes":
        size, scale = next((step for step in reversed(size_units()) if most >= step[0]), size_units()[0])
        named = f" {scale}"
    else:
        size, scale = next((step for step in _COUNTS if most >= step[0] and most >= 10_000), (1, ""))
        named = f"{scale} {unit.removesuffix('s') if (total or done) == 1 else unit}"
    # Unscaled units count only when they are complete.
    amounts = [amount for amount in (done, total) if amount is not None]
    return " of ".join(f"{amount / size:,.1f}" if size > 1 else f"{math.floor(amount):,}" for amount in amounts) + named


def rate_text(per_s: float, unit: str) -> str:
    """Format a rate with a suitable unit: ``4.5 MB/s``, ``12.3 k cells/s``, ``2.5 shards/min``."""
    if unit != "bytes" and 0 < per_s < 10:
        times, per = next(((times, per) for times, per in _SLOW if per_s * times >= 1), _SLOW[-1])
        return f"{per_s * times:.1f} {unit}/{per}"
    return f"{amount_text(per_s, None, unit)}/s"


_WAITED_FOR: Final = {
    "flag": "the flag file",
    "unreachable": "unreachable servers",
    "unproven": "proof that a replica replicates",
    "disk": "disk space",
    "hook": "the throttle hook",
    "lag": "lagging replicas",
    "threads": "running threads",
    "history": "the history list",
}


def waited_text(waited_s: Mapping[str, float]) -> str:
    """Format how long a job has waited, by kind of reason; the empty string if it has not waited."""
    return ", ".join(
        f"{duration(seconds)} for {_WAITED_FOR.get(kind, kind)}" for kind, seconds in sorted(waited_s.items())
    )


def duration(seconds: float) -> str:
    """Format a duration in its largest unit, such as ``1.5 h``; an age by a clock that is behind counts as 0."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


class ProgressLine:
    """A line with a description, a bar and facts.

    On a narrow terminal, the bar is omitted first, then the description is truncated to a third of the line, then facts
    are dropped, starting with the last.
    """

    def __init__(self, description: str, share: float | None, facts: Sequence[str], *, style: str = "") -> None:
        self._description = description
        self._share = share
        self._facts = facts
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Some terminals start a new line when the last column is written.
        width = options.max_width - 1
        described = cell_len(self._description)
        least = min(described, width // 3)
        facts = list(self._facts)
        while len(facts) > 1 and least + 1 + cell_len(", ".join(facts)) > width:
            facts.pop()
        text = ", ".join(facts)
        parts: list[Text | ProgressBar] = [Text(self._description, no_wrap=True, overflow="ellipsis")]
        widths = [max(least, min(described, width - 1 - cell_len(text)))]
        room = width - widths[0] - cell_len(text) - 2
        if room >= _SHORTEST_BAR:
            widths.append(min(_LONGEST_BAR, room))
            total = None if self._share is None else 1.0
            parts.append(ProgressBar(total=total, completed=self._share or 0.0, width=widths[-1]))
        parts.append(Text(text, style=self._style, no_wrap=True, overflow="ellipsis"))
        widths.append(max(1, min(cell_len(text), width - sum(widths) - len(widths))))
        line = Table.grid(padding=(0, 1))
        for column_width in widths:
            line.add_column(width=column_width, no_wrap=True)
        line.add_row(*parts)
        yield line


class Progress:
    """Listener that formats progress as a line of figures, with a bar on terminals.

    Args:
        description: start of the line.
        total: number of units, or None until a ``Total`` event.
        unit: plural noun; "bytes" are scaled.
        say: called with a line every five seconds; None if this object is drawn on a terminal.
    """

    def __init__(self, description: str, total: int | None, unit: str, say: Callable[[str], None] | None) -> None:
        self._description = description
        self._total = total
        self._unit = unit
        self._say = say
        self._done = 0.0
        self._began_s = self._said_s = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Handle a ``Total`` or ``Advanced`` event."""
        match event:
            case Total(units):
                self._total = units
            case Advanced(units):
                self._done += units
                now_s = time.monotonic()
                if self._say is not None and now_s - self._said_s >= _PLAIN_LINE_EVERY_S:
                    self._said_s = now_s
                    self._say(self._line())

    def __rich__(self) -> ProgressLine:
        return ProgressLine(self._description, self._share(), self._figures())

    def _share(self) -> float | None:
        return min(1.0, self._done / self._total) if self._total else None

    def _line(self) -> str:
        amount, *rest = self._figures()
        share = self._share()
        shares = [] if share is None else [f"{share:.0%}"]
        return f"{self._description}: {', '.join([amount, *shares, *rest])}"

    def _figures(self) -> list[str]:
        done, total, took_s = self._done, self._total, time.monotonic() - self._began_s
        figures = [amount_text(min(done, total) if total else done, total, self._unit)]
        if done and took_s:
            figures.append(rate_text(done / took_s, self._unit))
            if total is not None:
                left_s = max(0.0, total - done) * took_s / done
                figures.append(f"{duration(left_s)} left" if left_s else f"in {duration(took_s)}")
        return figures
