"""What would help a datastore most, ranked, from a measurement and its trials. Pure functions.

Each suggestion is one of the report's scenarios, and its saving is the difference to the present. Savings of several
suggestions overlap, so they do not add up.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from schemaless.base.numbers import Interval, counted
from schemaless.planning.capacity.basis import Basis, Collected, file_shares
from schemaless.planning.capacity.options import Asked, WhatIf, tiered_after
from schemaless.planning.capacity.planning import ColdTier, Comparison, Saving
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.reporting import assemble_report
from schemaless.planning.capacity.whatif import RETENTION
from schemaless.planning.sampling.column_trials import DICTIONARY, HISTORY, WITH_DICTIONARY
from schemaless.schema.engines import ENGINES
from schemaless.store.erasures.retention import parse_policy

_LEAST_SUPERSEDED: Final = 0.1
"""Smallest share of a column's bytes in superseded versions for which erasing these is suggested."""

TIER_AFTER: Final = 90
"""Age in days at which cells become cold, by default."""

_REBUILD: Final = "schemaless rebuild --execute"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that helps.

    Attributes:
        name: Short description.
        saving: What it saves.
        effort: What it takes, in a few words.
        commands: Commands that do it.
        cold: The cold store that it needs; None without one.
    """

    name: str
    saving: Saving
    effort: str
    commands: tuple[str, ...]
    cold: ColdTier | None = None

    @property
    def urgency(self) -> tuple[float, float, float]:
        """Sort key: days gained, then growth saved, then bytes freed."""
        days, growth, freed = self.saving.days, self.saving.bytes_per_month, self.saving.freed_bytes
        gained = 0.0 if days is None else days.mid if math.isfinite(days.mid) else self.saving.least_days
        return gained, 0.0 if growth is None else growth.mid, 0.0 if freed is None else freed.mid


def suggestions(
    collected: Collected,
    made_at: datetime.datetime,
    options: Asked,
    index_names: Mapping[str, str],
    unread: Mapping[str, datetime.datetime],
    tier_after: int = TIER_AFTER,
) -> tuple[CapacityReport, list[Suggestion]]:
    """Return a report, and what would help most, the best first; what saves nothing is left out.

    Args:
        collected: The measurements of one datastore.
        made_at: Current time, UTC.
        options: Options of the report, without scenarios.
        index_names: Names of the indexes by the name of their tables.
        unread: Tables that no server has counted a read of by a query, with the start of the count.
        tier_after: Age in days at which cells become cold, if no column has a policy.
    """
    report = assemble_report(collected, made_at, _with_scenarios(collected, options, tier_after))
    found = [
        Suggestion(name, Saving.of(report.now, each), effort, commands, each.cold if each.change.tiers else None)
        for each, (name, effort, commands) in _candidates(report)
    ]
    found += _unused(report, index_names, unread)
    helpful = [each for each in found if any(part > 0 for part in each.urgency)]
    return report, sorted(helpful, key=lambda each: each.urgency, reverse=True)


def _with_scenarios(collected: Collected, options: Asked, tier_after: int) -> Asked:
    """Add the scenarios that a report has only on request."""
    newest = collected.measurements[-1]
    engines = sorted(newest.trials.engines.keys() - set(collected.engines.values()))
    versions = tuple(
        WhatIf(name=f"the last version of {column}", retention={column: "1 version"})
        for (column, kept), share in newest.trials.superseded.items()
        if kept == 1 and share >= _LEAST_SUPERSEDED and column not in collected.policies
    )
    name = WITH_DICTIONARY.name
    dictionaries = (WhatIf(name=f"{name}{DICTIONARY}", codec=name, dictionary=True),)
    cold = () if collected.tiers or not file_shares(newest) else (tiered_after(tier_after),)
    what_ifs = (*versions, *(dictionaries if newest.trials.dictionaries else ()), *cold)
    return replace(options, engine=engines[0] if engines else None, what_ifs=what_ifs)


def _candidates(report: CapacityReport) -> Iterable[tuple[Comparison, tuple[str, str, tuple[str, ...]]]]:
    """Yield the comparison of each candidate with its name, effort and commands."""
    codec, in_history = report.codec, report.history_codec(report.codec)
    rewrite = "every body is rewritten online, then every table"
    known: dict[str, tuple[str, str, tuple[str, ...]]] = {
        "rebuilt": ("rebuild", "every table is rewritten online", (_REBUILD,)),
        RETENTION: (
            "run retention",
            "erases what the policies do not keep, then rewrites every table",
            ("schemaless retention run --execute", _REBUILD),
        ),
    }
    if codec is not None:
        known[codec] = (f"re-encode to {codec}", rewrite, (*_reencode(report, codec, ""), _REBUILD))
    if in_history is not None:
        name = f"{in_history}{HISTORY}"
        commands = (*_reencode(report, in_history, " --history"), _REBUILD)
        known[name] = (f"store versions as differences ({in_history})", rewrite, commands)
    for change in report.options.what_ifs:
        name = change.name
        if change.dictionary:
            known[name] = ("train dictionaries", rewrite, (*_with_dictionaries(report), _REBUILD))
        if change.tiers:
            known[name] = _cold(report, change)
        if change.engine is not None:
            known[name] = (
                f"move to {name}",
                f"new servers with {ENGINES[change.engine].title}, and every shard is copied to them",
                (f"schemaless codec advise --engine {change.engine}", "schemaless shards move SHARDS --to CLUSTER"),
            )
        for column, policy in change.retention.items():
            kept = parse_policy(column, policy).keep_versions
            known[name] = (
                f"keep only {name}",
                "erases older versions for good, then rewrites every table",
                (f"schemaless retention set {column} --versions {kept}", *known[RETENTION][2]),
            )
    return [(report.compared[name], texts) for name, texts in known.items() if name in report.compared]


def _cold(report: CapacityReport, change: WhatIf) -> tuple[str, str, tuple[str, ...]]:
    """Return the name, effort and commands of tiering."""
    days = {name: change.tier_days(name) for name in report.file_share}
    ages = sorted({counted(each, "day") for each in days.values() if each is not None})
    effort = "reads of old documents take longer, and every table is rewritten"
    sets = [f"schemaless tier set {name} --after {each}d" for name, each in days.items() if each is not None]
    begin = [] if report.tiers else ["schemaless tier store URI", *sets]
    name = f"move documents to cold files after {' or '.join(ages)}"
    return name, effort, (*begin, "schemaless tier run --execute", _REBUILD)


def _reencode(basis: Basis, codec: str, option: str) -> list[str]:
    """Return the commands that re-encode old cells and write new ones in a codec."""
    names = [name for name in basis.measurement.column_names if name not in basis.too_few]
    sets = [f"schemaless codec set --column {name} {codec}{option}" for name in names]
    return [*sets, f"schemaless migrate run --execute --to {codec}{option}"]


def _with_dictionaries(basis: Basis) -> list[str]:
    """Return the commands that train dictionaries where they help, and re-encode all cells."""
    codec = WITH_DICTIONARY.name
    helped = [trial.column_name for trial in basis.dictionaries]
    commands = []
    for name in helped:
        to = f"{codec} --dictionary ID"
        commands += [
            f"schemaless codec train --column {name}",
            f"schemaless codec set --column {name} {to}",
            f"schemaless migrate run --execute --column {name} --to {to}",
        ]
    others = [name for name in basis.measurement.column_names if name not in {*helped, *basis.too_few}]
    commands += [f"schemaless codec set --column {name} {codec}" for name in others]
    if others:
        columns = " ".join(f"--column {name}" for name in others)
        commands.append(f"schemaless migrate run --execute {columns} --to {codec}")
    return commands


def _unused(
    report: CapacityReport, index_names: Mapping[str, str], unread: Mapping[str, datetime.datetime]
) -> list[Suggestion]:
    """Return one suggestion per index."""
    found = []
    sizes: dict[str, int] = {}
    for space in report.measurement.clusters:
        for table, size in space.other_files.items():
            sizes[table] = sizes.get(table, 0) + size * space.copies
    for table, size in sizes.items():
        saving = Saving(None, 0, Interval.of(float(size)), None, None, None)
        if table in index_names:
            name = index_names[table]
            effort = "only if no application queries it"
            if table in unread:
                effort += f"; no read was counted since {unread[table]:%Y-%m-%d %H:%M} UTC, when a server was started"
            found.append(Suggestion(f"drop index {name}", saving, effort, (f"schemaless index drop {name} --execute",)))
    return found
