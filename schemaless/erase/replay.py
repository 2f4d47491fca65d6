"""Repeats erasures after restoring a backup, and copies the ledger from one catalog to another.

A restored shard contains documents that were erased after the backup, and a restored catalog lacks the ledger entries
made since then. ``ledger_lines`` yields the ledger as lines for a file that is kept apart from the backups.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Unpack

from schemaless.datastore import Datastore
from schemaless.erase.job import EraseSpec
from schemaless.erase.job import run as run_erasure
from schemaless.erase.verify import older_cells
from schemaless.erasures.ledger import ErasedShard, Erasure, Target
from schemaless.errors import InvalidInput
from schemaless.events import Advanced, Listener, ignore_events
from schemaless.internals import internals_of
from schemaless.jobs.kind import RunOptions
from schemaless.jobs.throttle import Thresholds
from schemaless.policies.holds import Hold


@dataclass(frozen=True, slots=True)
class Replayed:
    """An erasure that is unfinished, or that a restore has undone at least in part.

    Attributes:
        entry: its entry in the ledger.
        cells: number of cells that it has yet to erase, or that the restore brought back.
    """

    entry: Erasure
    cells: int


def undone(store: Datastore, *, listener: Listener = ignore_events) -> list[Replayed]:
    """Return the erasures of keys that are unfinished, or that a restore has undone at least in part.

    Args:
        store: the datastore.
        listener: receives one event per erasure of keys.

    Raises:
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    ledger = internals.erasures.ledger
    found = []
    for summary in ledger.entries():
        if summary.kind == "keys":
            entry = ledger.entry(summary.number)
            cells = sum(older_cells(internals, entry, shard.shard) for shard in entry.shards)
            unlogged = any(
                shard.cells > internals.erasures.eraser(shard.shard, entry.number).executed()[0]
                for shard in entry.shards
            )
            if cells or unlogged or entry.executed_at is None:
                found.append(Replayed(entry, cells))
            listener(Advanced())
    return found


def replay(
    store: Datastore, undone_erasures: Iterable[Replayed], thresholds: Thresholds, **how: Unpack[RunOptions]
) -> list[Erasure]:
    """Execute erasures again, each as a job; cells that were written after an erasure stay.

    Args:
        store: the datastore.
        undone_erasures: result of ``undone``.
        thresholds: thresholds for throttling.
        how: see ``RunOptions``.

    Returns:
        The replayed entries of the ledger, as they are afterwards.

    Raises:
        SchemalessError: as for ``JobKind.run``; repeating the call continues the work.
    """
    return [
        run_erasure(store, EraseSpec(each.entry.number, replay=True, thresholds=thresholds), **how)
        for each in undone_erasures
    ]


def ledger_lines(store: Datastore) -> Iterator[bytes]:
    """Yield erasures and legal holds as lines of JSON that ``load_ledger`` reads.

    Lines contain keys but no documents.
    """
    ledger = internals_of(store).erasures.ledger
    for summary in ledger.entries():
        entry = ledger.entry(summary.number)
        keys = [[str(uuid.UUID(bytes=row_key)), column, ref] for row_key, column, ref in ledger.targets(entry.number)]
        fields = {
            "erasure": entry.number,
            "kind": entry.kind,
            "scope": dict(entry.scope),
            "reason": entry.reason,
            "requested_by": entry.requested_by,
            "intended_at": entry.intended_at.isoformat(),
            "executed_at": entry.executed_at and entry.executed_at.isoformat(),
            "shards": [
                [shard.shard, shard.cells, shard.body_bytes, shard.executed_at and shard.executed_at.isoformat()]
                for shard in entry.shards
            ],
            "keys": keys,
        }
        yield json.dumps(fields).encode()
    for hold in ledger.holds.all(released=True):
        facts = {name: value for name, value in asdict(hold).items() if name != "number" and value is not None}
        yield json.dumps({"hold": facts}, default=str).encode()


def load_ledger(store: Datastore, lines: Iterable[bytes]) -> int:
    """Add the holds, and the erasures that the catalog lacks, with their numbers; return how many erasures were added.

    After an interruption, repeating the call adds what is missing.

    Raises:
        InvalidInput: a line was not written by ``ledger_lines``; the lines before it were added. Or the catalog has
            different erasures under some of the numbers; everything else was added.
    """
    ledger = internals_of(store).erasures.ledger
    existing = {entry.number: entry.intended_at for entry in ledger.entries()}
    added, taken, holds = 0, list[int](), list[Hold]()
    try:
        for position, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                fields: dict[str, Any] = json.loads(line)
                if "hold" in fields:
                    holds.append(_hold_of(fields["hold"]))
                    continue
                entry, targets = _erasure_of(fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidInput(f"line {position} was not written by 'schemaless erase ledger': {error}") from error
            if entry.number not in existing:
                added += ledger.restore(entry, targets)
            elif entry.intended_at != existing[entry.number]:
                taken.append(entry.number)
    finally:
        ledger.holds.restore(holds)
    if taken:
        raise InvalidInput(
            f"{store.name!r} has different erasures under the numbers {', '.join(map(str, taken))}, recorded after its "
            "catalog was restored; all others were added. Erase the keys in the lines with these numbers again, with "
            "'schemaless erase run'"
        )
    return added


def _erasure_of(fields: Mapping[str, Any]) -> tuple[Erasure, list[Target]]:
    keys = ((uuid.UUID(row), str(column), int(ref)) for row, column, ref in fields["keys"])
    shards = [
        ErasedShard(int(shard), int(cells), int(size), 0, at and datetime.fromisoformat(at))
        for shard, cells, size, at in fields["shards"]
    ]
    executed_at = fields["executed_at"] and datetime.fromisoformat(fields["executed_at"])
    entry = Erasure(
        int(fields["erasure"]),
        fields["kind"],
        dict(fields["scope"]),
        str(fields["reason"]),
        str(fields["requested_by"]),
        datetime.fromisoformat(fields["intended_at"]),
        executed_at,
        None,
        None,
        {},
        shards,
    )
    return entry, [Target(row.bytes, column, ref) for row, column, ref in keys]


def _hold_of(fields: dict[str, Any]) -> Hold:
    held_at, released_at = (
        None if fields.get(name) is None else datetime.fromisoformat(fields[name])
        for name in ("held_at", "released_at")
    )
    if held_at is None:
        raise KeyError("held_at")
    by, reason = str(fields["held_by"]), str(fields["reason"])
    return Hold(0, uuid.UUID(fields["row_key"]), by, reason, held_at, released_at, fields.get("released_by"))
