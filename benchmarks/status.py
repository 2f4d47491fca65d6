r"""The status page: its load on the servers with many shards, and how soon it shows a fault.

    python benchmarks/status.py                                a quick one: 64 shards, each fault once
    python benchmarks/status.py --shards 4096 --seconds 80     the load, with a trigger, a job, and cells in every shard
    python benchmarks/status.py --rounds 3                     the time from each fault to its finding

Without --shards and --rounds, both parts run on a small scale. Servers do not wait for the disk at a commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless.local.description import LocalServer
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job_store import JobStore
from schemaless.store.internals import internals_of
from schemaless.store.triggers.supervision import prepare

COMMAND = (sys.executable, "-m", "schemaless.cli.entry")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@schemaless.trigger(column=None, start="beginning")
def nothing(cell: schemaless.Cell, call: schemaless.Call) -> None:
    """Do nothing."""


@contextlib.contextmanager
def serving(url: str) -> Iterator[tuple[str, int]]:
    """Serve the page for the block; give its URL and the process id."""
    process = subprocess.Popen(
        [*COMMAND, "status", "--listen", "127.0.0.1:0"],
        env={**os.environ, "SCHEMALESS_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = re.search(r"(http://\S+/), until", process.stderr.readline())
        assert found is not None
        yield found[1], process.pid
    finally:
        process.terminate()
        process.stderr.close()
        process.wait()


def fetched(url: str) -> bytes:
    """Return what a URL answers."""
    with urllib.request.urlopen(url) as reply:
        body: bytes = reply.read()
    return body


def status_at(page: str) -> Any:
    """Return the status as JSON values."""
    return json.loads(fetched(f"{page}status.json"))


def cpu_s(pids: Sequence[int]) -> list[float]:
    """Return the CPU time of processes so far, in seconds."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return [(int(each[11]) + int(each[12])) / TICKS_PER_S for each in fields]


def shares(pids: Sequence[int], seconds: float, during: Callable[[], object]) -> list[float]:
    """Return the shares of a core that processes take while something is repeated every two seconds."""
    before, began_s = cpu_s(pids), time.monotonic()
    while time.monotonic() - began_s < seconds:
        during()
        time.sleep(2)
    took_s = time.monotonic() - began_s
    return [(after - start) / took_s for start, after in zip(before, cpu_s(pids), strict=True)]


def fill(url: str, shards: int) -> None:
    """Write cells into every shard, and add a trigger that is behind and an unfinished job."""
    with schemaless.connect(url) as store:
        cells = [schemaless.NewCell(uuid.uuid4(), "BASE", 1, {"n": number}) for number in range(4 * shards)]
        for start in range(0, len(cells), 2_000):
            store.put_cells(cells[start : start + 2_000])
        prepare(store, nothing)
        clusters = [cluster.name for cluster in internals_of(store).topology.clusters]
        JobStore(store).create("migrate", {}, dict.fromkeys(range(shards), 1_000_000), clusters, {})


def load(url: str, servers: Sequence[LocalServer], shards: int, seconds: float) -> None:
    """Measure the servers' CPU time without and with the page, which a browser has open."""
    pids = [server.pid for server in servers if server.pid is not None]
    time.sleep(10)
    idle = shares(pids, seconds, lambda: None)
    before, began_s = cpu_s(pids), time.monotonic()
    with serving(url) as (page, process):
        while any(part["read_at"] is None for part in status_at(page)["parts"]):
            time.sleep(0.1)
        took_s = time.monotonic() - began_s
        spent_s = [after - start for start, after in zip(before, cpu_s(pids), strict=True)]
        spent = ", ".join(f"{each:.2f} s" for each in spent_s)
        print(f"the first reading of all shards took {took_s:.1f} s, of the servers' CPU {spent}", flush=True)
        with_page = shares([*pids, process], seconds, lambda: fetched(page))
        found = status_at(page)
        sizes = len(fetched(page)), len(fetched(f"{page}status.json"))
    (trigger,) = found["followers"]
    rests = {part["name"]: part["every_s"] for part in found["parts"]}
    print(
        f"{shards:,} shards, {4 * shards:,} cells, a trigger that is {trigger['ids_behind']:,} ids behind, a job of "
        f"{found['jobs'][0]['shards']:,} shards; page {sizes[0]:,} bytes, JSON {sizes[1]:,} bytes; rests {rests}"
    )
    for number, (without, share) in enumerate(zip(idle, with_page, strict=False), start=1):
        print(
            f"    server {number}: {without:.2%} of a core without the page, {share:.2%} with, {share - without:+.2%}"
        )
    # Other parts are read during the first reading too, so this counts them twice.
    swept = [each / (took_s + rests["shards"]) for each in spent_s]
    more = [max(0.0, share - without) for without, share in zip(idle, with_page, strict=False)]
    shards_text = " and ".join(f"{each:.2%}" for each in swept)
    print(f"    all shards, every {took_s + rests['shards']:,.0f} s: {shards_text} of a core")
    print(f"    the page altogether: {sum(swept) + sum(more):.2%} of a core on both servers")
    print(f"    the status process: {with_page[-1]:.1%} of a core; load {os.getloadavg()[0]:.1f}")


def faults(folder: Path, flavour: str, rounds: int) -> None:
    """Time each fault until its finding is on the page, and until it is gone after the repair."""
    servers = up(folder, 2, flavour, replicas=1, options=RELAXED)
    url = schemaless.create("trips", 4, [server.url for server in servers])
    for number, server in enumerate(servers, start=1):
        nodes.add_replica(url, f"cluster-{number}", server.replicas[0].url, timeout_s=30)
    with schemaless.connect(url) as store:
        noise = os.urandom(2_000).hex()
        cells = [schemaless.NewCell(uuid.uuid4(), "BASE", 1, {"n": noise}) for _ in range(2_000)]
        store.put_cells(cells, codec="json+none")

    with serving(url) as (page, _):

        def until(text: str, *, there: bool) -> float:
            began_s = time.monotonic()
            while any(text in f"{each['where']}: {each['text']}" for each in status_at(page)["findings"]) != there:
                assert time.monotonic() - began_s < 120, f"{text}: {status_at(page)['findings']}"
                time.sleep(0.05)
            return time.monotonic() - began_s

        def report(what: str, shown_s: list[float], gone_s: list[float]) -> None:
            gone = f"; gone at most {max(gone_s):.1f} s after the repair" if gone_s else ""
            print(f"{what}: shown after {max(shown_s):.1f} s at most of {len(shown_s)}{gone}", flush=True)

        def restarted() -> None:
            for server in up(folder, 2, flavour, replicas=1, options=RELAXED):
                pids.update((str(each.socket), each.pid) for each in (server, *server.replicas))

        pids = {str(each.socket): each.pid for server in servers for each in (server, *server.replicas)}
        replica, primary = str(servers[1].replicas[0].socket), str(servers[1].socket)
        for what, victim, sent in (
            ("a replica killed", replica, signal.SIGKILL),
            ("a replica stopped (SIGSTOP)", replica, signal.SIGSTOP),
            ("a primary killed", primary, signal.SIGKILL),
        ):
            shown_s, gone_s = [], []
            for _ in range(rounds):
                pid = pids[victim]
                assert pid is not None
                os.kill(pid, sent)
                shown_s.append(until(f"{victim}: does not answer", there=True))
                if sent == signal.SIGSTOP:
                    os.kill(pid, signal.SIGCONT)
                else:
                    restarted()
                gone_s.append(until(f"{victim}: does not answer", there=False))
            report(what, shown_s, gone_s)

        shown_s = []
        for job in range(1, rounds + 1):
            run = [*COMMAND, "migrate", "run", "--execute", "--max-mb-per-s", "0.02"]
            runner = subprocess.Popen(
                run, env={**os.environ, "SCHEMALESS_URL": url}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while not any(each["runners"] for each in status_at(page)["jobs"]):
                time.sleep(0.05)
            time.sleep(7)
            runner.kill()
            runner.wait()
            shown_s.append(until(f"migration {job}: ", there=True))
            cancel = [*COMMAND, "job", "cancel", str(job), "--url", url]
            subprocess.run(cancel, check=True, capture_output=True)
        report("the runner of a migration killed", shown_s, [])


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--shards", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=0)
    options = parser.parse_args()
    shards, rounds = options.shards, options.rounds
    if not shards and not rounds:
        shards, rounds = 64, 1
    with tempfile.TemporaryDirectory(prefix="schemaless-status-") as folder:
        for part, count in (("load", shards), ("faults", rounds)):
            if not count:
                continue
            place = Path(folder, part)
            try:
                if part == "load":
                    servers = up(place, 2, options.flavour, options=RELAXED)
                    began_s = time.monotonic()
                    url = schemaless.create("trips", shards, [server.url for server in servers])
                    print(f"{servers[0].flavour} {servers[0].version}; created in {time.monotonic() - began_s:.0f} s")
                    fill(url, shards)
                    load(url, servers, shards, options.seconds)
                else:
                    faults(place, options.flavour, rounds)
            finally:
                down(place, delete=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
