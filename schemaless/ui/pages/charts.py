"""Render one drawing as a PNG file, and as an SVG picture whose colours fit light and dark pages.

Drawings must use this module's colours, those of light pages; on a dark page, a CSS filter inverts the picture but
keeps its hues. Pages embed the pictures as data URLs, so they load nothing, and ids within a picture do not concern the
page. The output is reproducible: no dates, no random ids. Pages with charts include ``STYLE``.

Matplotlib is imported on first use; if it is missing, the error says what to install.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from schemaless.errors import SchemalessError

if TYPE_CHECKING:  # Part of an extra, and slow to import.
    from matplotlib.figure import Figure

PAPER: Final = "#ffffff"
INK: Final = "#1b1f24"
SOFT: Final = "#5b6470"
LINE: Final = "#d5dae0"
SERIES: Final = ("#1f539b", "#1b9883", "#b85c00", "#7a4fb5", "#b3323c", "#66740f", "#a8367f", "#7d8795")
"""Series colours in order: blue, green, orange, violet, red, olive, pink and grey; distinguishable with most forms of
colour blindness.

All have a contrast of at least 3:1 against the backgrounds of pages and cards. Blue and green, used for before and
after, also differ in luminance.
"""

NARROW_BELOW_PX: Final = 640
"""Page width below which the narrow form of a chart is shown, in CSS pixels."""


STYLE: Final = f"""
figure.chart {{ margin: .8rem 0; break-inside: avoid; }}
figure.chart img {{ display: block; width: 100%; height: auto; }}
figure.chart img.narrow {{ display: none; }}
@media screen and (prefers-color-scheme: dark) {{ figure.chart img {{ filter: invert(1) hue-rotate(180deg); }} }}
@media (max-width: {NARROW_BELOW_PX}px) {{
  figure.chart img.narrow {{ display: block; }} figure.chart .narrow ~ img.wide {{ display: none; }} }}
"""
"""CSS for pages with charts."""

_PX_PER_INCH: Final = 72
"""Resolution at which a Matplotlib point is a CSS pixel, so that text sizes match those of the page."""

_DOTS_PER_INCH: Final = 2 * _PX_PER_INCH

_TITLE_PX: Final = 36
"""Height of the title above the drawing in a PNG file, in CSS pixels."""

_URL_SAFE: Final = " /:=;,.-()'&"
"""Characters that need no escaping in a quoted data URL, in addition to letters and digits."""

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
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 12,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "lines.linewidth": 2,
    "patch.edgecolor": PAPER,
    "hatch.color": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "chart",
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

    def png(self) -> bytes:
        """Return a PNG file of the wide form on a light background, with two dots per CSS pixel.

        Raises:
            SchemalessError: Matplotlib is missing.
        """
        file = io.BytesIO()
        with _drawn(self, narrow=False, title_px=_TITLE_PX) as figure:
            # The title is added to the finished image, because the layout would put it on top of the legend.
            canvas = import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
            figure.set_dpi(_DOTS_PER_INCH)
            canvas.draw()
            size = (self.size_px[0] / _PX_PER_INCH, self.size_px[1] / _PX_PER_INCH)
            whole = type(figure)(figsize=size, dpi=_DOTS_PER_INCH)
            whole.figimage(canvas.buffer_rgba())
            top = 1 - _TITLE_PX / 2 / self.size_px[1]
            whole.text(0.01, top, self.title, va="center", color=INK, fontsize=15, fontweight="bold")
            whole.savefig(file, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
        return file.getvalue()

    def svg(self, *, narrow: bool = False) -> str:
        """Return an SVG file with a transparent background.

        Raises:
            SchemalessError: Matplotlib is missing.
        """
        file = io.StringIO()
        with _drawn(self, narrow=narrow) as figure:
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(file, format="svg", dpi=_PX_PER_INCH, metadata=nothing, transparent=True)
        return file.getvalue()

    def html(self) -> str:
        """Return a ``<figure>`` element with a picture of each form; the page width selects one of them.

        Raises:
            SchemalessError: Matplotlib is missing.
        """
        forms = [("wide", False)] if self.narrow_px is None else [("narrow", True), ("wide", False)]
        label = escape(f"{self.title}: {self.description}")
        pictures = "".join(
            f'<img class="{form}" alt="{label}" src="data:image/svg+xml,{quote(self.svg(narrow=narrow), _URL_SAFE)}">'
            for form, narrow in forms
        )
        return f'<figure class="chart">{pictures}</figure>'


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
        matplotlib.rcParams.update(_SETTINGS)
        size = (width / _PX_PER_INCH, (height - title_px) / _PX_PER_INCH)
        figure = figure_type(figsize=size, dpi=_PX_PER_INCH, layout="constrained")
        chart.draw(figure, narrow)
        yield figure
