"""FlatBuffers contender: an ``.fbs`` schema, and tables written by Google's pure-Python library.

Instead of compiling the schema, this module calls the library's builder and table classes as generated code would. It
decodes whole documents into Python objects; the benchmark does not use FlatBuffers' in-place access to single fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

from schemaless.bench.members import Field, Packer, Unpacker, comment, records, unchanged
from schemaless.bench.record_schema import Record, Scalar
from schemaless.cell import JSONDocument

# kind: (name in the schema, name of the library's flags)
_SCALARS: Final = {
    "bool": ("bool", "BoolFlags"),
    "i32": ("int", "Int32Flags"),
    "i64": ("long", "Int64Flags"),
    "float": ("double", "Float64Flags"),
}
_OFFSET_BYTES: Final = 4


def schema_text(root: Record) -> str:
    """Return the schema as an ``.fbs`` file."""
    lines = ["namespace documents;", ""]
    for record, fields in records(root, wrap_lists=False):
        lines.append(f"table {record.name} {{")
        for field in fields:
            kind = _kind(field.type)
            kind = "string" if kind == "str" else _SCALARS.get(kind, (kind,))[0]
            kind = f"[{kind}]" if field.repeated else kind
            unset = " = null" if _nullable(field) else ""
            need = " (required)" if field.certain and _is_outside(field) else ""
            lines.append(f"  {field.name}:{kind}{unset}{need};{comment(field)}")
        lines.extend(("}", ""))
    return "\n".join([*lines, f"root_type {root.name};", ""])


def codec(root: Record) -> tuple[Callable[[JSONDocument], bytes], Callable[[bytes], JSONDocument]]:
    """Return an encoder and a decoder for documents of a schema.

    Raises:
        ImportError: the library is not installed.
    """
    library = _Library()
    writers: dict[str, Callable[[Any, dict[str, Any]], int]] = {}
    readers: dict[str, Callable[[Any, int], dict[str, Any]]] = {}
    for record, fields in records(root, wrap_lists=False):
        writers[record.name] = library.writer(fields, writers)
        readers[record.name] = library.reader(fields, readers)
    pack = Packer(None, native=False, wrap_lists=False).record(root)
    unpack = Unpacker(unchanged, native=False, wrap_lists=False, copy_lists=False).record(root)
    write, read, builder_type = writers[root.name], readers[root.name], library.builder_type

    def encode(document: JSONDocument) -> bytes:
        builder = builder_type(1024)
        builder.Finish(write(builder, document if pack is None else pack(document)))
        return bytes(builder.Output())

    def decode(payload: bytes) -> JSONDocument:
        (start,) = struct.unpack_from("<I", payload)
        return unpack(read(payload, start))

    return encode, decode


class _Library:
    def __init__(self) -> None:
        self.builder_type = import_module("flatbuffers.builder").Builder
        self._table = import_module("flatbuffers.table").Table
        numbers = import_module("flatbuffers.number_types")
        self._flags = {kind: getattr(numbers, flags) for kind, (_, flags) in _SCALARS.items()}

    def writer(
        self, fields: list[Field], writers: Mapping[str, Callable[[Any, dict[str, Any]], int]]
    ) -> Callable[[Any, dict[str, Any]], int]:
        """Return a function that writes a table: first the objects it references, then the table."""
        before = [(field.name, self._outside(field, writers)) for field in fields if _is_outside(field)]
        plan: list[tuple[int, str, Any, int | None]] = []
        for place, field in enumerate(fields):
            flags = None if _is_outside(field) else self._flags[_kind(field.type)]
            plan.append((place, field.name, flags, None if _nullable(field) else 0))
        count = len(fields)

        def write(builder: Any, members: dict[str, Any]) -> int:
            offsets = {}
            for name, make in before:
                value = members.get(name)
                if value is not None:
                    offsets[name] = make(builder, value)
            builder.StartObject(count)
            for place, name, flags, unset in plan:
                if flags is None:
                    offset = offsets.get(name)
                    if offset is not None:
                        builder.PrependUOffsetTRelativeSlot(place, offset, 0)
                else:
                    value = members.get(name)
                    if value is not None:
                        builder.PrependSlot(flags, place, value, unset)
            end: int = builder.EndObject()
            return end

        return write

    def _outside(
        self, field: Field, writers: Mapping[str, Callable[[Any, dict[str, Any]], int]]
    ) -> Callable[[Any, Any], int]:
        """Return a function that writes a referenced string, table or vector."""
        kind = _kind(field.type)
        flags = self._flags.get(kind)
        one: Any = self.builder_type.CreateString if kind == "str" else writers.get(kind)
        if not field.repeated:
            written: Callable[[Any, Any], int] = one
            return written
        width = _OFFSET_BYTES if flags is None else flags.bytewidth

        def vector(builder: Any, values: list[Any]) -> int:
            if flags is None:
                values = [one(builder, value) for value in values]
            prepend = builder.PrependUOffsetTRelative if flags is None else partial(builder.Prepend, flags)
            builder.StartVector(width, len(values), width)
            for value in reversed(values):
                prepend(value)
            end: int = builder.EndVector()
            return end

        return vector

    def reader(
        self, fields: list[Field], readers: Mapping[str, Callable[[Any, int], dict[str, Any]]]
    ) -> Callable[[Any, int], dict[str, Any]]:
        """Return a function that reads a table's members; one not stored is read as 0 if always set, else omitted."""
        table_type = self._table
        plan = [
            (4 + 2 * place, field.name, self._inside(field, readers), _zero(field))
            for place, field in enumerate(fields)
        ]

        def read(payload: Any, start: int) -> dict[str, Any]:
            table = table_type(payload, start)
            offset_of = table.Offset
            members = {}
            for entry, name, get, zero in plan:
                offset = offset_of(entry)
                if offset:
                    members[name] = get(table, offset)
                elif zero is not None:
                    members[name] = zero
            return members

        return read

    def _inside(
        self, field: Field, readers: Mapping[str, Callable[[Any, int], dict[str, Any]]]
    ) -> Callable[[Any, int], Any]:
        kind = _kind(field.type)
        flags, read = self._flags.get(kind), readers.get(kind)
        if flags is not None and field.repeated:
            letter = flags.packer_type.format[-1]
            return lambda table, offset: list(
                struct.unpack_from(f"<{table.VectorLen(offset)}{letter}", table.Bytes, table.Vector(offset))
            )

        def one(table: Any, place: int) -> Any:
            if flags is not None:
                return table.Get(flags, place)
            return table.String(place).decode() if read is None else read(table.Bytes, table.Indirect(place))

        def many(table: Any, offset: int) -> list[Any]:
            start = table.Vector(offset)
            places = range(start, start + _OFFSET_BYTES * table.VectorLen(offset), _OFFSET_BYTES)
            return [one(table, place) for place in places]

        return many if field.repeated else lambda table, offset: one(table, offset + table.Pos)


def _kind(one: Scalar | Record) -> str:
    """Return the name of a record, or the kind of a scalar with the width of an integer."""
    if isinstance(one, Record):
        return one.name
    return f"i{one.bits}" if one.kind == "int" else one.kind


def _is_outside(field: Field) -> bool:
    """Return whether the table only has an offset to the value."""
    return field.repeated or _kind(field.type) not in _SCALARS


def _nullable(field: Field) -> bool:
    """Return whether 0 must be written: if the field may be unset, or is a double (-0.0 would become 0.0)."""
    return not _is_outside(field) and (not field.certain or _kind(field.type) == "float")


def _zero(field: Field) -> Any:
    return None if field.repeated or not field.certain else {"bool": False, "i32": 0, "i64": 0}.get(_kind(field.type))
