"""FlatBuffers contender: an ``.fbs`` schema, and tables written by Google's pure-Python library.

Instead of compiling the schema, this module calls the library's builder and table classes as generated code would. It
decodes whole documents into Python objects; the benchmark does not use FlatBuffers' in-place access to single fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemaless.bench.members import Field, Packer, Unpacker, comment, records, unchanged
from schemaless.bench.needs import needed
from schemaless.bench.record_schema import Record, Scalar
from schemaless.cell import JSONDocument

# kind: (name in the schema, width in bytes, struct format of a vector element)
_SCALARS: Final = {
    "bool": ("bool", 1, "?"),
    "i32": ("int", 4, "i"),
    "i64": ("long", 8, "q"),
    "float": ("double", 8, "d"),
}


def schema_text(root: Record) -> str:
    """Return the schema as an ``.fbs`` file."""
    lines = ["namespace documents;", ""]
    for record, fields in records(root, wrap_lists=False):
        lines.append(f"table {record.name} {{")
        for field in fields:
            kind = field.type.name if isinstance(field.type, Record) else _scalar_name(field.type)
            kind = f"[{kind}]" if field.repeated else kind
            unset = " = null" if _nullable(field) else ""
            need = " (required)" if field.certain and (field.repeated or _is_offset(field)) else ""
            lines.append(f"  {field.name}:{kind}{unset}{need};{comment(field)}")
        lines.extend(("}", ""))
    return "\n".join([*lines, f"root_type {root.name};", ""])


def codec(root: Record) -> tuple[Callable[[JSONDocument], bytes], Callable[[bytes], JSONDocument]]:
    """Return an encoder and a decoder for documents of a schema.

    Raises:
        Missing: flatbuffers is not installed.
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
        self.builder_type = needed("flatbuffers.builder", "flatbuffers").Builder
        self._table = needed("flatbuffers.table", "flatbuffers").Table
        numbers = needed("flatbuffers.number_types", "flatbuffers")
        self._flags = {
            "bool": numbers.BoolFlags,
            "i32": numbers.Int32Flags,
            "i64": numbers.Int64Flags,
            "float": numbers.Float64Flags,
        }

    def writer(
        self, fields: list[Field], writers: Mapping[str, Callable[[Any, dict[str, Any]], int]]
    ) -> Callable[[Any, dict[str, Any]], int]:
        """Return a function that writes a table: first the objects it references, then the table."""
        before = [
            (field.name, self._outside(field, writers)) for field in fields if field.repeated or _is_offset(field)
        ]
        plan: list[tuple[int, str, Any, int | None]] = []
        for place, field in enumerate(fields):
            if field.repeated or isinstance(field.type, Record) or field.type.kind == "str":
                plan.append((place, field.name, None, 0))
            else:
                plan.append((place, field.name, self._flags[_kind(field.type)], None if _nullable(field) else 0))
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
        if isinstance(field.type, Record):
            one: Callable[[Any, Any], int] = writers[field.type.name]
        elif field.type.kind == "str":
            one = self.builder_type.CreateString
        else:
            flags, width = self._flags[_kind(field.type)], _SCALARS[_kind(field.type)][1]

            def scalars(builder: Any, values: list[Any]) -> int:
                builder.StartVector(width, len(values), width)
                for value in reversed(values):
                    builder.Prepend(flags, value)
                end: int = builder.EndVector()
                return end

            return scalars
        if not field.repeated:
            return one

        def vector(builder: Any, values: list[Any]) -> int:
            offsets = [one(builder, value) for value in values]
            builder.StartVector(4, len(offsets), 4)
            for offset in reversed(offsets):
                builder.PrependUOffsetTRelative(offset)
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
        if isinstance(field.type, Record):
            read = readers[field.type.name]
            if not field.repeated:
                return lambda table, offset: read(table.Bytes, table.Indirect(offset + table.Pos))

            def tables(table: Any, offset: int) -> list[Any]:
                start = table.Vector(offset)
                places = range(start, start + 4 * table.VectorLen(offset), 4)
                return [read(table.Bytes, table.Indirect(place)) for place in places]

            return tables
        if field.type.kind == "str":
            if not field.repeated:
                return lambda table, offset: table.String(offset + table.Pos).decode()

            def strings(table: Any, offset: int) -> list[str]:
                start = table.Vector(offset)
                places = range(start, start + 4 * table.VectorLen(offset), 4)
                return [table.String(place).decode() for place in places]

            return strings
        flags, letter = self._flags[_kind(field.type)], _SCALARS[_kind(field.type)][2]
        if not field.repeated:
            return lambda table, offset: table.Get(flags, offset + table.Pos)
        return lambda table, offset: list(
            struct.unpack_from(f"<{table.VectorLen(offset)}{letter}", table.Bytes, table.Vector(offset))
        )


def _kind(one: Scalar) -> str:
    return f"i{one.bits}" if one.kind == "int" else one.kind


def _scalar_name(one: Scalar) -> str:
    return "string" if one.kind == "str" else _SCALARS[_kind(one)][0]


def _is_offset(field: Field) -> bool:
    return isinstance(field.type, Record) or field.type.kind == "str"


def _nullable(field: Field) -> bool:
    """Return whether 0 must be written: if the field may be unset, or is a double (-0.0 would become 0.0)."""
    if field.repeated or isinstance(field.type, Record) or field.type.kind == "str":
        return False
    return not field.certain or field.type.kind == "float"


def _zero(field: Field) -> Any:
    if field.repeated or isinstance(field.type, Record) or not field.certain:
        return None
    return {"bool": False, "int": 0}.get(field.type.kind)
