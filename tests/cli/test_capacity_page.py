"""The HTML page of the capacity report in a browser: desktop and phone, light and dark, and on paper.

Needs a system Chromium, which .ci/run installs if it can; SCHEMALESS_CHROMIUM selects another one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as BrowserPage

from schemaless.planning.capacity.options import WhatIf
from schemaless.planning.capacity.report import CapacityReport
from schemaless.ui.pages.capacity_charts import charts, overview
from schemaless.ui.pages.capacity_page import capacity_html
from schemaless.ui.pages.capacity_tables import tables
from tests.planning.capacity.reports import (
    GIB,
    PLANNING,
    WHAT_IFS,
    common,
    measurement,
    odd_report,
    odd_reports,
    of_many_shards,
    of_two,
    report,
    space,
    tried,
)

pytestmark = [pytest.mark.once, pytest.mark.long]

CHROMIUM = os.environ.get("SCHEMALESS_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
_without_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="SCHEMALESS_CHROMIUM is not set, and no chromium, chromium-browser or google-chrome is on the PATH",
)


def needs_chromium(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that looks at a page in a browser."""
    return pytest.mark.long(_without_chromium(test))


LOOKS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]

DRAWN = """const drawn = [...document.querySelectorAll("figure img")].filter(img => img.checkVisibility()).map(img => {
    const text = decodeURIComponent(img.src.slice(img.src.indexOf(",") + 1));
    const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    svg.style.cssText = "display: block; width: 100%; height: auto";
    img.computed = getComputedStyle(img).filter;
    img.style.display = "none";
    img.after(svg);
    return [img, svg];
  });"""
"""JavaScript that puts the drawing of each visible picture in the page instead, to look at its elements."""

_LOOK = f"""() => {{
  const loaded = [...document.querySelectorAll("figure img")].every(img => img.complete && img.naturalWidth > 0);
  const width = [document.documentElement.scrollWidth, window.innerWidth];
  {DRAWN}
  const charts = drawn.map(([img, svg]) => {{
    const box = svg.getBoundingClientRect();
    const all = [...svg.querySelectorAll("path, use, text")];
    const marks = all.filter(each => each.getBoundingClientRect().width > 0);
    const texts = [...svg.querySelectorAll("text")].map(each => each.getBoundingClientRect());
    return {{
      name: img.alt,
      size: [box.width, box.height],
      marks: marks.length,
      least: Math.min(...texts.map(text => text.height)),
      outside: texts.filter(text => text.left < box.left - 2 || text.right > box.right + 2).length,
      filter: img.computed,
    }};
  }});
  drawn.forEach(([img, svg]) => {{ svg.remove(); img.style.display = ""; }});
  const colours = [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color];
  return {{width, loaded, charts, colours}};
}}"""


_OUTSIDE = "selectors => selectors.filter(each => !document.querySelector(each).closest('.wide'))"


class Opened(NamedTuple):
    """A page in the browser, with its console messages and requested URLs."""

    page: BrowserPage
    messages: list[str]
    requests: list[str]


class Page(HTMLParser):
    """Collects ids, and counts labelled pictures and tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.pictures = self.regions = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += filter(None, [values.get("id")])
        if tag == "img":
            assert values["alt"]
            self.pictures += 1
        if values.get("role") == "region":
            assert values["aria-label"]
            assert values["tabindex"] == "0"
            self.regions += 1


@pytest.fixture(scope="module")
def reports() -> dict[str, CapacityReport]:
    """A full report, one of clusters with long names, and edge cases."""
    names = [f"cluster-{number}-with-a-long-name-in-the-rack-b" for number in range(6)]
    many = measurement(days=14, clusters=[space(name) for name in names])
    kept = WhatIf(name="30 days of trips", retention={"trips/BASE": "30 days"})
    plan = of_two(planning=PLANNING, what_ifs=(*WHAT_IFS, kept))
    return {"full": common(), "many": report(many), "shards": of_many_shards(), "plan": plan, **odd_reports()}


@pytest.fixture(scope="module")
def pages(reports) -> dict[str, str]:
    """The pages of reports that differ in their charts."""
    names = ("full", "many", "shards", "plan", "empty", "one day")
    return {name: capacity_html(reports[name]) for name in names}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, headless."""
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work as root in a container; the pages are our own.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def opened(browser, pages, tmp_path_factory) -> Iterator[dict[str, Opened]]:
    """Each page in its own tab, loaded once for all tests."""
    folder, tabs = tmp_path_factory.mktemp("pages"), {}
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
        tab = Opened(browser.new_page(), [], [])
        tab.page.on("console", lambda message, tab=tab: tab.messages.append(message.text))
        tab.page.on("pageerror", lambda error, tab=tab: tab.messages.append(str(error)))
        tab.page.on("request", lambda request, tab=tab: tab.requests.append(request.url))
        tab.page.goto((folder / f"{name}.html").as_uri())
        tabs[name] = tab
    yield tabs
    for tab in tabs.values():
        tab.page.close()


def look_at(tab: Opened, width: int, scheme: Literal["light", "dark"], media: Literal["screen", "print"]) -> Any:
    """Display a page with the given width, colours and media, and return what it shows."""
    tab.page.set_viewport_size({"width": width, "height": 900})
    tab.page.emulate_media(media=media, color_scheme=scheme)
    return tab.page.evaluate(_LOOK)


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_page_has_no_error_and_no_overflow_and_draws_every_chart(opened, pages, width, scheme):
    """At both widths and in both colour schemes: no console messages, no overflow, and non-empty charts."""
    for name, tab in opened.items():
        look = look_at(tab, width, scheme, "screen")

        assert tab.messages == [], name
        assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == [], name
        assert look["width"][0] <= width, name
        assert look["loaded"], name
        assert len(look["charts"]) == pages[name].count("<figure"), name
        for chart in look["charts"]:
            assert chart["marks"] > 10, (name, chart)
            assert chart["size"][0] > (350 if width < 640 else 440), (name, chart)
            assert chart["size"][1] > 150, (name, chart)
            assert chart["least"] > 8, (name, chart)
            assert chart["outside"] == 0, (name, chart)
            assert ("invert" in chart["filter"]) == (scheme == "dark"), (name, chart)
        assert (sum(map(int, re.findall(r"\d+", look["colours"][0])[:3])) < 200) == (scheme == "dark"), name


@needs_chromium
def test_six_scenarios_fit_on_a_screen(opened):
    """At 1280 pixels, the tables of scenarios side by side need no scrolling."""
    look_at(opened["plan"], 1280, "light", "screen")
    widths = opened["plan"].page.evaluate(
        "[...document.querySelectorAll('.wraps')].map(each => [each.scrollWidth, each.clientWidth])"
    )

    assert len(widths) == 2
    assert all(needed <= room for needed, room in widths), widths


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_an_accessibility_audit_finds_nothing(opened, width, scheme):
    """Axe reports no violation of contrast, names or structure, on screen and on paper."""
    found = {}
    # Other pages only have other charts in the same styles, and paper is always light.
    others = {LOOKS[0]: ["shards"], LOOKS[-1]: ["plan"]}
    for name in ("full", *others.get((width, scheme), [])):
        for media in ("screen", "print") if (width, scheme) == LOOKS[0] else ("screen",):
            look_at(opened[name], width, scheme, media)
            # Reporting every passed element would take most of the time.
            options = {"resultTypes": ["violations", "incomplete"]}
            audit = Axe().run(opened[name].page, options=options).response
            assert "color-contrast" in [each["id"] for each in audit["passes"]]
            # axe cannot decide about text in drawings and in tables that are scrolled out of view.
            undecided = [node["target"][0] for each in audit["incomplete"] for node in each["nodes"]]
            assert opened[name].page.evaluate(_OUTSIDE, undecided) == [], (name, media)
            found[name, media] = [
                (each["id"], [node["html"] for node in each["nodes"]]) for each in audit["violations"]
            ]

    assert [key for key, violations in found.items() if violations] == [], found


@needs_chromium
def test_page_prints(opened):
    """A few pages, with collapsed tables expanded, in light colours regardless of the screen."""
    pdf = opened["full"].page.pdf()
    look = look_at(opened["full"], LOOKS[0][0], "dark", "print")
    hidden = opened["full"].page.evaluate(
        "[...document.querySelectorAll('details td')].filter(each => !each.checkVisibility()).length"
    )

    assert sum(map(int, re.findall(r"\d+", look["colours"][0])[:3])) > 700
    assert hidden == 0
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 14


def test_page_has_no_scripts_and_loads_nothing(pages):
    """No script elements, and no references to other resources."""
    for name, text in pages.items():
        assert "<script" not in text, name
        assert not re.search(r"""(src|href)=["'](?!#|data:)""", text), name
        assert not re.search(r"@import|url\((?!%23)", text), name


def test_every_picture_and_table_is_labelled(pages):
    """A text for each picture, a name for each table, and unique ids."""
    for name, text in pages.items():
        seen = Page(text)

        assert seen.pictures == text.count("<figure"), name
        assert len(seen.ids) == len(set(seen.ids)), name
        assert seen.regions >= 1, name


def test_a_page_is_small_and_reproducible(reports, pages):
    """Below 300 KB in every case, and the same bytes when rendered again."""
    for name, text in pages.items():
        assert len(text.encode()) < 300_000, name
    assert pages["full"] == capacity_html(reports["full"])


def test_the_answer_comes_first(pages):
    """Days until full now and after re-encoding, then charts, tables, and how figures were obtained."""
    text = pages["full"]
    order = ["First disk full in", "Re-encoded to", "<figure", "Forecasts and their back-tests", "<dl>"]

    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)


def test_the_description_of_a_chart_has_its_main_figures(reports):
    """Readers who cannot see the chart get the same answer."""
    found = reports["full"]
    described = {chart.name: chart.description for chart in charts(found)}

    assert described.keys() == {"fill", "growth", "bytes", "days", "skew"}
    first = found.now.first
    assert first is not None
    assert first.days is not None
    assert f"now {int(first.days.mid)} days" in described["days"]


def test_edge_cases_have_no_charts_of_unknown_figures(pages):
    """No line without a forecast, and no bar without days."""
    assert "<figure" not in pages["empty"]
    assert "Days until full, now and in each codec" not in pages["one day"]
    assert "<b>unknown</b>" in pages["one day"]


def test_names_and_errors_are_escaped():
    """Both on the page and in its drawings."""
    found = report(
        measurement(days=30, clusters=[space("<b>&\"'"), space("cluster-2", problem="<script>alert(1)</script>")])
    )

    text = capacity_html(found)

    assert "<script" not in text
    assert "<b>&\"'" not in text
    assert "&lt;b&gt;&amp;" in text


def test_tables_hold_as_many_cells_as_columns(reports):
    """A row that is too short would shift its figures under the wrong headings."""
    for name, found in reports.items():
        for table in tables(found):
            assert {len(row) for row in table.rows} == {len(table.columns)}, (name, table.title)


def test_the_picture_is_a_png_of_the_main_charts(reports):
    """The first four charts, with the answer as title; None if there are no charts."""
    chart = overview(reports["full"])
    assert chart is not None
    assert chart.title.startswith("trips: full in ")
    assert chart.png().startswith(b"\x89PNG")

    assert overview(reports["empty"]) is None
    short = overview(reports["one day"])
    assert short is not None
    assert short.title == (
        "trips: file size by column, now and in each codec; allocated bytes of each shard; how long the disks "
        "will last is unknown"
    )


def test_the_title_of_the_picture_without_a_date():
    """For disks beyond the horizon, and for a disk that is already full."""
    large = [space(name, disk=4096 * GIB) for name in ("cluster-1", "cluster-2")]
    large = [replace(each, free_bytes=(4000 + number) * GIB) for number, each in enumerate(large)]
    far = overview(report(measurement(days=30, clusters=large)))
    full = overview(odd_report("a full disk"))
    assert far is not None
    assert full is not None

    assert re.match(r"trips: not full within 150 days; re-encoded to \S+: not full within 150 days", far.title)
    assert full.title.startswith("trips: no space left")


def test_long_histories_are_drawn_by_week():
    """A few weeks are drawn by day."""
    drawn = [
        chart.svg() for days in (120, 30) for chart in charts(report(measurement(days=days))) if chart.name == "growth"
    ]

    assert ["measured, by week" in svg for svg in drawn] == [True, False]


def test_the_usage_chart_shows_past_and_thresholds(reports):
    """Usage until today, the thresholds, and axes with units."""
    (fill,) = (chart for chart in charts(reports["full"]) if chart.name == "fill")

    svg = fill.svg()

    for label in ("so far", "today", "80 %", "90 %", "used, GB"):
        assert f">{label}</text>" in svg, label
    assert "40 days until today" not in fill.description  # The first day is incomplete.
    assert "39 days" in fill.description or "40 days" in fill.description or "41 days" in fill.description


def test_many_shards_are_drawn_as_a_histogram(reports):
    """4,096 shards: a histogram of their sizes, and a table of the ten largest."""
    found = reports["shards"]
    (drawn,) = (chart for chart in charts(found) if chart.name == "skew")
    (table,) = (each for each in tables(found) if each.title == "Largest shards")

    svg = drawn.svg()

    assert drawn.title == "Distribution of 4,096 shards by size"
    assert ">shards</text>" in svg
    assert "a shard's file, MB" in svg.replace("&#x27;", "'").replace("&apos;", "'")
    assert svg.count("<path") < 300
    sizes = [size for space in found.measurement.clusters for _, size in space.shard_files]
    assert len(table.rows) == 10
    assert table.rows[0][2] == f"{max(sizes) / 1e6:.0f} MB"
    assert "4,096 shards, with" in table.note


def test_more_columns_than_colours_share_the_last_one():
    """Nine columns: six with their own colour, the others together, and free space in files."""
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


def test_the_variable_selects_chromium():
    """Otherwise a misconfigured browser would silently skip the tests."""
    given = os.environ.get("SCHEMALESS_CHROMIUM")

    assert given is None or given == CHROMIUM
    assert CHROMIUM is None or Path(CHROMIUM).exists()
