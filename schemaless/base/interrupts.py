"""Handling of Ctrl-C: recognises it inside other exceptions, and keeps it from processes that are starting."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_FROM_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGHUP})


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is an interrupt, or was raised because of one.

    Python before 3.12 turns any exception from ``__set_name__``, even an interrupt, into a ``RuntimeError``. Importing
    modules calls ``__set_name__`` thousands of times.
    """
    return any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


@contextmanager
def advising(advice: Callable[[], str | None]) -> Iterator[None]:
    """Add a note to any exception of the block that says how to continue, if ``advice`` returns one."""
    try:
        yield
    except BaseException as error:
        if (text := advice()) is not None:
            error.add_note(text)
        raise


def advice_of(error: BaseException) -> str | None:
    """Return what the outermost ``advising`` block has noted on an exception or its causes; None if there was none."""
    return next((notes[-1] for cause in _causes(error) if (notes := getattr(cause, "__notes__", None))), None)


def settle_exit_status() -> None:
    """Make the process exit with its own status after a handled interrupt.

    An interrupt during ``exec`` of a string, which dataclasses and named tuples use to generate code, sets a flag in
    the interpreter. On exit, the interpreter then kills itself with SIGINT, even if the interrupt was handled. The next
    ``exec`` clears the flag.
    """
    exec("")  # noqa: S102 - there is no other way


@contextmanager
def starting_processes() -> Iterator[None]:
    """Keep Ctrl-C from reaching processes started within the block before they call ``ignore_interrupts``.

    A terminal sends SIGINT, and SIGHUP when it is closed, to all processes of a command. A process still importing
    modules would print a traceback.
    """
    from multiprocessing import resource_tracker  # most commands start no processes

    # Start the tracker before blocking signals: starting it unblocks SIGINT, and happens only once.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ignore SIGINT and SIGHUP from now on, in a process that was started within ``starting_processes``."""
    for number in _FROM_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    # Processes that this one starts must not inherit the blocked signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FROM_TERMINAL)
