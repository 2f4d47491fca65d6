"""Render a capacity report as one HTML page, with the frame of ``frame.py``.

Each chart has a text alternative, and its figures are also in a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from schemaless.base.numbers import bytes_text, counted
from schemaless.planning.capacity.report import CapacityReport
from schemaless.ui.pages import frame as shared
from schemaless.ui.pages.capacity_charts import charts
from schemaless.ui.pages.capacity_tables import (
    BY_DISK,
    FULLEST,
    SIDE_BY_SIDE,
    comparison_tables,
    history_table,
    tables,
)
from schemaless.ui.pages.capacity_words import (
    Table,
    answer,
    cost_answer,
    figure_text,
    levels_text,
    order_answer,
    saving_text,
    tier_answers,
)
from schemaless.ui.pages.charts import STYLE as CHART_STYLE
from schemaless.ui.pages.frame import escaped
from schemaless.ui.terminal.output import estimate_text

_STYLE: Final = """
body { max-width: 68rem; }
.saving { font-size: 1.15rem; font-weight: 600; margin: 1rem 0 0; }
.answer p { font-size: .875rem; }
h1 { overflow-wrap: anywhere; }
.answers { grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 0 2rem; }
.charts section { min-width: 0; }
.answer h2 { margin: 0; font-size: .875rem; font-weight: 600; color: var(--soft); }
.answer b { font-size: 1.7rem; line-height: 1.25; }
.answer.first b { color: var(--accent); } .answer.after b { color: var(--green); }
.notes, .warnings { border-left: 4px solid var(--orange); padding: .1rem .9rem; margin: 1rem 0;
  background: var(--card); }
.notes ul, .warnings ul { margin: .4rem 0; padding-left: 1.1rem; overflow-wrap: anywhere; }
.warnings { border-color: var(--red); }
.notes h2 { margin: .4rem 0; font-size: 1rem; }
.warnings h2 { margin: .4rem 0; font-size: 1rem; color: var(--red); }
.wide:focus-visible { outline: 2px solid var(--accent); }
th, td { padding: .3rem .45rem; }
th.text, td.text { text-align: left; white-space: normal; min-width: 5rem; }
td.long { min-width: 12rem; }
@media screen and (max-width: 40rem) { td.long { min-width: 32rem; }
  .wide table { border-collapse: separate; border-spacing: 0; }
  .wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: var(--paper); } }
summary { color: var(--soft); font-size: .875rem; }
@media print {
  body { font-size: 10pt; }
  h2 { break-after: avoid; }
  table { font-size: 8pt; }
  th, td { white-space: normal; padding: .2rem .35rem; }
  td.long, th.text, td.text { min-width: 0; }
  tr, .answer, .notes, .warnings { break-inside: avoid; }
  figure.chart img { max-height: 9cm; }
  details::details-content { content-visibility: visible; display: block; }
}
"""


_FEWEST_WRAPPED: Final = 5
"""Number of columns from which figures of scenarios are wrapped."""

_IN_BRACKETS: Final = '<p class="soft">In brackets: 80 % intervals.</p>'
_WARNING: Final = "<h2>Warning: do not rely on the dates below alone</h2>"


def capacity_html(report: CapacityReport) -> str:
    """Return the HTML page of a capacity report."""
    # What the user asked to compare comes before the charts.
    several = report.compares or len(report.measurement.datastores) > 1
    compared = [table for table in comparison_tables(report) if several and table.rows]
    return shared.html_page(
        f"How long the disks of {report.measurement.datastore} last",
        _times(report),
        [
            f'<p class="saving">{escaped(saving_text(report))}</p>{_IN_BRACKETS if report.saving else ""}',
            _remarks("warnings", _WARNING, (f"{_sentence(warning)}." for warning in report.warnings)),
            _answers(report),
            *(shared.section(table.title, _table(table), long=True) for table in compared),
            _charts(report),
            *(
                shared.section(table.title, _table(table), long=True)
                for table in tables(report)
                if table.title not in {FULLEST, *(other.title for other in compared)}
            ),
            _remarks("notes", "<h2>Notes</h2>", (f"{_sentence(note)}." for note in report.notes)),
            shared.section("How the figures were obtained", shared.terms(report.how), long=True),
        ],
        style=CHART_STYLE + _STYLE,
    )


def _times(report: CapacityReport) -> str:
    count = len(report.measurements)
    since = "" if count == 1 else f" (newest of {count} measurements since {report.measurements[0].taken_at:%Y-%m-%d})"
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
            detail += f"; growth a day: {figure_text(report.total.rate.per_day)}"
        detail += "."
        if report.after is not None and report.after.file_bytes is not None:
            size = estimate_text(report.after.file_bytes, bytes_text)
            detail += f" Re-encoded to {report.codec} and rebuilt: {size}."
        boxes.append(("", "Stored now", files, detail))
    planned = [("For the first disk to fill up", order_answer(report)), ("All disks", cost_answer(report))]
    planned += tier_answers(report).items()
    boxes += [("", head, answer.days, _sentence(answer.detail)) for head, answer in planned if answer is not None]
    inner = "".join(
        f'<div class="answer {kind}"><h2>{escape(head)}</h2><b>{escaped(big)}</b><p class="soft">{escaped(small)}</p>'
        f"{f'<p>{escaped(levels)}</p>' if kind == 'first' and levels else ''}</div>"
        for kind, head, big, small in boxes
    )
    return f'<div class="answers">{inner}</div>'


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _remarks(kind: str, head: str, remarks: Iterable[str]) -> str:
    items = "".join(f"<li>{escaped(remark)}</li>" for remark in remarks)
    return f'<aside class="{kind}" aria-label="{kind.capitalize()}">{head}<ul>{items}</ul></aside>' if items else ""


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
    last = len(table.columns) - 1
    text = {*range(table.text_columns), *([last] if table.last_text else [])}
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    wraps = len(table.columns) > _FEWEST_WRAPPED and table.title in (SIDE_BY_SIDE, BY_DISK)
    return shared.table(table.columns, table.rows, text=text, label=table.title, wraps=wraps) + note
