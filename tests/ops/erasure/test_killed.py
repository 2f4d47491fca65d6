"""An erasure that dies before any of its statements, beside writers, a reader and a migration, or whose primary dies.

It ends with the same result: every cell that was asked for is erased, no other one has changed, each erased cell is in
the log once, and the ledger counts them.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

import schemaless
from schemaless.local import servers as local
from schemaless.local.description import LocalServer
from schemaless.ops.erasure import job
from schemaless.ops.erasure.job import ERASE, ErasureSpec, begin_retention, outcome_of
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.verify import verify
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.erasures.ledger import target
from schemaless.store.erasures.retention import Policy
from schemaless.store.indexes.registry import Registry
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from tests.ops.erasure.matrix import REASON, Matrix, Runner, complete
from tests.promotion import caught_up, sql, word

POINTS = pytest.mark.parametrize("points", [2, pytest.param(20, marks=pytest.mark.long)])
"""Number of statements before which the process dies."""


@pytest.fixture
def url(accounts: Any, fresh_url: str) -> str:
    """The new datastore as root."""
    return str(accounts.root(fresh_url))


def job_of(store: schemaless.Datastore, rows: list[uuid.UUID]) -> tuple[int, int]:
    """Record an erasure and create its job; return the numbers of both."""
    ledger = internals_of(store).erasures.ledger
    number = ledger.intend(REASON, [target(row) for row in rows])
    shards = [each.shard for each in ledger.entry(number).shards]
    return number, ERASE.begin_or_join(store, ErasureSpec(number), shards)[0].job_id


def contents(store: schemaless.Datastore) -> dict[Any, Any]:
    cells = (cell for shard in range(store.shard_count) for cell in store.iter_shard(shard))
    return {tuple(cell.key): (cell.added_id, cell.created_at, cell.body) for cell in cells}


def check(store: schemaless.Datastore, number: int, before: dict[Any, Any], rows: list[uuid.UUID]) -> None:
    """Compare all cells with those from before, and the log and the ledger with them."""
    compare(store, before, {key: number for key in before if key[0] in rows})


def compare(store: schemaless.Datastore, before: dict[Any, Any], erased: dict[Any, int]) -> None:
    """Compare all cells with those from before, and the log and the ledger with the numbers of their erasures."""
    after = contents(store)
    assert after.keys() >= before.keys()
    for key, (added_id, created_at, body) in before.items():
        assert after[key][:2] == (added_id, created_at)
        assert after[key][2] == (schemaless.Erased(erased[key]) if key in erased else body), key
    for number in {*erased.values()}:
        check_ledger(store, number, before, {key for key, of in erased.items() if of == number})


def check_ledger(store: schemaless.Datastore, number: int, before: dict[Any, Any], asked: set[Any]) -> None:
    """Compare the log and the ledger with the cells that an erasure must have erased."""
    log = [event for shard in range(store.shard_count) for event in store.get_erased_for_shard(shard, limit=100_000)]
    logged = [(event.key, event.added_id) for event in log if event.erasure == number]
    assert sorted(logged) == sorted((key, before[key][0]) for key in asked)
    entry = internals_of(store).erasures.ledger.entry(number)
    assert (entry.cells, entry.executed_at is not None) == (len(asked), True)
    assert verify(store, number).clean


@pytest.mark.guarantee("erasure-exact")
@POINTS
def test_an_erasure_killed_anywhere_is_completed_by_its_successor(url, new_row, points):
    """SIGKILL before a statement; the next process takes the shard over."""
    with schemaless.connect(url) as store:
        chance = random.Random(7)
        fatal: list[int] | None = None
        while fatal is None or fatal:
            rows = [new_row() for _ in range(8)]
            for row, version in itertools.product(rows, (1, 2)):
                store.put_cell(row, "BASE", version, {"row": str(row), "version": version})
            before = contents(store)
            number, job_id = job_of(store, rows[:5])
            sent = Runner(url, job_id, None if fatal is None else fatal.pop()).join()
            if fatal is None:
                fatal = chance.sample(range(sent), min(points, sent))
            else:
                complete(store, url, job_id)
            check(store, number, before, rows[:5])


@pytest.mark.guarantee("erasure-exact")
@pytest.mark.long
def test_an_erasure_killed_beside_a_killed_mover_a_migration_and_followers(url, flavour, tmp_path):
    """No other cell changes, none survives in any table or archive, followers acknowledge, and the ledger counts them.

    At the end harm is done by SQL, and each kind is found. ``benchmarks/erasure_kills.py`` takes all statements.
    """
    chance = random.Random(flavour)
    with Matrix(url, 11, tmp_path) as matrix:
        sent = matrix.round()
        matrix.round(chance.randrange(sent.erase), chance.randrange(sent.move))
        assert matrix.finish() == []
        for harm in matrix.damage():
            assert matrix.compare() != [], harm
        assert matrix.compare() == []


@pytest.mark.guarantee("erasure-exact")
def test_an_erasure_beside_writers_readers_and_a_migration(url, new_row):
    """Puts go on, no read shows an older version, and the migration changes no tombstone."""
    with schemaless.connect(url) as store:
        rows = [new_row() for _ in range(60)]
        bodies = [json.dumps({"row": str(row), "pad": "x" * 200}).encode() for row in rows]
        for version in (1, 2, 3):
            cells = zip(rows, bodies, strict=True)
            store.put_stored_cells([schemaless.NewStoredCell(row, "BASE", version, body) for row, body in cells])
        before = contents(store)
        stop, faults, written = threading.Event(), list[Any](), list[Any]()

        def during(work: Callable[[], object]) -> threading.Thread:
            def loop() -> None:
                try:
                    while not stop.is_set():
                        work()
                except BaseException as error:  # noqa: BLE001 - asserted below
                    faults.append(error)

            thread = threading.Thread(target=loop)
            thread.start()
            return thread

        def read() -> None:
            for row in rows[:40]:
                cell = store.get_cell_latest(row, "BASE")
                if cell is not None and cell.ref_key != 3:
                    faults.append(cell)

        other = new_row()
        threads = [
            during(read),
            during(lambda: written.append(store.append_cell(other, "LOG", {"n": len(written)}).key)),
            during(lambda: migrate.run(store, MigrateSpec())),
        ]
        number, _ = job_of(store, rows[:40])
        try:
            run_erasure(store, ErasureSpec(number))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert faults == []
        check(store, number, before, rows[:40])
        assert [key.ref_key for key in written] == list(range(1, len(written) + 1))


class Interrupted(Exception):
    """Stands for the end of a process in the middle of a job."""


@pytest.fixture
def mortal(flavour: str) -> Iterator[LocalServer]:
    """A primary with an asynchronous replica; the test kills it."""
    with private_servers(flavour, 1, replicas=1) as (server,):
        yield server


@pytest.mark.long
@pytest.mark.guarantee("erasure-exact")
@pytest.mark.mysql
def test_erasures_that_a_failover_loses_are_repeated(mortal, servers, new_row, monkeypatch):
    """The primary dies, and its replica lacks erasures: the jobs of an erasure and of a retention run start again.

    The retention run has recorded a checkpoint after the lost erasures, and continues in another process. Where the
    replica stops and the primary dies is drawn; ERASE_SEED sets the seed.
    """
    (replica,) = mortal.replicas
    url = schemaless.create(f"lost{uuid.uuid4().hex[:8]}", 2, [servers[0].url, mortal.url])
    nodes.add_replica(url, "cluster-2", replica.url)
    chance = random.Random(int(os.environ.get("ERASE_SEED", "3")))
    monkeypatch.setattr(job, "cells_at_once", lambda run: 5)
    with schemaless.connect(url) as store:
        ledger = internals_of(store).erasures.ledger
        rows = list(islice((row for row in iter(new_row, None) if store.shard_of(row) == 1), 60))
        for row, version in itertools.product(rows, (1, 2)):
            store.put_cell(row, "BASE", version, {"row": str(row), "version": version})
            store.put_cell(row, "LOG", version, {"row": str(row), "version": version})
        before = contents(store)
        internals_of(store).policies.set(Policy("LOG", keep_versions=1))
        number = ledger.intend(REASON, [target(row, "BASE") for row in rows[:40]])
        retention = begin_retention(store)
        assert retention is not None
        steps = itertools.count()
        behind, dies = chance.randrange(2, 6), chance.randrange(9, 14)
        read, jobs = Registry.read, [retention, number]

        def hooked(registry: Registry) -> Any:
            """Runs before each transaction."""
            step = next(steps)
            if step == behind:
                with caught_up(mortal):
                    sql(replica, f"STOP {word(replica)}")
            if step == dies:
                if jobs.pop(0) == retention:
                    raise Interrupted
                fail_over()
            return read(registry)

        def fail_over() -> None:
            local.kill(mortal)
            sql(replica, f"RESET {word(replica)} ALL", "SET GLOBAL read_only = 0")
            nodes.set_primary(url, "cluster-2", replica.url, timeout_s=1)

        monkeypatch.setattr(Registry, "read", hooked)
        monkeypatch.setattr(ShardRun, "due", lambda run: True)
        # Jobs would wait for the replica that has stopped; others stop between two looks at it.
        monkeypatch.setattr(ShardRun, "gate", lambda run: None)
        with pytest.raises(Interrupted):
            run_erasure(store, ErasureSpec(retention))
        (retaining,) = JobStore(store).jobs("retain")
        JobStore(store).leases.release_dead(retaining.job_id, "")
        assert JobStore(store).shards(retaining.job_id)[1].checkpoint > 0
        steps = itertools.count(behind + 1)
        run_erasure(store, ErasureSpec(number))

    with schemaless.connect(url) as store:
        assert outcome_of(store, run_erasure(store, ErasureSpec(retention))).cells == len(rows)
        erased = {key: number for key in before if key[0] in rows[:40] and key[1] == "BASE"}
        erased |= {key: retention for key in before if key[1:] == ("LOG", 1)}
        compare(store, before, erased)
