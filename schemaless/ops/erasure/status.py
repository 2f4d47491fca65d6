"""Progress of erasures: what was executed, which followers have acknowledged it, and what is left to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from schemaless.ops.erasure.cold_files import ColdEraser
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.ledger import Erasure
from schemaless.store.followers.settings import Settings
from schemaless.store.internals import internals_of


@dataclass(frozen=True, slots=True)
class ErasureStatus:
    """Status of an erasure.

    Attributes:
        entry: its entry in the ledger, with its shards.
        acknowledged: when each follower was first seen to have handled it.
        waiting: followers that have not acknowledged it, with the affected shards; meaningful only if
            ``entry.executed_at`` is set.
        cold: shards with cold files that may still have its documents, also if the cold store cannot be read.
    """

    entry: Erasure
    acknowledged: Mapping[str, datetime] = field(default_factory=dict)
    waiting: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cold: Sequence[int] = ()

    @property
    def number(self) -> int:
        """Number of the erasure."""
        return self.entry.number

    @property
    def cells(self) -> int:
        """Number of erased cells; their copies are not counted."""
        return self.entry.cells

    @property
    def state(self) -> str:
        """State of the erasure: intended, executed, acknowledged or verified."""
        entry = self.entry
        if entry.executed_at is None:
            return "intended"
        if entry.verified_at is not None:
            return "verified"
        return "executed" if self.waiting or self.cold else "acknowledged"


def status(store: Datastore, number: int) -> ErasureStatus:
    """Return the status of an erasure.

    Raises:
        InvalidInput: there is no such erasure.
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    ledger, log = internals.erasures.ledger, internals.erasures.log
    entry = ledger.entry(number)
    waiting: dict[str, list[int]] = {}
    cold = []
    names = Settings(internals.follower_access).all()
    for shard in entry.shards:
        if not shard.last_event:
            continue
        eraser = ColdEraser(internals, shard.shard)
        # Unlisted files are looked for by the erasure's job, which ``Datastore.erase`` does not run.
        if eraser.pending(number) or (entry.acknowledged_at is None and eraser.may_have_unlisted()):
            cold.append(shard.shard)
        handled = log.acknowledged(shard.shard)
        for name in names:
            # A follower without a row there has not begun, and will start after what was erased.
            if handled.get(name, shard.last_event) < shard.last_event:
                waiting.setdefault(name, []).append(shard.shard)
    return ErasureStatus(entry, ledger.acknowledged(number), waiting, cold)


def record_acknowledgements(store: Datastore, number: int) -> ErasureStatus:
    """Record in the ledger which followers have handled an executed erasure, and return its status."""
    internals = internals_of(store)
    ledger = internals.erasures.ledger
    found = status(store, number)
    if found.entry.executed_at is None:
        return found
    names = [name for name in Settings(internals.follower_access).all() if name not in found.waiting]
    ledger.record_acknowledged(number, [name for name in names if name not in found.acknowledged])
    if not found.waiting and not found.cold:
        ledger.mark(number, "acknowledged")
    return status(store, number)
