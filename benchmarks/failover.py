"""Primaries that are killed under writers: what is lost, which ids come next, and how soon writes go on.

Each round is a new pair of private servers, a primary and its replica: threads put cells one by one, the primary is
killed (SIGKILL), the replica applies what it has received and takes writes, ``topology adopt`` runs, and the writers go
on. Then the old primary is started again, and ``topology lost`` lists what only it has.

    python benchmarks/failover.py --kills 20
    python benchmarks/failover.py --kills 20 --semi-sync
    python benchmarks/failover.py --kills 1 --outage 60
"""

from __future__ import annotations

import argparse
import threading
import time
import uuid
from dataclasses import dataclass, field

import pymysql

import schemaless
from schemaless.admin import failover, nodes
from schemaless.admin.lost import lost_cells
from schemaless.local import servers as local
from schemaless.local.description import Description, LocalServer
from schemaless.local.starting import Manner, begin, finish
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
    """What writers were told.

    Attributes:
        acknowledged: added_ids by row.
        ended_s: when each call ended that succeeded, on the monotonic clock.
        failed_s: how long each call took that failed.
    """

    acknowledged: dict[uuid.UUID, int] = field(default_factory=dict)
    ended_s: list[float] = field(default_factory=list)
    failed_s: list[float] = field(default_factory=list)


def write(store: schemaless.Datastore, stop: threading.Event, written: Written) -> None:
    """Put cells until told to stop; a call that fails is made again."""
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
    """Let a replica apply what it has received, and take writes."""
    connection = pymysql.connect(unix_socket=str(replica.socket), user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in PROMOTION:
            cursor.execute(statement)


def come_back(server: LocalServer) -> None:
    """Start a server that was killed, and no other: its former replica is left as it is."""
    description = Description.read(server.folder)
    assert description is not None
    manner = Manner((), print)
    finish(begin(description, manner), manner)


def fail_over(arguments: argparse.Namespace) -> str:
    """Kill one primary under its writers; return a line of what came of it."""
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


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--semi-sync", action="store_true")
    parser.add_argument("--before", type=float, default=2, help="seconds of writing before the kill")
    parser.add_argument("--outage", type=float, default=1, help="seconds until somebody promotes")
    parser.add_argument("--after", type=float, default=3, help="seconds of writing after the takeover")
    arguments = parser.parse_args()
    print("semi-synchronous" if arguments.semi_sync else "asynchronous", f"{arguments.writers} writers")
    print("  acked   gone  unlisted  only on old   moved  twice  adopt ms  +put ms  fail ms  down ms epoch")
    for _ in range(arguments.kills):
        print(fail_over(arguments), flush=True)


if __name__ == "__main__":
    main()
