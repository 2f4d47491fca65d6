"""An erasure that dies before any of its statements, beside writers, a reader, a follower, a migration and a move.

Its successor ends with the same result: every cell that was asked for is erased, no other one has changed, each erased
cell is in the log once, and the ledger counts them.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import schemaless
from schemaless.erase.job import ERASE, EraseSpec
from schemaless.erase.job import run as run_erasure
from schemaless.erase.verify import verify
from schemaless.erasures.ledger import target
from schemaless.internals import internals_of
from schemaless.jobs.job_store import JobStore
from schemaless.migrate import run as migrate
from schemaless.migrate.spec import MigrateSpec
from schemaless.wire.connection import Connection

REASON = "gdpr-art-17"
POINTS = 3
"""Number of statements before which the process dies; ERASE_POINTS=all kills before each of them, for minutes."""


@pytest.fixture
def url(accounts: Any, fresh_url: str) -> str:
    """The new datastore as root."""
    return str(accounts.root(fresh_url))


def erase_and_die(url: str, number: int, job_id: int, fatal: int | None, sent: Any) -> None:
    """Run an erase job in a process of its own that kills itself before a statement that changes something."""
    statements = itertools.count()
    ask = Connection.ask

    def hooked(connection: Connection, sql: bytes) -> object:
        if sql.startswith((b"UPDATE", b"INSERT", b"DELETE", b"COMMIT", b"START", b"SELECT event_id")):
            if next(statements) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            sent.value += 1
        return ask(connection, sql)

    Connection.ask = hooked  # type: ignore[method-assign]
    with schemaless.connect(url) as store:
        run_erasure(store, EraseSpec(number), job=JobStore(store).job(job_id))


def run_process(url: str, number: int, job_id: int, fatal: int | None) -> int:
    """Run such a process, and return how many statements it has sent."""
    context = multiprocessing.get_context("spawn")
    sent = context.Value("i", 0)
    process = context.Process(target=erase_and_die, args=(url, number, job_id, fatal, sent))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)
    return int(sent.value)


def job_of(store: schemaless.Datastore, rows: list[uuid.UUID]) -> tuple[int, int]:
    """Record an erasure and create its job; return the numbers of both."""
    ledger = internals_of(store).erasures.ledger
    number = ledger.intend(REASON, [target(row) for row in rows])
    shards = [each.shard for each in ledger.entry(number).shards]
    return number, ERASE.begin_or_join(store, EraseSpec(number), shards)[0].job_id


def contents(store: schemaless.Datastore) -> dict[Any, Any]:
    cells = (cell for shard in range(store.shard_count) for cell in store.iter_shard(shard))
    return {tuple(cell.key): (cell.added_id, cell.created_at, cell.body) for cell in cells}


def check(store: schemaless.Datastore, number: int, before: dict[Any, Any], rows: list[uuid.UUID]) -> None:
    """Compare all cells with those from before, and the log and the ledger with them."""
    after = contents(store)
    asked = {key for key in before if key[0] in rows}
    assert after.keys() >= before.keys()
    for key, (added_id, created_at, body) in before.items():
        assert after[key][:2] == (added_id, created_at)
        assert after[key][2] == (schemaless.Erased(number) if key in asked else body), key
    log = [event for shard in range(store.shard_count) for event in store.get_erased_for_shard(shard, limit=100_000)]
    logged = [(event.key, event.added_id) for event in log if event.erasure == number]
    assert sorted(logged) == sorted((key, before[key][0]) for key in asked)
    entry = internals_of(store).erasures.ledger.entry(number)
    assert (entry.cells, entry.executed_at is not None) == (len(asked), True)
    assert verify(store, number).clean


@pytest.mark.long
def test_an_erasure_killed_anywhere_is_completed_by_its_successor(url, new_row):
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
            sent = run_process(url, number, job_id, None if fatal is None else fatal.pop())
            if fatal is None:
                every = range(sent)
                fatal = list(every) if os.environ.get("ERASE_POINTS") == "all" else chance.sample(every, POINTS)
            else:
                # As if its lease had expired.
                JobStore(store).leases.release_dead(job_id, "")
                if JobStore(store).job(job_id).unfinished:
                    run_process(url, number, job_id, None)
            check(store, number, before, rows[:5])


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
            run_erasure(store, EraseSpec(number))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert faults == []
        check(store, number, before, rows[:40])
        assert [key.ref_key for key in written] == list(range(1, len(written) + 1))
