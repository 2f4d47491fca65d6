"""Erasures killed with -9 before each of their statements, next to everything that may run at the same time.

    python benchmarks/erasure_kills.py [--flavour mysql] [--seed 1] [--rounds 0] [--first 0] [--minutes 60]

In each round, cells of new rows are erased, and the eraser dies before the next of its statements that change
something. A mover moves one of the two shards to the other server and, in two of three rounds, also dies before a
statement. Successors complete both. At the same time there are writers, readers, a trigger, an index follower, and
migrations of the other shard that keep their originals in an archive. After each round, all cells, the log, the ledger,
and each table of the shards on both servers are compared with a plain model; at the end, the archive
(tests/ops/erasure/matrix.py). Then data is damaged by SQL, to check that each kind of damage is found. Status 1 if
anything was wrong.

``--rounds`` takes a sample of the statements; 0 takes all, from ``--first`` on.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless.testing.servers import private_servers
from tests.ops.erasure.matrix import Matrix


def main() -> int:
    """Run the rounds, print what was wrong, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="start no further round after that")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with private_servers(options.flavour, 2) as servers, tempfile.TemporaryDirectory() as folder:
        url = schemaless.create("matrix", 2, [server.url for server in servers])
        began_s = time.monotonic()
        with Matrix(url, options.seed, Path(folder)) as matrix:
            sent = matrix.round()
            points = list(range(options.first, sent.erase))
            points = chance.sample(points, options.rounds) if options.rounds else points
            done = 0
            for done, point in enumerate(points, 1):
                dies = chance.randrange(sent.move) if chance.random() < 2 / 3 else None
                matrix.round(point, dies)
                if done % 10 == 0:
                    took_s = time.monotonic() - began_s
                    print(f"{took_s:5.0f} s: {done} of {len(points)} rounds, {len(matrix.faults)} faults", flush=True)
                if matrix.faults or time.monotonic() > began_s + options.minutes * 60:
                    break
            faults = matrix.finish()
            missed = [harm for harm in matrix.damage() if not matrix.compare()]
            print(
                f"{servers[0].flavour} {servers[0].version}, seed {options.seed}: {done} of {len(points)} statements "
                f"of an erasure, {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.0f}; "
                f"{matrix.summary()}: {len(faults)} faults; harm not found: {missed or 'none'}"
            )
    for fault in faults:
        print(fault)
    return 1 if faults or missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
