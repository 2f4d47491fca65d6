"""Fixtures named as those of the synchronous client, for tests that run through ``schemaless.aio``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.aio.adapter import adapted, loop_in_a_thread


@pytest.fixture(scope="session")
def event_loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread."""
    with loop_in_a_thread() as loop:
        yield loop


@pytest.fixture(scope="session")
def shared_store(event_loop_thread: asyncio.AbstractEventLoop, datastore_url: str) -> Iterator[Any]:
    """The shared datastore, through ``schemaless.aio``."""
    with adapted(event_loop_thread, datastore_url) as opened:
        yield opened


@pytest.fixture
def store(shared_store: Any) -> Any:
    """The shared datastore; rows of others are in it."""
    return shared_store


@pytest.fixture
def fresh_store(event_loop_thread: asyncio.AbstractEventLoop, fresh_url: str) -> Iterator[Any]:
    """The new datastore, through ``schemaless.aio``."""
    with adapted(event_loop_thread, fresh_url) as opened:
        yield opened


@pytest.fixture
def tail_store(event_loop_thread: asyncio.AbstractEventLoop, tail_url: str) -> Iterator[Any]:
    """The new datastore as ``tail``, through ``schemaless.aio``."""
    with adapted(event_loop_thread, tail_url) as opened:
        yield opened
