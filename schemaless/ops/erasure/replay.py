"""Finds what restoring a backup has undone, and erases it again.

A restored shard contains documents that were erased after the backup; ``ledger_file.py`` restores the ledger.

The log of erased cells of a restored shard comes from the same backup as its cells. A run of retention was undone in a
shard if the ledger records more erased cells for it than the log lists. The rules of a run name fixed times; they apply
as of the original run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Unpack

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.ops.erasure.copies import live_bodies
from schemaless.ops.erasure.expired import blocks, rules_of
from schemaless.ops.erasure.job import ErasureSpec, bounds_of, run
from schemaless.ops.erasure.ledger_file import Recorded
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import RunOptions
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.store.datastore import Datastore
from schemaless.store.erasures import sql
from schemaless.store.erasures.holds import Hold
from schemaless.store.erasures.ledger import Erasure, Target
from schemaless.store.internals import Internals, internals_of
from schemaless.topology.moves import cell_tables
from schemaless.topology.placement import shard_for

_NOTHING: Final = Recorded()


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
    def shards(self) -> list[int]:
        """The shards in which the erasure has to be executed again, or for the first time."""
        unfinished = [shard.shard for shard in self.entry.shards if shard.executed_at is None]
        return sorted({*self.cells, *self.copies, *self.stale, *(unfinished if self.entry.kind == "keys" else ())})


def undone(store: Datastore, recorded: Recorded = _NOTHING, *, listener: Listener = ignore_events) -> list[Undone]:
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
    with_copies = _shards_with_copies(internals)
    entries = {summary.number: ledger.entry(summary.number) for summary in ledger.entries()}
    entries |= {entry.number: entry for entry, _ in recorded.erasures}
    targets = {entry.number: of_entry for entry, of_entry in recorded.erasures}
    found = []
    for number, entry in sorted(entries.items()):
        each = what_came_back(internals, entry, recorded.holds, targets.get(number), with_copies)
        found += [each] if each.shards or each.held else []
        listener(Advanced())
    return found


def replay(store: Datastore, found: Iterable[Undone], thresholds: Thresholds, **how: Unpack[RunOptions]) -> None:
    """Execute erasures again, each as a job.

    Cells that were written after an erasure are kept, and so are those of rows that were held during a run of
    retention or are held now. Counts in the ledger never become lower.

    Args:
        store: the datastore; its account needs the role ``erase``.
        found: result of ``undone``, after ``load_ledger`` has loaded the file of the ledger.
        thresholds: thresholds for throttling.
        how: see ``RunOptions``.

    Raises:
        SchemalessError: as for ``JobKind.run``; repeating the call continues the work.
    """
    for each in found:
        left = {*each.shards}
        while left:
            job = run(store, ErasureSpec(each.entry.number, replay=True, thresholds=thresholds), sorted(left), **how)
            # The job may be one that an interrupted replay left, for other shards.
            left -= {*JobStore(store).numbers(job.job_id)}


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
            found.cells += Counter({shard.shard: _older_cells(internals, entry, shard.shard, targets)})
        elif shard.executed_at is not None and shard.cells > logged:
            _look_at_expired(internals, found, shard.shard, shard.cells - logged, holds)
        if shard.shard in with_copies:
            live = sum(live_bodies(internals, shard.shard, ids) for ids in eraser.erased_ids())
            found.copies += Counter({shard.shard: live})
    return found


def _older_cells(internals: Internals, entry: Erasure, shard: int, targets: Iterable[Target] | None) -> int:
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
    cells, held, held_before = 0, Counter[Hold](), Counter[Hold]()

    def live(ids: Sequence[int]) -> int:
        return int(internals.shards.rows(shard, sql.count_live(database, ids))[0][0]) if ids else 0

    for block in blocks(internals, shard, rules_of(entry), during=during, recorded=holds):
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
