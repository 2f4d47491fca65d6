"""Entries after a failover: none is written to the former primary."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import schemaless
from schemaless.errors import ServerError
from schemaless.local.description import LocalServer
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.failover import nodes
from schemaless.store.indexes import sql
from schemaless.store.indexes.registry import BACKFILLING, READY
from schemaless.store.internals import internals_of
from tests.accounts import Accounts, accounts_on
from tests.movers import query
from tests.promotion import caught_up, promoted, read_only
from tests.store.indexes.conftest import TRIPS
from tests.store.indexes.test_indexes import trip

pytestmark = pytest.mark.mysql

_names = itertools.count(1)
SHARDS = 4


@pytest.fixture(scope="module")
def own_accounts(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[Accounts]:
    """Accounts on all of these servers, separate from those of other tests."""
    with accounts_on([servers[0].url, replicated.url], prefix="entries_") as made:
        yield made


@pytest.fixture
def url(own_accounts: Accounts, replicated: LocalServer) -> str:
    """A datastore whose shards 2 and 3 are on a server with a replica; the catalog is on another server."""
    made = own_accounts.create(f"entries{next(_names)}", SHARDS)
    admin = own_accounts.url("admin", made)
    nodes.add_replica(admin, "cluster-2", own_accounts.url("admin", replicated.replicas[0].url))
    return made


@pytest.mark.guarantee("lost-connection-rereads")
def test_after_a_loss_no_entry_goes_to_a_primary_that_was_replaced(url, own_accounts, replicated, new_row):
    """It accepts writes and has every table, but no entry is written and no query is read there."""
    with schemaless.connect(own_accounts.root(url)) as store:
        entry, _ = indexes_of(store).create(TRIPS)
        rows = [row for row in (new_row() for _ in range(200)) if store.shard_of(row) >= 2][:2]
        home = store.shard_of(rows[0])
        client = next(row for row in iter(new_row, None) if store.shard_of(row) == home)
        store.put_cell(rows[0], "BASE", 1, trip(1, client))
        internals = internals_of(store)
        entries = indexes_of(store).entries(entry)
        entries.apply(entries.writes({home: list(internals.scan(home))}))
        internals.catalog.run(
            lambda connection: connection.execute(
                sql.update_index(store.name, entry.number, [BACKFILLING], READY, None)
            )
        )
        internals.registry.read()
        store.put_cell(rows[0], "BASE", 2, trip(2, client))
        writes = entries.writes({home: list(internals.scan(home))})
        old = internals.shards.node_of(home)
        with caught_up(replicated), promoted(replicated) as replica:
            with read_only(replicated):
                nodes.set_primary(
                    own_accounts.url("admin", url), "cluster-2", own_accounts.url("admin", replica.url), timeout_s=60
                )
            assert internals.shards.node_of(home) == old, "this process does not know yet"
            internals.shards.pool_for(old).breaker.lost()
            with pytest.raises(ServerError, match="the catalog now names"):
                entries.apply(writes)
            entries.apply(writes)
            select = f"SELECT ref_0 FROM `{internals.shards.database(home)}`.index_{entry.number}"

            assert internals.shards.node_of(home).socket == str(replica.socket)
            assert (query(old, select), query(internals.shards.node_of(home), select)) == ([(1,)], [(2,)])
            assert [each.cells["BASE"].ref_key for each in store.index(TRIPS.name).query(client=client).rows] == [2]
