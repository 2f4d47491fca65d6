"""Parts of ``store/indexes.py``, each run in a separate process, with this checkout of the project or another one.

    PYTHONPATH=CHECKOUT python benchmarks/_index_parts.py queries URL CLIENTS PID...      CLIENTS is a file
    PYTHONPATH=CHECKOUT python benchmarks/_index_parts.py keep URL PUTS PER_S

Each prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _feed_trace import STEPS, Trace, ran_s

import schemaless
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.followers.handler import HandlerContext
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.follower import Indexing
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

_COUNTED = 100


def queries(url: str, clients: Sequence[str], pids: Sequence[int]) -> dict[str, Any]:
    """Query an index for the rows of each client, timed; then count what is sent for some of them."""
    with schemaless.connect(url) as store:
        index = store.index("trips")
        # Each shard and its table are checked once, which is not to be measured.
        for client in clients:
            index.query(client=client, order_by="-at", limit=20)
        times_ms, rows = [], 0
        servers_s, client_s = sum(map(ran_s, pids)), time.process_time()
        for client in clients:
            began_s = time.perf_counter()
            rows += len(index.query(client=client, order_by="-at", limit=20).rows)
            times_ms.append(1e3 * (time.perf_counter() - began_s))
        client_s, servers_s = time.process_time() - client_s, sum(map(ran_s, pids)) - servers_s
        steps = ""
        # Every statement goes through this method, which an older checkout may call ``_ask``.
        name = "ask" if hasattr(Connection, "ask") else "_ask"
        ask = getattr(Connection, name)

        def counted(self: Connection, sql: bytes, **named: bool) -> Any:
            nonlocal steps
            steps += ("s" if named.get("send", True) else "") + ("r" if named.get("receive", True) else "")
            return ask(self, sql, **named)

        setattr(Connection, name, counted)
        for client in clients[:_COUNTED]:
            index.query(client=client, order_by="-at", limit=20)
    return {
        "times_ms": times_ms,
        "client_ms": 1e3 * client_s,
        "servers_ms": 1e3 * servers_s,
        "rows": rows,
        "statements": steps.count("s") / len(clients[:_COUNTED]),
        # Two statements sent before a reply is read take one round trip.
        "round_trips": steps.count("sr") / len(clients[:_COUNTED]),
    }


def keep(url: str, puts: int, per_s: float) -> dict[str, Any]:
    """Run a worker that keeps an index while another process puts cells; measure the time from put to entry."""
    trace = Trace()
    handle = Indexing.handle

    def dealt(self: Indexing, context: HandlerContext, lease: Any, cells: Any) -> bool:
        done = handle(self, context, lease, cells)
        for cell in cells:
            trace.at_s["called"][lease.pair[1], cell.added_id] = time.monotonic()
        return done

    Indexing.handle = dealt  # type: ignore[method-assign]
    with trace.watching(), schemaless.connect(url) as store:
        stop = threading.Event()
        worker = Worker(
            internals_of(store).follower_access, indexes_of(store).handlers(), f"worker {time.time()}", stop=stop
        )
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            while len(worker.leases.held) < store.shard_count:
                time.sleep(0.05)
            # The worker looks at all shards one second after it has begun to listen.
            time.sleep(2)
            cpu_s = time.process_time()
            trace.put(url, "BASE", puts, per_s, "client")
            until_s = time.monotonic() + 60
            while len(trace.delays_ms("put", "called")) < puts and time.monotonic() < until_s:
                time.sleep(0.1)
            cpu_s = time.process_time() - cpu_s
        finally:
            stop.set()
            thread.join()
    said = {"all": ("put", "called")} | {
        f"{since} to {until}": (since, until) for since, until in zip(("put", *STEPS), STEPS, strict=False)
    }
    delays_ms = {name: trace.delays_ms(*steps) for name, steps in said.items()}
    return {"delays_ms": delays_ms, "cpu_ms": 1e3 * cpu_s / puts, "missing": puts - len(delays_ms["all"])}


if __name__ == "__main__":
    assert Path(schemaless.__file__).is_relative_to(os.environ["PYTHONPATH"]), schemaless.__file__
    part, url, first, *rest = sys.argv[1:]
    if part == "queries":
        print(json.dumps(queries(url, Path(first).read_text().split(), [int(pid) for pid in rest])))
    else:
        print(json.dumps(keep(url, int(first), float(rest[0]))))
