"""The page of the capacity report as a browser shows it: desktop and phone, light and dark, and on paper.

Needs the system's Chromium, which .ci/run installs where it can; SCHEMALESS_CHROMIUM names another.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from schemaless.capacity.report import Report
from schemaless.pages.capacity_charts import charts, overview
from schemaless.pages.capacity_page import page
from schemaless.pages.capacity_text import tables
from tests.capacity.reports import GIB, common, measurement, odd_reports, report, space, tried

CHROMIUM = os.environ.get("SCHEMALESS_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium, chromium-browser or google-chrome on the PATH (SCHEMALESS_CHROMIUM)"
)
LOOKS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]

_LOOK = """() => {
  const shown = [...document.querySelectorAll("figure svg")].filter(svg => svg.getBoundingClientRect().width > 0);
  return {
    width: [document.documentElement.scrollWidth, window.innerWidth],
    charts: shown.map(svg => {
      const box = svg.getBoundingClientRect();
      const all = [...svg.querySelectorAll("path, use, text")];
      const marks = all.filter(each => each.getBoundingClientRect().width > 0);
      const texts = [...svg.querySelectorAll("text")].map(each => each.getBoundingClientRect());
      return {
        name: svg.querySelector("title").textContent,
        size: [box.width, box.height],
        marks: marks.length,
        least: Math.min(...texts.map(text => text.height)),
        outside: texts.filter(text => text.left < box.left - 2 || text.right > box.right + 2).length,
      };
    }),
    colours: [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color],
    ink: getComputedStyle(shown[0]?.querySelector("text") ?? document.body).fill,
  };
}"""


class Page(HTMLParser):
    """Ids, references, and what every picture and table says of itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.labelled: list[str] = []
        self.pictures = self.regions = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += filter(None, [values.get("id")])
        if tag == "svg":
            assert values["role"] == "img"
            self.pictures += 1
            self.labelled += (values["aria-labelledby"] or "").split()
        if values.get("role") == "region":
            assert values["aria-label"]
            assert values["tabindex"] == "0"
            self.regions += 1


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """A full report, one of clusters with long names, and odd cases."""
    names = [f"cluster-{number}-with-a-long-name-in-the-rack-b" for number in range(6)]
    many = measurement(days=30, clusters=[space(name) for name in names])
    return {"full": common(), "many": report(many), **odd_reports()}


@pytest.fixture(scope="module")
def pages(reports) -> dict[str, str]:
    """The pages of those that differ in what is drawn."""
    names = ("full", "many", "empty", "one day")
    return {name: page(reports[name]) for name in names}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, headless."""
    with sync_playwright() as playwright:
        # As root, in a container, Chromium has no sandbox of its own; the pages are ours.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_page_has_no_error_and_no_overflow_and_draws_every_chart(browser, pages, tmp_path, width, scheme):
    """At both widths and in both colours: a silent console, nothing too wide, charts with marks in them."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name, text in pages.items():
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        said: list[str] = []
        asked: list[str] = []
        opened = context.new_page()
        opened.on("console", lambda message, said=said: said.append(message.text))
        opened.on("pageerror", lambda error, said=said: said.append(str(error)))
        opened.on("request", lambda request, asked=asked: asked.append(request.url))
        opened.goto(file.as_uri())
        look = opened.evaluate(_LOOK)
        opened.close()

        assert said == [], name
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == [], name
        assert look["width"][0] <= width, name
        assert len(look["charts"]) == text.count("<figure"), name
        for chart in look["charts"]:
            assert chart["marks"] > 10, (name, chart)
            assert chart["size"][0] > 0.85 * min(width, 992) - 32, (name, chart)
            assert chart["size"][1] > 150, (name, chart)
            assert chart["least"] > 8, (name, chart)
            assert chart["outside"] == 0, (name, chart)
        dark = scheme == "dark"
        assert (sum(map(int, re.findall(r"\d+", look["colours"][0])[:3])) < 200) == dark, name
        if look["charts"]:
            assert (sum(map(int, re.findall(r"\d+", look["ink"])[:3])) > 400) == dark, name
    context.close()


@needs_chromium
def test_page_prints(browser, pages, tmp_path):
    """On paper it is a few pages, with the closed tables open, in light colours whatever the screen has."""
    file = tmp_path / "report.html"
    file.write_text(pages["full"], encoding="utf-8")
    context = browser.new_context(color_scheme="dark")
    opened = context.new_page()
    opened.goto(file.as_uri())
    pdf = opened.pdf()
    opened.emulate_media(media="print")
    look = opened.evaluate(_LOOK)
    hidden = opened.evaluate(
        "[...document.querySelectorAll('details td')].filter(each => !each.checkVisibility()).length"
    )
    context.close()

    assert sum(map(int, re.findall(r"\d+", look["colours"][0])[:3])) > 700
    assert hidden == 0
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 14


def test_page_asks_nobody_and_runs_nothing(pages):
    """No script, and no address of anything that would have to be fetched."""
    for name, text in pages.items():
        assert "<script" not in text, name
        assert not re.search(r"""(src|href)=["'](?!#|data:)""", text), name
        assert not re.search(r"@import|url\((?!#)", text), name


def test_every_picture_and_table_says_what_it_is(pages):
    """A title and a description for each drawing, a name for each table, and no id twice."""
    for name, text in pages.items():
        seen = Page(text)

        assert seen.pictures == 2 * text.count("<figure"), name
        assert len(seen.labelled) == 2 * seen.pictures, name
        assert set(seen.labelled) <= set(seen.ids), name
        assert len(seen.ids) == len(set(seen.ids)), name
        assert seen.regions >= 1, name


def test_the_answer_stands_first(pages):
    """Days until full now, then after re-encoding, then charts, then tables, then how figures were obtained."""
    text = pages["full"]
    order = ["Until full, as it is", "After re-encoding to", "<figure", "Forecasts and their back-tests", "<dl>"]

    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)


def test_a_chart_names_its_main_figures(reports):
    """Who cannot see it reads the same answer."""
    found = reports["full"]
    described = {chart.name: chart.description for chart in charts(found)}

    assert described.keys() == {"fill", "growth", "bytes", "days", "skew"}
    first = found.now.first
    assert first is not None
    assert first.days is not None
    assert f"now {int(first.days.mid)} days" in described["days"]


def test_an_odd_case_has_no_chart_of_what_is_not_known(pages):
    """No line where nothing is forecast, no bar where no day is known."""
    assert "<figure" not in pages["empty"]
    assert "Days until full, now and in each codec" not in pages["one day"]
    assert "not known" in pages["one day"]


def test_what_comes_from_outside_is_escaped():
    """Names and errors of servers are text, on the page and in its drawings."""
    found = report(
        measurement(days=30, clusters=[space("<b>&\"'"), space("cluster-2", problem="<script>alert(1)</script>")])
    )

    text = page(found)

    assert "<script" not in text
    assert "<b>&\"'" not in text
    assert "&lt;b&gt;&amp;" in text


def test_tables_hold_as_many_cells_as_columns(reports):
    """In every case: a line that is too short would shift its figures under other names."""
    for name, found in reports.items():
        for table in tables(found):
            assert {len(row) for row in table.rows} == {len(table.columns)}, (name, table.title)


def test_the_picture_is_a_png_of_the_main_charts(reports):
    """The first four charts, and the answer as its title; nothing where nothing is known."""
    chart = overview(reports["full"])
    assert chart is not None
    assert chart.title.startswith("trips: full in ")
    assert chart.png(scale=1).startswith(b"\x89PNG")

    assert overview(reports["empty"]) is None
    short = overview(reports["one day"])
    assert short is not None
    assert short.title == (
        "trips: files by column, now and in each codec; allocated bytes of each shard; how long it lasts is not known"
    )


def test_the_picture_says_what_is_not_full():
    """Where no future has it full, and where it is full already, the title reads as a sentence does."""
    large = [space(name, disk=4096 * GIB) for name in ("cluster-1", "cluster-2")]
    large = [replace(each, free_bytes=(4000 + number) * GIB) for number, each in enumerate(large)]
    far = overview(report(measurement(days=30, clusters=large)))
    full = overview(odd_reports()["a full disk"])
    assert far is not None
    assert full is not None

    assert far.title.startswith("trips: not full within 150 days as it is, not full within 150 days as ")
    assert full.title.startswith("trips: full already as it is")


def test_the_growth_is_drawn_by_week_on_a_phone(reports):
    """Days of half a year are a blot on 380 pixels; the wide form has them all."""
    (growth,) = (chart for chart in charts(report(measurement(days=120))) if chart.name == "growth")

    assert "measured, by week" in growth.svg(narrow=True)
    assert "measured, by week" not in growth.svg()
    assert growth.svg(narrow=True).count("<use") < growth.svg().count("<use") / 3


def test_more_columns_than_colours_share_the_last_one():
    """Nine columns: six of their own colour, the others together, and what is free in files."""
    base = measurement(days=0)
    names = [f"COLUMN_{number}" for number in range(9)]
    groups = tuple(replace(base.groups[0], column_name=name) for name in names)
    many = replace(base, groups=groups, growth=())

    (drawn,) = (chart for chart in charts(report(many, trials=tried(names))) if chart.name == "bytes")

    svg = drawn.svg()
    assert "COLUMN_5" in svg
    assert "COLUMN_6" not in svg
    assert "others" in svg
    assert "free in files" in svg


def test_chromium_is_named_by_its_variable():
    """A name that is set goes first: what is skipped can be checked."""
    given = os.environ.get("SCHEMALESS_CHROMIUM")

    assert given is None or given == CHROMIUM
    assert CHROMIUM is None or Path(CHROMIUM).exists()
