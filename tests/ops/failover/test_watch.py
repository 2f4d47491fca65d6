"""``topology watch`` adopts the primary that a Group Replication majority elected."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

import schemaless
from schemaless.cli.local import status
from schemaless.errors import LocalServerError
from schemaless.local import servers as local
from schemaless.local.description import LocalServer
from schemaless.ops.failover import nodes
from schemaless.ops.failover.states import node_states
from schemaless.ops.failover.watch import Finding, Watch
from schemaless.testing.servers import private_servers
from tests.promotion import sql

pytestmark = [pytest.mark.mysql]

WRITERS = 4
TRIES = 600


@pytest.fixture
def group(flavour: str) -> Iterator[list[LocalServer]]:
    """A group of three servers; the test kills some."""
    if flavour == "mariadb":
        with (
            pytest.raises(LocalServerError, match=r"mariadb has no Group Replication"),
            private_servers(flavour, 1, group=True),
        ):
            pass
        pytest.skip("MariaDB has no Group Replication; its refusal was checked; runs with SERVER=mysql")
    options = {"loose-group-replication-member-expel-timeout": 0}
    with private_servers(flavour, 1, options, group=True) as (server,):
        yield [server, *server.replicas]


class Writers:
    """Threads that put cells and retry failed calls."""

    def __init__(self, store: schemaless.Datastore) -> None:
        self._store = store
        self._stop = threading.Event()
        self.acknowledged: dict[uuid.UUID, int] = {}
        self._threads = [threading.Thread(target=self._write, daemon=True) for _ in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._stop.is_set():
            row = uuid.uuid4()
            while row not in self.acknowledged and not self._stop.is_set():
                try:
                    self.acknowledged[row] = self._store.put_cell(row, "BASE", 1, 1).added_id
                except schemaless.ServerError:
                    self._stop.wait(0.05)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)


def look_until_well(watch: Watch, pause: Callable[[float], object]) -> list[Finding]:
    """Check until the last finding needs no action, and return all findings."""
    found: list[Finding] = []
    for _ in range(TRIES):
        found += watch.look()
        if found and found[-1].well:
            return found
        pause(0.1)
    pytest.fail(f"not well: {found}")


@pytest.mark.long
def test_an_elected_primary_is_adopted_and_a_minority_is_not(group):
    """Kill -9 of the primary under writers: two watches find the next one, and no acknowledged cell is lost.

    The old primary becomes a replica when it rejoins. The last of three members is not adopted, although it considers
    itself the primary.
    """
    url = schemaless.create("trips", 4, [group[0].url])
    for member in group[1:]:
        nodes.add_replica(url, "cluster-1", member.url)
    watches, pause = [Watch(url), Watch(url)], threading.Event().wait
    with schemaless.connect(url) as store:
        writers = Writers(store)
        first = [*look_until_well(watches[0], pause), *watches[0].look(), *look_until_well(watches[1], pause)]
        calm = node_states(url)[1][0]
        local.kill(group[0])
        before = dict(writers.acknowledged)
        others: list[Finding] = []
        second = threading.Thread(target=lambda: others.extend(look_until_well(watches[1], pause)), daemon=True)
        second.start()
        own = look_until_well(watches[0], pause)
        second.join(120)
        count = len(writers.acknowledged)
        assert any(len(writers.acknowledged) > count + 20 or pause(0.02) for _ in range(TRIES))
        writers.end()
        found = {cell.row_key: cell.added_id for shard in range(4) for cell in store.scan_shard(shard)}

        group[0] = local.start(group[0])
        kinds = lambda: {finding.kind for watch in watches for finding in watch.look()}  # noqa: E731
        # The others see it online a moment later than it does itself.
        assert any("added" in kinds() or pause(0.1) for _ in range(TRIES))
        sql(group[0], "STOP GROUP_REPLICATION")
        outside = CliRunner().invoke(status, ["--folder", str(group[0].folder.parent)], standalone_mode=False)
        sql(group[0], "START GROUP_REPLICATION")
        (chosen,) = [member for member in group[1:] if sql(member, "SELECT @@super_read_only") == ((0,),)]
        sql(chosen, "DELETE FROM trips_heartbeat.primary_claim")
        for member in group:
            if member != chosen:
                local.kill(member)
        members = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE='UNREACHABLE'"
        assert any(sql(chosen, members) == ((2,),) or pause(0.1) for _ in range(TRIES))
        alone = watches[0].look()

    assert [finding.kind for finding in first] == ["adopted", "agrees"]
    assert [each.adoption.old_written_s for each in [*own, *others] if each.adoption] == [None]
    assert (calm.fault, calm.warnings) == (None, [])
    assert "adopted" in {finding.kind for finding in [*own, *others]}
    assert before.items() <= found.items()
    assert writers.acknowledged.items() <= found.items()
    assert min(set(writers.acknowledged.values()) - set(before.values())) > max(before.values())
    assert outside.return_value == 1
    assert outside.stdout.count("running, not in its group") == 1
    assert f"{group[0].name} is not in its group: its state in the group is OFFLINE" in outside.stderr
    assert sql(chosen, "SELECT @@super_read_only") == ((0,),)
    assert [finding.kind for finding in alone] == ["undecided"]
    assert f"{chosen.socket}: it sees 1 of the 3 members of its group, which is not a majority" in alone[0].message
    for watch in watches:
        watch.close()
