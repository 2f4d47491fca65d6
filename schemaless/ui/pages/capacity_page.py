"""Render a capacity report as one HTML page, with the frame of ``frame.py``.

Each chart has a text alternative, and its figures are also in a table.
"""

from __future__ import annotations

import re
from html import escape
from typing import Final

from schemaless.planning.capacity.report import CapacityReport
from schemaless.ui.pages import frame as shared
from schemaless.ui.pages.capacity_charts import charts
from schemaless.ui.pages.capacity_comparison import comparison_tables
from schemaless.ui.pages.capacity_planning import FULLEST, cost_answer, levels_text, order_answer
from schemaless.ui.pages.capacity_text import history_table, tables
from schemaless.ui.pages.capacity_words import Table, answer
from schemaless.ui.pages.charts import STYLE as CHART_STYLE
from schemaless.ui.terminal.output import (
    bytes_text,
    counted,
    estimate_text,
)

_DATE: Final = re.compile(r"\b\d{4}-\d\d-\d\d\b")

_STYLE: Final = """
body { max-width: 68rem; }
.day { white-space: nowrap; }
.answer p { font-size: .875rem; }
h1 { overflow-wrap: anywhere; }
.answers { grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 0 2rem; }
.charts section { min-width: 0; }
.answer h2 { margin: 0; font-size: .875rem; font-weight: 600; color: var(--soft); }
.answer b { font-size: 1.7rem; line-height: 1.25; }
.answer.first b { color: var(--chart-1); } .answer.after b { color: var(--chart-2); }
.notes { border-left: 4px solid var(--chart-3); padding: .1rem .9rem; margin: 1rem 0; background: var(--card); }
.notes ul { margin: .4rem 0; padding-left: 1.1rem; overflow-wrap: anywhere; }
.warnings { border-left: 4px solid var(--chart-5); padding: .1rem .9rem; margin: 1rem 0; background: var(--card); }
.warnings h2 { margin: .4rem 0; font-size: 1rem; color: var(--chart-5); }
.warnings ul { margin: .4rem 0; padding-left: 1.1rem; overflow-wrap: anywhere; }
.wide:focus-visible { outline: 2px solid var(--chart-1); }
th, td { padding: .3rem .45rem; }
th.text, td.text { text-align: left; white-space: normal; min-width: 5rem; }
td.long { min-width: 12rem; }
@media screen and (max-width: 40rem) { td.long { min-width: 32rem; }
  .wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: var(--paper); } }
summary { color: var(--soft); font-size: .875rem; }
@media print {
  body { font-size: 10pt; }
  h2 { break-after: avoid; }
  table { font-size: 8pt; }
  th, td { white-space: normal; padding: .2rem .35rem; }
  td.long, th.text, td.text { min-width: 0; }
  tr, .answer, .notes, .warnings { break-inside: avoid; }
  figure.chart svg { max-height: 9cm; }
  details::details-content { content-visibility: visible; display: block; }
}
"""


def capacity_html(report: CapacityReport) -> str:
    """Return the HTML page of a capacity report."""
    # What the user asked to compare comes before the charts.
    several = report.compares or len(report.measurement.datastores) > 1
    compared = [table for table in comparison_tables(report) if several and table.rows]
    return shared.html_page(
        f"How long the disks of {report.measurement.datastore} last",
        _times(report),
        [
            _warnings(report),
            _answers(report),
            _notes(report),
            *(shared.section(table.title, _table(table), long=True) for table in compared),
            _charts(report),
            *(
                shared.section(table.title, _table(table), long=True)
                for table in tables(report)
                if table.title not in {FULLEST, *(other.title for other in compared)}
            ),
            shared.section("How the figures were obtained", shared.terms(report.how), long=True),
        ],
        style=CHART_STYLE + _STYLE,
    )


def _times(report: CapacityReport) -> str:
    count = len(report.measured_at)
    since = "" if count == 1 else f" (newest of {count} measurements since {report.measured_at[0]:%Y-%m-%d})"
    return (
        f"Measured {report.measurement.taken_at:%Y-%m-%d %H:%M}{since}; page created {report.made_at:%Y-%m-%d %H:%M}; "
        "all times UTC."
    )


def _answers(report: CapacityReport) -> str:
    now = answer(report.now)
    boxes = [("first", "First disk full in", now.days, now.detail)]
    levels = levels_text(report)
    if report.after is not None:
        after = answer(report.after)
        boxes.append(("after", f"Re-encoded to {report.codec} and rebuilt", after.days, after.detail))
    sizes = [space.file_bytes for space in report.measurement.clusters if space.file_bytes is not None]
    if sizes:
        files = bytes_text(sum(sizes))
        detail = "in files of one copy"
        if report.total is not None and report.total.rate is not None:
            detail += f", growing by {estimate_text(report.total.rate.per_day, bytes_text)} a day"
        detail += "."
        if report.after is not None and report.after.file_bytes is not None:
            size = estimate_text(report.after.file_bytes, bytes_text)
            detail += f" Re-encoded to {report.codec} and rebuilt: {size}."
        boxes.append(("", "Stored now", files, detail))
    planned = (("For the first disk to fill up", order_answer(report)), ("All disks", cost_answer(report)))
    boxes += [("", head, answer.days, _sentence(answer.detail)) for head, answer in planned if answer is not None]
    inner = "".join(
        f'<div class="answer {kind}"><h2>{escape(head)}</h2><b>{_text(big)}</b><p class="soft">{_text(small)}</p>'
        f"{f'<p>{_text(levels)}</p>' if kind == 'first' and levels else ''}</div>"
        for kind, head, big, small in boxes
    )
    return f'<div class="answers">{inner}</div>'


def _text(text: str) -> str:
    """Escape text, and keep dates from wrapping."""
    return _DATE.sub(r'<span class="day">\g<0></span>', escape(text))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _warnings(report: CapacityReport) -> str:
    if not report.warnings:
        return ""
    items = "".join(f"<li>{_text(_sentence(warning))}.</li>" for warning in report.warnings)
    return f'<aside class="warnings"><h2>Warning: do not rely on the dates below alone</h2><ul>{items}</ul></aside>'


def _notes(report: CapacityReport) -> str:
    if not report.notes:
        return ""
    items = "".join(f"<li>{_text(note)}</li>" for note in report.notes)
    return f'<aside class="notes" aria-label="Notes"><ul>{items}</ul></aside>'


def _charts(report: CapacityReport) -> str:
    drawn = [shared.section(chart.title, chart.html() + _chart_table(chart.name, report)) for chart in charts(report)]
    drawn += [
        shared.section(table.title, _table(table)) for table in tables(report) if drawn and table.title == FULLEST
    ]
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def _chart_table(name: str, report: CapacityReport) -> str:
    """Return, as an HTML table, the figures of a chart that are in no other table of the page."""
    if name != "growth":
        return ""
    table = history_table(report)
    rows = counted(len(table.rows), "row")
    return f"<details><summary>{escape(table.title)}: {rows}</summary>{_table(table)}</details>"


def _table(table: Table) -> str:
    def cell(tag: str, place: int, text: str, scope: str = "") -> str:
        is_text = place < table.text_columns or (table.last_text and place == len(table.columns) - 1)
        kinds = " ".join(filter(None, ["text" if is_text else "", "long" if len(text) > 40 else ""]))
        attribute = f' class="{kinds}"' if kinds else ""
        return f"<{tag}{scope}{attribute}>{_text(text) if is_text else escape(text)}</{tag}>"

    head = "".join(cell("th", place, name, ' scope="col"') for place, name in enumerate(table.columns))
    body = "".join(
        "<tr>" + "".join(cell("td", place, text) for place, text in enumerate(row)) + "</tr>" for row in table.rows
    )
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    label = escape(table.title, quote=True)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )
