"""Makes the pictures of the pages: the top of a capacity report, and the status page.

    python tools/pictures.py         needs chromium, the extras report and status, and the demo's documents
    python tools/pictures.py DIR     write the pictures to this folder instead of docs/

Private servers start in a temporary folder. They hold logbooks of the demo, as legacy text, with the last 180 days as
their ``created_at``: the same logbooks in the same order in each run.
"""

from __future__ import annotations

import datetime
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from schemaless.bench.logbooks import documents

DOCS = Path(__file__).parents[1] / "docs"
DAYS = 180
PORT = 9465
COMMAND = str(Path(sys.executable).with_name("schemaless"))
WEEK = (1.1, 1.1, 1.0, 1.1, 1.2, 0.8, 0.7)


def write_history(path: Path) -> None:
    """Write one logbook per line; a day has 10 at first, and twice as many in the end."""
    chosen = random.Random(1)  # noqa: S311
    logbooks = list(documents())
    chosen.shuffle(logbooks)
    today = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    with path.open("w", encoding="utf-8") as file:
        for day in range(DAYS):
            date = today - datetime.timedelta(days=DAYS - day)
            for _ in range(round((10 + 10 * day / DAYS) * WEEK[date.weekday()] * chosen.uniform(0.85, 1.15))):
                at = date + datetime.timedelta(seconds=chosen.randrange(86400))
                file.write(json.dumps({"at": at.isoformat(), **logbooks.pop().body}) + "\n")


def run(*arguments: str) -> str:
    """Run a command of this project, and return its output."""
    return subprocess.run([COMMAND, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def photograph(url: str, picture: Path, width: int, height: int) -> None:
    """Save what a browser shows of a page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000")
    subprocess.run(
        [browser, *options, f"--window-size={width},{height}", f"--screenshot={picture}", url],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(picture, optimize=True)


def capacity_report(folder: Path, out: Path) -> None:
    """Load the history, measure, and report."""
    write_history(folder / "logbooks.ndjson")
    load = ("--column", "LOG", "--row-key", "uuid5:tail_number", "--ref-key", "month", "--created-at", "at")
    run("load", str(folder / "logbooks.ndjson"), *load, "--as", "legacy")
    run("capacity", "measure", "--seed", "1", "--disk", "cluster-1=90MB:40MB", "--disk", "cluster-2=90MB:40MB")
    run("capacity", "report", "--seed", "1", "--to", "msgpack+zlib", "--html", str(folder / "report.html"))
    photograph((folder / "report.html").as_uri(), out / "capacity-report.png", 1000, 1100)


def status_page(out: Path) -> None:
    """Look at the status page while a migration runs."""
    migration = subprocess.Popen([COMMAND, "-q", "migrate", "run", "--execute", "--max-mb-per-s", "0.7"])
    status = subprocess.Popen([COMMAND, "-q", "status", "--listen", f"127.0.0.1:{PORT}"])
    try:
        wait_for(lambda shown: shown["capacity"] and any(job["fraction"] > 0.2 for job in shown["jobs"] or ()))
        photograph(f"http://127.0.0.1:{PORT}/", out / "status-page.png", 1000, 860)
    finally:
        for process in (migration, status):
            process.kill()
            process.wait()


def wait_for(condition: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for what the status page knows."""
    for _ in range(300):
        time.sleep(1)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/status.json") as answer:
                if condition(json.load(answer)):
                    return
        except OSError:
            pass  # It has not started yet.
    raise TimeoutError(f"the status page does not show it: {inspect.getsource(condition).strip()}")


def main() -> None:
    """Make the pictures with two private servers."""
    out = Path(sys.argv[1]).absolute() if sys.argv[1:] else DOCS
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        os.environ["SCHEMALESS_LOCAL"] = f"{name}/servers"
        run("local", "up", "--servers", "2")
        try:
            clusters = [run("local", "status", "--url", number) for number in ("1", "2")]
            shards = ("--shards", "4", "--cluster", clusters[0], "--cluster", clusters[1])
            os.environ["SCHEMALESS_URL"] = run("create", "logbooks", *shards)
            capacity_report(Path(name), out)
            status_page(out)
        finally:
            run("local", "down", "--delete")


if __name__ == "__main__":
    main()
