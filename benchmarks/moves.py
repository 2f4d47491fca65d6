"""A shard moved to and fro under writers, a reader and a follower: what was lost, and how long programs waited.

python benchmarks/moves.py --moves 20 --writers 8 --cells 1000000
python benchmarks/moves.py --flavour mariadb --moves 20 --cells 200000
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless import Datastore, NewStoredCell
from schemaless.testing.servers import private_servers
from tests.movers import move_away

SHARD: Final = 0
BODY_BYTES: Final = 500
AT_ONCE: Final = 500


class Traffic:
    """Writers, a reader and a follower of one shard."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.written: dict[int, uuid.UUID] = {}
        self.followed: list[int] = []
        self.calls: list[tuple[float, float]] = []
        self.stop = threading.Event()
        self.last = 0

    def write(self, store: Datastore) -> None:
        """Put cells of the shard, one by one."""
        while not self.stop.is_set():
            row = uuid.uuid4()
            if store.shard_of(row) == SHARD:
                began_s = time.monotonic()
                put = store.put_cell(row, "BASE", 1, "x" * BODY_BYTES)
                self.calls.append((began_s, time.monotonic() - began_s))
                self.written[put.added_id] = row

    def read(self, store: Datastore) -> None:
        """Get cells that were acknowledged."""
        while not self.stop.is_set():
            for row in list(self.written.values())[-100:]:
                assert store.get_cell(row, "BASE", 1) is not None

    def follow(self, store: Datastore) -> None:
        """Follow the shard from its first cell on."""
        for cell in store.iter_shard(SHARD, follow=True, poll_s=0.01):
            self.followed.append(cell.added_id)
            if self.last and cell.added_id >= self.last:
                return


def main() -> None:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--moves", type=int, default=4)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--cells", type=int, default=10_000, help="cells in the shard beforehand")
    options = parser.parse_args()
    logging.getLogger("schemaless").setLevel(logging.ERROR)
    with private_servers(options.flavour, 2) as servers:
        url = schemaless.create("soak", 2, [server.url for server in servers])
        soak(url, options)


def soak(url: str, options: argparse.Namespace) -> None:
    """Move the shard to and fro under load, and hold what is there against what was acknowledged."""
    with schemaless.connect(url, pool_size=options.writers + 4) as store, schemaless.connect(url) as mover:
        traffic = Traffic(url)
        rows = (row for row in iter(uuid.uuid4, None) if store.shard_of(row) == SHARD)
        for start in range(0, options.cells, AT_ONCE):
            cells = [NewStoredCell(next(rows), "BASE", 1, b'"%b"' % (b"y" * BODY_BYTES)) for _ in range(AT_ONCE)]
            cells = cells[: options.cells - start]
            puts = store.put_stored_cells(cells, trusted=True)
            traffic.written |= {put.added_id: put.key.row_key for put in puts}
        with ThreadPoolExecutor(options.writers + 2) as threads:
            calls: list[Any] = [threads.submit(traffic.write, store) for _ in range(options.writers)]
            calls += [threads.submit(traffic.read, store)]
            following = threads.submit(traffic.follow, store)
            time.sleep(2)
            quiet = [took_s for _, took_s in traffic.calls]
            pauses, copying = [], []
            try:
                for _ in range(options.moves):
                    began_s = time.monotonic()
                    pauses.append(move_away(mover, SHARD).pause_s or 0.0)
                    copying += [took_s for at_s, took_s in traffic.calls[-100_000:] if at_s >= began_s]
                    print(f"moved in {time.monotonic() - began_s:.1f} s, paused for {pauses[-1] * 1000:.0f} ms")
            finally:
                traffic.stop.set()
            for call in calls:
                call.result()
            traffic.last = max(traffic.written)
            put = store.put_cell(next(rows), "BASE", 1, "last")
            traffic.written[put.added_id] = put.key.row_key
            following.result(timeout=600)
        found = {cell.added_id: cell.key.row_key for cell in store.scan_shard(SHARD)}
    lost = sum(found.get(added_id) != row for added_id, row in traffic.written.items())
    seen = [added_id for added_id in traffic.followed if added_id <= traffic.last]
    expected = sorted(added_id for added_id in traffic.written if added_id <= traffic.last)
    print(f"{len(traffic.written):,} cells acknowledged, {lost} lost or renumbered, {len(found):,} there")
    print(
        f"follower: {len(seen):,} cells, {len(set(expected) - set(seen))} skipped, {len(seen) - len(set(seen))} twice"
    )
    print(f"pause: {spread(pauses)}; put while quiet {spread(quiet)}, while shards move {spread(copying)}")


def spread(seconds: list[float]) -> str:
    """Return median, 99th percentile and the most, in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered) * 1000:.0f}, p99 {p99 * 1000:.0f}, most {ordered[-1] * 1000:.0f} ms"


if __name__ == "__main__":
    main()
