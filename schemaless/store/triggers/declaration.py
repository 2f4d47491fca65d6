"""Declaration of triggers: functions that are called for each new cell of a column."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from schemaless.base.interrupts import is_interrupt
from schemaless.base.keys import check_column_name
from schemaless.cell import Cell, ErasedCell
from schemaless.errors import InvalidInput
from schemaless.store.datastore import Datastore

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_KIND: Final = "trigger:"

Start = Literal["beginning", "end"]


@dataclass(frozen=True, slots=True)
class Call:
    """Context of a call.

    Attributes:
        store: the open datastore, with the account of ``trigger run``.
        shard: the cell's shard.
        attempt: number of the attempt, from 1.
    """

    store: Datastore
    shard: int
    attempt: int


Function = Callable[[Cell, Call], Any]
OnErase = Callable[[ErasedCell, Call], Any]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A function with the parameters of its ``trigger`` decorator; calling it calls the function.

    Attributes:
        function: the decorated function.
        name: name of the trigger.
        column: the column whose cells it is called for; None for all columns.
        start: where it starts when it runs for the first time.
        attempts: number of attempts after which a cell is parked.
        parked_limit: number of parked cells at which a shard stops before the next failing cell.
        timeout_s: timeout of a call, in seconds, after which its process is ended; None for no timeout.
        on_erase: called for each cell of the column that is erased; None if nothing that the function stores is derived
            from documents.
    """

    function: Function
    name: str
    column: str | None
    start: Start = "end"
    attempts: int = 8
    parked_limit: int = 100
    timeout_s: float | None = None
    on_erase: OnErase | None = None

    def __post_init__(self) -> None:
        for role, function in (("the function", self.function), ("on_erase", self.on_erase)):
            if function is not None and (kind := _unrunnable(function)) is not None:
                raise InvalidInput(
                    f"trigger {self.name or role}: {role} must be a plain function, got {kind}: workers call it once "
                    "for each cell, and would never run its body; use 'def' without 'yield', and asyncio.run() for "
                    "coroutines"
                )
        if _NAME.match(self.name) is None:
            raise InvalidInput(
                f"a trigger's name must be 1 to 64 characters of [A-Za-z0-9_.-], got {self.name!r}; pass one with name="
            )
        if self.column is not None:
            check_column_name(self.column)
        if self.start not in ("beginning", "end"):
            raise InvalidInput(f"trigger {self.name}: start must be 'beginning' or 'end', got {self.start!r}")
        for parameter, least in (("attempts", 1), ("parked_limit", 0)):
            value = getattr(self, parameter)
            if type(value) is not int or value < least:
                raise InvalidInput(
                    f"trigger {self.name}: {parameter} must be an integer of at least {least}, got {value!r}"
                )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidInput(
                f"trigger {self.name}: timeout_s must be a number of seconds above 0, got {self.timeout_s!r}"
            )

    def __call__(self, cell: Cell, call: Call) -> Any:
        """Call the function, for example in a test.

        Raises:
            InvalidInput: it returned a coroutine, another awaitable or a generator, which nothing would run.
        """
        return _ran(self.function(cell, call))

    def erased(self, cell: ErasedCell, call: Call) -> None:
        """Call ``on_erase``, if there is one; raises what a call of the function does."""
        if self.on_erase is not None:
            _ran(self.on_erase(cell, call))

    @property
    def spec(self) -> dict[str, Any]:
        """The parameters that the catalog stores."""
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
    on_erase: OnErase | None = None,
) -> Callable[[Function], Trigger]:
    """Declare a function as a trigger, which 'schemaless trigger run MODULE:NAME' calls for each new cell of a column.

    The function is called at least once for each cell, in order within each shard. After a crash, the last cells are
    delivered again, so the function must be idempotent, for example by writing under keys derived from the cell's. If
    it raises an exception, the cell is retried with increasing backoff; ``ParkCell`` parks it at once, and
    ``RetryLater`` waits without counting the attempt.

    Args:
        column: the column whose cells it is called for; None for all columns.
        name: name of the trigger in tables and commands; by default the name of the function.
        start: where it starts when it runs for the first time: at the ``beginning`` of each shard, or at its ``end``.
        attempts: number of attempts after which a cell is parked and the next one is handled.
        parked_limit: number of parked cells at which a shard stops before the next failing cell.
        timeout_s: timeout of a call, in seconds, after which the worker process is ended; no timeout by default.
        on_erase: called with an ``ErasedCell`` for each cell of the column that is erased, to remove what the function
            derived from it. It may be called more than once for a cell, and for cells that the function never received.
            The trigger acknowledges the erasure once it returns without an exception.

    Raises:
        InvalidInput, InvalidCell: an argument is invalid, or a function is an ``async def`` function or a generator.
    """

    def declare(function: Function) -> Trigger:
        # An object with __call__ or functools.partial has no name.
        given = name or str(getattr(function, "__name__", ""))
        return Trigger(function, given, column, start, attempts, parked_limit, timeout_s, on_erase)

    return declare


def check_trigger(trigger: object) -> Trigger:
    """Return ``trigger`` if it is one.

    Raises:
        InvalidInput: it is something else, such as a function without the decorator.
    """
    if not isinstance(trigger, Trigger):
        raise InvalidInput(f"expected a function decorated with @schemaless.trigger(column=...), got {trigger!r:.200}")
    return trigger


def _unrunnable(function: Any) -> str | None:
    """Return what is wrong with a function whose calls only return an object to run; None if nothing is."""
    if not callable(function):
        return repr(function)
    while isinstance(function, partial):
        function = function.func
    # Of an object with __call__, inspect looks only at the object.
    called = (function, type(function).__call__)
    if any(map(inspect.iscoroutinefunction, called)) or any(map(inspect.isasyncgenfunction, called)):
        return "an 'async def' function"
    return "a generator" if any(map(inspect.isgeneratorfunction, called)) else None


def _ran(returned: Any) -> Any:
    """Return what a function returned, unless that has yet to be run.

    Raises:
        InvalidInput: it is an awaitable or a generator.
    """
    if returned is None or not (
        inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned)
    ):
        return returned
    if inspect.iscoroutine(returned):
        # Otherwise Python warns that it was never awaited.
        returned.close()
    raise InvalidInput(
        f"the function returned a {type(returned).__name__}, which nothing runs, instead of doing its work: run it "
        "within the function, for example with asyncio.run()"
    )


def follower_name(trigger_name: str) -> str:
    """Return the name of a trigger's follower."""
    return _KIND + trigger_name


def is_trigger(follower: str) -> bool:
    """Return whether a follower belongs to a trigger."""
    return follower.startswith(_KIND)


def trigger_name(follower: str) -> str:
    """Return the name of a follower's trigger."""
    return follower.removeprefix(_KIND)


def _said(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        # A SyntaxError names the place itself; its traceback ends in the import system.
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({last.filename}, line {last.lineno})"


def import_trigger(target: str) -> Trigger:
    """Import the trigger named ``MODULE:NAME``; the current folder is searched first.

    Raises:
        InvalidInput: the module cannot be imported, or has no such trigger.
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
    except SystemExit as exit_:
        raise InvalidInput(
            f"{target}: {module_name!r} raised {exit_!r} while it was imported; it must not end the program: move its "
            "script code under 'if __name__ == \"__main__\":'"
        ) from exit_
    except BaseException as error:
        # Python may wrap an interrupt, which is not the module's fault.
        if is_interrupt(error):
            raise
        is_elsewhere = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        hint = "; run the command in the folder of the module, and leave out '.py'" if is_elsewhere else ""
        raise InvalidInput(f"{target}: cannot import {module_name!r} from {here}: {_said(error)}{hint}") from error
    imported = getattr(module, name, None)
    if not isinstance(imported, Trigger):
        there = [variable for variable, value in vars(module).items() if isinstance(value, Trigger)]
        raise InvalidInput(
            f"{module_name!r} has no trigger {name!r}; its triggers: {', '.join(there) or 'none'}. "
            "Decorate a function with @schemaless.trigger(column=...) to make it one"
        )
    return imported
