"""What a migration of many shards costs the catalog's server: each statement that runners, drivers and status send.

    python benchmarks/migrate_catalog.py [--shards N] [--flavour mysql|mariadb]

A private server that waits for its disk gets a catalog and a job of ``--shards`` shards; the job's rows are real, the
shards are not. Figures are medians of 30.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import schemaless
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.leases import LEASE_S
from schemaless.ops.jobs.status import status_of
from schemaless.ops.jobs.throttle import Look
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.testing.servers import private_servers

DURABLE = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=4096)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    arguments = parser.parse_args()
    with private_servers(arguments.flavour, 1, DURABLE) as (server,):
        url = schemaless.create("mezzanine", 1, [server.url])
        with schemaless.connect(url) as store:
            print(f"{server.flavour} {server.version}, a job of {arguments.shards:,} shards")
            measure(store, arguments.shards)


def measure(store: schemaless.Datastore, shards: int) -> None:
    """Send what a migration sends, and print the times."""
    job_store = JobStore(store)
    began_s = time.perf_counter()
    job = job_store.create("migrate", MigrateSpec().as_json(), dict.fromkeys(range(shards), 1 << 30), ["cluster-1"], {})
    print(f"{'to create it':46}{(time.perf_counter() - began_s) * 1000:9.1f} ms")
    state = job_store.leases.claim(job.job_id, 0, "another runner")
    assert state is not None
    job_store.leases.renew(job.job_id, state, "cluster-1")
    for what, how_often, call in (
        ("news for a runner", "0.5 s", lambda: job_store.leases.renew(job.job_id, state, "cluster-1")),
        ("a checkpoint", "1 s", lambda: job_store.leases.checkpoint(job.job_id, state)),
        ("a chunk's share of the budget", "chunk", lambda: job_store.spend(job.job_id, 1, 1e9)),
        (
            "a look at a cluster, noted",
            "2 s",
            lambda: job_store.leases.record_poll(
                job.job_id, "cluster-1", "another runner", Look(None, None, {"lag_s": {}}), {}
            ),
        ),
        ("a driver's list of shards", "shard", lambda: job_store.shards(job.job_id, counters=False)),
        ("a status, or the progress of a run", "1 s", lambda: status_of(job_store, job.job_id)),
    ):
        print(f"{what:38}{how_often:>8}{median_ms(call):9.2f} ms")
    print(f"a lease lasts {LEASE_S} s")


def median_ms(call: Callable[[], object]) -> float:
    """Return the median time of a call, in milliseconds."""
    took = []
    for _ in range(30):
        began_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - began_s)
    return statistics.median(took) * 1000


if __name__ == "__main__":
    main()
