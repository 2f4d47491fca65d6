"""Primaries killed while clients write: what is lost, which ids come next, and how soon writes continue.

Each round is a new pair of private servers, a primary and its replica: threads put cells one by one, the primary is
killed (SIGKILL), the replica applies what it has received and becomes writable, ``topology adopt`` runs, and the
writers continue. Then the old primary is started again, and ``topology lost`` lists what only it has.

    python benchmarks/failover.py --kills 20
    python benchmarks/failover.py --kills 20 --semi-sync
    python benchmarks/failover.py --kills 1 --outage 60
    python benchmarks/failover.py --kills 20 --group

With ``--group``, the servers are one group of three, which elects the next primary itself, and no command is run:
``topology watch`` polls every second. Killed members are restarted and rejoin.
"""

from __future__ import annotations

import argparse
import threading
import time
import uuid
from dataclasses import dataclass, field

import pymysql

import schemaless
from schemaless.local import servers as local
from schemaless.local.description import Description, LocalServer
from schemaless.local.starting import Manner, begin, finish
from schemaless.ops.failover import adopt as failover
from schemaless.ops.failover import nodes
from schemaless.ops.failover.lost import lost_cells
from schemaless.ops.failover.states import node_states
from schemaless.ops.failover.watch import Watch
from schemaless.testing.servers import private_servers

SHARDS = 4
PROMOTION = (
    "STOP REPLICA IO_THREAD",
    (
        "SELECT WAIT_FOR_EXECUTED_GTID_SET(RECEIVED_TRANSACTION_SET, 60) FROM "
        "performance_schema.replication_connection_status"
    ),
    "STOP REPLICA",
    "RESET REPLICA ALL",
    "SET GLOBAL super_read_only = 0",
    "SET GLOBAL read_only = 0",
)


@dataclass
class Written:
    """Results that the writers got.

    Attributes:
        acknowledged: added_ids by row.
        ended_s: when each successful call ended, on the monotonic clock.
        failed_s: how long each failed call took.
    """

    acknowledged: dict[uuid.UUID, int] = field(default_factory=dict)
    ended_s: list[float] = field(default_factory=list)
    failed_s: list[float] = field(default_factory=list)


def write(store: schemaless.Datastore, stop: threading.Event, written: Written) -> None:
    """Put cells until told to stop, repeating calls that fail."""
    while not stop.is_set():
        row = uuid.uuid4()
        while row not in written.acknowledged and not stop.is_set():
            began_s = time.monotonic()
            try:
                written.acknowledged[row] = store.put_cell(row, "BASE", 1, {"n": 1}).added_id
                written.ended_s.append(time.monotonic())
            except schemaless.ServerError:
                written.failed_s.append(time.monotonic() - began_s)
                time.sleep(0.02)


def promote(replica: LocalServer) -> None:
    """Wait until a replica has applied what it has received, and make it writable."""
    connection = pymysql.connect(unix_socket=str(replica.socket), user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in PROMOTION:
            cursor.execute(statement)


def come_back(server: LocalServer) -> None:
    """Start a killed server alone; its former replica is left as it is."""
    description = Description.read(server.folder)
    assert description is not None
    manner = Manner((), print)
    finish(begin(description, manner), manner)


def fail_over(arguments: argparse.Namespace) -> str:
    """Kill one primary while clients write; return a line with the outcome."""
    with private_servers("mysql", 1, replicas=1, semi_sync=arguments.semi_sync) as (primary,):
        (replica,) = primary.replicas
        url = schemaless.create("trips", SHARDS, [primary.url])
        nodes.add_replica(url, "cluster-1", replica.url)
        promoted_url = replica.url.replace("/?", "/trips?", 1)
        written, stop = Written(), threading.Event()
        with schemaless.connect(url) as store:
            threads = [
                threading.Thread(target=write, args=(store, stop, written), daemon=True)
                for _ in range(arguments.writers)
            ]
            for thread in threads:
                thread.start()
            time.sleep(arguments.before)
            local.kill(primary)
            killed_s, before = time.monotonic(), dict(written.acknowledged)
            time.sleep(arguments.outage)
            promote(replica)
            began_s = time.monotonic()
            adopted = failover.adopt(promoted_url, "cluster-1", replica.url)
            claimed_s = time.monotonic()
            time.sleep(arguments.after)
            stop.set()
            for thread in threads:
                thread.join()
            found = {cell.row_key: cell.added_id for shard in range(SHARDS) for cell in store.scan_shard(shard)}
        come_back(primary)
        with schemaless.connect(promoted_url) as late:
            lost = {cell.row_key for cell in lost_cells(late, primary.url)}
        gone = set(before) - set(found)
        renumbered = sum(found.get(row, added_id) != added_id for row, added_id in written.acknowledged.items())
        first_s = min((ended_s for ended_s in written.ended_s if ended_s > began_s), default=float("nan"))
        ids = [(store.shard_of(row), added_id) for row, added_id in written.acknowledged.items()]
        figures = [
            (len(before), 7),
            (len(gone), 6),
            (len(gone - lost), 9),
            (len(lost - gone), 11),
            (renumbered, 6),
            (len(ids) - len(set(ids)), 6),
            (1000 * (claimed_s - began_s), 8),
            (1000 * (first_s - claimed_s), 8),
            (1000 * max(written.failed_s, default=0), 8),
            (1000 * (claimed_s - killed_s), 8),
            (adopted.cluster.epoch, 5),
        ]
        return " ".join(f"{figure:>{width},.0f}" for figure, width in figures)


class Watching(threading.Thread):
    """Thread that polls every second, like ``topology watch``.

    Attributes:
        adopted: when each adoption ended, on the monotonic clock, and its claim.
    """

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.stop = threading.Event()
        self.adopted: list[tuple[float, int]] = []

    def run(self) -> None:
        """Poll until told to stop."""
        watch = Watch(self._url)
        while not self.stop.wait(1):
            for finding in watch.look():
                if finding.adoption is not None:
                    self.adopted.append((time.monotonic(), finding.adoption.cluster.epoch))
        watch.close()


def primary_of(members: list[LocalServer]) -> LocalServer:
    """Return the writable member, once all have joined the group and one is writable."""
    while True:
        states: list[tuple[int, int]] = []
        for member in members:
            connection = pymysql.connect(unix_socket=str(member.socket), user="root", autocommit=True)
            with connection, connection.cursor() as cursor:
                cursor.execute(
                    "SELECT COUNT(*), @@super_read_only FROM performance_schema.replication_group_members "
                    "WHERE MEMBER_STATE='ONLINE'"
                )
                ((online, read_only),) = cursor.fetchall()
                states.append((int(online), int(read_only)))
        writers = [member for member, state in zip(members, states, strict=True) if state == (len(members), 0)]
        if writers and all(state[0] == len(members) for state in states):
            return writers[0]
        time.sleep(0.2)


def watched(arguments: argparse.Namespace) -> None:
    """Kill the primaries of one group while clients write, and print a line for each."""
    print("  acked   gone  moved  twice  claim ms  +put ms  fail ms epoch", flush=True)
    give_up_s = time.monotonic() + arguments.at_most
    with private_servers("mysql", 1, group=True) as (first,):
        members = [first, *first.replicas]
        url = schemaless.create("trips", SHARDS, [first.url])
        for member in members[1:]:
            nodes.add_replica(url, "cluster-1", member.url)
        watching = Watching(url)
        watching.start()
        with schemaless.connect(url) as store:
            for _ in range(arguments.kills):
                written, stop = Written(), threading.Event()
                threads = [
                    threading.Thread(target=write, args=(store, stop, written), daemon=True)
                    for _ in range(arguments.writers)
                ]
                while not watching.adopted:
                    time.sleep(0.1)
                for thread in threads:
                    thread.start()
                time.sleep(arguments.before)
                victim, known = primary_of(members), len(watching.adopted)
                local.kill(victim)
                killed_s, before = time.monotonic(), dict(written.acknowledged)
                while len(watching.adopted) == known:
                    time.sleep(0.005)
                claimed_s, epoch = watching.adopted[known]
                time.sleep(arguments.after)
                stop.set()
                for thread in threads:
                    thread.join()
                found = {cell.row_key: cell.added_id for shard in range(SHARDS) for cell in store.scan_shard(shard)}
                after = [ended_s for ended_s in written.ended_s if ended_s > killed_s + 1]
                ids = [(store.shard_of(row), added_id) for row, added_id in found.items()]
                figures = [
                    (len(before), 7),
                    (len(set(written.acknowledged) - set(found)), 6),
                    (sum(found.get(row, one) != one for row, one in written.acknowledged.items()), 6),
                    (len(ids) - len(set(ids)), 6),
                    (1000 * (claimed_s - killed_s), 9),
                    (1000 * (min(after, default=float("nan")) - claimed_s), 8),
                    (1000 * max(written.failed_s, default=0), 8),
                    (epoch, 5),
                ]
                print(" ".join(f"{figure:>{width},.0f}" for figure, width in figures), flush=True)
                if time.monotonic() > give_up_s:
                    break
                members[members.index(victim)] = local.start(victim)
                while len(node_states(store_url(members))[1]) < len(members):
                    time.sleep(0.2)
        watching.stop.set()
        watching.join()


def store_url(members: list[LocalServer]) -> str:
    """Return the datastore's URL at the writable member."""
    return primary_of(members).url.replace("/?", "/trips?", 1)


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--semi-sync", action="store_true")
    parser.add_argument("--group", action="store_true", help="one group of three, with only a watch running")
    parser.add_argument("--at-most", type=float, default=240, help="with --group: seconds until the last kill")
    parser.add_argument("--before", type=float, default=2, help="seconds of writing before the kill")
    parser.add_argument("--outage", type=float, default=1, help="seconds until the replica is promoted")
    parser.add_argument("--after", type=float, default=3, help="seconds of writing after the takeover")
    arguments = parser.parse_args()
    if arguments.group:
        print("Group Replication", f"{arguments.writers} writers")
        watched(arguments)
        return
    print("semi-synchronous" if arguments.semi_sync else "asynchronous", f"{arguments.writers} writers")
    print("  acked   gone  unlisted  only on old   moved  twice  adopt ms  +put ms  fail ms  down ms epoch")
    for _ in range(arguments.kills):
        print(fail_over(arguments), flush=True)


if __name__ == "__main__":
    main()
