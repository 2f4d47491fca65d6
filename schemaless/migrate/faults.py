"""What can be wrong with a cell by itself: its place, its key, its body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemaless.cell import CellKey, StoredCell
from schemaless.codec.envelope import check_canonical
from schemaless.datastore import Datastore
from schemaless.errors import CorruptBody, InvalidCell
from schemaless.events import Event
from schemaless.internals import internals_of
from schemaless.keys import cell_key


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """Something that is not as it should be.

    Attributes:
        kind: the name of the exception that a reader would meet, ``Misplaced`` or ``InvalidCell``.
        shard: its number; None where it is about the datastore.
        key: the cell, or None where the shard itself is at fault.
        added_id: the cell's place in its shard, or None.
        message: what is wrong.
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
    """Yield what is wrong with a cell, as the kind of a ``Fault`` and its message."""
    home = store.shard_of(cell.row_key)
    if home != cell.shard:
        yield "Misplaced", f"its row_key belongs to shard {home}, so no read finds it here"
    try:
        cell_key(*cell.key)
    except InvalidCell as error:
        yield "InvalidCell", str(error)
    try:
        cell.decode()
        check_canonical(cell.body, internals_of(store).dictionaries)
    except CorruptBody as error:
        yield type(error).__name__, error.message
