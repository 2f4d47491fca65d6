"""``schemaless migrate report``: terminal, JSON, CSV and one HTML page."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from schemaless import NewStoredCell

pytestmark = pytest.mark.mysql


@pytest.fixture
def migrated(invoke, fresh_store, migrate_url, move_url, new_row):
    """A migrated datastore of 60 cells with two rebuilt shards; returns its URL."""
    fresh_store.put_stored_cells(
        [NewStoredCell(new_row(), "AB"[n % 2], 1, json.dumps({"text": "text " * (40 + n)}).encode()) for n in range(60)]
    )
    assert invoke("migrate", "run", "--execute", url=migrate_url).code == 0
    assert invoke("rebuild", "--execute", "--shards", "0-1", url=move_url).code == 0
    return migrate_url


def test_report_as_json_and_csv_have_the_same_figures(invoke, migrated):
    """Total, clusters, shards and columns; unknown values are null in JSON and empty in CSV."""
    data = invoke("migrate", "report", "--json", url=migrated).json
    rows = list(csv.DictReader(invoke("migrate", "report", "--csv", "-", url=migrated).out.splitlines()))

    assert [(row["level"], row["name"]) for row in rows] == [
        ("all", "all"),
        ("cluster", "cluster-1"),
        ("cluster", "cluster-2"),
        *(("shard", f"shard {shard}") for shard in range(4)),
        ("column", "A"),
        ("column", "B"),
    ]
    assert int(rows[0]["cells"]) == data["total"]["cells"] == 60
    assert (
        int(rows[0]["bytes_after"])
        == data["total"]["bytes_after"]
        == sum(each["bytes_after"] for each in data["columns"])
    )
    for row, part in zip(rows[3:7], data["shards"], strict=True):
        assert int(row["file_bytes_before"]) == part["file_bytes"]["before"]
        assert row["file_bytes_rebuilt"] == (
            "" if part["file_bytes"]["rebuilt"] is None else str(part["file_bytes"]["rebuilt"])
        )
    assert [part["rebuilt_shards"] for part in data["shards"]] == [1, 1, 0, 0]
    assert {each["what"] for each in data["predictions"]} > {"cells re-encoded", "body bytes after"}


def test_report_for_people_has_stages_and_predictions(invoke, migrated):
    """Three stages side by side, then predicted and actual."""
    shown = invoke("migrate", "report", url=migrated)

    assert (shown.code, shown.err) == (0, "")
    assert "after a rebuild of 2 of 4 shards" in shown.out
    for line in ("body bytes re-encoded", "files", "allocated", "binary log written", "cells re-encoded"):
        assert re.search(rf"^{line} ", shown.out, re.MULTILINE), line


def test_report_for_people_leads_with_what_was_reclaimed(invoke, migrated):
    """The result comes first, then the stages; clusters, shards and columns only with --all."""
    short = invoke("migrate", "report", url=migrated)
    whole = invoke("migrate", "report", "--all", url=migrated)

    assert short.code == whole.code == 0
    for shown in (short.out, whole.out):
        assert re.match(r"migration \d+ of .*\n\n[\d.]+ kB of body bytes reclaimed \(-\d+\.\d%\)\.\n", shown)
    for title in ("by cluster", "by shard", "by column"):
        assert f"\n{title}\n" in whole.out
        assert f"\n{title}\n" not in short.out
    assert whole.out.index("predicted and actual") < whole.out.index("by cluster")
    assert "--all adds tables by cluster, by shard and by column" in short.out


class _Page(HTMLParser):
    """Parser that collects the elements of a page."""

    VOID = frozenset({"meta", "i", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_as_html_is_one_page_that_needs_nothing_else(invoke, migrated, tmp_path):
    """No scripts or external resources, closed elements, labelled charts, light and dark."""
    file = tmp_path / "report.html"
    result = invoke("migrate", "report", "--html", file, url=migrated)
    text = file.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    page.close()

    assert result.err == f"written: {file}\n"
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|url\(|@import|\bon\w+=", text)
    assert all(attributes.get("aria-label") for _, attributes in page.tags if attributes.get("role") == "img")
    assert len([tag for tag, _ in page.tags if tag == "rect"]) == 4 * 2 + 2
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert 'name="viewport"' in text


def test_report_escapes_what_comes_from_outside(monkeypatch, invoke, migrated, tmp_path):
    """Markup in names is escaped."""
    from schemaless.cli import migrate_report as command

    file = tmp_path / "report.html"
    original = command.reclaimed_report

    def with_markup(store, job, made_at):
        found = original(store, job, made_at)
        found = replace(found, to="<script>alert(1)</script>&")
        found.columns['"><img src=x>'] = found.columns.pop("A")
        return found

    monkeypatch.setattr(command, "reclaimed_report", with_markup)
    invoke("migrate", "report", "--html", file, url=migrated)
    text = file.read_text(encoding="utf-8")

    assert "<script>" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in text


def test_report_without_a_migration_is_exit_2(invoke, migrate_url, admin_url):
    """Without a migration, or with an unknown job number, the command fails."""
    none = invoke("migrate", "report", url=migrate_url)
    other = invoke("migrate", "report", "--job", "7", url=migrate_url)

    assert none.code == other.code == 2
    assert "there is no migration yet" in none.err
