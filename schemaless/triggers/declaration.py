"""A trigger: a function that is called for each new cell of a column, and how often it is tried."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from schemaless.cell import Cell
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.interrupts import is_interrupt
from schemaless.keys import check_column_name

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_KIND: Final = "trigger:"

Start = Literal["beginning", "end"]


@dataclass(frozen=True, slots=True)
class Call:
    """What a function is told beside the cell.

    Attributes:
        store: the datastore, open; with the account of ``trigger run``.
        shard: the cell's.
        attempt: 1, and more where it failed before.
    """

    store: Datastore
    shard: int
    attempt: int


Function = Callable[[Cell, Call], Any]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A function and what ``trigger`` says of it; calling it calls the function.

    Attributes:
        column: cells of this column; None for all.
        start: where it begins when it is run for the first time.
        attempts: after so many failures a cell is parked.
        parked_limit: where so many cells of a shard are parked, the shard stands still before the next one.
        timeout_s: how long a call may take before its process is ended; None for ever.
    """

    function: Function
    name: str
    column: str | None
    start: Start = "end"
    attempts: int = 8
    parked_limit: int = 100
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if _NAME.match(self.name) is None:
            raise InvalidInput(f"a trigger's name is 1 to 64 of [A-Za-z0-9_.-], got {self.name!r}; give it by name=")
        if self.column is not None:
            check_column_name(self.column)
        if self.start not in ("beginning", "end"):
            raise InvalidInput(f"trigger {self.name}: start must be 'beginning' or 'end', got {self.start!r}")
        for what, least in (("attempts", 1), ("parked_limit", 0)):
            value = getattr(self, what)
            if type(value) is not int or value < least:
                raise InvalidInput(f"trigger {self.name}: {what} must be a number from {least} up, got {value!r}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidInput(f"trigger {self.name}: timeout_s must be seconds, over 0, got {self.timeout_s!r}")

    def __call__(self, cell: Cell, call: Call) -> Any:
        """Call the function, as a test of it may."""
        return self.function(cell, call)

    @property
    def spec(self) -> dict[str, Any]:
        """What the catalog keeps of it."""
        return {
            "column": self.column,
            "start": self.start,
            "attempts": self.attempts,
            "parked_limit": self.parked_limit,
            "timeout_s": self.timeout_s,
        }


def trigger(
    *,
    column: str | None,
    name: str | None = None,
    start: Start = "end",
    attempts: int = 8,
    parked_limit: int = 100,
    timeout_s: float | None = None,
) -> Callable[[Function], Trigger]:
    """Make a function a trigger: 'schemaless trigger run MODULE:NAME' calls it for each new cell of a column.

    At least once, in the order of each shard. After a crash the last cells come again: the function has to stand that,
    best by writing under a key that follows from the cell's. What it raises has the cell tried again, later and later;
    ``ParkCell`` has it parked at once, ``RetryLater`` waits without counting.

    Args:
        column: cells of this column; None for all.
        name: what it is called in tables and commands; the function's own name unless given.
        start: where it begins when it is first run: at the shard's ``beginning``, or at its ``end``, with new cells.
        attempts: after so many failures the cell is parked, and the next one's turn has come.
        parked_limit: where so many cells of a shard are parked, the shard stands still before the next that fails.
        timeout_s: how long a call may take before its worker process is ended; for ever unless given.

    Raises:
        InvalidInput, InvalidCell: an argument cannot be used.
    """

    def made(function: Function) -> Trigger:
        return Trigger(function, name or function.__name__, column, start, attempts, parked_limit, timeout_s)

    return made


def follower_name(trigger_name: str) -> str:
    """Return what a trigger is called in the tables."""
    return _KIND + trigger_name


def is_trigger(follower: str) -> bool:
    """Whether a follower's name is a trigger's."""
    return follower.startswith(_KIND)


def trigger_name(follower: str) -> str:
    """Return the name of the trigger that is called so in the tables."""
    return follower.removeprefix(_KIND)


def _said(error: Exception) -> str:
    if isinstance(error, ImportError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        # It names the place in the module; the traceback ends in the machinery of imports.
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({last.filename}, line {last.lineno})"


def import_trigger(target: str) -> Trigger:
    """Import the trigger that ``MODULE:NAME`` names; modules are looked for in the current folder first.

    Raises:
        InvalidInput: there is none.
    """
    module_name, _, name = target.partition(":")
    if not (name and all(part.isidentifier() for part in module_name.split("."))):
        raise InvalidInput(
            f"a trigger is named MODULE:NAME, such as billing:bill_rider or jobs.billing:bill_rider; got {target!r}. "
            "MODULE is not a path: run the command in the folder of the module"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except SystemExit as left:
        raise InvalidInput(
            f"{target}: {module_name!r} raised {left!r} while it was imported; it must not end the program: put what "
            "it runs as a script behind 'if __name__ == \"__main__\":'"
        ) from left
    except Exception as error:
        # An interrupt that Python has wrapped is not the module's fault.
        if is_interrupt(error):
            raise
        raise InvalidInput(f"{target}: cannot import {module_name!r} from {here}: {_said(error)}") from error
    imported = getattr(module, name, None)
    if not isinstance(imported, Trigger):
        there = [variable for variable, value in vars(module).items() if isinstance(value, Trigger)]
        raise InvalidInput(
            f"{module_name!r} has no trigger {name!r}; its triggers: {', '.join(there) or 'none'}. "
            "A function becomes one by @schemaless.trigger(column=...)"
        )
    return imported
