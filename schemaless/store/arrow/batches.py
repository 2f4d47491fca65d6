"""Record batches of rows of the change feed: one row per cell, with the body as exact JSON text."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from schemaless.base.optional import load
from schemaless.cell import CellKey, JSONDocument
from schemaless.codec.envelope import is_erased
from schemaless.codec.serializers import Payload
from schemaless.errors import CorruptBody
from schemaless.store.arrow.fields import TypedColumn, TypedValues
from schemaless.store.cells.sql import Row
from schemaless.store.cold.content import base_arrays, base_fields

Decode = Callable[[bytes], tuple[Payload, JSONDocument]]
"""Function that decodes a body to JSON text and the document."""


def arrow_schema(columns: Sequence[TypedColumn]) -> Any:
    """Return the ``pyarrow.Schema`` of batches with these typed columns."""
    pa = load()
    moment = pa.timestamp("us", tz="UTC")
    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "time": moment}
    typed = [pa.field(column.name, types.get(column.type, pa.string())) for column in columns]
    return pa.schema([*base_fields(), *typed])


@dataclass(slots=True)
class Batch:
    """A record batch, with statistics and errors of the cells in it.

    Attributes:
        batch: the ``pyarrow.RecordBatch``.
        body_bytes: size of the bodies as JSON text.
        nulls: number of nulls in each typed column, by reason.
        skipped: error of each cell whose body does not decode, by added_id; its body is null.
    """

    batch: Any
    body_bytes: int
    nulls: list[dict[str, int]]
    skipped: dict[int, str]


class Batches:
    """Turns rows of a shard's change feed into record batches.

    Args:
        columns: the typed columns.
        decode: decodes a body.
        keep_corrupt: use a null body, instead of raising, if a body does not decode.
    """

    def __init__(self, columns: Sequence[TypedColumn], decode: Decode, *, keep_corrupt: bool = False) -> None:
        self.schema: Any = arrow_schema(columns)
        self._pa = load()
        self._columns = columns
        self._decode = decode
        self._keep_corrupt = keep_corrupt

    def batch(self, rows: Sequence[Row], shard: int) -> Batch:
        """Convert rows to a record batch. An erased cell gets a null body.

        Raises:
            CorruptBody: a body does not decode; the error names the cell.
        """
        pa = self._pa
        texts: list[Payload | None] = []
        typed = TypedValues(self._columns)
        skipped: dict[int, str] = {}
        body_bytes = 0
        for added_id, row_key, column_name, ref_key, body, _ in rows:
            text: Payload | None
            document: JSONDocument
            if is_erased(body):
                texts.append(None)
                typed.add_erased(column_name)
                continue
            try:
                text, document = self._decode(body)
                body_bytes += len(text)
            except CorruptBody as error:
                error.at(CellKey(uuid.UUID(bytes=row_key), column_name, ref_key), shard)
                if not self._keep_corrupt:
                    raise
                skipped[added_id] = error.message
                text = document = None
            texts.append(text)
            if self._columns:
                typed.add(column_name, document)
        arrays = [
            *base_arrays(rows, shard, texts),
            *(pa.array(values, field.type) for values, field in zip(typed.values, list(self.schema)[7:], strict=True)),
        ]
        return Batch(pa.RecordBatch.from_arrays(arrays, schema=self.schema), body_bytes, typed.nulls, skipped)
