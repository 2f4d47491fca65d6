"""Charts as PNG files, and as SVG that follows the colours of the page."""

from __future__ import annotations

import io
import re
import struct
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from schemaless.errors import SchemalessError
from schemaless.ui.pages import charts
from schemaless.ui.pages import reclaimed_page as report_page
from schemaless.ui.pages.charts import LINE, SERIES, Chart

pytestmark = pytest.mark.once


def draw(figure, narrow):
    axes = figure.subplots()
    axes.barh(['json & "id="x"', "<msgpack>", "$a$ href='#b'"], [3, 2, 1], color=[SERIES[0], SERIES[1], LINE])
    axes.plot([1, 2], [0, 2], color=SERIES[2], label="narrow" if narrow else "#1f539b")
    axes.legend()


CHART = Chart("sizes", "Sizes <of> all", 'JSON & others, "in bytes"', draw)


def test_every_colour_of_the_svg_is_a_variable_of_the_page():
    """Dark pages get dark charts, so no colour may be fixed in the drawing."""
    svg = CHART.svg()

    assert not re.findall(r'style="[^"]*#[0-9a-f]{3}[^"]*"', re.sub(r"url\(#[^)]*\)", "", svg))
    used = set(re.findall(r"var\((--chart-[a-z0-9]+)\)", svg))
    assert {"--chart-1", "--chart-2", "--chart-3", "--chart-line", "--chart-soft"} <= used
    assert all(charts.STYLE.count(f"{name}: ") == 2 for name in used)


def test_labels_are_not_interpreted():
    """Markup, mathematics, ids and colours in a label stay text."""
    texts = ["".join(each.itertext()) for each in ElementTree.fromstring(CHART.svg()).iter("text")]

    assert {'json & "id="x"', "<msgpack>", "$a$ href='#b'", "#1f539b"} <= set(texts)


def test_charts_of_one_page_do_not_interfere():
    """Ids are unique, references resolve within the chart, and there are no style rules."""
    page = re.sub("<text.*?</text>", "", CHART.html() + replace(CHART, name="times").html())

    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)
    assert "<style" not in page


def test_a_chart_is_self_contained_and_labelled():
    """No external references, and each form has a title and a description for readers who cannot see it."""
    html = CHART.html()

    assert "http" not in html
    assert "<script" not in html
    for form in ("narrow", "wide"):
        svg = re.search(rf'<svg class="{form}".*?</svg>', html, re.DOTALL)
        assert svg is not None
        root = ElementTree.fromstring(svg[0])
        assert root.get("role") == "img"
        named = {each.get("id"): each.text for each in root if each.tag in ("title", "desc")}
        assert [named[name] for name in (root.get("aria-labelledby") or "").split()] == [
            "Sizes <of> all",
            'JSON & others, "in bytes"',
        ]


def test_rendering_is_reproducible():
    """No dates and no random ids, so charts can be compared and kept in version control."""
    assert CHART.html() == CHART.html()
    assert CHART.png() == CHART.png()


def test_a_png_has_two_dots_per_css_pixel():
    """By default, for high-resolution screens and paper."""
    png = CHART.png()

    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (1920, 960)


def test_the_title_of_a_png_does_not_cover_the_drawing():
    """In particular not a legend at the top."""
    from matplotlib.image import imread  # Takes a second to import.

    one, other = (imread(io.BytesIO(chart.png())) for chart in (CHART, replace(CHART, title="Another title")))

    assert (one[72:] == other[72:]).all()
    assert (one[:72] != other[:72]).any()


def test_charts_ignore_the_users_matplotlib_settings():
    """A matplotlibrc neither changes a chart nor is changed by one."""
    import matplotlib

    plain = CHART.svg()
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": True}):
        assert CHART.svg() == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_missing_matplotlib_is_an_error_with_the_next_step(monkeypatch):
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(SchemalessError, match=r"pip install 'schemaless-store\[report\]'"):
        CHART.png()


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio (WCAG 2.2)."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("place", [1, 2], ids=["light", "dark"])
def test_colours_have_enough_contrast(place):
    """3:1 for series and 4.5:1 for text, on paper and cards; blue and green also differ in luminance."""
    colours = {colour[0]: colour[place] for colour in charts._COLOURS}
    for ground in ("paper", "card"):
        for number in range(1, 9):
            assert contrast(colours[str(number)], colours[ground]) >= 3, (number, ground)
        for text in ("ink", "soft"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)

    assert contrast(colours["1"], colours["2"]) >= 1.5


def test_the_migration_page_uses_the_colours_of_the_charts():
    """Its grey, blue and green, light and dark, so that their contrast is covered by the test above."""
    light, dark = ({colour[0]: colour[place] for colour in charts._COLOURS} for place in (1, 2))
    found = re.findall(r"--before: (#\w+); --after: (#\w+); --rebuilt: (#\w+)", report_page._STYLE)

    assert found == [(colours["8"], colours["1"], colours["2"]) for colours in (light, dark)]
