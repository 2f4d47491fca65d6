"""Ctrl-C, and what else a signal's handler raises, inside a call: the pool stays usable, and no reply is another's."""

from __future__ import annotations

import contextlib
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import schemaless
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.urls import parse_url
from schemaless.store.datastore import Datastore
from tests.faults.kinds import ONE_KIND

pytestmark = [pytest.mark.mysql, ONE_KIND]

ROOMS = ("schemaless/mysql/pool.py", "schemaless/store/cells.py")


class TimeIsUp(Exception):
    """What a framework's time limit raises, from a signal's handler."""


@pytest.fixture
def store(fresh_url: str) -> Iterator[Datastore]:
    """A datastore with two connections to each server, which nobody waits for long."""
    with schemaless.connect(fresh_url, pool_size=2) as opened:
        for cluster in opened.topology.clusters:
            pool = opened.shards.pool_for(cluster.primary)
            pool.options = PoolOptions(pool_size=2, pool_timeout_s=0.05)
        yield opened


@contextlib.contextmanager
def signal_after(seconds: float, handler: Any) -> Iterator[None]:
    """Let a signal come in the middle of the block."""
    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def pools_of(store: Datastore) -> list[NodePool]:
    """Return the pools of a datastore's primaries."""
    return [store.shards.pool_for(cluster.primary) for cluster in store.topology.clusters]


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Run a call, and raise KeyboardInterrupt at the n-th line of the pool and the cells; False where it has fewer."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(ROOMS):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("kind", ["put_cell", "put_cells", "append_cell", "get_row"])
def test_an_interrupt_at_any_line_leaves_the_pool_usable(store, new_row, kind):
    """Every connection can be had again, none is in a transaction, and a cell is there whole or not at all."""
    calls: dict[str, Callable[[uuid.UUID], object]] = {
        "put_cell": lambda row: store.put_cell(row, "BASE", 1, {"row": str(row)}),
        "put_cells": lambda row: store.put_cells(
            [schemaless.NewCell(row, name, 1, {"row": str(row)}) for name in "AB"]
        ),
        "append_cell": lambda row: store.append_cell(row, "BASE", {"row": str(row)}),
        "get_row": store.get_row,
    }
    for each in (new_row() for _ in range(8)):
        store.put_cell(each, "BASE", 1, 0)
    line = 0
    while True:
        line += 1
        row = new_row()
        if not interrupted_at(line, lambda: calls[kind](row)):  # noqa: B023
            break
        cells = store.get_row(row)
        assert all(cell.body == {"row": str(row)} for cell in cells.values())
        assert len(cells) in ({0, 2} if kind == "put_cells" else {0, 1})

    assert line > 20
    for pool in pools_of(store):
        with pool.connection() as one, pool.connection() as other:
            for connection in (one, other):
                assert connection.rows(b"SELECT 'mine'") == (("mine",),)
                assert not connection._raw.server_status & 1, "in a transaction"


def test_a_place_that_an_interrupt_took_along_comes_back(store):
    """Where it struck between the taking of a place and its use, nobody would give it back."""
    (pool, *_) = pools_of(store)
    pool._places.get()
    pool._places.get()

    assert pool.run(lambda connection: connection.rows(b"SELECT 1")) == ((1,),)
    with pool.connection(), pool.connection(), pytest.raises(schemaless.ServerTimeout), pool.connection():
        pytest.fail("a third connection of two")


@pytest.mark.parametrize("raised", [TimeIsUp, KeyboardInterrupt])
def test_what_a_signals_handler_raises_ends_the_call(store, row, raised):
    """A time limit of the caller's is not taken for a lost connection; the reply that comes later is nobody's."""

    def handler(signum: int, frame: FrameType | None) -> None:
        raise raised

    shard = store.shard_of(row)
    before = store.shards.rows(shard, b"SELECT CONNECTION_ID()")
    with pytest.raises(raised), signal_after(0.1, handler):
        store.shards.run(shard, lambda connection: connection.rows(b"SELECT SLEEP(20)"), writes=True)

    assert store.shards.rows(shard, b"SELECT CONNECTION_ID()") != before


def test_ctrl_c_while_a_pool_is_full_takes_no_place(server_urls):
    """The one who waits has nothing to give back."""
    parsed = parse_url(server_urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions(pool_size=1, pool_timeout_s=20))
    with pool.connection(), pytest.raises(KeyboardInterrupt), signal_after(0.05, signal.default_int_handler):
        pool.run(lambda connection: connection.rows(b"SELECT 1"))

    assert pool._places.qsize() == 1
    assert pool.run(lambda connection: connection.rows(b"SELECT 1")) == ((1,),)
    pool.close()
