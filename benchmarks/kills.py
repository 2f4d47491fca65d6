"""Jobs that die or stall before a random statement that changes something, on data with history and cold cells.

    python benchmarks/kills.py [--flavour mysql] [--seed 1] [--kills 500] [--minutes 60]

In each round, an erasure or a retention run, and a migration with or without history, a tier run, a recall, a sweep or
a move run at the same time. Most of them are killed with -9, and so are their successors and, in some rounds, a server;
others stall, and go on in the next round, or are cancelled, and work on beside their successors for a moment. After
that, and again after further successors have completed the jobs, every version is read and compared with a plain model
(tests/ops/jobs/kills.py). After each hundred kills, in the middle of which a replica replaces its primary that was
killed, files are swept and compared with their list, and harm is done by SQL and to files, to see that it is found.
Status 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless.testing.servers import private_servers
from tests.ops.jobs.kills import Kills

KILLS_PER_DATASTORE = 100


def main() -> int:
    """Run the rounds, print what was wrong, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=60.0, help="start no further round after that")
    options = parser.parse_args()
    began_s = time.monotonic()
    killed, codecs, harm = Counter[str](), Counter[str](), Counter[str]()
    faults: list[str] = []
    rounds, version, seed = 0, "", options.seed
    until_s = began_s + options.minutes * 60
    while killed.total() < options.kills and time.monotonic() < until_s and not faults:
        most = min(KILLS_PER_DATASTORE, options.kills - killed.total())
        with tempfile.TemporaryDirectory() as cold, private_servers(options.flavour, 2, replicas=1) as servers:
            url = schemaless.create("kills", 2, [server.url for server in servers])
            version = servers[0].version
            with (
                schemaless.connect(url, read_timeout_s=60) as store,
                closing(Kills(store, url, seed, Path(cold), servers)) as kills,
            ):
                while kills.killed.total() < most and time.monotonic() < until_s and not kills.faults:
                    due = kills.killed.total() >= most / 2 and not kills.killed["failover"]
                    kills.round(fail_over=due and kills.home == "cluster-2")
                    rounds += 1
                kills.check()
                faults += kills.faults
                if not faults:
                    for what in kills.damage():
                        harm[f"{what}: {'found' if kills.found() else 'MISSED'}"] += 1
                    faults += kills.found()
        killed, codecs, seed = killed + kills.killed, codecs + kills.codecs, seed + 1
        print(
            f"{time.monotonic() - began_s:5.0f} s, {rounds} rounds: {killed.total()} kills, {len(faults)} faults",
            flush=True,
        )
    print(
        f"{options.flavour} {version}, seed {options.seed}: {killed.total()} kills {dict(killed)} in {rounds} rounds, "
        f"{time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.0f}; bodies read {dict(codecs)}: "
        f"{len(faults)} faults"
    )
    print("\n".join([*(f"{count} times {what}" for what, count in harm.items()), *faults]))
    return 1 if faults or [what for what in harm if what.endswith("MISSED")] else 0


if __name__ == "__main__":
    raise SystemExit(main())
