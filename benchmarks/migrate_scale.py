"""A migration of ten times the cells: does it take ten times as long, and no more memory?

    python benchmarks/migrate_scale.py [--flavour mysql|mariadb] [--workers N] [--rounds N] [--cells N]

One private server, whose buffer pool holds both sets, has the demo's logbooks and ten times as many (the same documents
under other row_keys) as legacy text in two datastores. ``schemaless migrate run --execute`` runs as a separate process
on each in turn, round by round, and all bodies are restored in between. Peak memory is that of the largest of its
processes, as the kernel counts it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from codec import processor
from migrate import database_url, keep_originals, put_back

import schemaless
from schemaless.bench.logbooks import documents as logbook_documents
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=4_000)
    asked = parser.parse_args()
    print(f"{processor()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, {' '.join(sys.argv)}")
    with tempfile.TemporaryDirectory(prefix="schemaless-bench-") as folder:
        try:
            options = {**RELAXED, "innodb-buffer-pool-size": "4G"}
            (server,) = up(Path(folder), 1, asked.flavour, options=options)
            print(f"{server.flavour} {server.version}, {asked.workers} workers, {asked.rounds} rounds")
            texts = [logbook.json_text() for logbook in logbook_documents(limit=min(asked.cells, 2_219))]
            sizes = {"one": asked.cells, "ten": 10 * asked.cells}
            stores = {}
            for name, cells in sizes.items():
                schemaless.create(name, 4, [server.url])
                stores[name] = schemaless.connect(database_url(server.url, name))
                fill(stores[name], texts, cells)
                keep_originals(stores[name])
            taken: dict[str, list[float]] = {name: [] for name in sizes}
            memory: dict[str, list[float]] = {name: [] for name in sizes}
            for number in range(asked.rounds):
                for name in sizes if number % 2 else reversed(sizes):
                    put_back(stores[name])
                    seconds, mib = run(database_url(server.url, name), asked.workers)
                    taken[name].append(seconds / sizes[name] * 1e6)
                    memory[name].append(mib)
                    print(f"  round {number + 1}, {sizes[name]:,} cells: {seconds:.2f} s, {mib:.1f} MiB", flush=True)
            print(f"\n{'cells':>8} {'us a cell':>10} {'peak MiB':>10}")
            for name, cells in sizes.items():
                print(f"{cells:>8,} {statistics.median(taken[name]):10.0f} {statistics.median(memory[name]):10.1f}")
            time_ratio = statistics.median(b / a for a, b in zip(taken["one"], taken["ten"], strict=True))
            memory_ratio = statistics.median(b / a for a, b in zip(memory["one"], memory["ten"], strict=True))
            print(f"ten times the cells: {time_ratio:.2f} times the time a cell, {memory_ratio:.2f} times the memory")
        finally:
            down(Path(folder), delete=True)
    return 0


def fill(store: schemaless.Datastore, texts: list[bytes], cells: int) -> None:
    """Write legacy cells."""
    batch: list[schemaless.NewStoredCell] = []
    for number in range(cells):
        row_key = uuid.uuid5(uuid.NAMESPACE_OID, f"scale {number}")
        batch.append(schemaless.NewStoredCell(row_key, "BASE", 1, texts[number % len(texts)]))
        if len(batch) == 500 or number == cells - 1:
            store.put_stored_cells(batch, trusted=True)
            batch = []


def run(url: str, workers: int) -> tuple[float, float]:
    """Run a migration as a process; return seconds, and the peak of its largest process in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "schemaless.cli.entry", "migrate", "run", "--execute", "--workers", str(workers)],
        env={**os.environ, "SCHEMALESS_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    peak = 0
    while process.poll() is None:
        # Read repeatedly, since it is lost when the process ends; a peak never goes down.
        peak = max(peak, *(peak_kib(pid) for pid in [process.pid, *children(process.pid)]))
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    assert process.returncode == 0
    return seconds, peak / 1024


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def peak_kib(pid: int) -> int:
    """Return the peak memory of a process in KiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    sys.exit(main())
