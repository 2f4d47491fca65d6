"""A shard that is moved back and forth, and movers that are interrupted before a statement of their cut."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Self

import pytest

from schemaless import Datastore, OutcomeUnknown, ServerError, ServerTimeout, ServerUnavailable
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.worker import Outcome, let_go, work_on
from schemaless.ops.move import run as moves
from schemaless.ops.move.record import Records
from schemaless.ops.move.spec import MoveSpec
from schemaless.ops.move.steps import work
from schemaless.store.internals import internals_of
from schemaless.store.opening import opening_of
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection
from tests.movers import query

SHARD = 1
"""The shard that is moved."""

CUT = (
    *("CREATE TABLE IF NOT EXISTS", "RENAME TABLE", "DROP TABLE IF EXISTS", "SHOW CREATE TABLE", "ALTER TABLE"),
    *("SET SESSION wait_timeout", "LOCK TABLES", "UNLOCK TABLES", "SELECT added_id, LENGTH(body)", "INSERT INTO"),
    *("DELETE FROM", "SELECT name, location", "SELECT name, added_id", "UPDATE", "SELECT MAX(added_id)", "COMMIT"),
    *("CREATE DATABASE", "INSERT IGNORE INTO"),
)
"""Prefixes of the statements that a mover sends after its takeover; copying settled pages is not interrupted."""

PART = part if "/" in (part := os.environ.get("MOVE_POINTS", "")) else ""
"""Part of the statements of a cut to interrupt before, such as 2/3."""

ALL_POINTS = os.environ.get("MOVE_POINTS") == "all" or bool(PART)
"""Whether to interrupt before every statement of a cut, or a part of them, instead of a few."""

SEED = os.environ.get("MOVE_SEED", "")
"""Seed for the choice of statements."""

KEPT = ("cell", "erased_cell")
"""Tables that a move leaves on its source."""

DIGEST = (
    "SELECT COUNT(*), BIT_XOR(CRC32(CONCAT_WS('/', added_id, HEX(row_key), column_name, ref_key, HEX(body), "
    "created_at))) FROM `{}`.`{}` WHERE added_id <= {}"
)
"""Selects the number of cells up to an id, and a digest of them."""

_statement_counts: dict[tuple[str, str, str], int] = {}
"""Number of statements of a cut, by server flavour and storage engines of source and target."""


class Killed(BaseException):
    """Simulates the death of a mover's process: the exception closes everything that it holds open."""


class Point(NamedTuple):
    """The statement of a mover, counted from 0, before which ``action`` is called."""

    number: int
    action: Callable[[bytes], None]


class Movers:
    """Runs movers, of which one can be interrupted before a statement of its cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[bytes] = []
        self.connection: Connection | None = None
        self._thread: int | None = None
        self._point: Point | None = None
        self._numbers = itertools.count()
        self._names = itertools.count(1)
        send = Connection.ask
        # These movers are threads of the test process, whose priority must not change: it also starts servers.
        monkeypatch.setattr(os, "setpriority", lambda *_: None)

        def hooked(connection: Connection, sql: bytes, **how: Any) -> object:
            if threading.get_ident() == self._thread and sql.decode("latin-1").startswith(CUT):
                number = next(self._numbers)
                self.sent.append(sql[:100])
                self.connection = connection
                if self._point is not None and number == self._point.number:
                    self._point.action(sql)
            return send(connection, sql, **how)

        monkeypatch.setattr(Connection, "ask", hooked)

    def move(
        self, store: Datastore, job: Job, point: Point | None = None, outcomes: list[Outcome] | None = None
    ) -> None:
        """Run a mover on the shard in this thread; ``point`` interrupts it."""
        name = f"mover {next(self._names)}"
        if point is not None:
            self._thread, self._point, self._numbers = threading.get_ident(), point, itertools.count()
            self.sent.clear()
        try:
            with suppress(Killed):
                outcome = work_on(opening_of(store), job.job_id, SHARD, name, work, throttled=False)
                if outcomes is not None:
                    outcomes.append(outcome)
        finally:
            if point is not None:
                self._thread = None
            let_go()

    def die_in(self, store: Datastore, job: Job, place: object, function: str) -> None:
        """Run a mover that dies when it calls a function of a class or module."""

        def kill(*_: object) -> None:
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, function, kill)
            self.move(store, job)


def other(store: Datastore, shard: int = SHARD) -> str:
    """Return the last cluster that does not have the shard."""
    topology = internals_of(store).topology
    return next(each.name for each in reversed(topology.clusters) if each != topology.cluster_of(shard))


class Bench:
    """A shard with a writer; after each move, the acknowledged cells are compared with the stored ones."""

    def __init__(self, client: Datastore, new_row: Callable[[], uuid.UUID]) -> None:
        self.client = client
        self.job_store = JobStore(client)
        self.acknowledged: dict[int, tuple[uuid.UUID, int]] = {}
        self._rows = (row for row in iter(new_row, None) if client.shard_of(row) == SHARD)
        self._turns = itertools.count()

    def next(self) -> tuple[uuid.UUID, int]:
        """Return an unused row of the shard, and the body for it."""
        return next(self._rows), next(self._turns)

    def acknowledge(self, added_id: int, row: uuid.UUID, turn: int) -> None:
        """Record an acknowledged cell."""
        assert added_id not in self.acknowledged, "an id was given twice"
        self.acknowledged[added_id] = row, turn

    def put(self, count: int = 1) -> None:
        """Write cells and record them."""
        for _ in range(count):
            row, turn = self.next()
            self.acknowledge(self.client.append_cell(row, "BASE", turn).added_id, row, turn)

    def acknowledge_stored(self) -> None:
        """Treat the stored cells of a shard that was used before as acknowledged."""
        self.acknowledged = self._found()

    def _found(self) -> dict[int, tuple[uuid.UUID, int]]:
        cells = self.client.scan_shard(SHARD)
        return {cell.added_id: (cell.key.row_key, cell.decode().body) for cell in cells}

    def move(self, movers: Movers, *, count: bool = False) -> None:
        """Move the shard without an interruption."""
        job = self.begin()
        movers.move(self.client, job, Point(-1, lambda sql: None) if count else None)
        self.job_store.complete(job.job_id)
        assert self.check(job) == "verified"

    def _engines(self) -> tuple[str, str]:
        """Return the storage engines of the shard's cluster and of the other one."""
        topology = internals_of(self.client).topology
        return topology.cluster_of(SHARD).engine, topology.cluster(other(self.client)).engine

    def statements(self, movers: Movers) -> dict[str, range]:
        """Return the numbers of a cut's statements by the source's storage engine; the first call moves the shard."""
        internals = internals_of(self.client)
        flavour = "mariadb" if internals.catalog.run(lambda connection: connection.is_mariadb) else "mysql"
        source, target = self._engines()
        ways = [(flavour, source, target), (flavour, target, source)]
        for way in dict.fromkeys(ways):
            if way not in _statement_counts:
                assert self._engines() == way[1:]
                self.move(movers, count=True)
                _statement_counts[way] = len(movers.sent)
        return {way[1]: range(_statement_counts[way]) for way in ways}

    def points(self, movers: Movers, seed: str, count: int) -> Iterator[int]:
        """Yield the statements of a cut before which to interrupt the mover.

        A sample that depends on the test and on MOVE_SEED, or all of them with MOVE_POINTS=all, which takes an hour;
        MOVE_POINTS=2/3 takes every third one, from the second on. If the clusters have different storage engines, the
        mover is interrupted on the way there and on the way back; the shard is moved beforehand where necessary.
        """
        every = [(number, source) for source, numbers in self.statements(movers).items() for number in numbers]
        if PART:
            first, step = map(int, PART.split("/"))
            chosen = sorted(every)[first - 1 :: step]
        else:
            chosen = sorted(every if ALL_POINTS else random.Random(seed + SEED).sample(every, count))
        for number, source in chosen:
            if self._engines()[0] != source:
                self.move(movers)
            yield number

    def until_it_answers(self) -> None:
        """Wait until every server accepts connections again."""
        internals = internals_of(self.client)
        for cluster in internals.topology.clusters:
            until_s = time.monotonic() + 120
            while True:
                try:
                    internals.shards.pool_for(cluster.primary).run(lambda connection: connection.rows(b"SELECT 1"))
                    break
                except ServerError:
                    assert time.monotonic() < until_s, f"{cluster.primary} accepts no connections"
                    time.sleep(0.01)

    def begin(self, **named: Any) -> Job:
        """Drop leftovers and begin a job that moves the shard to the other cluster.

        Args:
            **named: options of ``MoveSpec``.
        """
        for left in moves.left_behind(self.client):
            moves.drop(self.client, left)
        internals = internals_of(self.client)
        internals.shards.router.again(internals.shards.routing)
        job, new = moves.MOVE.begin_or_join(self.client, MoveSpec(other(self.client), accounts=False, **named), [SHARD])
        assert new
        return job

    def free(self, job: Job) -> None:
        """Release the shard, as if the mover's lease had expired."""
        self.job_store.leases.release_dead(job.job_id, "mover")

    def end(self, job: Job, movers: Movers, *, abort: bool) -> None:
        """Run successors that continue or abort the job until it is done."""
        if abort:
            Records(self.client).note_outcome(
                job.job_id, SHARD, ("preparing", "copying", "cutting"), {"phase": "aborting"}
            )
        for _ in range(200):
            if all(state.state != "waiting" for state in self.job_store.shards(job.job_id)):
                # The first mover completed the shard despite the interruption.
                self.job_store.complete(job.job_id)
                return
            self.free(job)
            outcomes: list[Outcome] = []
            movers.move(self.client, job, outcomes=outcomes)
            if outcomes and outcomes[0].kind == "through":
                self.job_store.complete(job.job_id)
                return
            assert not outcomes or outcomes[0].error is None or outcomes[0].error.retryable, outcomes
        pytest.fail("no successor completed the shard")

    def check(self, job: Job) -> str:
        """Compare acknowledged with stored cells, and the tables with the catalog; return the phase."""
        self.put()
        assert self._found() == self.acknowledged
        (record,) = Records(self.client).all(job.job_id)
        internals = internals_of(self.client)
        home = internals.topology.cluster_of(SHARD).name
        assert home == (record.source if record.phase == "aborted" else record.target)
        database = internals.shards.database(SHARD)
        for name in (record.source, record.target):
            node = internals.topology.cluster(name).primary
            exists = query(node, f"SHOW DATABASES LIKE '{database}'")
            tables = {str(row[0]) for row in query(node, f"SHOW TABLES FROM `{database}`")} if exists else set()
            fenced = {"cell", "cold_file", "follower", "parked", "erased_cell"}
            assert tables & fenced == (fenced if name == home else set())
            assert not [table for table in tables if "incoming" in table or "probe" in table]
            assert len([table for table in tables if "_moved_" in table]) == (
                len(KEPT) if record.phase == "verified" and name == record.source else 0
            )
        if record.phase == "verified":
            sides = [
                (record.source, moving.moved("cell", record.token or "")),
                (record.target, "cell"),
            ]
            old, new = (
                query(internals.topology.cluster(name).primary, DIGEST.format(database, table, record.fence_id or 0))
                for name, table in sides
            )
            assert old == new
        return record.phase


class Writer:
    """Writes cells in a thread throughout; a put without a reply is repeated under the same key."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._error is None

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.01):
                row, turn = self._bench.next()
                put = None
                while put is None:
                    with suppress(ServerUnavailable, ServerTimeout, OutcomeUnknown):
                        put = self._bench.client.put_cell(row, "BASE", 1, turn)
                self._bench.acknowledge(put.added_id, row, turn)
        except BaseException as error:  # noqa: BLE001 - __exit__ asserts that there is none
            self._error = error
