"""Cost of grants by table: to run them, to log in afterwards, and to read a cell.

    python benchmarks/grants.py [--shards N] [--flavour mysql|mariadb]

A private server gets a datastore, and an account for each role by the statements of ``schemaless grants``. Each account
is compared with one that has a single wildcard grant for all databases: both log in and read the same shards, in turns.
Figures are medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pymysql

import schemaless
from schemaless.base.keys import shard_database
from schemaless.ops.admin.grants import grants
from schemaless.testing.servers import private_servers
from schemaless.topology.model import new_topology
from schemaless.wire.accounts import Account
from schemaless.wire.urls import parse_url

NAME = "mezzanine"
DURABLE = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1", "innodb-flush-method": "O_DIRECT"}
LOGINS = 200
READS = 4000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=512)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    arguments = parser.parse_args()
    # As in production: each statement waits for the disk.
    with private_servers(arguments.flavour, 1, DURABLE) as (server,):
        node = parse_url(server.url).node
        topology = new_topology(NAME, arguments.shards, [node])
        print(f"{server.flavour} {server.version}, a datastore of {arguments.shards:,} shards")
        with closing(connect(server.socket, "root")) as root:
            made = {}
            for role in ("admin", "app", "tail", "migrate"):
                if role == "app":
                    schemaless.create(NAME, arguments.shards, [server.url])
                statements = grants(role, Account(role), topology, node)[0].statements
                run(root, f"CREATE USER {Account(role)}")
                made[role] = len(statements), timed(lambda: [run(root, each) for each in statements])  # noqa: B023
            run(root, f"CREATE USER {Account('wide')}")
            run(root, rf"GRANT SELECT ON `{NAME}\_%`.* TO {Account('wide')}")
        print(f"{'role':8}{'statements':>11}{'run in':>9}{'login':>10}{'wildcard':>10}{'read':>10}{'wildcard':>10}")
        for role, (count, took_s) in made.items():
            logins = in_turns([log_in(server.socket, user) for user in (role, "wide")], LOGINS)
            with closing(connect(server.socket, role)) as own, closing(connect(server.socket, "wide")) as wide:
                chance = random.Random(1)
                shards = [chance.randrange(arguments.shards) for _ in range(READS)]
                reads = in_turns([reader(own, shards), reader(wide, shards)], READS)
            print(
                f"{role:8}{count:>11,}{took_s:>8.1f}s"
                + "".join(f"{median * 1e3:>8.2f}ms" for median in logins)
                + "".join(f"{median * 1e6:>8.0f}us" for median in reads)
            )


def reader(connection: pymysql.Connection, shards: list[int]) -> Callable[[], object]:
    """Return a function that reads a cell by key from the next shard each time."""
    following = iter(shards)
    return lambda: run(
        connection,
        f"SELECT body FROM {shard_database(NAME, next(following))}.cell FORCE INDEX (cell_key) "
        "WHERE row_key=x'00' AND column_name='A' AND ref_key=1",
    )


def log_in(socket: Path, user: str) -> Callable[[], object]:
    """Return a call that logs in and out."""
    return lambda: connect(socket, user).close()


def in_turns(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median seconds of each call; other load on the machine affects all of them alike."""
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        order = list(zip(calls, taken, strict=True))
        for call, times in order if turn % 2 else reversed(order):
            times.append(timed(call))
    return [statistics.median(times) for times in taken]


def timed(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def connect(socket: Path, user: str) -> pymysql.Connection:
    """Log in through the socket."""
    return pymysql.connect(unix_socket=str(socket), user=user, autocommit=True, ssl_disabled=True)


def run(connection: pymysql.Connection, sql: str) -> None:
    """Run a statement."""
    with connection.cursor() as cursor:
        cursor.execute(sql)


if __name__ == "__main__":
    main()
