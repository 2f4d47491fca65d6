"""A mover killed, or frozen and thawed, before each statement of its cut; a successor continues or aborts the move."""

from __future__ import annotations

import threading
from contextlib import suppress

import pymysql
import pytest

from schemaless.ops.jobs.worker import Outcome
from schemaless.ops.move import steps
from schemaless.store.internals import internals_of
from schemaless.wire.node import Node
from tests.movers import connected, query
from tests.ops.move.benches import SHARD, Killed, Point, Writer, other

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

POINTS = pytest.mark.parametrize("points", [2, pytest.param(8, marks=pytest.mark.long)])
"""Number of statements before which a mover is interrupted."""


@pytest.mark.guarantee("myrocks-moves")
@pytest.mark.myrocks
@POINTS
@pytest.mark.parametrize("abort", [False, True], ids=["runs", "aborts"])
def test_a_mover_killed_before_a_statement(bench, movers, abort, points):
    """A successor loses, renumbers or duplicates no acknowledged cell, and leaves no table over."""

    def kill(sql: bytes) -> None:
        raise Killed

    for number in bench.points(movers, f"killed {abort}", points):
        bench.put()
        job = bench.begin()
        movers.move(bench.client, job, Point(number, kill))
        bench.end(job, movers, abort=abort)
        phase = bench.check(job)

        assert phase == "verified" or abort, movers.sent[number]


def test_a_move_aborted_before_the_target_has_an_identity(bench, movers):
    """Tables without an identity and without cells do not refuse the next move of the shard."""
    bench.put()
    bench.move(movers, count=True)
    (number,) = (at for at, sql in enumerate(movers.sent) if b"INSERT" in sql and b"shard_identity" in sql)

    def kill(sql: bytes) -> None:
        raise Killed

    job = bench.begin()
    movers.move(bench.client, job, Point(number, kill))
    bench.end(job, movers, abort=True)
    target = internals_of(bench.client).topology.cluster(other(bench.client)).primary
    identities = query(
        target, f"SELECT COUNT(*) FROM `{internals_of(bench.client).shards.database(SHARD)}`.shard_identity"
    )
    bench.move(movers)

    assert identities == [(0,)]


def test_a_successor_adds_to_the_number_of_copied_cells(bench, movers):
    """The job counts the cells that a mover had copied when it died."""
    bench.put(3)
    job = bench.begin()
    movers.die_in(bench.client, job, steps._ShardMove, "_cut")
    bench.end(job, movers, abort=False)
    (state,) = bench.job_store.shards(job.job_id)

    assert state.cells == len(bench.acknowledged)
    assert bench.check(job) == "verified"


@pytest.mark.long
@pytest.mark.guarantee("myrocks-moves")
@pytest.mark.myrocks
@POINTS
@pytest.mark.parametrize("abort", [False, True], ids=["runs", "aborts"])
def test_a_mover_frozen_before_a_statement_and_thawed(bench, movers, abort, points):
    """A successor continues or aborts the move in the meantime; the thawed mover changes nothing more."""
    for number in bench.points(movers, f"frozen {abort}", points):
        bench.put()
        job = bench.begin()
        frozen, thawed = threading.Event(), threading.Event()

        def freeze(sql: bytes, frozen: threading.Event = frozen, thawed: threading.Event = thawed) -> None:
            frozen.set()
            assert thawed.wait(120)

        outcomes: list[Outcome] = []
        mover = threading.Thread(target=movers.move, args=(bench.client, job, Point(number, freeze), outcomes))
        mover.start()
        while mover.is_alive() and not frozen.wait(0.01):
            pass
        bench.end(job, movers, abort=abort)
        thawed.set()
        mover.join()
        phase = bench.check(job)

        assert not outcomes or outcomes[0].kind != "through" or phase == "verified"


HELD = {
    "a transaction": {"": ["START TRANSACTION", "SELECT * FROM `{0}`.cell LIMIT 1"]},
    "the table": {"": ["LOCK TABLES `{0}`.cell READ"]},
    "everything": {"": ["FLUSH TABLES WITH READ LOCK"]},
    "a backup": {
        "mysql": ["LOCK INSTANCE FOR BACKUP"],
        "mariadb": ["BACKUP STAGE START", "BACKUP STAGE FLUSH", "BACKUP STAGE BLOCK_DDL"],
    },
}
"""Blocking statements by case and server flavour; an empty flavour stands for both."""

HELD_S = 1.2
"""Duration of the block, in seconds; a mover's statements wait for one second."""


HOLDS = [("the table", "source")]
MORE = [
    ("everything", "target"),
    ("a transaction", "source"),
    ("a backup", "target"),
    ("everything", "source"),
    ("a backup", "source"),
]


@pytest.mark.guarantee("myrocks-moves")
@pytest.mark.myrocks
@pytest.mark.parametrize(("what", "who"), HOLDS + [pytest.param(*more, marks=pytest.mark.long) for more in MORE])
def test_a_server_that_is_blocked_before_a_statement(bench, movers, monkeypatch, flavour, what, who):
    """A transaction, LOCK TABLES, FLUSH TABLES WITH READ LOCK or a backup, beside a writer: nothing is lost."""
    monkeypatch.setattr(steps, "BACKOFF", 0)
    internals = internals_of(bench.client)
    for number in bench.points(movers, f"{who} {what}", 1):
        job = bench.begin()
        home, away = internals.topology.cluster_of(SHARD).name, other(bench.client)
        node = internals.topology.cluster(home if who == "source" else away).primary
        held = threading.Event()

        def hold(node: Node = node, held: threading.Event = held) -> None:
            with connected(node) as connection, connection.cursor() as cursor:
                # The lock may be unavailable, because the mover holds it or the table does not exist.
                with suppress(pymysql.Error):
                    cursor.execute("SET SESSION lock_wait_timeout = 1")
                    for statement in HELD[what].get("") or HELD[what][flavour]:
                        cursor.execute(statement.format(internals.shards.database(SHARD)))
                held.set()
                threading.Event().wait(HELD_S)

        holder = threading.Thread(target=hold)

        def begin(sql: bytes, holder: threading.Thread = holder, held: threading.Event = held) -> None:
            holder.start()
            held.wait()

        with Writer(bench):
            movers.move(bench.client, job, Point(number, begin))
            bench.end(job, movers, abort=False)
        if holder.ident is not None:
            holder.join()

        assert bench.check(job) == "verified"


@pytest.mark.long
def test_a_transaction_in_a_session_of_the_mover(bench, movers):
    """START TRANSACTION releases the lock: the cut is correct without it, since it reads again after the RENAME."""

    def begin(sql: bytes) -> None:
        assert movers.connection is not None
        if movers.connection.unfinished:
            movers.connection.execute(b"START TRANSACTION")

    for number in bench.points(movers, "in the session", 2):
        job = bench.begin()
        with Writer(bench):
            movers.move(bench.client, job, Point(number, begin))
            bench.end(job, movers, abort=False)

        assert bench.check(job) == "verified"
