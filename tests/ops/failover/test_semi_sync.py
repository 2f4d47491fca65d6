"""Semi-synchronous replication: killing a primary loses no acknowledged cell."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest

import schemaless
from schemaless import ServerUnavailable
from schemaless.cell import Put
from schemaless.local import servers as local
from schemaless.local.description import Description, LocalServer
from schemaless.local.starting import Manner, begin, finish
from schemaless.ops.failover import adopt as failover
from schemaless.ops.failover import nodes
from schemaless.ops.failover.lost import lost_cells
from schemaless.ops.failover.states import node_states
from schemaless.testing.servers import private_servers
from schemaless.topology.router import MAX_REFRESH_INTERVAL_S
from tests.promotion import sql

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

WRITERS = 4


@pytest.fixture
def primary(flavour: str) -> Iterator[LocalServer]:
    """A semi-synchronous primary with a replica; the test kills it."""
    with private_servers(flavour, 1, replicas=1, semi_sync=True) as (server,):
        yield server


@pytest.mark.long
def test_kill_of_a_semi_synchronous_primary_loses_nothing_acknowledged(primary, flavour):
    """Four writers, kill -9, the replica is promoted and adopted: each acknowledged cell is stored under its id."""
    (replica,) = primary.replicas
    url = schemaless.create("trips", 4, [primary.url])
    nodes.add_replica(url, "cluster-1", replica.url)
    state = node_states(url)[1][0]
    acknowledged: dict[uuid.UUID, int] = {}
    enough, killed = threading.Event(), threading.Event()

    def write(number: int) -> None:
        for turn in range(100_000):
            row = uuid.uuid5(uuid.NAMESPACE_OID, f"{number} {turn}")
            try:
                acknowledged[row] = store.put_cell(row, "BASE", 1, turn).added_id
            except schemaless.ServerError:
                if killed.is_set():
                    return
                raise
            if len(acknowledged) > 100:
                enough.set()

    with schemaless.connect(url) as store:
        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
        for thread in threads:
            thread.start()

        assert enough.wait(120)
        killed.set()
        local.kill(primary)
        for thread in threads:
            thread.join(120)
        if flavour == "mysql":
            promote(replica)
            server = replica.url.replace("/?", "/trips?", 1)
            done = failover.adopt(server, "cluster-1", replica.url, timeout_s=30)
            put = put_when_it_answers(store)
            found = {cell.row_key: cell.added_id for shard in range(4) for cell in store.scan_shard(shard)}
            restart(primary)
            with schemaless.connect(server) as late:
                lost = {cell.row_key for cell in lost_cells(late, primary.url)}

            assert (done.old_primary, done.old_written_s) == ("unreachable", MAX_REFRESH_INTERVAL_S)
            assert put.added_id > max(acknowledged.values())
            assert acknowledged.items() <= found.items()
            assert not lost & set(acknowledged)
    assert (state.fault, state.warnings) == (None, [])
    assert state.semi_sync is not None
    assert state.semi_sync.active


def put_when_it_answers(store: schemaless.Datastore) -> Put:
    """Put a cell, and retry after the delay that the circuit breaker of the old primary names."""
    give_up_s = time.monotonic() + 120
    while True:
        try:
            return store.put_cell(uuid.uuid4(), "BASE", 1, 0)
        except ServerUnavailable as refused:
            if refused.retry_after_s is None or time.monotonic() > give_up_s:
                raise
            time.sleep(refused.retry_after_s)


def restart(server: LocalServer) -> None:
    """Restart a killed server without touching its former replica."""
    description = Description.read(server.folder)
    assert description is not None
    manner = Manner((), print)
    finish(begin(description, manner), manner)


def promote(replica: LocalServer) -> None:
    """Promote a replica as a failover does: it applies received transactions, then accepts writes."""
    sql(
        replica,
        "STOP REPLICA IO_THREAD",
        "SELECT WAIT_FOR_EXECUTED_GTID_SET("
        "(SELECT RECEIVED_TRANSACTION_SET FROM performance_schema.replication_connection_status), 30)",
        "STOP REPLICA",
        "RESET REPLICA ALL",
        "SET GLOBAL super_read_only = 0",
        "SET GLOBAL read_only = 0",
    )
