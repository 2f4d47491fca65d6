"""What child processes do; a module of its own, so that ``spawn`` and ``forkserver`` can import it."""

from __future__ import annotations

import uuid

import schemaless


def put_and_read(url: str, rows: list[uuid.UUID]) -> dict[uuid.UUID, object]:
    """Open a datastore by its URL, put a cell into each row, and return what is read back."""
    with schemaless.connect(url) as store:
        for row in rows:
            store.put_cell(row, "CHILD", 1, {"row": str(row)})
        return {row: store.get_cell(row, "CHILD", 1).body for row in rows}  # type: ignore[union-attr]
