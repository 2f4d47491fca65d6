"""Workers, progress bars and fault output for ``schemaless check``, ``migrate verify`` and ``migrate finalise``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from schemaless.base.events import Listener, only, together
from schemaless.cell import CellKey
from schemaless.errors import ShardIdentityMismatch, ShardMoving
from schemaless.ops.admin.table_check import TableFault
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.workers import Workers
from schemaless.ops.jobs.workers import workers as open_workers
from schemaless.ops.migrate.verify import Fault
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.output import as_json, facts, key_json, out, progress
from schemaless.wire.errors import DatabaseMissing


@contextmanager
def verify_workers(
    what: str, store: Datastore, shards: list[int], count: int, dask: str | None, faults: FaultOutput
) -> Iterator[tuple[Workers | None, Listener]]:
    """Provide workers, or None to work in this process, and a listener that shows progress and faults.

    Args:
        what: activity to show, such as "verifying".
        store: the datastore.
        shards: shard numbers.
        count: number of workers.
        dask: address of a Dask scheduler, or None.
        faults: receives the faults.
    """
    show_fault = only(Fault, faults.add)
    if count == 1 and dask is None:
        with progress(what, _id_total(store, shards), "ids") as shown:
            yield None, together(shown, show_fault)
    else:
        with open_workers(count, dask) as pool, progress(what, len(shards), "shards") as shown:
            yield pool, together(shown, show_fault)


def _id_total(store: Datastore, shards: list[int]) -> int:
    """Return the number of added_ids that the shards span, not counting unusable ones, which are reported as faults."""
    total = 0
    for shard in shards:
        with suppress(ShardIdentityMismatch, ShardMoving, DatabaseMissing):
            total += internals_of(store).id_span(shard)
    return total


def failure_json(failure: Failure) -> dict[str, Any]:
    """Return a cell that a job left unchanged for ``--json``."""
    return {"key": key_json(failure.key), **facts(failure, "shard", "added_id", "reason", "message")}


class FaultOutput:
    """Prints faults as they are found, or collects them for ``--json``, up to a limit per kind."""

    def __init__(self, most_per_kind: int | None = None) -> None:
        self._most_per_kind = most_per_kind
        self._found: Counter[str] = Counter()
        self.kept: list[dict[str, Any]] = []

    def add(self, fault: Fault | TableFault) -> None:
        """Print a fault, or collect it for ``--json``."""
        self._found[fault.kind] += 1
        if self._most_per_kind is not None and self._found[fault.kind] > self._most_per_kind:
            return
        if not as_json():
            out().print(str(fault))
            return
        table_facts = facts(fault, "server", "table", "name") if isinstance(fault, TableFault) else {}
        self.kept.append(
            {
                **facts(fault, "kind", "shard"),
                **(dict.fromkeys(CellKey._fields) if fault.key is None else key_json(fault.key)),
                "added_id": fault.added_id,
                **table_facts,
                "message": fault.message,
            }
        )
