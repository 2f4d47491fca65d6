"""Prints plans and the status of erasures, and what a restore has undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from schemaless.base.numbers import bytes_text, counted, shards_text
from schemaless.ops.erasure.ledger_file import Recorded
from schemaless.ops.erasure.places import places
from schemaless.ops.erasure.plan import plan_targets
from schemaless.ops.erasure.replay import Undone
from schemaless.ops.erasure.status import ErasureStatus
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.ledger import Erasure, Target
from schemaless.store.erasures.sql import STEPS
from schemaless.ui.terminal.output import facts, out, print_result, print_table, progress

_ROWS_SHOWN = 64


def plan_and_show(store: Datastore, targets: Sequence[Target]) -> None:
    """Print what an erasure would erase, and where else documents may be."""
    with progress("counting", len(targets), "targets") as listener:
        planned = plan_targets(store, targets, listener=listener)
        shards = {each.shard for each in planned.parts}
        where = places(store, shards)
    total = planned.total()
    print_result(
        {
            **facts(total, "cells", "body_bytes", erased_before="erased"),
            "targets": [
                {"target": each.of, **facts(each, "shard", "cells", "body_bytes", "erased", "columns")}
                for each in planned.parts
            ],
            "places": asdict(where),
        }
    )
    out().print(
        f"{counted(total.cells, 'cell')} of {counted(len(targets), 'target')} in {counted(len(shards), 'shard')}: "
        f"{bytes_text(total.body_bytes)} of bodies; already erased: {total.erased:,}"
    )
    if len(targets) <= _ROWS_SHOWN:
        print_table(
            None,
            ["target", "columns", "shard", "cells", "bytes", "erased before"],
            [
                [each.of, ", ".join(each.columns) or "-", each.shard, each.cells, each.body_bytes, each.erased]
                for each in planned.parts
            ],
            text_columns=2,
        )
    for what, names in (
        ("followers that have to acknowledge the erasure", where.followers),
        ("indexes whose entries are removed", where.indexes),
        ("tables of moves", where.tables),
        ("tables of cells on servers that should not have them; they are not erased", where.strays),
        ("replicas to wait for", where.replicas),
        ("archives of migrations, on the machines that ran them", where.archives),
        ("former primaries that have not been settled yet", where.lost_primaries),
        ("dictionaries to search", where.dictionaries),
    ):
        if names:
            out().print(f"{what}: {', '.join(map(str, names))}")


def print_status(status: ErasureStatus) -> None:
    """Print the status of one erasure."""
    print_result(status_json(status))
    show_status(status)


def show_status(status: ErasureStatus) -> None:
    """Print the status of one erasure as text."""
    entry = status.entry
    out().print(f"erasure {entry.number}: {status.state}; reason {entry.reason}, requested by {entry.requested_by}")
    where = counted(len(entry.shards), "shard")
    out().print(f"{counted(entry.cells, 'cell')}, {bytes_text(entry.body_bytes)} of bodies, in {where}")
    for what, at in facts(entry, *STEPS).items():
        shown = at or "not yet"
        if what == "acknowledged_at" and at is None and status.state == "acknowledged":
            shown = f"by all followers; 'schemaless erase verify {entry.number}' records when it was"
        out().print(f"{what:>15}  {shown}")
    left = [each.shard for each in entry.shards if each.executed_at is None]
    if left:
        out().print(
            f"not executed yet in shards {shards_text(left)}; 'schemaless erase run --execute --erasure "
            f"{entry.number}' continues it"
        )
    for name, at in status.acknowledged.items():
        out().print(f"{name}: acknowledged {at:%Y-%m-%d %H:%M:%S}")
    for name, shards in status.waiting.items():
        out().print(f"{name}: not acknowledged yet in shards {shards_text(list(shards))}")
    if status.cold:
        out().print(
            f"cold files: not rewritten yet in shards {shards_text(list(status.cold))}"
            f"; 'schemaless erase run --execute --erasure {entry.number}' rewrites them"
        )
    for what, found in entry.notes.items():
        out().print(f"{what.replace('_', ' ')}: {', '.join(map(str, found))}")


def status_json(status: ErasureStatus) -> dict[str, Any]:
    """Return the status of an erasure as JSON values."""
    entry = status.entry
    return {
        **entry_json(entry),
        "state": status.state,
        **facts(entry, "cells", "body_bytes"),
        "shards": [asdict(each) for each in entry.shards],
        "acknowledged": dict(status.acknowledged),
        "waiting": {name: list(shards) for name, shards in status.waiting.items()},
        "cold": list(status.cold),
    }


def entry_json(entry: Erasure) -> dict[str, Any]:
    """Return an entry of the ledger, without its shards, as JSON values."""
    return {
        **facts(entry, "kind", "scope", "reason", "requested_by", *STEPS, erasure="number"),
        "notes": dict(entry.notes),
    }


def show_undone(recorded: Recorded, undone: Sequence[Undone], *, executed: bool) -> None:
    """Print what a file adds to the ledger, and what a restore has undone."""
    released = sum(hold.released_at is not None for hold in recorded.holds)
    if recorded.holds:
        changed = counted(len(recorded.holds), "hold")
        out().print(f"{'added' if executed else 'to add'} to the catalog: {changed}, of which {released:,} released")
    out().print(
        f"{'added' if executed else 'to add'} to the ledger: {counted(len(recorded.erasures), 'erasure')}; undone by a "
        f"restore: {counted(len(undone), 'erasure')}"
    )
    for each in undone:
        name = f"{'erasure' if each.entry.kind == 'keys' else 'retention run'} {each.entry.number}"
        for line in _undone_lines(each, executed=executed):
            out().print(f"{name}: {line}")


def _undone_lines(undone: Undone, *, executed: bool) -> Iterator[str]:
    cells, copies = undone.cells.total(), undone.copies.total()
    if undone.entry.executed_at is None and not executed:
        yield f"not executed yet in all shards; cells left: {cells:,}"
    elif cells or copies:
        of_moves = f" and {counted(copies, 'copy', 'copies')} in tables of moves" if copies else ""
        yield f"{counted(cells, 'cell')}{of_moves} came back{', erased again' if executed else ''}"
    else:
        yield "nothing to erase again"
    for hold, kept in list(undone.held.items())[:_ROWS_SHOWN]:
        held = f"held by {hold.held_by} since {hold.held_at:%Y-%m-%d} ({hold.reason})"
        yield f"{counted(kept, 'cell')} of row {hold.row_key} came back and will stay: {held}"
    if len(undone.held) > _ROWS_SHOWN:
        yield f"and cells of {len(undone.held) - _ROWS_SHOWN:,} more held rows; --json lists them"
    if undone.gone:
        them = "it" if undone.gone == 1 else "them"
        lost = f"the restore lost {them}, or the newer versions that had made {them} expire"
        yield f"{counted(undone.gone, 'cell')} that it had erased will not be erased again: {lost}"


def undone_json(undone: Undone) -> dict[str, Any]:
    """Return what a restore has undone of an erasure as JSON values."""
    return {
        **entry_json(undone.entry),
        "cells_back": undone.cells.total(),
        "copies_back": undone.copies.total(),
        "held": [
            {**facts(hold, "row_key", "held_by", "reason"), "cells": cells} for hold, cells in undone.held.items()
        ],
        "not_erased_again": undone.gone,
    }
