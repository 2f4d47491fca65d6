"""Progress events of long-running calls.

Every long-running call takes a ``listener``; the call's docstring lists the events and the unit of progress.
Events about a particular concept, such as a fault or a job, are defined next to that concept.

A listener runs in the caller's thread, between two steps of the work, so the work waits for it. It may read and print,
but must not call into the work it listens to. An exception in a listener stops the work the way Ctrl-C does, and the
same call can be repeated to continue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of all events. A listener ignores the types that it does not handle."""


Listener = Callable[[Event], None]
"""Callback that receives each event as it happens."""


@dataclass(frozen=True, slots=True)
class Total(Event):
    """Total number of units of work, as far as known."""

    units: int


@dataclass(frozen=True, slots=True)
class Advanced(Event):
    """Number of units finished since the previous event; may be fractional if units are large."""

    units: float = 1


@dataclass(frozen=True, slots=True)
class Step(Event):
    """The start of a new step; ``what`` describes it to the user."""

    what: str


E = TypeVar("E", bound=Event)


def ignore_events(event: Event) -> None:
    """Ignore the event; the default of every ``listener``."""


def only(kind: type[E], then: Callable[[E], None]) -> Listener:
    """Return a listener that passes on the events of one type only.

    >>> done: list[Advanced] = []
    >>> listener = only(Advanced, done.append)
    >>> listener(Step("measuring"))
    >>> listener(Advanced(3))
    >>> done
    [Advanced(units=3)]
    """

    def listener(event: Event) -> None:
        if isinstance(event, kind):
            then(event)

    return listener


def together(*listeners: Listener) -> Listener:
    """Return a listener that calls several listeners in order."""

    def listener(event: Event) -> None:
        for listen in listeners:
            listen(event)

    return listener
