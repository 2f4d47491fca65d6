"""Repeats retention runs after restoring a backup.

A restored shard contains expired documents again. Its log of erased cells was restored from the same backup, so a run
was undone if the catalog records more erased cells for it than the log lists. Rules name fixed times; a repeated run
applies them as of the original run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Unpack

from schemaless.datastore import Datastore
from schemaless.erasures.ledger import Erasure
from schemaless.events import Advanced, Listener, ignore_events
from schemaless.internals import internals_of
from schemaless.jobs.kind import RunOptions
from schemaless.jobs.throttle import Thresholds
from schemaless.retention.job import RETAIN, RetainSpec


@dataclass(frozen=True, slots=True)
class UndoneRun:
    """A retention run that a restore has undone, at least in part.

    Attributes:
        entry: its entry in the ledger.
        cells: number of cells that are back.
        shards: the shards that have them.
    """

    entry: Erasure
    cells: int
    shards: Sequence[int]


def undone_runs(store: Datastore, *, listener: Listener = ignore_events) -> list[UndoneRun]:
    """Return the retention runs whose erased cells are missing from a shard's log of erased cells.

    Shards in which a run is unfinished are skipped: 'retention run' continues it.

    Args:
        store: the datastore.
        listener: receives one event per run.

    Raises:
        ServerError: a server cannot be reached.
    """
    erasures = internals_of(store).erasures
    found = []
    for summary in erasures.ledger.entries():
        if summary.kind != "range":
            continue
        entry = erasures.ledger.entry(summary.number)
        missing = {
            each.shard: each.cells - erasures.eraser(each.shard, entry.number).executed()[0]
            for each in entry.shards
            if each.executed_at is not None
        }
        shards = [shard for shard, cells in missing.items() if cells > 0]
        if shards:
            found.append(UndoneRun(entry, sum(missing[shard] for shard in shards), shards))
        listener(Advanced())
    return found


def replay_runs(
    store: Datastore, undone: Iterable[UndoneRun], thresholds: Thresholds, **how: Unpack[RunOptions]
) -> list[Erasure]:
    """Repeat undone retention runs, each as a job.

    Cells created after a run are kept, and so are rows that were held during it or are held now.

    Args:
        store: the datastore.
        undone: result of ``undone_runs``.
        thresholds: thresholds for throttling.
        how: see ``RunOptions``.

    Returns:
        The runs' entries in the ledger, as they are afterwards.

    Raises:
        SchemalessError: as for ``JobKind.run``; repeating the call continues the work.
    """
    ledger = internals_of(store).erasures.ledger
    replayed = []
    for each in undone:
        RETAIN.run(store, RetainSpec(each.entry.number, replay=True, thresholds=thresholds), each.shards, **how)
        replayed.append(ledger.entry(each.entry.number))
    return replayed
