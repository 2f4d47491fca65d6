"""Fixtures: indexes of a new datastore, created and maintained with the accounts of operators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from sqlalchemy import make_url

import schemaless
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.definition import Definition, define
from schemaless.store.indexes.registry import READY, IndexEntry
from schemaless.store.internals import internals_of
from tests.accounts import Accounts

# Leases are renewed by hand, so that nothing depends on the load of the machine.
CALM = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=0.0)

TRIPS = define(
    "client_trips",
    "BASE.client:uuid",
    ["BASE.at:time", "BASE.city:int", "STATUS.s:text(8)"],
)


@dataclass
class Kept:
    """Creates indexes and maintains them in this process, on demand."""

    admin: schemaless.Datastore
    follow: schemaless.Datastore
    allow: Callable[[int], None]
    stack: ExitStack
    _worker: Worker | None = None

    def make(self, definition: Definition = TRIPS) -> IndexEntry:
        """Create an index, and grant the accounts access to its tables."""
        entry, _ = indexes_of(self.admin).create(definition)
        self.allow(entry.number)
        self._worker = None
        return entry

    def rebuild(self, name: str) -> IndexEntry:
        """Start building an index again, and grant the accounts access to its new tables."""
        entry, created = indexes_of(self.admin).rebuild(name)
        assert created
        self.allow(entry.number)
        self._worker = None
        return entry

    def worker(self) -> Worker:
        """Return the worker that maintains all indexes."""
        if self._worker is None:
            self.stack.close()
            handlers = indexes_of(self.follow).handlers()
            self._worker = Worker(
                internals_of(self.follow).follower_access, handlers, "the worker", timing=CALM, stop=threading.Event()
            )
            self.stack.enter_context(self._worker.membership)
        return self._worker

    def catch_up(self) -> None:
        """Run the worker until it has processed all existing cells."""
        worker = self.worker()
        worker.membership.renew()
        worker.schedule.poll_now()
        for _ in range(1_000):
            worker.turn()
            waits = [each.reason for each in worker.leases.held.values() if each.wait.until_s]
            assert not waits, waits
            if worker.leases.held and all(each.row.location == each.top for each in worker.leases.held.values()):
                return
        raise AssertionError("the worker did not reach the end")

    def fill(self, definition: Definition = TRIPS) -> IndexEntry:
        """Create an index and build it until it is ready."""
        entry = self.make(definition)
        self.catch_up()
        indexes = indexes_of(self.follow)
        backfill = indexes.backfill(entry)
        assert indexes.watch(entry, backfill)
        (now,) = [each for each in indexes.all() if each.number == entry.number]
        assert now.state == READY
        return now


@pytest.fixture
def admin_store(admin_url: str) -> Iterator[schemaless.Datastore]:
    """The new datastore, opened as ``admin``."""
    with schemaless.connect(admin_url) as opened:
        yield opened


@pytest.fixture
def kept(
    accounts: Accounts, fresh_url: str, admin_store: schemaless.Datastore, follow_store: schemaless.Datastore
) -> Iterator[Kept]:
    """Creates and maintains indexes."""

    def allow(number: int) -> None:
        for role in ("app", "follow", "admin"):
            accounts.allow(role, str(make_url(fresh_url).database), 4, indexes=[number])
        internals_of(follow_store).registry.read()

    with ExitStack() as stack:
        yield Kept(admin_store, follow_store, allow, stack)
