"""Moves whose servers fail over, have unexpected cells, or are gone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from schemaless import Datastore, MoveRefused, ServerUnavailable
from schemaless.ops.jobs.worker import Outcome
from schemaless.ops.move import run as moves
from schemaless.ops.move import sql, steps
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.record import Records
from schemaless.store.internals import internals_of
from schemaless.topology.sql import moving
from tests.movers import connected, query
from tests.ops.move.benches import SHARD, other

pytestmark = [pytest.mark.mysql]


def test_a_source_that_lost_cells_in_a_failover_is_copied_anew(bench, movers, client, monkeypatch):
    """A new cell has the id of one that was copied and then lost: it is moved, and the lost one does not reappear."""
    job = bench.begin()
    internals = internals_of(client)
    database, source = internals.shards.database(SHARD), internals.shards.node_of(SHARD)
    ((folder,),) = query(source, "SELECT @@datadir")
    monkeypatch.setattr(sql, "SELECT_SERVER", b"SELECT @@datadir")
    movers.die_in(client, job, Fence, "lock")
    last = max(bench.acknowledged)
    row, turn = bench.acknowledged[last]
    other_row = uuid.UUID(int=row.int ^ 1)
    query(source, f"UPDATE `{database}`.cell SET row_key=x'{other_row.hex}' WHERE added_id={last}")
    bench.acknowledged[last] = other_row, turn
    monkeypatch.setattr(sql, "SELECT_SERVER", f"SELECT REPLACE(@@datadir, '{folder}', 'new')".encode())
    bench.end(job, movers, abort=False)

    assert bench.check(job) == "verified"


@pytest.mark.long
def test_a_key_that_the_target_has_under_another_id_ends_the_move(bench, movers, client, monkeypatch):
    """The error says what to do, and the shard is not retried."""
    job = bench.begin()
    target = internals_of(client).topology.cluster(other(client)).primary
    create = steps.create_incoming

    def strange(connection, database, names, identity, engine):
        create(connection, database, names, identity, engine)
        row, _ = next(iter(bench.acknowledged.values()))
        query(
            target,
            f"INSERT INTO `{database}`.{names['cell']} (added_id, row_key, column_name, ref_key, body) "
            f"SELECT 999999, x'{row.hex}', 'BASE', 1, ''",
        )

    monkeypatch.setattr(steps, "create_incoming", strange)
    outcomes: list[Outcome] = []
    movers.move(client, job, outcomes=outcomes)

    assert isinstance(outcomes[0].error, MoveRefused)
    assert "under a different added_id" in str(outcomes[0].error)
    assert "Abort the move" in str(outcomes[0].error)
    bench.end(job, movers, abort=True)
    assert bench.check(job) == "aborted"


@contextmanager
def gone(client: Datastore, cluster: str) -> Iterator[None]:
    """Replace a cluster's primary in the catalog by an unreachable address."""
    catalog = internals_of(client).catalog.node
    where = f"WHERE cluster = '{cluster}' AND role = 'primary'"
    (before,) = query(catalog, f"SELECT socket, host, port FROM `{client.name}`.node {where}")

    def name(socket: object, host: object, port: object) -> None:
        with connected(catalog) as connection, connection.cursor() as cursor:
            values = "socket = %s, host = %s, port = %s"
            cursor.execute(f"UPDATE `{client.name}`.node SET {values} {where}", (socket, host, port))
            cursor.execute(f"UPDATE `{client.name}`.datastore SET topology_token = x'{uuid.uuid4().hex}'")
        internals_of(client).shards.router.again(internals_of(client).shards.routing)

    name("/nowhere.sock", None, None)
    yield
    name(*before)


def test_a_move_to_a_cluster_that_is_gone_is_aborted(bench, client):
    """The source's lock suffices; an event names the tables that may remain on the target."""
    job = bench.begin()
    with gone(client, other(client)):
        (record,) = moves.abort(client, job)

    assert record.phase == "aborted"
    assert bench.job_store.job(job.job_id).state == "cancelled"
    assert any("/nowhere.sock cannot be reached" in what for _, _, what in bench.job_store.events(job.job_id))
    assert bench.check(job) == "aborted"


def test_a_target_lost_during_the_cut_needs_a_decision(bench, movers, client):
    """Only the target knows whether the shard has moved; after a rename back by hand, the move is aborted."""
    job = bench.begin()
    movers.die_in(client, job, Fence, "rename_target")
    bench.free(job)
    source, database = internals_of(client).shards.node_of(SHARD), internals_of(client).shards.database(SHARD)
    target = internals_of(client).topology.cluster(other(client)).primary
    token = Records(client).all(job.job_id)[0].token
    with gone(client, other(client)):
        outcomes: list[Outcome] = []
        movers.move(client, job, outcomes=outcomes)
        assert isinstance(outcomes[0].error, ServerUnavailable)
        for table in sql.FENCED:
            query(source, f"RENAME TABLE `{database}`.{moving.moved(table, token)} TO `{database}`.{table}")
        bench.put()
        bench.end(job, movers, abort=True)
    query(target, f"DROP DATABASE `{database}`")

    assert bench.check(job) == "aborted"


def test_a_source_lost_during_the_cut_is_waited_for(bench, movers, client):
    """It may have cells that the target lacks, so a successor neither continues nor aborts without it."""
    job = bench.begin()
    movers.die_in(client, job, Fence, "rename_target")
    outcomes: list[Outcome] = []
    with gone(client, internals_of(client).topology.cluster_of(SHARD).name):
        for phase in ("cutting", "aborting"):
            Records(client).note_outcome(job.job_id, SHARD, ("cutting",), {"phase": phase})
            bench.free(job)
            movers.move(client, job, outcomes=outcomes)
    bench.end(job, movers, abort=True)

    assert [type(outcome.error) for outcome in outcomes] == [ServerUnavailable] * 2
    assert bench.check(job) == "aborted"


def test_a_move_from_a_lost_cluster_can_end_without_verification(bench, movers, client):
    """Only on request, and only while the source cannot be reached."""
    job = bench.begin()
    movers.die_in(client, job, steps, "verify_shard")
    bench.free(job)
    with pytest.raises(MoveRefused, match="can be reached; run the same command without --uncompared"):
        moves.abort(client, job, uncompared=True)
    (record,) = Records(client).all(job.job_id)
    with gone(client, record.source):
        (ended,) = moves.abort(client, job, uncompared=True)

    assert (record.phase, ended.phase) == ("moved", "dropped")
    assert bench.job_store.job(job.job_id).state == "done"
    bench.put()
