"""Cost of a test that gets a datastore of four shards from the pytest plugin.

    python benchmarks/testing.py [--rounds N]

On two private servers of each kind, with the options that the plugin starts them with. A figure is the median of the
rounds, in milliseconds: it includes connecting and closing, but not the test's own writes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid

import schemaless
from schemaless.testing.datastores import Datastores
from schemaless.testing.servers import private_servers


def main() -> int:
    """Measure on both kinds of servers and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    for flavour in ("mysql", "mariadb"):
        began = time.perf_counter()
        with private_servers(flavour, 2) as servers:
            started_s = time.perf_counter() - began
            print(f"{flavour} {servers[0].version}: two servers in {started_s:.1f} s; {rounds} rounds")
            urls = [server.url for server in servers]
            print(f"  created and dropped for the test   {milliseconds(urls, rounds, reuse=False):6.0f} ms")
            for rows in (0, 1, 100):
                taken = milliseconds(urls, rounds, reuse=True, rows=rows)
                print(f"  used again, after a test of {rows:3} cells {taken:6.0f} ms", flush=True)
    return 0


def milliseconds(servers: list[str], rounds: int, *, reuse: bool, rows: int = 0) -> float:
    """Return the median time to get a datastore, connect to it, and return it after writing ``rows`` cells."""

    def replica() -> Datastores:
        return Datastores(servers, lambda name: schemaless.create(name, 4, servers), f"bench_{uuid.uuid4().hex[:8]}_")

    datastores = replica()
    taken = []
    for _ in range(rounds + 1):
        if not reuse:
            datastores = replica()
        writing = 0.0
        began = time.perf_counter()
        with datastores.fresh() as url, schemaless.connect(url) as store:
            before = time.perf_counter()
            store.put_cells([schemaless.NewCell(uuid.uuid4(), "BASE", 1, {}) for _ in range(rows)])
            writing = time.perf_counter() - before
        if not reuse:
            datastores.close(drop=True)
        taken.append(time.perf_counter() - began - writing)
    datastores.close(drop=True)
    return statistics.median(taken[1:]) * 1e3


if __name__ == "__main__":
    sys.exit(main())
