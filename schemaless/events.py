"""What long calls tell whoever listens: how far they are, and what they meet on the way.

A call that takes a while has one keyword, ``listener``, and says in its docstring which events it gives and in which
unit it counts. Events that carry a room's own noun, such as a fault or a job, are defined beside that noun.

A listener is called in the caller's own thread, between two steps of the work, so the work waits for it. It may look
and print; it must not call into the work that it listens to. What it raises ends that work as Ctrl-C does, with nothing
half done that the same call does not go on with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events. A listener passes over the kinds that it does not know."""


Listener = Callable[[Event], None]
"""A listener takes each event as it happens."""


@dataclass(frozen=True, slots=True)
class Total(Event):
    """So many units there are in all, as far as is known now."""

    units: int


@dataclass(frozen=True, slots=True)
class Advanced(Event):
    """So many more units are done than at the last one; a part of one where units are large."""

    units: float = 1


@dataclass(frozen=True, slots=True)
class Step(Event):
    """What begins now, in words for people."""

    what: str


E = TypeVar("E", bound=Event)


def nobody(event: Event) -> None:
    """Listen to nothing: the default of every ``listener``."""


def only(kind: type[E], then: Callable[[E], None]) -> Listener:
    """Return a listener that hands on events of one kind.

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
    """Return a listener that hands each event on to several, in their order."""

    def listener(event: Event) -> None:
        for listen in listeners:
            listen(event)

    return listener
