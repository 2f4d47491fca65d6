"""Render the report of a migration as one HTML page, in the page frame of ``frame.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from schemaless.base.numbers import bytes_text, counted, units_text
from schemaless.ops.migrate.reclaimed import Part, ReclaimedReport, others_text
from schemaless.ui.pages import frame
from schemaless.ui.terminal.output import change_text, estimate_text, size_text

_STYLE: Final = """
.bars { display: grid; grid-template-columns: minmax(5.5rem, max-content) 1fr; gap: .3rem .7rem; align-items: center; }
.bars h3 { grid-column: 1 / -1; font-size: .9rem; margin: .7rem 0 0; font-weight: 600; overflow-wrap: anywhere; }
.bars span.name { font-size: .875rem; color: var(--soft); }
.bar { display: flex; align-items: center; gap: .5rem; min-width: 0; font-size: .875rem;
  font-variant-numeric: tabular-nums; }
.bar .track { flex: 1 1 0; min-width: 0; height: 1.15rem; position: relative; }
.bar i { position: absolute; inset: 0 auto 0 0; border-radius: 2px; print-color-adjust: exact;
  -webkit-print-color-adjust: exact; }
.bar .value { flex: 0 0 6rem; text-align: right; white-space: nowrap; }
.before { --stage: var(--grey); } .after { --stage: var(--accent); } .rebuilt { --stage: var(--green); }
.bar i { background: var(--stage); }
.bar i.whole { background: color-mix(in srgb, var(--stage) 32%, transparent); border: 1px solid var(--stage); }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .6rem 0; font-size: .875rem; color: var(--soft); }
.key i { display: inline-block; width: .85rem; height: .85rem; border-radius: 2px; vertical-align: -.08rem;
  margin-right: .35rem; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
svg { display: block; width: 100%; height: 9rem; border-bottom: 1px solid var(--line); }
svg rect { fill: var(--stage); }
.scale { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft); }
th:first-child, td:first-child { white-space: normal; }
"""

_STAGES: Final = (("before", "before"), ("after", "after the run"), ("rebuilt", "after a rebuild"))


def reclaimed_html(report: ReclaimedReport) -> str:
    """Return the HTML page of a migration's report."""
    title = f"Migration {report.job.job_id} of {report.datastore} to {report.to}"
    sections = [
        _answers(report),
        frame.section("Files and their content", _files(report)),
        frame.section("Every shard", _every_shard(report.shards)) if report.total.file.before is not None else "",
        frame.section("Bodies by column", _columns(report)),
        frame.section("Predicted and actual", _predictions(report)) if report.predictions else "",
        frame.section("By cluster", _part_table("cluster", [*report.clusters, report.total], report)),
        frame.section("By shard", _shard_table(report), long=True),
        frame.section("How the figures were obtained", _how(report)),
    ]
    return frame.html_page(title, _times(report), sections, style=_STYLE)


def _times(report: ReclaimedReport) -> str:
    job = report.job
    ended = "" if job.ended_at is None else f", ended {job.ended_at:%Y-%m-%d %H:%M}"
    return (
        f"{job.state}; started {job.created_at:%Y-%m-%d %H:%M}{ended}; page created {report.made_at:%Y-%m-%d %H:%M}; "
        "all times UTC"
    )


def _answers(report: ReclaimedReport) -> str:
    total, tally = report.total, report.total.tally
    answers = [
        (
            f"{bytes_text(tally.bytes_before)} → {bytes_text(tally.bytes_after)}",
            f"bodies of {counted(tally.cells, 'cell')}, {_less(tally.bytes_before, tally.bytes_after)}",
        )
    ]
    if total.file.before is not None and total.file.last is not None:
        if total.file.rebuilt is None:
            text = "files; not rebuilt yet, so no disk space has been freed"
        elif total.rebuilt_shards < total.shards:
            text = f"files, {total.rebuilt_shards} of {counted(total.shards, 'shard')} rebuilt"
        else:
            text = f"files, rebuilt: {_less(total.file.before, total.file.last)}"
        answers.append((f"{bytes_text(total.file.before)} → {bytes_text(total.file.last)}", text))
    if report.binary_log_bytes is not None:
        answers.append((bytes_text(report.binary_log_bytes), "written to binary logs during the run, by all clients"))
    if tally.left:
        answers.append((f"{tally.left.total():,}", "cells not re-encoded: " + ", ".join(sorted(tally.left))))
    # A large text can wrap only before its arrow.
    return frame.answers((big.replace(" ", "\u00a0").replace("\u00a0→", " →"), small) for big, small in answers)


def _less(before: int, after: int) -> str:
    if not before:
        return "nothing to do"
    return change_text(1 - after / before, lambda share: f"{share.mid:.1%}")


def _files(report: ReclaimedReport) -> str:
    parts = [report.total, *(report.clusters if len(report.clusters) > 1 else ())]
    if report.total.file.before is None:
        return '<p class="soft">The file sizes were not recorded when this migration started.</p>'
    key = "".join(
        f'<span class="{name}"><i style="background:var(--stage)"></i>{escape(label)}</span>' for name, label in _STAGES
    )
    rows = "".join(_stage_bars(part, _widest(parts)) for part in parts)
    if others := others_text(report.others):
        rows += f'<p class="soft">{escape(others[0].upper() + others[1:])}.</p>'
    return (
        f'<p class="key">{key}</p><p class="soft">The solid part of a bar shows bodies that were re-encoded, the light '
        f"part the rest of the files: free pages, other bodies, keys and indexes.</p>{rows}"
    )


def _widest(parts: Iterable[Part]) -> int:
    return max(
        [size for part in parts for size in (part.file.before, part.file.after, part.file.rebuilt) if size is not None],
        default=1,
    )


def _stage_bars(part: Part, widest: int) -> str:
    name = "all clusters" if part.name == "all" else part.name
    bodies = {"before": part.tally.bytes_before, "after": part.tally.bytes_after, "rebuilt": part.tally.bytes_after}
    bars = ""
    for stage, label in _STAGES:
        size: int | None = getattr(part.file, stage)
        if size is None:
            continue
        if stage == "rebuilt" and part.rebuilt_shards < part.shards:
            label = f"{part.rebuilt_shards} of {part.shards} rebuilt"
        bars += _bar(stage, label, size, min(size, bodies[stage]), widest, f"{name}, {label}")
    return f'<div class="bars"><h3>{escape(name)}</h3>{bars}</div>'


def _bar(stage: str, label: str, size: int, solid: int, widest: int, name: str) -> str:
    described = f"{name}: {bytes_text(size)}"
    if solid != size:
        described += f", of which {bytes_text(solid)} bodies"
    whole, part = (f"{100 * length / widest:.2f}%" for length in (size, solid))
    return (
        f'<span class="name">{escape(label)}</span>'
        f'<div class="bar {stage}" role="img" aria-label="{escape(described)}"><div class="track">'
        f'<i class="whole" style="width:{whole}"></i><i style="width:{part}"></i></div>'
        f'<span class="value">{escape(bytes_text(size))}</span></div>'
    )


def _every_shard(shards: Sequence[Part]) -> str:
    """Return a chart of each shard's file length before the run, after it, and after a rebuild."""
    widest = _widest(shards)
    columns = []
    for position, part in enumerate(shards):
        title = f"{part.name}: " + ", ".join(
            f"{label} {bytes_text(size)}" for stage, label in _STAGES if (size := getattr(part.file, stage)) is not None
        )
        drawn = ""
        for stage, left, width in (("before", 0.06, 0.4), ("after", 0.46, 0.24), ("rebuilt", 0.7, 0.24)):
            size = getattr(part.file, stage)
            if size is not None:
                height = 100 * size / widest
                drawn += (
                    f'<rect class="{stage}" x="{position + left:.2f}" y="{100 - height:.2f}" width="{width}" '
                    f'height="{height:.2f}"/>'
                )
        columns.append(f"<g><title>{escape(title)}</title>{drawn}</g>")
    numbers = [part.name.removeprefix("shard ") for part in shards]
    label = f"File length of each of {counted(len(shards), 'shard')}: before, after the run, and after a rebuild"
    return (
        f'<p class="soft">File length of each shard; the highest bar is {escape(bytes_text(widest))}.</p>'
        f'<svg viewBox="0 0 {len(shards)} 100" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{''.join(columns)}</svg>"
        f'<p class="scale"><span>shard {escape(numbers[0])}</span><span>shard {escape(numbers[-1])}</span></p>'
    )


def _columns(report: ReclaimedReport) -> str:
    widest = max([tally.bytes_before for tally in report.columns.values()] + [1])
    pictures = ""
    for name, tally in report.columns.items():
        cells = counted(tally.cells, "cell")
        pictures += f'<div class="bars"><h3>{escape(name)}, {cells}</h3>'
        for stage, label, size in (("before", "before", tally.bytes_before), ("after", "after", tally.bytes_after)):
            pictures += _bar(stage, label, size, size, widest, f"{name} {label}")
        pictures += "</div>"
        kept = ", ".join(f"{count:,} kept as JSON text: {reason}" for reason, count in tally.kept_as_text.most_common())
        if kept:
            pictures += f'<p class="soft">{escape(kept)}</p>'
    if report.stored_before:
        rows = [
            [column, codec, estimate_text(cells), estimate_text(size, bytes_text)]
            for column, codec, cells, size in report.stored_before
        ]
        exact = all(cells.exact for _, _, cells, _ in report.stored_before)
        pictures += '<p class="soft">Stored when the migration started: all columns and codecs, re-encoded or not' + (
            " (counted):</p>"
            if exact
            else ". Estimated from a sample, with 95 % intervals; the figures above were counted:</p>"
        )
        pictures += frame.table(["column", "codec", "cells" if exact else "cells, about", "body bytes"], rows)
    return pictures or '<p class="soft">No cell was re-encoded.</p>'


def _predictions(report: ReclaimedReport) -> str:
    rows = []
    for prediction in report.predictions:
        text = "{:,.0f}".format if prediction.what.startswith("cells") else bytes_text
        off = "-" if prediction.off is None else f"{prediction.off:+.1%}"
        rows.append([prediction.what, estimate_text(prediction.predicted, text), text(prediction.actual), off])
    return frame.table(["", "predicted (95 % interval)", "actual", "error"], rows)


def _part_table(noun: str, parts: Sequence[Part], report: ReclaimedReport) -> str:
    binary_log = {**report.binary_log, "all": report.binary_log_bytes}
    return frame.table_of(
        {noun: part.name, "shards": str(part.shards)}
        | _figures(part)
        | {"binary log": size_text(binary_log.get(part.name))}
        for part in parts
    )


def _figures(part: Part) -> dict[str, str]:
    return {
        "cells": f"{part.tally.cells:,}",
        "left": f"{part.tally.left.total():,}",
        "bodies before": bytes_text(part.tally.bytes_before),
        "bodies after": bytes_text(part.tally.bytes_after),
        "files before": size_text(part.file.before),
        "files after": size_text(part.file.after),
        "files rebuilt": size_text(part.file.rebuilt),
        "allocated before": size_text(part.allocated.before),
        "allocated last": size_text(part.allocated.last),
    }


def _shard_table(report: ReclaimedReport) -> str:
    table = frame.table_of(
        {"shard": part.name.removeprefix("shard "), "cluster": part.cluster} | _figures(part) for part in report.shards
    )
    summary = f"<summary>{counted(len(report.shards), 'shard')}</summary>"
    return f"<details{' open' if len(report.shards) <= 32 else ''}>{summary}{table}</details>"


def _how(report: ReclaimedReport) -> str:
    sizes = (
        "File lengths as InnoDB reports them, recorded at the start and end of the run and by each rebuild"
        if report.total.measured
        else "Sums of InnoDB's statistics, a few MB too low, because the account lacks the PROCESS privilege"
    )
    terms = [
        ("Bodies", "Counted by the run, cell by cell, before and after; includes only cells that it re-encoded."),
        ("Files", f"{sizes}. A file does not get shorter until it is rebuilt."),
        ("Allocated", "Disk space that the file system has allocated to a file, if that differs from its length."),
        (
            "Binary log",
            "Growth of each primary's binary log between the start and the end of the run, caused by all clients.",
        ),
        (
            "Predicted",
            "Estimated before the run from a small sample of each cluster; files after a rebuild by a page model.",
        ),
        ("Units", units_text()),
    ]
    return frame.terms(terms)
