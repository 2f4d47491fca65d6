"""Migrations with history, erasers and movers killed with -9 before a random statement that changes something.

    python benchmarks/history_kills.py [--flavour mysql] [--seed 1] [--kills 500] [--minutes 60]

In each round, a migration that stores superseded versions as differences, or makes them whole, an erasure of single
versions, and in half of the rounds a move run at the same time, and most of them die. After the kills, and again after
their successors have completed the jobs, every version is read and compared with a plain model
(tests/ops/migrate/kills.py). Then a base is damaged by SQL, to see that ``check`` finds it. Status 1 if anything was
wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless.ops.migrate.verify import check
from schemaless.testing.servers import private_servers
from tests.ops.migrate.kills import Kills


def main() -> int:
    """Run the rounds, print what was wrong, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=60.0, help="start no further round after that")
    options = parser.parse_args()
    with private_servers(options.flavour, 2) as servers:
        url = schemaless.create("kills", 2, [server.url for server in servers])
        began_s = time.monotonic()
        with schemaless.connect(url, read_timeout_s=60) as store:
            kills = Kills(store, url, options.seed)
            rounds = 0
            while kills.killed.total() < options.kills and time.monotonic() < began_s + options.minutes * 60:
                kills.round()
                rounds += 1
                if rounds % 20 == 0:
                    kills.check()
                    took_s = time.monotonic() - began_s
                    print(f"{took_s:5.0f} s: {kills.killed.total()} kills, {len(kills.faults)} faults", flush=True)
                if kills.faults:
                    break
            kills.check()
            missed = [harm for harm in kills.damage() if not check(store).faults]
        print(
            f"{servers[0].flavour} {servers[0].version}, seed {options.seed}: {kills.killed.total()} kills "
            f"{dict(kills.killed)} in {rounds} rounds, {time.monotonic() - began_s:.0f} s, load "
            f"{os.getloadavg()[0]:.0f}; bodies read {dict(kills.codecs)}: {len(kills.faults)} faults; "
            f"harm not found: {missed or 'none'}"
        )
    for fault in kills.faults:
        print(fault)
    return 1 if kills.faults or missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
