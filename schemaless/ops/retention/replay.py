"""Erases again what restoring a backup has brought back: erasures of keys, and runs of retention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from schemaless.ops.erasure.job import EraseSpec
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.replay import Undone
from schemaless.ops.jobs.kind import RunOptions
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.retention.job import RETAIN, RetainSpec
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of


def replay(store: Datastore, undone: Iterable[Undone], thresholds: Thresholds, **how: Unpack[RunOptions]) -> None:
    """Execute erasures and runs of retention again, each as a job.

    Cells that were written after an erasure are kept, and so are those of rows that were held during a run of
    retention or are held now. Counts in the ledger never become lower.

    Args:
        store: the datastore; its account needs the role ``erase``.
        undone: result of ``ops.erasure.replay.undone``, after ``load_ledger`` has loaded the file of the ledger.
        thresholds: thresholds for throttling.
        how: see ``RunOptions``.

    Raises:
        SchemalessError: as for ``JobKind.run``; repeating the call continues the work.
    """
    erasures = internals_of(store).erasures
    for each in undone:
        number = each.entry.number
        if each.entry.kind == "keys":
            run_erasure(store, EraseSpec(number, replay=True, thresholds=thresholds), **how)
            continue
        if shards := sorted({*each.cells, *each.copies}):
            RETAIN.run(store, RetainSpec(number, replay=True, thresholds=thresholds), shards, **how)
        for shard in {*each.stale} - {*shards}:
            erasures.ledger.record_shard(number, shard, *erasures.eraser(shard, number).executed())
