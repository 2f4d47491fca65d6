"""Each statement of a follower as the point where its connection, or its process, ends: nothing is missed."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest

import schemaless
from schemaless.cell import StoredCell
from schemaless.store.followers.handler import HandlerContext
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import Pair, Timing, remove_worker
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.sql import ParkedRow, delete_follower
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.store.triggers.admin import Triggers
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import prepare
from schemaless.wire import attempts
from tests.faults.proxy import Fault, Proxy

pytestmark = [pytest.mark.mysql]

LONG = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=0.0)
CELLS = 5
POINTS = [
    *((statement, 0) for statement in ("SELECT", "START TRANSACTION", "INSERT", "COMMIT")),
    # The claim; the location before, in, and after the transaction that parks.
    *(("UPDATE", skip) for skip in range(5)),
]
AT = ("before", "no reply")


class Parks:
    """A handler that parks the third cell."""

    column = None
    timeout_s = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[int] = []
        self.given = 0

    def handle_batch(self, context: HandlerContext, pages: Sequence[tuple[Lease, Sequence[StoredCell]]]) -> bool:
        return False

    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        for cell in cells:
            context.check_active(lease)
            if cell.body == b"3":
                row = ParkedRow(cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, 1, "the third")
                context.park(lease, row)
            else:
                self.seen.append(cell.added_id)
                context.advance(lease, cell.added_id)
        return True

    def replay(self, context: HandlerContext, lease: Lease) -> None:
        raise AssertionError


@pytest.fixture(scope="module")
def proxied(servers, accounts) -> Iterator[tuple[Proxy, schemaless.Datastore]]:
    """A datastore with cells in one of two shards, as ``follow`` reaches it by way of a proxy."""
    proxy = Proxy([str(server.socket) for server in servers])
    accounts.allow("admin", "followed_by_proxy", 2)
    url = schemaless.create("followed_by_proxy", 2, [accounts.url("admin", url) for url in proxy.urls])
    for role in ("app", "follow"):
        accounts.allow(role, "followed_by_proxy", 2)
    with schemaless.connect(accounts.url("app", url)) as writer:
        keys = (key for key in map(uuid.UUID, (f"{n:032x}" for n in itertools.count())) if writer.shard_of(key) == 0)
        rows = [schemaless.NewStoredCell(next(keys), "BASE", 1, b"%d" % n) for n in range(1, CELLS + 1)]
        writer.put_stored_cells(rows)
    with schemaless.connect(accounts.url("follow", url)) as store:
        yield proxy, store
    proxy.close()


@pytest.mark.guarantee("follower-deaths")
@pytest.mark.parametrize(
    ("where", "skip", "dies"),
    [
        pytest.param(
            *point,
            dies,
            id=f"{'-'.join(map(str, point))}-{'dies' if dies else 'goes on'}",
            marks=() if (place + dies) % 2 else pytest.mark.long,
        )
        for place, point in enumerate(POINTS)
        for dies in (False, True)
    ],
)
def test_a_connection_that_ends_at_any_statement_misses_and_loses_nothing(proxied, monkeypatch, where, skip, dies):
    """It ends before the statement is sent, or loses the reply; the process continues, or dies."""
    proxy, store = proxied
    rows = [cell.added_id for cell in store.scan_shard(0)]
    for at in AT:
        handler = Parks(f"trigger:{where[:2].lower()}.{skip}.{dies}.{at.replace(' ', '_')}")
        pair = handler.name, 0
        settings = Settings(internals_of(store).follower_access)
        settings.create(handler.name, {}, lambda shard: 0)
        shards = internals_of(store).shards
        shards.execute(1, delete_follower(shards.database(1), handler.name))
        worker = Worker(internals_of(store).follower_access, [handler], "one", timing=LONG, stop=threading.Event())
        with worker.membership:
            with monkeypatch.context() as patch:
                if dies:
                    patch.setattr(attempts, "ATTEMPTS", 1)
                proxy.arm([Fault(where, at, "rst", skip=skip)])
                worker.turn()
                struck = not proxy.disarm()
            assert struck
            heir = worker
            if dies:
                remove_worker(worker.membership._pool, store.name, "one")
                heir = Worker(
                    internals_of(store).follower_access, [handler], "two", timing=LONG, stop=threading.Event()
                )
                heir.membership.renew()
            for _ in range(2):
                for lease in heir.leases.held.values():
                    lease.wait.until_s = 0
                heir.turn()
            found = heir.context.rows.look([pair]).rows[pair]
            heir.membership._pool.close()
        proxy.settle()

        assert set(handler.seen) == {*rows} - {rows[2]}, at
        assert (found.location, found.parked) == (rows[-1], 1), at
        assert dies or len(handler.seen) == CELLS - 1, "a process that continues repeats no cell"
        settings.remove(handler.name)


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
def test_a_connection_that_ends_as_an_attempt_or_the_end_of_all_is_noted_passes_nothing(proxied, monkeypatch, dies):
    """The third cell fails and may not be parked: the shard stops before it, whichever statement is interrupted."""
    proxy, store = proxied
    rows = [cell.added_id for cell in store.scan_shard(0)]
    broken, called = True, []

    @schemaless.trigger(column="BASE", name=f"stands_{dies}", start="beginning", attempts=2, parked_limit=0)
    def third(cell: schemaless.Cell, call: schemaless.Call) -> None:
        called.append((cell.body, call.attempt))
        if cell.body == 3 and broken:
            raise ValueError("not yet")

    # The claim; the locations after the first and second cell; then the first attempt, and the stop.
    for skip, at in itertools.product((3, 4), AT):
        broken = True
        called.clear()
        prepare(store, third)
        triggers, pair = Triggers(store), (f"trigger:{third.name}", 0)
        shards = internals_of(store).shards
        shards.execute(1, delete_follower(shards.database(1), pair[0]))
        worker, heir = (
            Worker(
                internals_of(store).follower_access,
                [Calls(third, store)],
                f"{which} {skip} {at}",
                timing=LONG,
                stop=threading.Event(),
            )
            for which in ("one", "two")
        )

        def turn(who: Worker, times: int, pair: Pair = pair) -> None:
            for _ in range(times):
                if pair in who.leases.held:
                    who.leases.held[pair].wait.until_s = 0
                who.schedule.poll_now()
                who.turn()

        with worker.membership:
            with monkeypatch.context() as patch:
                if dies:
                    patch.setattr(attempts, "ATTEMPTS", 1)
                proxy.arm([Fault("UPDATE", at, "rst", skip=skip)])
                turn(worker, skip - 2)
                assert not proxy.disarm(), (skip, at)
            if dies:
                remove_worker(worker.membership._pool, store.name, worker.name)
            else:
                heir = worker
            with nullcontext() if heir is worker else heir.membership:
                turn(heir, 4)
                stands = heir.context.rows.look([pair]).rows[pair]
                passed = {body for body, _ in called} - {1, 2, 3}
                broken = False
                triggers.resume(third.name)
                turn(heir, 4)
                found = heir.context.rows.look([pair]).rows[pair]
        proxy.settle()

        assert (stands.state, stands.location, stands.parked) == ("stopped", rows[1], 0), (skip, at)
        assert passed == set(), (skip, at)
        assert len([body for body, _ in called if body == 3]) >= 3, "two attempts, and one after 'resume'"
        assert (found.state, found.location, found.parked) == ("running", rows[-1], 0), (skip, at)
        assert [body for body, _ in called if body > 3] == [4, 5], (skip, at)
        triggers.remove(third.name)


@pytest.mark.twice
@pytest.mark.parametrize("dies", [pytest.param(False, marks=pytest.mark.long), True], ids=["goes on", "dies"])
def test_a_replay_completes_if_its_connection_ends_at_any_statement(proxied, monkeypatch, dies):
    """What is to be tried again, the cell, that it was begun, that it came through: then it is parked no more."""
    proxy, store = proxied
    broken, called = True, []

    @schemaless.trigger(column="BASE", name=f"replayed_{dies}", start="beginning", attempts=1)
    def third(cell: schemaless.Cell, call: schemaless.Call) -> None:
        if cell.body == 3 and broken:
            raise ValueError("not yet")
        called.append(cell.body)

    for number, (where, at) in enumerate(itertools.product(("SELECT", "SELECT 1", "UPDATE", "DELETE"), AT)):
        broken = True
        prepare(store, third)
        worker, heir = (
            Worker(
                internals_of(store).follower_access,
                [Calls(third, store)],
                f"{which} {number}",
                timing=LONG,
                stop=threading.Event(),
            )
            for which in ("one", "two")
        )
        triggers = Triggers(store)
        with worker.membership:
            worker.turn()
            (parked,) = triggers.parked(third.name, [0])
            broken = False
            called.clear()
            triggers.replay(third.name, [parked])
            lease = worker.leases.held[f"trigger:{third.name}", 0]
            with monkeypatch.context() as patch, worker.dispatcher.working_on(lease):
                if dies:
                    patch.setattr(attempts, "ATTEMPTS", 1)
                proxy.arm([Fault(where.partition(" ")[0], at, "rst", skip=int(where.partition(" ")[2] or 0))])
                Calls(third, store).replay(worker.context, lease)
            assert not proxy.disarm()
            if dies:
                remove_worker(worker.membership._pool, store.name, worker.name)
                with heir.membership:
                    heir.turn()
        proxy.settle()

        assert triggers.parked(third.name, [0]) == [], (where, at)
        assert set(called) == {3}, (where, at)
        triggers.remove(third.name)
