"""A capacity report as one HTML page: no script, no network, light and dark, for screens, phones and paper.

Whatever comes from outside goes through ``html.escape``. Each chart says in words what it shows, and its figures stand
in a table too.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from schemaless.pages import frame as shared
from schemaless.pages.capacity_charts import charts
from schemaless.pages.capacity_text import Table, answer, history_table, shard_table, tables
from schemaless.pages.charts import STYLE as CHART_STYLE
from schemaless.terminal.output import bytes_text, estimate_text

if TYPE_CHECKING:
    from schemaless.capacity.report import Report

_STYLE: Final = """
h1 { overflow-wrap: anywhere; }
.answers { grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); }
.answer h2 { margin: 0; font-size: .875rem; font-weight: 600; color: var(--soft); }
.answer b { font-size: 1.7rem; line-height: 1.25; }
.answer.first b { color: var(--chart-1); } .answer.after b { color: var(--chart-2); }
.notes { border-left: 4px solid var(--chart-3); padding: .1rem .9rem; margin: 1rem 0; background: var(--card); }
.notes ul { margin: .4rem 0; padding-left: 1.1rem; overflow-wrap: anywhere; }
.warnings { color: var(--chart-5); font-weight: 600; font-size: .875rem; margin: .3rem 0; padding: 0;
  list-style: none; }
.wide:focus-visible { outline: 2px solid var(--chart-1); }
th, td { padding: .3rem .45rem; }
th.text, td.text { text-align: left; white-space: normal; min-width: 5rem; }
td.long { min-width: 11rem; }
summary { color: var(--soft); font-size: .875rem; }
@media print {
  body { font-size: 10pt; }
  h2 { break-after: avoid; }
  table { font-size: 8pt; }
  th, td { white-space: normal; padding: .2rem .35rem; }
  td.long, th.text, td.text { min-width: 0; }
  tr, .answer, .notes { break-inside: avoid; }
  figure.chart svg { max-height: 9cm; }
  details::details-content { content-visibility: visible; display: block; }
}
"""


def page(report: Report) -> str:
    """Return the page."""
    return shared.page(
        f"How long the disks of {report.measurement.datastore} last",
        _when(report),
        [
            _answers(report),
            _notes(report),
            *(shared.section(chart.title, chart.html() + _behind(chart.name, report)) for chart in charts(report)),
            *(shared.section(each.title, _table(each), long=True) for each in tables(report)),
            shared.section("How the figures were obtained, and what is assumed", shared.terms(report.how), long=True),
        ],
        style=CHART_STYLE + _STYLE,
    )


def _when(report: Report) -> str:
    times = len(report.measured_at)
    kept = "" if times == 1 else f", the newest of {times}, since {report.measured_at[0]:%Y-%m-%d}"
    return (
        f"Measured {report.measurement.taken_at:%Y-%m-%d %H:%M}{kept}; this page is of "
        f"{report.made_at:%Y-%m-%d %H:%M}, all UTC."
    )


def _answers(report: Report) -> str:
    now = answer(report.now)
    boxes = [("first", "Until full, as it is", now.days, now.detail)]
    warned = "".join(f"<li>Warning: {escape(each)}.</li>" for each in report.warnings)
    warnings = f'<ul class="warnings">{warned}</ul>' if warned else ""
    if report.after is not None:
        after = answer(report.after)
        boxes.append(("after", f"After re-encoding to {report.codec}, rebuilt", after.days, after.detail))
    sizes = [space.file_bytes for space in report.measurement.clusters if space.file_bytes is not None]
    if sizes:
        files = bytes_text(sum(sizes))
        detail = "in files, of one copy"
        if report.total is not None and report.total.rate is not None:
            detail += f"; {estimate_text(report.total.rate.per_day, bytes_text)} more each day now"
        if report.after is not None and report.after.file_bytes is not None:
            detail += f". As {report.codec}, rebuilt: {estimate_text(report.after.file_bytes, bytes_text)}"
        boxes.append(("", "Stored", files, detail + "."))
    inner = "".join(
        f'<div class="answer {kind}"><h2>{escape(head)}</h2><b>{escape(big)}</b>{warnings if kind == "first" else ""}'
        f'<span class="soft">{escape(small)}</span></div>'
        for kind, head, big, small in boxes
    )
    return f'<div class="answers">{inner}</div>'


def _notes(report: Report) -> str:
    if not report.notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return f'<aside class="notes" aria-label="What to know before using a figure"><ul>{items}</ul></aside>'


def _behind(name: str, report: Report) -> str:
    """Return the table behind a chart, where it is none of the page's own tables."""
    table = {"growth": history_table, "skew": shard_table}.get(name)
    if table is None:
        return ""
    made = table(report)
    if not made.rows:
        return ""
    return f"<details><summary>{escape(made.title)}: {len(made.rows)} lines</summary>{_table(made)}</details>"


def _table(table: Table) -> str:
    def cell(tag: str, place: int, text: str, scope: str = "") -> str:
        words = place < table.text_columns or (table.last_text and place == len(table.columns) - 1)
        kinds = " ".join(filter(None, ["text" if words else "", "long" if len(text) > 60 else ""]))
        attribute = f' class="{kinds}"' if kinds else ""
        return f"<{tag}{scope}{attribute}>{escape(text)}</{tag}>"

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
