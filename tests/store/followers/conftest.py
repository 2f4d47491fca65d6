"""Fixtures for tests of workers: a follower, cells for it, and workers that are members until the test ends."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import schemaless
from schemaless.store.followers.membership import ALL, Role, Timing
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from tests.store.followers.workers import CALM, NAME, Seen


@pytest.fixture
def settings(follow_store: schemaless.Datastore) -> Settings:
    """A follower from the beginning, in each shard of a new datastore."""
    made = Settings(internals_of(follow_store).follower_access)
    made.create(NAME, {}, lambda shard: 0)
    return made


@pytest.fixture
def put(fresh_store: schemaless.Datastore, new_row: Callable[[], uuid.UUID]) -> Callable[..., set[tuple[int, int]]]:
    """Puts a number of cells into the shards in turn, and returns shard and added_id of each."""

    def row_of(shard: int) -> uuid.UUID:
        return next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == shard)

    def put_many(count: int, column: str = "BASE", body: object = 0) -> set[tuple[int, int]]:
        rows = (row_of(number % fresh_store.shard_count) for number in range(count))
        puts = fresh_store.put_cells([schemaless.NewCell(row, column, 1, body) for row in rows])
        return {(fresh_store.shard_of(put.key.row_key), put.added_id) for put in puts}

    return put_many


@pytest.fixture
def works(follow_store: schemaless.Datastore) -> Iterator[Callable[..., Worker]]:
    """Creates workers that are members until the test ends; the test runs their turns."""
    with ExitStack() as stack:

        def make(name: str, handler: Seen, timing: Timing = CALM, role: Role = ALL) -> Worker:
            worker = Worker(
                internals_of(follow_store).follower_access,
                [handler],
                name,
                timing=timing,
                stop=threading.Event(),
                role=role,
            )
            stack.enter_context(worker.membership)
            return worker

        yield make
