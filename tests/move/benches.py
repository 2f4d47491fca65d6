"""A shard that is moved to and fro, and movers that meet something before a statement of their cut."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pytest

from schemaless import Datastore
from schemaless.jobs.job import Job
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.worker import Outcome, let_go, work_on
from schemaless.move import run as moves
from schemaless.move.record import Records
from schemaless.move.spec import MoveSpec
from schemaless.move.steps import work
from schemaless.mysql.connection import Connection
from schemaless.store.opening import opening_of
from schemaless.store.tools import tools_of
from tests.movers import query

SHARD = 1
"""The shard that is moved."""

CUT = (
    *("CREATE TABLE IF NOT EXISTS", "RENAME TABLE", "DROP TABLE IF EXISTS", "SHOW CREATE TABLE", "ALTER TABLE"),
    *("SET SESSION wait_timeout", "LOCK TABLES", "UNLOCK TABLES", "SELECT added_id, LENGTH(body)", "INSERT INTO"),
    *("DELETE FROM", "SELECT name, location", "SELECT name, added_id", "UPDATE", "SELECT MAX(added_id)", "COMMIT"),
)
"""What a mover sends from its takeover to its end begins so; the copying of settled pages is left alone."""


class Killed(BaseException):
    """The mover ends here: what it holds open is closed, as by the end of its process."""


class Point(NamedTuple):
    """Before which statement of a mover something happens, counted from 0."""

    number: int
    does: Callable[[bytes], None]


class Movers:
    """Movers in threads of their own, of which one meets something before a statement of its cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[bytes] = []
        self._thread: int | None = None
        self._point: Point | None = None
        self._numbers = itertools.count()
        self._names = itertools.count(1)
        send = Connection._send

        def hooked(connection: Connection, sql: bytes) -> object:
            if threading.get_ident() == self._thread and sql.decode("latin-1").startswith(CUT):
                number = next(self._numbers)
                self.seen.append(sql[:100])
                if self._point is not None and number == self._point.number:
                    self._point.does(sql)
            return send(connection, sql)

        monkeypatch.setattr(Connection, "_send", hooked)

    def move(
        self, store: Datastore, job: Job, point: Point | None = None, outcomes: list[Outcome] | None = None
    ) -> None:
        """Work on the shard until it is through, in this thread; with a point, once."""
        name = f"mover {next(self._names)}"
        if point is not None:
            self._thread, self._point, self._numbers = threading.get_ident(), point, itertools.count()
            self.seen.clear()
        try:
            with suppress(Killed):
                outcome = work_on(opening_of(store), job.job_id, SHARD, name, work, None)
                if outcomes is not None:
                    outcomes.append(outcome)
        finally:
            if point is not None:
                self._thread = None
            let_go()


def other(store: Datastore, shard: int = SHARD) -> str:
    """Return the cluster that a shard is not on."""
    topology = tools_of(store).topology
    return next(each.name for each in topology.clusters if each != topology.cluster_of(shard))


class Bench:
    """A shard with a writer, moved to and fro; each time what was acknowledged is held against what is there."""

    def __init__(self, client: Datastore, new_row: Callable[[], uuid.UUID]) -> None:
        self.client = client
        self.ledger = Ledger(client)
        self.acknowledged: dict[int, tuple[uuid.UUID, int]] = {}
        self._rows = (row for row in iter(new_row, None) if client.shard_of(row) == SHARD)
        self._turns = itertools.count()

    def put(self, count: int = 1) -> None:
        """Write cells, and remember them."""
        for _ in range(count):
            row, turn = next(self._rows), next(self._turns)
            put = self.client.append_cell(row, "BASE", turn)
            assert put.added_id not in self.acknowledged, "an id was given twice"
            self.acknowledged[put.added_id] = row, turn

    def begin(self) -> Job:
        """Begin a job that moves the shard to the other cluster, where nothing is left of the last one."""
        for left in moves.left_behind(self.client):
            moves.drop(self.client, left)
        tools = tools_of(self.client)
        tools.shards.again(tools.shards.routing)
        job, new = moves.begin_or_join(self.client, MoveSpec(other(self.client), accounts=False), [SHARD])
        assert new
        return job

    def free(self, job: Job) -> None:
        """Give the shard back, as its mover's lease would run out."""
        self.ledger.release_dead(job.job_id, "mover")

    def end(self, job: Job, movers: Movers, *, abort: bool) -> None:
        """Have a successor go on with the job, or give it up, until it is through."""
        if abort:
            Records(self.client).note_outcome(
                job.job_id, SHARD, ("preparing", "copying", "cutting"), {"phase": "aborting"}
            )
        for _ in range(200):
            self.free(job)
            outcomes: list[Outcome] = []
            movers.move(self.client, job, outcomes=outcomes)
            if outcomes and outcomes[0].kind == "through":
                self.ledger.complete(job.job_id)
                return
            assert not outcomes or outcomes[0].error is None or outcomes[0].error.retryable, outcomes
        pytest.fail("no successor came to the end")

    def check(self, job: Job) -> str:
        """Hold what was acknowledged against what is there, and the tables against the catalog; return the phase."""
        self.put()
        found = {cell.added_id: (cell.key.row_key, cell.decode().body) for cell in self.client.scan_shard(SHARD)}
        assert found == self.acknowledged
        (record,) = Records(self.client).all(job.job_id)
        tools = tools_of(self.client)
        home = tools.topology.cluster_of(SHARD).name
        assert home == (record.source if record.phase == "aborted" else record.target)
        database = tools.shards.database(SHARD)
        for name in (record.source, record.target):
            node = tools.topology.cluster(name).primary
            exists = query(node, f"SHOW DATABASES LIKE '{database}'")
            tables = {str(row[0]) for row in query(node, f"SHOW TABLES FROM `{database}`")} if exists else set()
            assert ("cell" in tables) == ("follower" in tables) == ("parked" in tables) == (name == home)
            assert not [table for table in tables if "incoming" in table or "probe" in table]
            assert len([table for table in tables if "_moved_" in table]) == (
                3 if record.phase == "verified" and name == record.source else 0
            )
        return record.phase
