"""Events and their listeners."""

from __future__ import annotations

import pickle

import pytest

from schemaless.base.events import Advanced, Event, Step, Total, ignore_events, only, together

pytestmark = pytest.mark.once

EVENTS = [Total(3), Step("counting"), Advanced(), Advanced(2)]


def test_listeners_are_called_in_order():
    """Each event goes to the first, then to the next."""
    told: list[tuple[str, Event]] = []
    listener = together(lambda event: told.append(("a", event)), ignore_events, lambda event: told.append(("b", event)))
    for event in EVENTS:
        listener(event)

    assert told == [(who, event) for event in EVENTS for who in "ab"]


def test_only_events_of_one_type_are_passed_on():
    """Others are passed over, as any listener does with what it does not know."""
    told: list[Advanced] = []
    for event in EVENTS:
        only(Advanced, told.append)(event)

    assert told == [Advanced(1), Advanced(2)]


def test_an_exception_of_a_listener_propagates():
    """It ends the work, and later listeners are not called."""

    def stops(event: Event) -> None:
        raise KeyboardInterrupt

    told: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        together(told.append, only(Advanced, stops), told.append)(Advanced())

    assert told == [Advanced()]


def test_events_are_values():
    """Equal by what they say, and sent between processes as they are."""
    assert [pickle.loads(pickle.dumps(event)) for event in EVENTS] == EVENTS
