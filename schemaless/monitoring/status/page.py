"""Renders a status as an HTML page, with the frame of ``schemaless.ui.pages``.

The page has no inline script. ``SCRIPT``, served beside it, fetches the page again every two seconds and replaces the
parts that have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final

from schemaless.base.numbers import bytes_text, counted
from schemaless.monitoring.status.model import JobView, Point, Status
from schemaless.monitoring.status.tables import Table, tables_of
from schemaless.ui.pages import frame
from schemaless.ui.terminal.progress import duration
from schemaless.ui.terminal.server_names import ServerNames

STYLE: Final = (
    frame.CARDS
    + """
:root { --fault: #a5222d; --notice: #8a4a00; --good: #0b6b5d; }
@media screen and (prefers-color-scheme: dark) { :root { --fault: #f58b92; --notice: #f0a75a; --good: #7fdccb; } }
body { max-width: 76rem; }
h1, .answer { overflow-wrap: anywhere; }
.answers { grid-template-columns: repeat(auto-fit, minmax(min(11rem, 100%), 1fr)); }
.answer b { font-size: 1.5rem; }
.answer.fault { border-left: 4px solid var(--fault); } .answer.fault b { color: var(--fault); }
.answer.notice { border-left: 4px solid var(--notice); } .answer.notice b { color: var(--notice); }
.answer.good { border-left: 4px solid var(--good); } .answer.good b { color: var(--good); }
.findings { list-style: none; margin: 0; padding: 0; display: grid; gap: .6rem; }
.findings li { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--notice);
  border-radius: .4rem; padding: .55rem .8rem; overflow-wrap: anywhere; }
.findings li.fault { border-left-color: var(--fault); }
.findings .severity { font-weight: 600; color: var(--notice); }
.findings .fault .severity { color: var(--fault); }
.findings code { display: block; margin-top: .35rem; padding: .35rem .55rem; background: var(--paper);
  border: 1px solid var(--line); border-radius: .3rem; font: .8125rem/1.45 ui-monospace, monospace;
  user-select: all; }
.findings code::before { content: "$ "; color: var(--soft); }
th, td { padding: .35rem .6rem; }
th.text, td.text { text-align: left; }
td.text:not(:first-child) { white-space: normal; }
thead th { white-space: nowrap; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper); min-width: 0; }
td:first-child { font-weight: 600; }
tr.faulty td { color: var(--fault); }
.wide { background: linear-gradient(to left, var(--paper) 1rem, transparent 2rem) right / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--line), transparent) right / .7rem 100% no-repeat scroll; }
.wide:focus-visible { outline: 2px solid var(--accent); }
.running { display: grid; gap: .8rem; margin-bottom: .8rem; }
.running label { display: flex; justify-content: space-between; gap: 1rem; font-size: .875rem; }
.sparks { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(10rem, 100%), 1fr)); gap: .75rem; }
.sparks figure { margin: 0; padding: .55rem .8rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .4rem; }
.sparks figcaption { display: flex; justify-content: space-between; font-size: .875rem; }
.sparks svg { display: block; width: 100%; height: 2.5rem; margin: .3rem 0; }
.sparks polyline { fill: none; stroke: var(--accent); stroke-width: 1.5; }
.sparks small { color: var(--soft); }
progress { width: 100%; height: .7rem; accent-color: var(--accent); }
#connection { background: var(--fault); color: var(--paper); padding: .5rem .8rem; border-radius: .4rem;
  margin: .8rem 0; font-weight: 600; }
@media screen and (max-width: 600px) {
  .cards td { order: 1; } .cards td:first-child { order: -1; } .cards td.key { order: 0; font-weight: 600; } }
"""
)

SCRIPT: Final = """"use strict";
// Fetches the page again every two seconds, and replaces the parts that have changed.
const everyMs = 2000;
let answered = new Date();

function replace(part) {
  const shown = document.getElementById(part.id);
  const selection = getSelection();
  if (!shown || shown.innerHTML === part.innerHTML) return;
  // Keep the selection of a command that is being copied.
  if (selection && !selection.isCollapsed && shown.contains(selection.anchorNode)) return;
  const scrolled = [...shown.querySelectorAll(".wide")];
  const lefts = scrolled.map((each) => each.scrollLeft);
  const focused = scrolled.indexOf(document.activeElement);
  shown.innerHTML = part.innerHTML;
  [...shown.querySelectorAll(".wide")].forEach((each, number) => {
    each.scrollLeft = lefts[number] || 0;
    if (number === focused) each.focus();
  });
}

async function refresh() {
  const notice = document.getElementById("connection");
  try {
    const reply = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    page.querySelectorAll("[data-live]").forEach(replace);
    document.title = page.title;
    answered = new Date();
    notice.hidden = true;
  } catch (error) {
    notice.textContent = `This page is out of date: no answer since ${answered.toLocaleTimeString()}.`;
    notice.hidden = false;
  }
  setTimeout(refresh, everyMs);
}

setTimeout(refresh, everyMs);
"""


def status_html(status: Status) -> str:
    """Return the page of a status."""
    name = status.datastore
    clusters = "" if status.clusters is None else f" on {counted(len(status.clusters), 'cluster')}"
    page = frame.html_page(
        f"Status of {name}",
        f"{counted(status.shards, 'shard')}{clusters}. Read-only.",
        [
            f'<p class="soft" id="updated" data-live>Updated {status.taken_at:%Y-%m-%d %H:%M:%S} UTC</p>',
            '<p id="connection" role="alert" hidden></p>',
            f'<div id="summary" data-live>{_summary(status)}</div>',
            f'<div id="findings" data-live>{_findings(status)}</div>',
            f'<div id="history" data-live>{_history(status)}</div>',
            *(f'<div id="{each}" data-live>{html}</div>' for each, html in _sections(status).items()),
            f'<div id="parts" data-live>{_parts(status)}</div>',
            '<script src="status.js" defer></script>',
        ],
        style=STYLE,
    )
    return page.replace(f"<title>Status of {escape(name)}</title>", f"<title>{escape(_title(status))}</title>", 1)


def _title(status: Status) -> str:
    prefix = f"({counted(status.faults, 'fault')}) " if status.faults else ""
    return f"{prefix}Status of {status.datastore}"


def _summary(status: Status) -> str:
    notices = len(status.findings) - status.faults
    boxes = [
        ("fault" if status.faults else "good", counted(status.faults, "fault"), "broken or stopped"),
        ("notice" if notices else "", counted(notices, "notice"), "worth a look"),
    ]
    if status.clusters is not None:
        nodes = [node for cluster in status.clusters for node in cluster.nodes]
        up = sum(node.up for node in nodes)
        boxes.append(("" if up == len(nodes) else "fault", f"{up:,} of {len(nodes):,}", "servers answer"))
    if status.jobs is not None:
        unfinished = sum(job.unfinished for job in status.jobs)
        boxes.append(("", counted(unfinished, "job"), "not finished"))
    if status.capacity is not None:
        boxes.append(("", status.capacity.answer, "time until the first disk is full"))
    inner = "".join(
        f'<div class="answer {kind}"><b>{escape(big)}</b>{escape(small)}</div>' for kind, big, small in boxes
    )
    return f'<div class="answers">{inner}</div>'


def _texts(status: Status, escaped: Callable[[str], str] = escape) -> Callable[[str], str]:
    """Return a function that escapes a text; the sockets in it become short names, with their addresses on hover."""
    names = ServerNames(map(escape, status.addresses))

    def html(text: str) -> str:
        return names.short(escaped(text), lambda name, address: f'<abbr title="{address}">{name}</abbr>')

    return html


def _findings(status: Status) -> str:
    if not status.findings:
        return frame.section("Needs attention", "<p>Nothing.</p>")
    html = _texts(status)
    items = "".join(
        f'<li class="{finding.severity}"><span class="severity">{finding.severity.capitalize()}</span> · '
        f"<strong>{html(finding.where)}</strong>: {html(finding.text)}"
        f"<code>{escape(finding.command)}</code></li>"
        for finding in status.findings
    )
    return frame.section("Needs attention", f'<ul class="findings">{items}</ul>')


_UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "lag": duration,
    "puts": lambda value: f"{value:,.1f} per s",
    "bytes": bytes_text,
    "days left": lambda value: f"{value:,.0f}",
}
_WIDTH, _HEIGHT = 240, 40


def _history(status: Status) -> str:
    """Return a sparkline of each series with two points or more."""
    drawn = "".join(_sparkline(name, points) for name, points in status.history.items() if len(points) > 1)
    return frame.section("History", f'<div class="sparks">{drawn}</div>') if drawn else ""


def _sparkline(name: str, points: Sequence[Point]) -> str:
    values, text = [point.value for point in points], _UNITS[name]
    span_s = (points[-1].at - points[0].at).total_seconds()
    # Sizes differ by little from day to day; other series begin at 0.
    low, high = min(values) if name == "bytes" else 0.0, max(values)
    line = " ".join(
        f"{_WIDTH * (point.at - points[0].at).total_seconds() / span_s:.0f},"
        f"{_HEIGHT - 1 - (_HEIGHT - 2) * (point.value - low) / ((high - low) or 1):.1f}"
        for point in points
    )
    said = f"last {duration(span_s)}: {text(min(values))} to {text(high)}"
    return (
        f"<figure><figcaption>{name.capitalize()} <b>{text(values[-1])}</b></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{name}, {said}">'
        f'<polyline points="{line}" vector-effect="non-scaling-stroke"/></svg><small>{said}</small></figure>'
    )


def _sections(status: Status) -> dict[str, str]:
    """Return the section of each part by its id; sections of parts that have not been read say so."""
    sections = dict.fromkeys(("servers", "hottest", "jobs", "followers", "capacity", "cold"), "")
    html = _texts(status, frame.unbroken)
    for name, table in tables_of(status).items():
        running = _running(status.jobs or ()) if name == "jobs" else ""
        sections[name] = frame.section(table.title, running + _table(table, html), long=True)
    for part in status.parts:
        name = "followers" if part.name == "shards" else part.name
        if not sections[name] and (part.read_at is None or part.problem is not None):
            text = "Being read." if part.read_at is None else f"Cannot be read: {part.problem}"
            sections[name] = frame.section(name.capitalize(), f"<p>{escape(text)}</p>")
    return sections


def _running(jobs: tuple[JobView, ...]) -> str:
    bars = "".join(
        f'<div><label for="job-{job.job_id}"><span>{escape(job.name)} {job.job_id}</span>'
        f"<span>{job.fraction:.1%} of {bytes_text(job.bytes_total)}</span></label>"
        f'<progress id="job-{job.job_id}" max="1" value="{job.fraction:.4f}"></progress></div>'
        for job in jobs
        if job.unfinished
    )
    return f'<div class="running">{bars}</div>' if bars else ""


def _table(table: Table, html: Callable[[str], str]) -> str:
    note = f'<p class="soft">{escape(table.note)}</p>' if table.note else ""
    if not table.rows:
        return f"<p>{escape(table.empty[:1].upper() + table.empty[1:])}.</p>{note}"

    def cell(tag: str, place: int, text: str, attribute: str = "") -> str:
        is_key = table.columns[place] == table.key
        kinds = [kind for kind, holds in (("text", place < table.text_columns), ("key", is_key)) if holds]
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<{tag}{attribute}{kind}>{html(text)}</{tag}>"

    head = "".join(cell("th", place, name, ' scope="col"') for place, name in enumerate(table.columns))
    labels = [f' data-label="{escape(name)}"' for name in table.columns]
    body = "".join(
        f"<tr{' class=faulty' if row.faulty else ''}>"
        + "".join(cell("td", place, text, labels[place]) for place, text in enumerate(row.values))
        + "</tr>"
        for row in table.rows
    )
    label = escape(table.title, quote=True)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table class=cards>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _parts(status: Status) -> str:
    read = "; ".join(
        f"{part.name} every {part.every_s:,.0f} s, last at "
        + ("-" if part.read_at is None else f"{part.read_at:%H:%M:%S}")
        for part in status.parts
    )
    return f'<p class="soft">Read: {escape(read)} (UTC). Circuit breakers are those of the status process.</p>'
