"""The status page in a browser: while a migration, a move and a killed replica are under way, and without servers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

import schemaless
from schemaless.cell import NewStoredCell
from schemaless.monitoring.status.page import status_html
from schemaless.monitoring.status.serve import application
from schemaless.ops.admin.create import create
from schemaless.ops.failover import nodes
from schemaless.testing.servers import private_servers
from schemaless.ui.pages.erasure_page import erasure_page
from tests.cli.test_capacity_page import CHROMIUM, needs_chromium
from tests.monitoring.status.statuses import NOW, PRIMARY, cluster, everything, status

pytestmark = pytest.mark.once

LOOKS: list[tuple[int, Literal["light", "dark"]]] = [
    (width, scheme) for width in (1280, 900, 400) for scheme in ("light", "dark")
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, headless."""
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work as root in a container; the pages are our own.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Shown:
    """A collector of statuses that a test sets."""

    def __init__(self) -> None:
        self.now = everything()

    def status(self) -> Any:
        """Return the status to show."""
        return self.now


@pytest.fixture
def served() -> Iterator[tuple[str, Shown]]:
    """A page of statuses that the test sets; gives its URL and the collector."""
    shown = Shown()
    config = uvicorn.Config(application(shown, None), port=0, log_level="warning", lifespan="off")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    (port,) = {sock.getsockname()[1] for each in server.servers for sock in each.sockets}
    yield f"http://127.0.0.1:{port}/", shown
    server.should_exit = True
    thread.join(120)


def opened(browser: Browser, url: str) -> tuple[Page, list[str]]:
    """Open a page; return it with a list that collects its console messages, errors and foreign requests."""
    page, messages = browser.new_page(), list[str]()
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: messages.append(request.url) if not request.url.startswith(url) else None)
    page.goto(url)
    return page, messages


def violations(page: Page) -> dict[tuple[int, str], Any]:
    """Return what axe finds at each width and in both colour schemes, and whether the page is too wide."""
    found = {}
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        audit = Axe().run(page, options={"resultTypes": ["violations"]}).response
        assert "color-contrast" in [each["id"] for each in audit["passes"]]
        found[width, scheme] = [
            (each["id"], [node["html"] for node in each["nodes"]]) for each in audit["violations"]
        ] + [width for scrolled in [page.evaluate("document.documentElement.scrollWidth")] if scrolled > width]
    return found


@needs_chromium
@pytest.mark.mysql
def test_page_shows_faults_as_they_happen(browser, start, eventually):
    """Without a reload: progress, a replica that was killed, and a runner that was killed, each with its command."""
    draw = random.Random(34)
    with private_servers("mysql", 2, replicas=1) as servers:
        url = create("trips", 4, [server.url for server in servers])
        for number, server in enumerate(servers, start=1):
            nodes.add_replica(url, f"cluster-{number}", server.replicas[0].url, timeout_s=30)
        with schemaless.connect(url) as store:
            bodies = [json.dumps({"noise": draw.randbytes(3_000).hex()}).encode() for _ in range(900)]
            store.put_stored_cells([NewStoredCell(draw.randbytes(16), "BASE", 1, body) for body in bodies])
        # Minutes for what is there, so that both jobs are still at work when a busy machine shows them.
        slow = ("--execute", "--max-mb-per-s", "0.01")
        migration = start("migrate", "run", *slow, "--shards", "0-1", url=url)
        start("shards", "move", "2", "--to", "cluster-1", *slow, url=url)
        process = start("status", "--listen", "127.0.0.1:0", url=url)
        (address,) = re.findall(r"(http://127\.0\.0\.1:\d+/), until", process.stderr.readline().decode())
        page, messages = opened(browser, address)

        def shows(part: str, *texts: str) -> bool:
            # Playwright's loop has to run, or the page never fetches.
            page.wait_for_timeout(100)
            found = page.inner_text(f"#{part}")
            return all(text in found for text in texts)

        eventually(lambda: shows("jobs", "migration 1", "move 2", "running", "kB/s"), "both jobs run")
        assert "4 of 4" in page.inner_text("#summary")
        assert page.locator("progress").count() == 2
        victim = servers[1].replicas[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        eventually(lambda: shows("findings", str(victim.socket), "does not answer", "remove-replica"), "the replica")
        assert shows("servers", "no answer")
        assert "3 of 4" in page.inner_text("#summary")
        migration.kill()
        eventually(lambda: shows("findings", "migration 1", "schemaless migrate run --execute --job 1"), "the runner")

        assert {look: found for look, found in violations(page).items() if found} == {}
        assert "fault" in page.title()
        assert messages == []
        page.close()


@needs_chromium
def test_page_with_every_finding_passes_an_audit(browser, served):
    """At 400 and 1,280 pixels, light and dark: no violation, no overflow, nothing loaded from elsewhere."""
    url, _ = served
    page, messages = opened(browser, url)

    assert {look: found for look, found in violations(page).items() if found} == {}
    assert messages == []
    assert page.locator("#history svg").count() == 4
    page.set_viewport_size({"width": 400, "height": 900})
    card = page.locator("#servers tbody tr").nth(4)
    assert card.inner_text().splitlines() == ["cluster-1", "replica", "read-only", "db-1b:3306", "at least 75 s"]
    tops = [card.locator("td").nth(place).bounding_box()["y"] for place in (0, 7, 1, 2, 3)]
    assert tops == sorted(tops), "on a phone, the lag comes right after the name"
    assert page.locator("#servers abbr").get_attribute("title") == "/run/replica.sock"
    page.close()


@needs_chromium
def test_a_receipt_passes_an_audit_and_needs_no_scrolling(browser, tmp_path):
    """At every width and on paper, no table is wider than the page."""
    until = "binary logs until an operator purges them (cannot connect to /var/run/mysqld/replica-of-db-1.sock)"
    remains = [
        {"where": f"db-{number}.{'far.' * 20}example:3306", "what": "pages", "until": until} for number in (1, 2)
    ]
    gone = {"cells": 4, "body_bytes": 900, "shards": [3], "acknowledged_by": {"trigger:billing": NOW.isoformat()}}
    times = dict.fromkeys(("intended_at", "executed_at", "acknowledged_at", "verified_at", "issued_at"))
    files = [{"name": f"cells/0003/{'0' * 80}.parquet", "documents": 4, "state": "rewritten"}]
    receipt = {"datastore": "trips", "erasure": 1, "state": "executed", "reason": "gdpr", "requested_by": "me", **times}
    receipt |= {"remains": remains, "gone": gone, "exports": [{"name": "lake", "files": files}], "keys": "kept"}
    receipt |= {"cold_files": [f"{'0' * 32}/0003/{'0' * 16}-1-{'0' * 16}.parquet"]}
    receipt |= {"scope": {"targets": ["a" * 36]}, "signature": {"algorithm": "Ed25519", "signature": "0f" * 64}}
    file = tmp_path / "receipt.html"
    file.write_text(erasure_page(receipt), encoding="utf-8")
    page, messages = opened(browser, file.as_uri())
    too_wide = "[...document.querySelectorAll('.wide')].filter(each => each.scrollWidth > each.clientWidth).length"

    for width, medium in ((400, "screen"), (900, "screen"), (1280, "screen"), (680, "print")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media=medium)
        assert page.evaluate(too_wide) == 0, (width, medium)
    page.emulate_media(media="screen")
    assert {look: found for look, found in violations(page).items() if found} == {}
    assert messages == []
    page.close()


@needs_chromium
def test_page_follows_changes_and_says_when_it_cannot(browser, served, eventually):
    """Parts are replaced without a reload, names are text, and scroll positions stay."""
    url, shown = served
    page, _ = opened(browser, url)
    page.evaluate("window.sameDocument = true")
    page.set_viewport_size({"width": 610, "height": 900})
    page.evaluate("document.querySelector('#jobs .wide').scrollLeft = 50")
    name = "<script>alert(1)</script>"
    shown.now = status(clusters=(cluster(replace(PRIMARY, address=name, fault=name)),))

    def found() -> bool:
        page.wait_for_timeout(100)
        return name in page.inner_text("#findings") and name in page.inner_text("#servers")

    eventually(found, "the new status")
    assert page.evaluate("window.sameDocument") is True
    assert page.evaluate("document.querySelector('#jobs .wide').scrollLeft") == 50
    shown.now = None

    def out_of_date() -> bool:
        page.wait_for_timeout(100)
        return "out of date" in page.inner_text("#connection")

    eventually(out_of_date, "the page says so")
    page.close()


def test_page_of_parts_that_were_not_read():
    """Each has its section, so that the script can fill it."""
    parts = tuple(replace(part, read_at=None) for part in status().parts)
    text = status_html(status(clusters=None, jobs=None, followers=None, capacity=None, parts=parts))

    assert text.count("Being read.") == 4
    for part in ("findings", "servers", "jobs", "followers", "capacity"):
        assert f'<div id="{part}" data-live>' in text


def test_page_of_many_shards_is_small():
    """It shows sums, not shards."""
    assert len(status_html(replace(status(), shards=4096, taken_at=NOW)).encode()) < 20_000
