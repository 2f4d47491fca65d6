"""Workers during a promotion: locations are recorded on the new primary, and no cell is missed."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

import schemaless
from schemaless.local.description import LocalServer
from schemaless.ops.failover import nodes
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.states import PAUSED
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.wire.errors import READ_ONLY
from tests.accounts import accounts_on
from tests.promotion import caught_up, promoted, read_only
from tests.store.followers.workers import Seen, turn

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

NAME = "trigger:seen"
SHARDS = 4
TIMING = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=1_000)


@pytest.fixture
def root_url(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[str]:
    """A datastore whose shards 2 and 3 are on a server with a replica; the catalog is elsewhere."""
    name = f"promoted{uuid.uuid5(uuid.NAMESPACE_OID, str(replicated.socket)).hex[:8]}"
    with accounts_on([servers[0].url, replicated.url], prefix="promoted_") as accounts:
        accounts.allow("admin", name, SHARDS)
        url = schemaless.create(name, SHARDS, accounts.urls("admin"))
        nodes.add_replica(url, "cluster-2", accounts.url("admin", replicated.replicas[0].url))
        for role in ("app", "follow"):
            accounts.allow(role, name, SHARDS)
        yield url


@pytest.fixture
def catalog_url(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[str]:
    """A datastore whose catalog is on the server with a replica."""
    name = f"catalog{uuid.uuid5(uuid.NAMESPACE_OID, str(replicated.socket)).hex[:8]}"
    with accounts_on([replicated.url, servers[0].url], prefix="promoted_") as accounts:
        accounts.allow("admin", name, SHARDS)
        url = schemaless.create(name, SHARDS, accounts.urls("admin"))
        nodes.add_replica(url, "cluster-1", accounts.url("admin", replicated.replicas[0].url))
        accounts.allow("follow", name, SHARDS)
        yield url


@pytest.mark.guarantee("follower-promotion")
def test_signs_of_life_go_to_the_new_primary_of_the_catalog(catalog_url, replicated, caplog):
    """The old primary rejects renewals; after the promotion, renewals and desired states go to the new one."""
    with schemaless.connect(catalog_url.replace("promoted_admin", "promoted_follow")) as store:
        settings = Settings(internals_of(store).follower_access)
        settings.create(NAME, {}, lambda shard: 0)
        worker = Worker(internals_of(store).follower_access, [Seen()], "one", timing=TIMING, stop=threading.Event())
        with worker.membership as members:
            with read_only(replicated), caught_up(replicated), promoted(replicated) as replica:
                members.renew()
                assert members.error is not None
                nodes.set_primary(catalog_url, "cluster-1", root_url_of(replica, catalog_url), timeout_s=60)
                for _ in range(2):
                    members.renew()
                assert (members.error, members._pool.node.socket) == (None, str(replica.socket))
                settings.set_desired_state(NAME, PAUSED)
                members.renew()
                assert members.view.desired_states == {NAME: PAUSED}
            said = [
                record.message
                for record in caplog.records
                if record.message.startswith(("worker one cannot renew", "worker one can renew"))
            ]
            assert [text.partition(":")[0] for text in said] == [
                "worker one cannot renew its lease and starts nothing new until it can",
                "worker one can renew its lease again",
            ]


def put_some(store: schemaless.Datastore, new_row: Callable[[], uuid.UUID], count: int) -> set[tuple[int, int]]:
    puts = store.put_cells([schemaless.NewCell(new_row(), "BASE", 1, n) for n in range(count)])
    return {(store.shard_of(put.key.row_key), put.added_id) for put in puts}


@pytest.mark.guarantee("follower-promotion")
def test_locations_go_to_the_new_primary_once_it_is_named(root_url, replicated, new_row):
    """An old primary refuses them (error 1290), and they are kept; the rest of the shards is none the worse."""
    with (
        schemaless.connect(root_url.replace("promoted_admin", "promoted_app")) as writer,
        schemaless.connect(root_url.replace("promoted_admin", "promoted_follow")) as store,
    ):
        Settings(internals_of(store).follower_access).create(NAME, {}, lambda shard: 0)
        seen = Seen()
        worker = Worker(internals_of(store).follower_access, [seen], "one", timing=TIMING, stop=threading.Event())
        with worker.membership:
            there = put_some(writer, new_row, 30)
            turn(worker, times=2)
            assert set(seen.cells) == there
            there |= put_some(writer, new_row, 30)
            with caught_up(replicated), read_only(replicated), promoted(replicated) as replica:
                turn(worker)
                refused = {
                    pair[1]: str(lease.wait.reason) for pair, lease in worker.leases.held.items() if lease.wait.failures
                }
                assert set(seen.cells) == there
                assert refused.keys() == {2, 3}
                assert all(any(f"error {code}" in why for code in READ_ONLY) for why in refused.values())
                assert all(
                    lease.row.location == lease.reached for pair, lease in worker.leases.held.items() if pair[1] < 2
                )

                nodes.set_primary(root_url, "cluster-2", root_url_of(replica, root_url), timeout_s=60)
                for lease in worker.leases.held.values():
                    lease.wait.until_s = 0
                internals_of(writer).shards.router.look_at_s = 0
                there |= put_some(writer, new_row, 30)
                turn(worker, times=3)
                rows = FollowerRows(internals_of(store).shards).look((NAME, shard) for shard in range(SHARDS)).rows

                assert sorted(seen.cells) == sorted(there), "each once: this worker lives on"
                assert {shard: row.location for (_, shard), row in rows.items()} == {
                    shard: max(added_id for where, added_id in there if where == shard) for shard in range(SHARDS)
                }
                assert str(internals_of(store).shards.node_of(2)) == str(replica.socket)


def root_url_of(server: LocalServer, like: str) -> str:
    """Return a server's URL with the account of another."""
    return server.url.replace("root@", f"{like.split('//')[1].split('@')[0]}@")
