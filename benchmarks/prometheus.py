"""Prometheus itself scrapes ``schemaless metrics`` while a migration runs, and answers every query of the dashboard.

    python benchmarks/prometheus.py [--cells N] [--flavour mysql|mariadb] [--prometheus PROGRAM]

Debian's package ``prometheus`` is fetched by apt-get and unpacked into a temporary folder, unless a program is named;
it is never installed. Everything listens on loopback, and all of it ends with this script.

Exit status: 0 if no query failed and Prometheus saw what the migration reports.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import schemaless
from schemaless.ops.failover import nodes
from schemaless.store.triggers.supervision import prepare
from schemaless.testing.servers import private_servers

ROOT = Path(__file__).parents[1]
NAME = "scraped"
_BUDGET_MB_PER_S = 1
_CONFIGURATION = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: schemaless
    static_configs: [{{targets: ["{address}"]}}]
"""


def main() -> int:
    """Run all of it, print what was seen, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--prometheus", type=Path)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="schemaless-prometheus-")))
        program = arguments.prometheus or unpacked(folder)
        (server,) = stack.enter_context(private_servers(arguments.flavour, 1, replicas=1))
        url = schemaless.create(NAME, 4, [server.url])
        nodes.add_replica(url, "cluster-1", server.replicas[0].url, timeout_s=30)
        with schemaless.connect(url) as store:
            draw, now = secrets.SystemRandom(), datetime.datetime.now(datetime.UTC)
            for start in range(0, arguments.cells, 500):
                store.put_cells(
                    [
                        schemaless.NewCell(
                            uuid.uuid4(),
                            "BASE",
                            1,
                            {"number": number, "said": draw.random()} | FILLER,
                            now - datetime.timedelta(days=60 * (1 - number / arguments.cells)),
                        )
                        for number in range(start, min(start + 500, arguments.cells))
                    ],
                    codec="json+none",
                )
            prepare(store, billing)
        command = [sys.executable, "-m", "schemaless.cli.entry", "--datastore", url]
        done = subprocess.run(
            [*command, "capacity", "measure", "--disk", "cluster-1=200MB:60MB"], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        exporter = stack.enter_context(running([*command, "metrics", "--listen", "127.0.0.1:0"]))
        assert exporter.stderr is not None
        address = re.findall(r"http://([^/]+)/metrics", exporter.stderr.readline().decode())[0]
        (folder / "prometheus.yml").write_text(_CONFIGURATION.format(address=address))
        port = 9_000 + os.getpid() % 1_000
        options = ["--config.file", folder / "prometheus.yml", "--storage.tsdb.path", folder / "data"]
        stack.enter_context(running([program, *options, "--web.listen-address", f"127.0.0.1:{port}"]))
        prometheus = f"http://127.0.0.1:{port}"
        print(subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0])
        wait_until(lambda: value(prometheus, "min(schemaless_collector_up)") == 1, "all collectors are scraped")
        migration = stack.enter_context(
            running([*command, "migrate", "run", "--execute", "--max-mb-per-s", _BUDGET_MB_PER_S])
        )
        wait_until(lambda: (value(prometheus, "max(schemaless_job_fraction)") or 0) > 0.5, "half of it is through")
        failed = ask_dashboard(prometheus)
        assert migration.wait(600) == 0
        wait_until(lambda: value(prometheus, "max(schemaless_job_fraction)") == 1, "its end is scraped")
        seen = value(prometheus, "sum(schemaless_job_cells_total)")
        moments = value(prometheus, "count_over_time(schemaless_job_cells_total[10m])")
        steps = value(prometheus, "changes(schemaless_job_cells_total[10m])")
        print(f"cells that the migration replaced, as scraped: {seen:,.0f} of {arguments.cells:,}")
        print(f"scrapes of that figure: {moments:.0f}, and it grew between {steps:.0f} of them")
        up = value(prometheus, "avg_over_time(up[10m])")
        print(f"scrapes that worked: {up:.0%}")
    return 0 if not failed and seen == arguments.cells and up == 1 else 1


@schemaless.trigger(column="BASE", start="beginning")
def billing(cell: schemaless.Cell, call: schemaless.Call) -> None:
    """Fall behind: no worker runs this trigger."""


FILLER = {f"field_{number}": f"value {number} of a trip" for number in range(30)}


def unpacked(folder: Path) -> Path:
    """Fetch Debian's package and return the program in it."""
    subprocess.run(["apt-get", "-qq", "download", "prometheus"], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder / "package"], check=True)
    return folder / "package" / "usr" / "bin" / "prometheus"


@contextmanager
def running(command: list[object]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the length of a block."""
    with tempfile.TemporaryFile() as rest:
        is_exporter = "metrics" in command
        process = subprocess.Popen(
            [str(part) for part in command], stdout=rest, stderr=subprocess.PIPE if is_exporter else rest
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)
            if process.stderr is not None:
                process.stderr.close()


def asked(prometheus: str, query: str) -> list[dict[str, Any]]:
    """Return Prometheus's answer to a query."""
    address = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(address) as reply:
        answer = json.load(reply)
    assert answer["status"] == "success", answer
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def value(prometheus: str, query: str) -> float | None:
    """Return the single value of a query; None if there is none, or Prometheus is not up yet."""
    try:
        found = asked(prometheus, query)
    except OSError:
        return None
    return float(found[0]["value"][1]) if found else None


def ask_dashboard(prometheus: str) -> list[str]:
    """Run every query of the dashboard; print how many series each has, and return those without any."""
    dashboard = json.loads((ROOT / "docs" / "metrics-dashboard.json").read_text(encoding="utf-8"))
    empty = []
    print("while it runs, every query of the dashboard:")
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$datastore", NAME)
            found = asked(prometheus, query)
            first = f"{float(found[0]['value'][1]):,.6g}" if found else "-"
            print(f"  {panel['title']:<46} {len(found):>3} series, the first {first}")
            # An undisturbed migration waits only for its budget.
            if not found and "waited" not in query:
                empty.append(query)
    for query in empty:
        print(f"without an answer: {query}")
    return empty


def wait_until(condition: Any, what: str, timeout_s: float = 120) -> None:
    """Poll until something holds."""
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, f"not in {timeout_s} s: {what}"
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
