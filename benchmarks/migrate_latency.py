"""How a migration affects applications: latencies of four clients while none runs, and while one does.

    python benchmarks/migrate_latency.py [--flavour mysql|mariadb] [--pause-ms MS] [--phase S] [--rounds N]
                                         [--documents N] [--buffer-pool SIZE] [--relaxed] [--run ARGUMENTS]

Two private servers have a datastore of 16 shards full of legacy logbooks, about 19 KB of JSON each. Four processes put
a new logbook and get the latest cell of a stored one, in turns, each after a pause of ``--pause-ms`` on average (0: one
call right after the other). During this, ``schemaless migrate run --execute`` is started and stopped: idle, migrating,
idle, migrating. Everything shares the machine's cores.

Calls within ``LEAD_S`` of a change of phase are not counted. The share of the cores that other processes used is
printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import schemaless
from schemaless import NewStoredCell
from schemaless.base.keys import row_key_for
from schemaless.bench.logbooks import ALL_DOCUMENTS, COLUMN
from schemaless.bench.logbooks import documents as logbook_documents
from schemaless.local.options import RELAXED
from schemaless.testing.servers import private_servers

CLIENTS = 4
LEAD_S = 3.0
TARGET = 2.0
DURABLE = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1", "innodb-flush-method": "O_DIRECT"}
CALLS = ("put_cell", "get_cell_latest")


@dataclass(frozen=True)
class Phase:
    """A part of the measurement: start and end by ``time.time``, and the cores that other processes used."""

    name: str
    start_s: float
    end_s: float
    others: float


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--pause-ms", type=float, default=10.0, help="average pause before each call of a client")
    parser.add_argument("--phase", type=float, default=8.0, help="seconds of each phase that are measured")
    parser.add_argument("--rounds", type=int, default=2, help="number of idle and migrating phases")
    parser.add_argument("--documents", type=int, default=80_000, help="legacy logbooks, each several times")
    parser.add_argument("--buffer-pool", default="2G", help="of each server; by default, all data fits")
    parser.add_argument("--relaxed", action="store_true", help="servers that do not wait for the disk")
    parser.add_argument("--run", default="", metavar="ARGUMENTS", help="further arguments of 'migrate run'")
    parser.set_defaults(command=("migrate", "run"))
    options = parser.parse_args()
    logbooks = [logbook.body for logbook in logbook_documents(limit=min(options.documents, ALL_DOCUMENTS))]
    server_options = {"innodb-buffer-pool-size": options.buffer_pool, **({} if options.relaxed else DURABLE)}
    with private_servers(options.flavour, 2, server_options) as servers:
        print(f"{servers[0].flavour} {servers[0].version}, {RELAXED | server_options}", flush=True)
        url = schemaless.create("latency", 16, [server.url for server in servers])
        rows = load(url, logbooks, options.documents)
        phases, notes = measure(url, rows, logbooks, [server.pid for server in servers], options)
    print("\n".join(notes))
    return show(phases)


def load(url: str, logbooks: Sequence[Any], count: int) -> list[uuid.UUID]:
    """Store legacy logbooks, and return their rows."""
    texts = [json.dumps(logbook, separators=(",", ":")).encode() for logbook in logbooks]
    rows = [row_key_for(f"logbook {number}") for number in range(count)]
    with closing(schemaless.connect(url)) as store:
        for start in range(0, count, 500):
            store.put_stored_cells(
                [
                    NewStoredCell(rows[number], COLUMN, 1, texts[number % len(texts)])
                    for number in range(start, min(count, start + 500))
                ]
            )
    size = sum(len(texts[number % len(texts)]) for number in range(count))
    print(f"{count:,} legacy logbooks, {size / 1e6:,.0f} MB", flush=True)
    return rows


def client(
    url: str, number: int, rows: Sequence[uuid.UUID], logbooks: Sequence[Any], pause_s: float, out: Connection
) -> None:
    """Put and get until told to stop, then send name, end and duration in seconds of each call."""
    chance = random.Random(number)
    taken: list[tuple[int, float, float]] = []
    with closing(schemaless.connect(url)) as store:
        made = 0
        while not out.poll():
            for call in (0, 1):
                if pause_s:
                    time.sleep(chance.expovariate(1 / pause_s))
                body = chance.choice(logbooks)
                row = row_key_for(f"client {number}, {made}") if call == 0 else chance.choice(rows)
                start_s = time.perf_counter()
                if call == 0:
                    store.put_cell(row, COLUMN, 1, body)
                else:
                    assert store.get_cell_latest(row, COLUMN) is not None
                taken.append((call, time.time(), time.perf_counter() - start_s))
            made += 1
    out.send(taken)


def measure(
    url: str, rows: Sequence[uuid.UUID], logbooks: Sequence[Any], servers: Sequence[int], options: Any
) -> tuple[dict[str, list[list[float]]], list[str]]:
    """Return seconds by phase and call, and remarks about the job."""
    context = multiprocessing.get_context("fork")
    clients = []
    for number in range(CLIENTS):
        here, there = context.Pipe()
        arguments = url, number, rows, logbooks[:500], options.pause_ms / 1000, there
        clients.append((context.Process(target=client, args=arguments, daemon=True), here))
        clients[-1][0].start()
    try:
        phases, notes = alternate(url, servers, options)
        found: dict[str, list[list[float]]] = {phase.name: [[], []] for phase in phases}
        for _, here in clients:
            here.send(None)
        for _, here in clients:
            for call, at_s, seconds in here.recv():
                for phase in phases:
                    if phase.start_s <= at_s < phase.end_s:
                        found[phase.name][call].append(seconds)
    finally:
        for process, _ in clients:
            process.terminate()
            process.join()
    return found, notes


def alternate(url: str, servers: Sequence[int], options: Any) -> tuple[list[Phase], list[str]]:
    """Run the phases, and return them with remarks about the job."""
    phases: list[Phase] = []
    notes: list[str] = []
    command = [sys.executable, "-m", "schemaless.cli.entry", *options.command, "--execute", *shlex.split(options.run)]
    environment = {**os.environ, "SCHEMALESS_URL": url}
    time.sleep(LEAD_S)
    for turn in range(1, options.rounds + 1):
        phases.append(one_phase(f"idle {turn}", options.phase, servers))
        running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(LEAD_S)
        before = through(url)
        phases.append(one_phase(f"running {turn}", options.phase, servers))
        done = through(url) - before
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
        if running.returncode == 0:
            sys.exit("the job came to its end, so there was nothing to measure: measure more documents")
        assert running.returncode == 3, said.decode()
        rate = done / (phases[-1].end_s - phases[-1].start_s) / 1e6
        notes.append(f"running {turn}: {rate:.1f} MB of legacy text a second")
        time.sleep(LEAD_S)
    notes.append("cores that others had: " + ", ".join(f"{each.name} {each.others:.2f}" for each in phases))
    return phases, notes


def one_phase(name: str, seconds: float, servers: Sequence[int]) -> Phase:
    """Wait for one phase."""
    start_s = time.time()
    busy, own = cpu_seconds(servers)
    time.sleep(seconds)
    busy_then, own_then = cpu_seconds(servers)
    end_s = time.time()
    return Phase(name, start_s, end_s, ((busy_then - busy) - (own_then - own)) / (end_s - start_s))


def cpu_seconds(servers: Sequence[int]) -> tuple[float, float]:
    """Return the CPU seconds of all processes of the machine, and of those of this measurement."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _waits, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    parents, taken = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                values = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(values[1])
            taken[int(entry.name)] = sum(map(int, values[11:13]))
    ours = {os.getpid(), *servers}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return (user + nice + system + interrupts + soft) / ticks, sum(taken.get(pid, 0) for pid in ours) / ticks


def through(url: str) -> int:
    """Return the bytes of legacy text that jobs have replaced."""
    command = [sys.executable, "-m", "schemaless.cli.entry", "job", "show", "--json"]
    # There is no job at first.
    for _ in range(30):
        done = subprocess.run(
            command, env={**os.environ, "SCHEMALESS_URL": url}, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
        time.sleep(1)
    return sum(shard["bytes_before"] for shard in json.loads(done.stdout)["shards"])


def show(phases: dict[str, list[list[float]]]) -> int:
    """Print a table; return 1 if the target is missed."""
    print(f"{'':18}" + "".join(f"{name:>18}{'p50 ms':>9}{'p99 ms':>9}" for name in CALLS))
    together: dict[str, list[list[float]]] = {}
    for name, calls in phases.items():
        print(f"{name:18}" + "".join(row(seconds) for seconds in calls), flush=True)
        for call, seconds in enumerate(calls):
            together.setdefault(name.split()[0], [[], []])[call].extend(seconds)
    missed = False
    texts = []
    for idle, running in zip(together["idle"], together["running"], strict=True):
        ratios = [after / before for before, after in zip(quantiles(idle), quantiles(running), strict=True)]
        missed |= ratios[1] > TARGET
        texts.append(f"{'':>18}{ratios[0]:9.2f}{ratios[1]:9.2f}")
    print(f"{'running / idle':18}" + "".join(texts) + f"   p99 <= {TARGET:g}{'  MISSED' if missed else ''}")
    return int(missed)


def row(seconds: Sequence[float]) -> str:
    """Return the columns of one kind of call."""
    p50, p99 = quantiles(seconds)
    return f"{len(seconds):18,}{p50 * 1000:9.2f}{p99 * 1000:9.2f}"


def quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[98]


if __name__ == "__main__":
    sys.exit(main())
