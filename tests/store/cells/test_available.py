"""Reads while the primary is down: correct if that can be known, marked as stale otherwise, and never a guess."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import schemaless
from schemaless import Cell, Datastore, InvalidInput, ServerUnavailable, StaleAbsence, StaleCell
from schemaless.local import servers as local_servers
from schemaless.local.description import LocalServer
from schemaless.store.cold.fetching import cache
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.topology.replication import has_caught_up_with
from schemaless.wire.node import Node
from tests.cold import ColdFolder
from tests.freezing import freeze, thaw
from tests.promotion import sql, word
from tests.topologies import opened_as

BOTH, NEW, COLD = (uuid.UUID(int=number) for number in (1, 2, 3))
MANY = [(BOTH, "BASE"), (NEW, "BASE")]


@pytest.fixture(scope="module")
def primary(flavour: str) -> Iterator[LocalServer]:
    """A separate server with a replica, which these tests suspend and kill."""
    with private_servers(flavour, 1, replicas=1) as (running,):
        yield running


@pytest.fixture(scope="module")
def lagging(primary: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datastore]:
    """A datastore whose replica has two versions of a row and is stopped; the primary has more."""
    (replica,) = primary.replicas
    node = Node("replica", socket=str(replica.socket))
    with schemaless.connect(schemaless.create("lagging", 1, [primary.url])) as store:
        topology = internals_of(store).topology
        cluster = topology.clusters[0]
        opened = opened_as(store, topology.with_cluster(replace(cluster, nodes=(cluster.primary, node))))
    with opened:
        for ref_key in (1, 2):
            opened.put_cell(BOTH, "BASE", ref_key, ref_key)
        opened.put_cell(BOTH, "NOTE", 1, "seen")
        erased, _ = (opened.put_cell(COLD, "BASE", ref_key, "old") for ref_key in (1, 2))
        folder = ColdFolder(opened, internals_of(opened).shards, tmp_path_factory.mktemp("cold"))
        (file,) = folder.freeze([(COLD, "BASE", 1), (COLD, "BASE", 2)])
        assert one(opened.get_cell(COLD, "BASE", 2)) == (["old"], [False])
        folder.rewrite(file, {erased.added_id})
        cache().clear()
        pools = internals_of(opened).shards
        assert has_caught_up_with(pools.pool_for(node), pools.pool_for(cluster.primary), 60)
        sql(replica, f"STOP {word(replica)}")
        opened.put_cell(BOTH, "BASE", 3, 3)
        opened.put_cell(NEW, "BASE", 1, 1)
        yield opened


@contextmanager
def hangs(server: LocalServer) -> Iterator[None]:
    """Suspend a server's process during the block."""
    freeze(server.pid)
    try:
        yield
    finally:
        thaw(server.pid)


Found = tuple[object, list[bool]]
"""The result of a call: bodies, and whether each cell is stale."""


def bodies(cells: list[Cell]) -> Found:
    """Return the bodies of cells, and whether each is stale."""
    return [cell.body for cell in cells], [cell.stale for cell in cells]


def one(cell: Cell | None) -> Found | None:
    """Return the body of a cell, and whether it is stale."""
    return None if cell is None else bodies([cell])


CALLS: dict[str, tuple[Callable[[Datastore], object], object, object]] = {
    "a cell by its whole key": (
        lambda store: one(store.get_cell(BOTH, "BASE", 1, read_from="available")),
        ([1], [False]),
        ([1], [False]),
    ),
    "a cell that only the primary has": (
        lambda store: one(store.get_cell(BOTH, "BASE", 3, read_from="available")),
        ([3], [False]),
        StaleAbsence,
    ),
    "a cell that nobody has": (
        lambda store: one(store.get_cell(BOTH, "BASE", 9, read_from="available")),
        None,
        StaleAbsence,
    ),
    "the latest": (
        lambda store: one(store.get_cell_latest(BOTH, "BASE", read_from="available")),
        ([3], [False]),
        ([2], [True]),
    ),
    "the latest of a row that only the primary has": (
        lambda store: one(store.get_cell_latest(NEW, "BASE", read_from="available")),
        ([1], [False]),
        StaleAbsence,
    ),
    "the latest of many": (
        lambda store: bodies([*store.get_cells_latest([(BOTH, "BASE")], read_from="available").values()]),
        ([3], [False]),
        ([2], [True]),
    ),
    "the latest of many, one of them on the primary only": (
        lambda store: bodies(
            [*store.get_cells_latest(iter([(BOTH, "BASE"), (NEW, "BASE")]), read_from="available").values()]
        ),
        ([3, 1], [False, False]),
        StaleAbsence,
    ),
    "a row": (
        lambda store: bodies([*store.get_row(BOTH, read_from="available").values()]),
        ([3, "seen"], [False, False]),
        ([2, "seen"], [True, True]),
    ),
    "a row that only the primary has": (
        lambda store: bodies([*store.get_row(NEW, read_from="available").values()]),
        ([1], [False]),
        StaleAbsence,
    ),
    "rows": (
        lambda store: bodies([*store.get_rows([BOTH], read_from="available")[BOTH].values()]),
        ([3, "seen"], [False, False]),
        ([2, "seen"], [True, True]),
    ),
    "rows, one of them on the primary only": (
        lambda store: len(store.get_rows([BOTH, NEW], columns=["BASE"], read_from="available")),
        2,
        StaleAbsence,
    ),
    "versions": (
        lambda store: bodies([*store.get_versions(BOTH, "BASE", read_from="available")]),
        ([3, 2, 1], [False] * 3),
        ([2, 1], [True] * 2),
    ),
    "as many versions as were asked for": (
        lambda store: bodies([*store.get_versions(BOTH, "BASE", limit=1, before=3, read_from="available")]),
        ([2], [False]),
        ([2], [True]),
    ),
    "no versions": (
        lambda store: [*store.get_versions(BOTH, "BASE", limit=0, read_from="available")],
        [],
        [],
    ),
    "versions that only the primary has": (
        lambda store: bodies([*store.get_versions(BOTH, "BASE", after=2, read_from="available")]),
        ([3], [False]),
        StaleAbsence,
    ),
    "stored versions": (
        lambda store: [each.stale for each in store.get_stored_versions(BOTH, "NOTE", read_from="available")],
        [False],
        [True],
    ),
    "names of columns": (
        lambda store: store.column_names(BOTH, read_from="available"),  # type: ignore[arg-type]
        InvalidInput,
        InvalidInput,
    ),
    "the change feed": (
        lambda store: store.get_cells_for_shard(0, read_from="available"),  # type: ignore[arg-type]
        InvalidInput,
        InvalidInput,
    ),
    "the change feed, cell by cell": (
        lambda store: store.iter_shard(0, read_from="available"),  # type: ignore[arg-type]
        InvalidInput,
        InvalidInput,
    ),
    "the primary alone": (lambda store: one(store.get_cell(BOTH, "BASE", 1)), ([1], [False]), ServerUnavailable),
}


def outcome(store: Datastore, call: Callable[[Datastore], object]) -> object:
    """Return the result of a call, or the class of the exception that it raises."""
    try:
        return call(store)
    except (StaleAbsence, ServerUnavailable, InvalidInput) as error:
        return type(error)


def found_without_the_primary(store: Datastore) -> None:
    """Check every read while the primary is away."""
    # The replica knows that the file of a cold cell was rewritten since this process read it.
    assert one(store.get_cell(COLD, "BASE", 2, read_from="available")) == (["old"], [False])
    # The call that first meets the failure is answered as well.
    assert outcome(store, CALLS["the latest"][0]) == ([2], [True])
    assert {name: outcome(store, call) for name, (call, _, _) in CALLS.items()} == {
        name: away for name, (_, _, away) in CALLS.items()
    }
    with pytest.raises(StaleAbsence, match="The primary may, but it does not answer") as raised:
        store.get_cells_latest(MANY, read_from="available")
    again = pickle.loads(pickle.dumps(raised.value))
    assert [(type(cell), cell.body) for cell in again.found.values()] == [(StaleCell, 2)]
    assert (again.shard, again.retryable) == (0, True)
    with pytest.raises(StaleAbsence) as raised:
        store.get_rows([NEW, BOTH], read_from="available")
    assert {key: cell.body for key, cell in raised.value.found.items()} == {(BOTH, "BASE"): 2, (BOTH, "NOTE"): "seen"}


@pytest.mark.guarantee("reading-available")
@pytest.mark.mysql
def test_every_read_is_right_marked_or_refused(primary, lagging, eventually):
    """With the primary up nothing is stale. Without it, the replica's cells are found and no absence is assumed."""
    latest = CALLS["the latest"][0]
    assert {name: outcome(lagging, call) for name, (call, _, _) in CALLS.items()} == {
        name: there for name, (_, there, _) in CALLS.items()
    }
    hanging = internals_of(lagging).shards.pool_for(internals_of(lagging).shards.node_of(0))
    patient = hanging.options
    # Short only until the primary is read again: a busy machine may need longer.
    hanging.options = replace(patient, connect_timeout_s=0.5, read_timeout_s=0.5)
    hanging.close()
    eventually(lambda: outcome(lagging, latest) == ([3], [False]), "a connection with that timeout is open")
    with hangs(primary):
        found_without_the_primary(lagging)
        hanging.options = patient
    hanging.breaker.retry_at_s = 0
    eventually(lambda: outcome(lagging, latest) == ([3], [False]), "the primary is read again")
    local_servers.kill(primary)
    found_without_the_primary(lagging)
    # Without a replica to fall back to, the error is the primary's.
    local_servers.kill(primary.replicas[0])
    with pytest.raises(ServerUnavailable) as raised:
        lagging.get_cell(BOTH, "BASE", 1, read_from="available")
    assert not isinstance(raised.value, StaleAbsence)
    assert raised.value.node == str(primary.socket)


@pytest.mark.guarantee("reading-available")
@pytest.mark.mysql
def test_versions_read_from_a_replica_may_be_incomplete(lagging, monkeypatch):
    """If the primary fails between two pages and the replica has no more versions, the end is in doubt."""
    shards = internals_of(lagging).shards

    def fails(*_: object, **__: object) -> object:
        raise ServerUnavailable("gone", node="db-1")

    monkeypatch.setattr(shards, "run", fails)
    monkeypatch.setattr(shards, "run_on", lambda *_: ())
    with pytest.raises(StaleAbsence, match="more versions"):
        next(lagging.get_versions(BOTH, "BASE", read_from="available"))
