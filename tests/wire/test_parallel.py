"""Parallel work on many servers: limited per server, without mutual delays, and stopped at once by an error."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from schemaless.wire import parallel
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers

pytestmark = pytest.mark.once

SLOW, FAST = Node("primary", host="slow"), Node("primary", host="fast")


def test_each_server_has_a_limit_and_each_item_is_processed_once():
    """No server exceeds its limit, and no item is skipped or processed twice."""
    lock = threading.Lock()
    running: Counter[Node] = Counter()
    most: Counter[Node] = Counter()

    def work(item: tuple[Node, int]) -> int:
        node, number = item
        with lock:
            running[node] += 1
            most[node] = max(most[node], running[node])
        threading.Event().wait(0.001)
        with lock:
            running[node] -= 1
        return number

    items = [(node, (node, number)) for number, node in enumerate([SLOW, FAST, FAST] * 30)]
    assert sorted(on_servers(items, work, 3)) == list(range(90))
    assert most[SLOW] <= 3
    assert most[FAST] <= 3
    assert list(on_servers([], work)) == []


def test_a_slow_server_does_not_delay_the_others():
    """All items of the fast server finish while the slow one is at its first item."""
    release = threading.Event()

    def work(item: tuple[Node, int]) -> int:
        if item[0] is SLOW:
            release.wait(120)
        return item[1]

    results = on_servers([(SLOW, (SLOW, 0)), *((FAST, (FAST, number)) for number in range(1, 50))], work)
    fast = [next(results) for _ in range(49)]
    release.set()

    assert sorted(fast) == list(range(1, 50))
    assert list(results) == [0]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_is_raised_and_no_further_item_is_started(error, monkeypatch):
    """A running item that takes long does not delay the error."""
    monkeypatch.setattr(parallel, "STOP_WAIT_S", 0.1)
    release, begun = threading.Event(), []

    def work(number: int) -> int:
        begun.append(number)
        if number == 0:
            release.wait(120)
        if number == 3:
            raise error
        return number

    with pytest.raises(error):
        list(on_servers([(SLOW, 0), *((FAST, number) for number in range(1, 50))], work, 1))
    at_the_end = list(begun)
    release.set()

    assert sorted(at_the_end)[:3] == [0, 1, 2]
    assert len(at_the_end) < 10
