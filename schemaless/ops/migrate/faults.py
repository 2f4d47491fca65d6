"""Faults of a single cell: wrong shard, invalid key, corrupt body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemaless.base.events import Event
from schemaless.base.keys import cell_key
from schemaless.cell import CellKey, StoredCell
from schemaless.codec.envelope import check_canonical
from schemaless.errors import CorruptBody, InvalidCell
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """A fault found by ``check`` or ``verify``.

    Attributes:
        kind: name of the exception that reading the cell would raise, or ``Misplaced``, ``InvalidCell``, or a kind
            defined by ``verify``.
        shard: shard number; None for a fault of the whole datastore.
        key: key of the cell; None for a fault of the shard itself.
        added_id: the cell's added_id, or None.
        message: description of the fault.
    """

    kind: str
    shard: int | None
    key: CellKey | None
    added_id: int | None
    message: str

    def __str__(self) -> str:
        if self.shard is None:
            return f"{self.kind}: {self.message}"
        where = f"shard {self.shard}" if self.key is None else f"shard {self.shard}, cell {self.key}"
        return f"{self.kind}: {where}: {self.message}"


def faults_of(store: Datastore, cell: StoredCell) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of each fault of a cell."""
    home = store.shard_of(cell.row_key)
    if home != cell.shard:
        yield "Misplaced", f"its row_key belongs to shard {home}, so reads do not find it here"
    try:
        cell_key(*cell.key)
    except InvalidCell as error:
        yield "InvalidCell", str(error)
    try:
        cell.decode()
        check_canonical(cell.body, internals_of(store).dictionaries)
    except CorruptBody as error:
        yield type(error).__name__, error.message
