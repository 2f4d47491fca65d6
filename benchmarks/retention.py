"""Cost of a retention run, and the disk space that it and a rebuild free.

    python benchmarks/retention.py [--flavour mysql mariadb] [--repeat 4]

Puts each logbook into one shard of a private server under ``--repeat`` row_keys, with times spread over 800 days. Half
of the cells expire with 'keep 400 days'. Prints cells and seconds of plan and run, and the bytes of the shard's files:
``cell`` before, after the run and after a rebuild, and the log of erased cells.
"""

from __future__ import annotations

import argparse
import time
import uuid
from datetime import UTC, datetime, timedelta

from schemaless.bench import logbooks
from schemaless.cell import NewCell
from schemaless.local.description import LocalServer
from schemaless.ops.admin.create import create
from schemaless.ops.erasure.expired import Rule, server_time
from schemaless.ops.erasure.job import ErasureSpec, Outcome, begin_retention, outcome_of
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.plan import plan_expired
from schemaless.ops.migrate.rebuild import run as rebuild
from schemaless.planning.sampling.table_sizes import cell_table_sizes, other_table_sizes
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.testing.servers import private_servers

DAYS = 800


def main() -> None:
    """Run on each flavour."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", nargs="*", default=["mysql", "mariadb"])
    parser.add_argument("--repeat", type=int, default=4)
    arguments = parser.parse_args()
    for flavour in arguments.flavour:
        with private_servers(flavour, 1) as (server,):
            measured(server, arguments.repeat)


def measured(server: LocalServer, repeat: int) -> None:
    """Fill a shard, let half of it expire, and print times and sizes."""
    with connect(create("retained", 1, [server.url]), read_timeout_s=600) as store:
        fill(store, repeat)
        print(f"{server.flavour} {server.version}, {repeat * logbooks.ALL_DOCUMENTS:,} logbooks in one shard")
        sizes(store, "before")
        internals_of(store).policies.set(Policy("LOG", DAYS // 2))
        started = time.perf_counter()
        rules = [Rule.of(policy, server_time(store)) for policy in internals_of(store).policies.all()]
        expired = plan_expired(store, rules).total("LOG")
        print(f"plan: {expired.cells:,} cells, {expired.body_bytes:,} bytes, {time.perf_counter() - started:.1f} s")
        number = begin_retention(store)
        assert number is not None
        started = time.perf_counter()
        outcome = run(store, number)
        took = time.perf_counter() - started
        print(f"run: {outcome.cells:,} cells in {took:.1f} s, {outcome.cells / took:,.0f} a second")
        sizes(store, "after the run")
        started = time.perf_counter()
        rebuild(store)
        print(f"rebuild: {time.perf_counter() - started:.1f} s")
        sizes(store, "after a rebuild")
        started = time.perf_counter()
        again = begin_retention(store)
        assert again is not None
        print(f"second run: {run(store, again).cells} cells in {time.perf_counter() - started:.1f} s\n", flush=True)


def run(store: Datastore, number: int) -> Outcome:
    """Execute a retention run."""
    return outcome_of(store, run_erasure(store, ErasureSpec(number)))


def fill(store: Datastore, repeat: int) -> None:
    """Put the logbooks, oldest first."""
    now = datetime.now(UTC)
    documents = list(logbooks.documents())
    total = repeat * len(documents)
    cells = [
        NewCell(
            uuid.uuid5(uuid.NAMESPACE_OID, f"{each.tail_number}/{turn}"),
            logbooks.COLUMN,
            each.ref_key,
            each.body,
            created_at=now - timedelta(DAYS * (1 - (turn * len(documents) + place) / total)),
        )
        for turn in range(repeat)
        for place, each in enumerate(documents)
    ]
    for start in range(0, total, 500):
        store.put_cells(cells[start : start + 500])


def sizes(store: Datastore, when: str) -> None:
    """Print the bytes of the shard's files."""
    internals = internals_of(store)
    pool, names = internals.shards.pool_for(internals.topology.cluster_of(0).primary), [internals.shards.database(0)]
    cells = cell_table_sizes(pool, names)[names[0]]
    log = other_table_sizes(pool, names)["erased_cell"]
    print(f"{when:16} cell {cells.file_bytes:>12,}  log of erased cells {log.file_bytes:>12,}")


if __name__ == "__main__":
    main()
