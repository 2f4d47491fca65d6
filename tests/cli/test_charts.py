"""Charts as PNG files, and as SVG pictures in the colours of light and dark pages."""

from __future__ import annotations

import io
import re
import struct
import sys
from dataclasses import replace
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from schemaless.errors import SchemalessError
from schemaless.ui.pages import charts, frame
from schemaless.ui.pages.charts import INK, LINE, PAPER, SERIES, SOFT, Chart

pytestmark = pytest.mark.once

SVG = "{http://www.w3.org/2000/svg}"


def draw(figure, narrow):
    axes = figure.subplots()
    axes.barh(['json & "id="x"', "<msgpack>", "$a$ href='#b'"], [3, 2, 1], color=[SERIES[0], SERIES[1], LINE])
    axes.plot([1, 2], [0, 2], color=SERIES[2], label="narrow" if narrow else "#1f539b")
    axes.legend()


CHART = Chart("sizes", "Sizes <of> all", 'JSON & others, "in bytes"', draw)


def test_every_colour_of_the_svg_is_one_of_the_module():
    """Only these are known to be legible, on dark pages too."""
    used = set(re.findall(r"#[0-9a-f]{6}", re.sub(r"<text.*?</text>|url\([^)]*\)", "", CHART.svg())))

    assert {LINE, *SERIES[:3]} <= used <= {PAPER, INK, SOFT, LINE, *SERIES}


def test_labels_are_not_interpreted():
    """Markup, mathematics, ids and colours in a label stay text."""
    texts = ["".join(each.itertext()) for each in ElementTree.fromstring(CHART.svg()).iter(f"{SVG}text")]

    assert {'json & "id="x"', "<msgpack>", "$a$ href='#b'", "#1f539b"} <= set(texts)


def test_a_chart_is_self_contained_and_labelled():
    """Pictures in the page itself, without references, each with a text for readers who cannot see it."""
    html = CHART.html()

    sources = re.findall(r'src="([^"]*)"', html)
    assert len(sources) == 2
    assert html.count('alt="Sizes &lt;of&gt; all: JSON &amp; others, &quot;in bytes&quot;"') == 2
    for source in sources:
        kind, _, text = source.partition(",")
        assert kind == "data:image/svg+xml"
        for element in ElementTree.fromstring(unquote(text)).iter():
            assert element.tag != f"{SVG}script"
            assert all(value.startswith("#") for name, value in element.items() if name.endswith("href"))


@pytest.mark.long
def test_rendering_is_reproducible():
    """No dates and no random ids, so charts can be compared and kept in version control."""
    assert CHART.html() == CHART.html()
    assert CHART.png() == CHART.png()


def test_a_png_has_two_dots_per_css_pixel():
    """By default, for high-resolution screens and paper."""
    png = CHART.png()

    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (1920, 960)


@pytest.mark.long
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


def inverted(colour: str) -> str:
    """The colour after the CSS filter of dark pages (Filter Effects Module, hueRotate with 180 degrees)."""
    red, green, blue = (1 - int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    grey = 0.213 * red + 0.715 * green + 0.072 * blue
    return "#" + "".join(f"{round(255 * min(1, max(0, 2 * grey - part))):02x}" for part in (red, green, blue))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_have_enough_contrast(dark):
    """3:1 for series and 4.5:1 for text; blue and green also differ in luminance."""
    assert "invert(1) hue-rotate(180deg)" in charts.STYLE
    grounds = re.findall(r"--(?:paper|card): (#\w+)", frame.STYLE)
    series = [inverted(colour) if dark else colour for colour in SERIES]

    for ground in grounds[2:] if dark else grounds[:2]:
        assert [colour for colour in series if contrast(colour, ground) < 3] == []
        for text in (INK, SOFT):
            assert contrast(inverted(text) if dark else text, ground) >= 4.5, (text, ground)
        for colour in re.findall(r"--(?:accent|green|orange|red|grey): (#\w+)", frame.STYLE)[5 * dark :][:5]:
            assert contrast(colour, ground) >= 3, (colour, ground)

    assert contrast(series[0], series[1]) >= 1.5
