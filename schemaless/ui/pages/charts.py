"""Render one drawing as a PNG file and as inline SVG whose colours follow the page, light or dark.

Drawings must use this module's colours. The PNG file has their values for light pages; the SVG has a CSS variable in
place of each. The SVG has no scripts and no external references, and the output is reproducible: no dates, no random
ids. Pages with charts include ``STYLE``.

Matplotlib is imported on first use; if it is missing, the error says what to install.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from schemaless.errors import SchemalessError

if TYPE_CHECKING:  # Part of an extra, and slow to import.
    from matplotlib.figure import Figure

# (CSS variable, colour on a light page, colour on a dark page). All differ, and none is black, which SVG omits.
_COLOURS: Final = (
    ("paper", "#fffffe", "#14171b"),
    ("ink", "#1b1f24", "#e8ebef"),
    ("soft", "#5b6470", "#a2abb8"),
    ("line", "#d5dae0", "#363d47"),
    ("card", "#f5f7f9", "#1d2127"),
    ("1", "#1f539b", "#63a4ee"),
    ("2", "#0f7f6d", "#86e5d2"),
    ("3", "#b85c00", "#f0943a"),
    ("4", "#7a4fb5", "#b08ae8"),
    ("5", "#b3323c", "#f0747c"),
    ("6", "#66740f", "#b4c24a"),
    ("7", "#a8367f", "#e57cc0"),
    ("8", "#7d8795", "#8a94a2"),
)
_LIGHT: Final = {name: light for name, light, _ in _COLOURS}

PAPER: Final = _LIGHT["paper"]
INK: Final = _LIGHT["ink"]
SOFT: Final = _LIGHT["soft"]
LINE: Final = _LIGHT["line"]
SERIES: Final = tuple(_LIGHT[str(number)] for number in range(1, 9))
"""Series colours in order: blue, green, orange, violet, red, olive, pink and grey; distinguishable with most forms of
colour blindness.

All have a contrast of at least 3:1 against the backgrounds of pages and cards. Blue and green, used for before and
after, also differ in luminance.
"""

NARROW_BELOW_PX: Final = 640
"""Page width below which the narrow form of a chart is shown, in CSS pixels."""


def _variables(position: int) -> str:
    return " ".join(f"--chart-{colour[0]}: {colour[position]};" for colour in _COLOURS)


STYLE: Final = f"""
:root {{ {_variables(1)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(2)} }} }}
figure.chart {{ margin: .8rem 0; break-inside: avoid; }}
figure.chart svg {{ display: block; width: 100%; height: auto; border: 0; }}
figure.chart svg.narrow {{ display: none; }}
figure.chart figcaption {{ color: var(--chart-soft); font-size: .875rem; }}
@media (max-width: {NARROW_BELOW_PX}px) {{
  figure.chart svg.narrow {{ display: block; }} figure.chart svg.narrow ~ svg.wide {{ display: none; }} }}
"""
"""CSS for pages with charts."""

_PX_PER_INCH: Final = 72
"""Resolution at which a Matplotlib point is a CSS pixel, so that text sizes match those of the page."""

_TITLE_PX: Final = 36
"""Height of the title above the drawing in a PNG file, in CSS pixels."""

_SETTINGS: Final[dict[str, Any]] = {
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.titlesize": 14,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "text.color": INK,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "lines.linewidth": 2,
    "patch.edgecolor": PAPER,
    "hatch.color": PAPER,
    "svg.fonttype": "none",
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing that can be rendered as PNG, as SVG, and as part of a page.

    Attributes:
        name: Letters, digits and hyphens; unique on a page.
        title: Short title; it is not part of the drawing itself.
        description: Text alternative: one or two sentences with the main figures.
        draw: Draws on an empty figure. Called for each form with the figure and True for the narrow form; must take its
            colours from this module.
        size_px: Width and height of the wide form, in CSS pixels.
        narrow_px: Width and height of the form for phones; None to shrink the wide form instead.
    """

    name: str
    title: str
    description: str
    draw: Callable[[Figure, bool], None]
    size_px: tuple[int, int] = (960, 480)
    narrow_px: tuple[int, int] | None = (380, 480)

    def png(self, *, scale: float = 2) -> bytes:
        """Return a PNG file of the wide form on a light background, with ``scale`` dots per CSS pixel.

        Raises:
            SchemalessError: Matplotlib is missing.
        """
        file = io.BytesIO()
        with _drawn(self, narrow=False, title_px=_TITLE_PX) as figure:
            # The title is added to the finished image, because the layout would put it on top of the legend.
            canvas = import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
            figure.set_dpi(_PX_PER_INCH * scale)
            canvas.draw()
            size = (self.size_px[0] / _PX_PER_INCH, self.size_px[1] / _PX_PER_INCH)
            whole = type(figure)(figsize=size, dpi=_PX_PER_INCH * scale)
            whole.figimage(canvas.buffer_rgba())
            top = 1 - _TITLE_PX / 2 / self.size_px[1]
            whole.text(0.01, top, self.title, va="center", color=INK, fontsize=15, fontweight="bold")
            whole.savefig(file, format="png", dpi=_PX_PER_INCH * scale, metadata={"Software": None})
        return file.getvalue()

    def svg(self, *, narrow: bool = False) -> str:
        """Return an ``<svg>`` element for a page that has ``STYLE``.

        Raises:
            SchemalessError: Matplotlib is missing.
        """
        file = io.StringIO()
        with _drawn(self, narrow=narrow) as figure:
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(file, format="svg", dpi=_PX_PER_INCH, metadata=nothing)
        return _inline(self, file.getvalue(), narrow=narrow)

    def html(self) -> str:
        """Return a ``<figure>`` element with both forms; the page width selects one of them.

        Raises:
            SchemalessError: Matplotlib is missing.
        """
        narrow = "" if self.narrow_px is None else self.svg(narrow=True)
        return f'<figure class="chart">{narrow}{self.svg()}</figure>'


@contextmanager
def _drawn(chart: Chart, *, narrow: bool, title_px: int = 0) -> Iterator[Figure]:
    """Yield the drawn figure, ``title_px`` shorter than the chart, ignoring the user's Matplotlib settings."""
    try:
        matplotlib = import_module("matplotlib")
        figure_type: Callable[..., Figure] = import_module("matplotlib.figure").Figure
    except ImportError as missing:
        raise SchemalessError(
            f"charts need Matplotlib ({missing}); install it with: pip install 'schemaless-store[report]'"
        ) from missing
    width, height = (chart.narrow_px if narrow else None) or chart.size_px
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS | {"svg.hashsalt": chart.name})
        size = (width / _PX_PER_INCH, (height - title_px) / _PX_PER_INCH)
        figure = figure_type(figsize=size, dpi=_PX_PER_INCH, layout="constrained")
        chart.draw(figure, narrow)
        yield figure


def _inline(chart: Chart, text: str, *, narrow: bool) -> str:
    """Make Matplotlib's SVG embeddable: remove style rules, and prefix ids so that they are unique on the page."""
    form = "narrow" if narrow else "wide"
    prefix = f"{chart.name}-{form}-"
    text = text[text.index("<svg") :]
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)

    def rewritten(tag: re.Match[str]) -> str:  # Applied to tags only, since a label may contain similar text.
        inner = re.sub(r'\bid="', f'id="{prefix}', tag[0])
        inner = re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}', inner).replace("url(#", f"url(#{prefix}")
        inner = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", inner)
        for name, light, _ in _COLOURS:
            inner = inner.replace(light, f"var(--chart-{name})")
        return inner

    text = re.sub(r"<[^>]+>", rewritten, text)
    head = (
        f'<svg class="{form}" viewBox="{box[1]}" role="img" aria-labelledby="{prefix}title {prefix}desc" '
        'style="stroke-linejoin: round; stroke-linecap: butt">'
        f'<title id="{prefix}title">{escape(chart.title)}</title>'
        f'<desc id="{prefix}desc">{escape(chart.description)}</desc>'
    )
    text = head + text[text.index(">") + 1 :]
    return re.sub(r"\s*\n\s*", "\n", text).strip()
