"""Finds what restoring a backup has undone, and copies the ledger from one catalog to another.

A restored shard contains documents that were erased after the backup, and a restored catalog lacks the ledger entries
made since then. ``ledger_lines`` yields the ledger as lines for a file that is kept apart from the backups.
``ops/retention/replay.py`` erases again what has come back.

The log of erased cells of a restored shard comes from the same backup as its cells. A run of retention was undone in a
shard if the ledger records more erased cells for it than the log lists. The rules of a run name fixed times; they apply
as of the original run.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.errors import InvalidInput
from schemaless.ops.erasure.copies import live_bodies
from schemaless.ops.erasure.expired import blocks, id_span, rules_of
from schemaless.ops.erasure.job import bounds_of
from schemaless.store.datastore import Datastore
from schemaless.store.erasures import sql
from schemaless.store.erasures.holds import Hold
from schemaless.store.erasures.ledger import ErasedShard, Erasure, Target
from schemaless.store.internals import Internals, internals_of
from schemaless.topology.moves import cell_tables
from schemaless.topology.placement import shard_for

_IDS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file of the ledger has and the catalog lacks.

    Attributes:
        erasures: erasures that are missing, with their targets.
        holds: holds that are missing, or that have been released since.
        taken: numbers under which the catalog has different erasures.
    """

    erasures: Sequence[tuple[Erasure, Sequence[Target]]] = ()
    holds: Sequence[Hold] = ()
    taken: Sequence[int] = ()


@dataclass(slots=True)
class Undone:
    """An erasure that is unfinished, or that a restore has undone at least in part.

    Attributes:
        entry: its entry in the ledger.
        cells: number of cells that it has yet to erase, or that a restore brought back, by shard.
        copies: number of bodies that are back in tables of moves, by shard.
        held: number of cells that a restore brought back and that stay, because their row is held, by hold.
        gone: number of cells that it had erased and that neither it nor a hold concerns any more: the restore lost
            them, or the newer versions that had made them expire.
        stale: shards whose log of erased cells ends before what the ledger records.
    """

    entry: Erasure
    cells: Counter[int] = field(default_factory=Counter)
    copies: Counter[int] = field(default_factory=Counter)
    held: Counter[Hold] = field(default_factory=Counter)
    gone: int = 0
    stale: list[int] = field(default_factory=list)

    @property
    def matters(self) -> bool:
        """True if something is left to do, or would be without a hold."""
        unfinished = self.entry.kind == "keys" and self.entry.executed_at is None
        return bool(self.cells or self.copies or self.held or self.stale or unfinished)


def undone(store: Datastore, recorded: Recorded | None = None, *, listener: Listener = ignore_events) -> list[Undone]:
    """Return the erasures that a restore has undone at least in part, and unfinished erasures of keys, by number.

    Shards in which a run of retention is unfinished are skipped: 'retention run' continues it.

    Args:
        store: the datastore.
        recorded: what a file of the ledger adds to the catalog, before it is loaded.
        listener: receives one event per erasure.

    Raises:
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    ledger = internals.erasures.ledger
    recorded = recorded or Recorded()
    with_copies = _shards_with_copies(internals)
    entries = {summary.number: ledger.entry(summary.number) for summary in ledger.entries()}
    entries |= {entry.number: entry for entry, _ in recorded.erasures}
    targets = {entry.number: of_entry for entry, of_entry in recorded.erasures}
    found = []
    for number in sorted(entries):
        each = what_came_back(internals, entries[number], recorded.holds, targets.get(number), with_copies)
        found += [each] if each.matters else []
        listener(Advanced())
    return found


def what_came_back(
    internals: Internals,
    entry: Erasure,
    holds: Iterable[Hold] = (),
    targets: Sequence[Target] | None = None,
    with_copies: Collection[int] = (),
) -> Undone:
    """Return what a restore has brought back of an erasure.

    Args:
        internals: the datastore.
        entry: the erasure, with its shards.
        holds: holds from a file of the ledger.
        targets: its targets, if the catalog does not have them.
        with_copies: shards with tables of moves, in which to look as well.
    """
    found = Undone(entry)
    for shard in entry.shards:
        eraser = internals.erasures.eraser(shard.shard, entry.number)
        logged, _, event = eraser.executed()
        if shard.last_event > event:
            found.stale.append(shard.shard)
        if entry.kind == "keys":
            found.cells += Counter({shard.shard: older_cells(internals, entry, shard.shard, targets)})
        elif shard.executed_at is not None and shard.cells > logged:
            _look_at_expired(internals, found, shard.shard, shard.cells - logged, holds)
        after = 0
        while shard.shard in with_copies and (events := eraser.erased_ids(after, _IDS_AT_ONCE)):
            after = events[-1][0]
            ids = [added_id for _, added_id in events]
            found.copies += Counter({shard.shard: live_bodies(internals, shard.shard, ids)})
    return found


def older_cells(internals: Internals, entry: Erasure, shard: int, targets: Iterable[Target] | None = None) -> int:
    """Count cells of an erasure's keys in a shard that are older than its execution there and have not been erased."""
    database, before = internals.shards.database(shard), bounds_of(entry)[shard]
    if targets is None:
        targets = internals.erasures.ledger.targets(entry.number, shard)
    else:
        count = internals.topology.shard_count
        targets = [target for target in targets if shard_for(target.row_key, count) == shard]
    statements = (sql.count_older(database, *target, before) for target in targets)
    return sum(int(internals.shards.rows(shard, statement)[0][0]) for statement in statements)


def _look_at_expired(internals: Internals, found: Undone, shard: int, missing: int, holds: Iterable[Hold]) -> None:
    """Count the live cells of a shard that a run of retention would erase again, and those that holds keep."""
    entry, database = found.entry, internals.shards.database(shard)
    during = (entry.intended_at, bounds_of(entry)[shard])
    low, high = id_span(internals, shard)
    cells, held, held_before = 0, Counter[Hold](), Counter[Hold]()

    def live(ids: Sequence[int]) -> int:
        return int(internals.shards.rows(shard, sql.count_live(database, ids))[0][0]) if ids else 0

    for block in blocks(internals, shard, rules_of(entry), low - 1, high, during, recorded=holds):
        cells += live(block.ids)
        of_holds: dict[Hold, list[int]] = {}
        for added_id, hold in block.held.items():
            # A row that was held during the run, and was released since, has never been erased.
            if hold.released_at is None:
                of_holds.setdefault(hold, []).append(added_id)
        for hold, ids in of_holds.items():
            (held if hold.held_at > during[1] else held_before)[hold] += live(ids)
    found.cells += Counter({shard: cells})
    if cells + held.total() < missing:
        # Rows that were held during the run have not been erased, unless a restore undid an earlier release.
        held += held_before
    if cells < missing:
        found.held += held
    found.gone += max(0, missing - cells - held.total())


def _shards_with_copies(internals: Internals) -> set[int]:
    found = set()
    for cluster in internals.topology.clusters:
        tables = cell_tables(internals.shards.pool_for(cluster.primary), internals.topology.name)
        found |= {table.shard for table in tables if table.name != "cell"}
    return found


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


def read_ledger(store: Datastore, lines: Iterable[bytes]) -> Recorded:
    """Return what ``load_ledger`` would add to the catalog. Changes nothing.

    Raises:
        InvalidInput: a line was not written by ``ledger_lines``.
    """
    ledger = internals_of(store).erasures.ledger
    existing = {entry.number: entry.intended_at for entry in ledger.entries()}
    erasures, holds, taken = list[tuple[Erasure, Sequence[Target]]](), list[Hold](), list[int]()
    for each in _parsed(lines):
        if isinstance(each, Hold):
            holds.append(each)
        elif each[0].number not in existing:
            erasures.append(each)
        elif each[0].intended_at != existing[each[0].number]:
            taken.append(each[0].number)
    return Recorded(erasures, ledger.holds.unrecorded(holds), taken)


def load_ledger(store: Datastore, lines: Iterable[bytes]) -> Recorded:
    """Add the erasures and holds that the catalog lacks, and release the holds that were released since the backup.

    After an interruption, repeating the call adds what is missing.

    Returns:
        What was added, without the targets of erasures.

    Raises:
        InvalidInput: a line was not written by ``ledger_lines``; the lines before it were added. Or the catalog has
            different erasures under some of the numbers; everything else was added.
    """
    ledger = internals_of(store).erasures.ledger
    existing = {entry.number: entry.intended_at for entry in ledger.entries()}
    added, taken, holds = list[tuple[Erasure, Sequence[Target]]](), list[int](), list[Hold]()
    changed: list[Hold] = []
    try:
        for each in _parsed(lines):
            if isinstance(each, Hold):
                holds.append(each)
                continue
            entry, targets = each
            if entry.number not in existing:
                added += [(entry, ())] if ledger.restore(entry, targets) else []
            elif entry.intended_at != existing[entry.number]:
                taken.append(entry.number)
    finally:
        changed = ledger.holds.restore(holds)
    if taken:
        raise InvalidInput(taken_text(store, taken, "all others were added"))
    return Recorded(added, changed)


def taken_text(store: Datastore, taken: Iterable[int], outcome: str) -> str:
    """Return what to do about erasures of a file whose numbers the catalog has given to others."""
    return (
        f"{store.name!r} has different erasures under the numbers {', '.join(map(str, taken))}, recorded after its "
        f"catalog was restored; {outcome}. Erase the keys in the lines with these numbers again, with "
        "'schemaless erase run'"
    )


def _parsed(lines: Iterable[bytes]) -> Iterator[tuple[Erasure, list[Target]] | Hold]:
    for position, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields: dict[str, Any] = json.loads(line)
            yield _hold_of(fields["hold"]) if "hold" in fields else _erasure_of(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"line {position} was not written by 'schemaless erase ledger': {error}") from error


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
