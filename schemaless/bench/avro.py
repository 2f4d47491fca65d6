"""Avro contender: an ``.avsc`` schema, and binary encoding by fastavro.

Avro has unions, null and maps, so documents need little conversion. A missing key is encoded as null; if a field can
also be null, ``Null`` (a zero-byte fixed) represents null.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from schemaless.bench.members import NULL, Packer, Unpacker, unchanged
from schemaless.bench.record_schema import List, Map, Record, Scalar, Slot
from schemaless.cell import JSONDocument


def avro_schema(root: Record) -> Any:
    """Return the Avro schema as JSON-compatible values."""
    return _Schema().record(root) if not root.wraps else _Schema().slot(root.slots[0])


def schema_text(root: Record) -> str:
    """Return the schema as an ``.avsc`` file."""
    return json.dumps(avro_schema(root), indent=2) + "\n"


def codec(root: Record) -> tuple[Callable[[JSONDocument], bytes], Callable[[bytes], JSONDocument]]:
    """Return an encoder and a decoder for documents of a schema.

    Raises:
        ImportError: the library is not installed.
    """
    fastavro = import_module("fastavro")
    schema = fastavro.parse_schema(avro_schema(root))
    write, read = fastavro.schemaless_writer, fastavro.schemaless_reader
    packer = Packer(None, native=True, wrap_lists=False, unions=True)
    unpacker = Unpacker(unchanged, native=True, wrap_lists=False, copy_lists=False, unions=True)
    pack, unpack = (maker.union(root.slots[0]) if root.wraps else maker.record(root) for maker in (packer, unpacker))

    def encode(document: JSONDocument) -> bytes:
        file = io.BytesIO()
        write(file, schema, document if pack is None else pack(document))
        return file.getvalue()

    def decode(payload: bytes) -> JSONDocument:
        document = read(io.BytesIO(payload), schema, None)
        return document if unpack is None else unpack(document)

    return encode, decode


class _Schema:
    """Builds the Avro schema, defining each name once."""

    def __init__(self) -> None:
        self._null_known = False

    def record(self, record: Record) -> dict[str, Any]:
        fields = []
        for slot in record.slots:
            field = {"name": slot.name, "type": self.slot(slot)}
            if slot.key != slot.name:
                field["doc"] = slot.key.encode("utf-8", "backslashreplace").decode()
            fields.append(field)
        return {"type": "record", "name": record.name, "fields": fields}

    def slot(self, slot: Slot) -> Any:
        union: list[Any] = []
        if slot.null or slot.absent or not slot.types:
            union.append("null")
        if slot.null and slot.absent:
            union.append("Null" if self._null_known else {"type": "fixed", "name": "Null", "size": len(NULL)})
            self._null_known = True
        union.extend(self._type(one) for one in slot.types)
        return union[0] if len(union) == 1 else union

    def _type(self, one: Scalar | Record | List | Map) -> Any:
        if isinstance(one, Record):
            return self.record(one)
        if isinstance(one, List):
            return {"type": "array", "items": self.slot(one.item)}
        if isinstance(one, Map):
            return {"type": "map", "values": self.slot(one.value)}
        return {"bool": "boolean", "int": "long", "float": "double", "str": "string"}[one.kind]
