"""The benchmark of the store: that it runs, and that both sides do the same. What it measures is no matter of tests."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LEG = {"flight": 1545, "utc_hour": "2013-01-01T10:00:00Z", "carrier": {"code": "UA"}, "weather": None}
LOGBOOK = {"tail_number": "N14228", "year": 2013, "month": 1, "legs": [LEG, LEG | {"flight": 1714, "delay": -2.5}]}

pytestmark = [pytest.mark.mysql]


@pytest.fixture
def benchmark(monkeypatch):
    """The script as a module, with two small logbooks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("store")
    books = [SimpleNamespace(body=LOGBOOK), SimpleNamespace(body=LOGBOOK | {"month": 2, "seats": "'\\\0" * 500})]
    monkeypatch.setattr(module, "logbook_documents", lambda limit, report: books)
    return module


@pytest.fixture
def run(benchmark, server_urls, prefix):
    """Runs it on tiny sizes, on the first server."""
    sizes = ["--shards", "2", "--rounds", "2", "--batches", "1", "--calls", "3", "--scanned", "120", "--page", "50"]
    return lambda: benchmark.main([*sizes, "--name", f"{prefix}bench", "--server", server_urls[0]])


def databases(url: str, prefix: str) -> list[str]:
    parsed = parse_url(url)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    rows = pool.run(lambda connection: connection.rows(b"SHOW DATABASES LIKE '%bbench%%'" % prefix.encode()))
    pool.close()
    return [str(name) for (name,) in rows]


def test_store_benchmark_runs_and_both_sides_wrote_the_same(run, capsys, server_urls, prefix):
    """A table for each kind of document, with encoding and without; every cell compared; nothing is left behind."""
    assert run() == 0

    out = capsys.readouterr().out
    counts = re.findall(r"^compared: ([\d,]+) cells of each side have the same (bodies|documents)$", out, re.MULTILINE)
    # 3 batches and 3 times 3 single cells, 120 to scan; then rows of 8 cells, and threads
    assert counts == [("429", "bodies"), ("525", "documents")] * 2
    assert len(re.findall(r"^(?:put|get|scan|iter)_.* \d+\.\d{3}   \d", out, re.MULTILINE)) == 2 * (5 + 9)
    assert databases(server_urls[0], prefix) == []


def test_store_benchmark_refuses_figures_of_sides_that_differ(benchmark, run, monkeypatch, server_urls, prefix):
    """A bare loop that writes something else is found out."""
    honest = benchmark.Bare.put_one
    monkeypatch.setattr(benchmark.Bare, "put_one", lambda side, cell: honest(side, (*cell[:3], cell[3][:-1] + b"?")))

    with pytest.raises(SystemExit, match="the two sides differ in shard"):
        run()
    assert databases(server_urls[0], prefix) == []
