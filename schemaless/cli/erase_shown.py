"""Prints plans and the status of erasures."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from schemaless.erase.places import Places
from schemaless.erase.plan import Plan
from schemaless.erase.status import ErasureStatus
from schemaless.erasures.ledger import Erasure
from schemaless.numbers import shards_text
from schemaless.terminal.output import bytes_text, counted, facts, out, print_json, print_table

_ROWS_SHOWN = 64


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print what an erasure would erase."""
    if as_json:
        print_json(_plan_json(plan))
        return
    shards = {each.shard for each in plan.targets}
    out().print(
        f"{counted(plan.cells, 'cell')} of {counted(len(plan.targets), 'target')} in {counted(len(shards), 'shard')}: "
        f"{bytes_text(plan.body_bytes)} of bodies; already erased: {plan.erased:,}"
    )
    if len(plan.targets) <= _ROWS_SHOWN:
        print_table(
            None,
            ["target", "columns", "shard", "cells", "bytes", "erased before"],
            [
                [
                    str(each.target),
                    ", ".join(each.columns) or "-",
                    str(each.shard),
                    f"{each.cells:,}",
                    f"{each.body_bytes:,}",
                    f"{each.erased:,}",
                ]
                for each in plan.targets
            ],
            text_columns=2,
        )
    _show_places(plan.places)


def _show_places(places: Places) -> None:
    """Print where else documents may be."""
    for what, names in (
        ("followers that have to acknowledge the erasure", places.followers),
        ("indexes whose entries are removed", places.indexes),
        ("tables of moves", places.tables),
        ("tables of cells on servers that should not have them; they are not erased", places.strays),
        ("replicas to wait for", places.replicas),
        ("archives of migrations, on the machines that ran them", places.archives),
        ("former primaries that have not been settled yet", places.lost_primaries),
        ("dictionaries to search", [str(number) for number in places.dictionaries]),
    ):
        if names:
            out().print(f"{what}: {', '.join(names)}", markup=False)


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "cells": plan.cells,
        "body_bytes": plan.body_bytes,
        "erased_before": plan.erased,
        "targets": [
            {"target": str(each.target), **facts(each, "shard", "cells", "body_bytes", "erased", "columns")}
            for each in plan.targets
        ],
        "places": asdict(plan.places),
    }


def show_status(status: ErasureStatus, *, as_json: bool) -> None:
    """Print the status of one erasure."""
    if as_json:
        print_json(status_json(status))
        return
    entry = status.entry
    out().print(f"erasure {entry.number}: {status.state}; reason {entry.reason}, requested by {entry.requested_by}")
    where = counted(len(entry.shards), "shard")
    out().print(f"{counted(entry.cells, 'cell')}, {bytes_text(entry.body_bytes)} of bodies, in {where}")
    for what, at in times_of(entry).items():
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
        out().print(f"{name}: acknowledged {at:%Y-%m-%d %H:%M:%S}", markup=False)
    for name, shards in status.waiting.items():
        out().print(f"{name}: not acknowledged yet in shards {shards_text(list(shards))}", markup=False)
    for what, value in entry.notes.items():
        out().print(f"{what.replace('_', ' ')}: {', '.join(map(str, value)) if isinstance(value, list) else value}")


def times_of(entry: Erasure) -> dict[str, datetime | None]:
    """Return the times of an erasure's steps."""
    return facts(entry, "intended_at", "executed_at", "acknowledged_at", "verified_at")


def status_json(status: ErasureStatus) -> dict[str, Any]:
    """Return the status of an erasure as JSON values."""
    entry = status.entry
    return {
        **entry_json(entry),
        "state": status.state,
        "cells": entry.cells,
        "body_bytes": entry.body_bytes,
        "shards": [asdict(each) for each in entry.shards],
        "acknowledged": dict(status.acknowledged),
        "waiting": {name: list(shards) for name, shards in status.waiting.items()},
    }


def entry_json(entry: Erasure) -> dict[str, Any]:
    """Return an entry of the ledger, without its shards, as JSON values."""
    return {
        "erasure": entry.number,
        **facts(entry, "kind", "scope", "reason", "requested_by"),
        **times_of(entry),
        "notes": dict(entry.notes),
    }
