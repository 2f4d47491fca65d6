"""Protocol Buffers contender: a ``.proto`` schema, and messages encoded and decoded by Google's library (upb).

Message classes are created from an in-memory descriptor, equivalent to the schema text, so no compiler is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any, Final

from schemaless.bench.members import Field, Packer, Unpacker, comment, records
from schemaless.bench.record_schema import Record, Scalar
from schemaless.cell import JSONDocument

PACKAGE: Final = "documents"


def schema_text(root: Record) -> str:
    """Return the schema as a ``.proto`` file."""
    lines = ['syntax = "proto3";', "", f"package {PACKAGE};", ""]
    for record, fields in records(root, wrap_lists=True):
        lines.append(f"message {record.name} {{")
        unions_done = set()
        for number, field in enumerate(fields, 1):
            if field.union is None:
                label = "repeated " if field.repeated else "optional " if _optional(field) else ""
                lines.append(f"  {label}{_declared(field, number)}")
            elif field.union not in unions_done:
                unions_done.add(field.union)
                lines.append(f"  oneof {field.union} {{")
                lines.extend(
                    f"    {_declared(member, place)}"
                    for place, member in enumerate(fields, 1)
                    if member.union == field.union
                )
                lines.append("  }")
        lines.extend(("}", ""))
    return "\n".join(lines)


def descriptor(root: Record) -> Any:
    """Return the schema as a ``FileDescriptorProto``.

    Raises:
        ImportError: the library is not installed.
    """
    kinds = import_module("google.protobuf.descriptor_pb2")
    file = kinds.FileDescriptorProto(name="documents.proto", package=PACKAGE, syntax="proto3")
    types = kinds.FieldDescriptorProto
    for record, fields in records(root, wrap_lists=True):
        message = file.message_type.add(name=record.name)
        unions = list(dict.fromkeys(field.union for field in fields if field.union))
        for union in unions:
            message.oneof_decl.add(name=union)
        for number, field in enumerate(fields, 1):
            entry = message.field.add(name=field.name, number=number)
            entry.label = types.LABEL_REPEATED if field.repeated else types.LABEL_OPTIONAL
            if isinstance(field.type, Record):
                entry.type, entry.type_name = types.TYPE_MESSAGE, f".{PACKAGE}.{field.type.name}"
            else:
                entry.type = getattr(types, f"TYPE_{_scalar(field.type).upper()}")
            if field.union:
                entry.oneof_index = unions.index(field.union)
            elif _optional(field):
                entry.proto3_optional = True
                entry.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
    return file


def codec(root: Record) -> tuple[Callable[[JSONDocument], bytes], Callable[[bytes], JSONDocument]]:
    """Return an encoder and a decoder for documents of a schema.

    Raises:
        ImportError: the library is not installed.
    """
    pools = import_module("google.protobuf.descriptor_pool")
    factory = import_module("google.protobuf.message_factory")
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(descriptor(root).SerializeToString())
    message = factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{root.name}"))
    fields = {record.name: fields for record, fields in records(root, wrap_lists=True)}
    pack = Packer(None, native=False, wrap_lists=True).record(root)
    unpacker = Unpacker(lambda record: _members(fields[record.name]), native=False, wrap_lists=True, copy_lists=True)
    unpack = unpacker.record(root)
    parse = message.FromString

    def encode(document: JSONDocument) -> bytes:
        encoded: bytes = message(**(document if pack is None else pack(document))).SerializeToString()
        return encoded

    def decode(payload: bytes) -> JSONDocument:
        return unpack(parse(payload))

    return encode, decode


def _members(fields: list[Field]) -> Callable[[Any], dict[str, Any]]:
    """Return a function that extracts the fields that are set in a message."""
    sure = [field.name for field in fields if field.certain]
    maybe = [field.name for field in fields if not field.certain and not field.repeated]
    lists = [field.name for field in fields if not field.certain and field.repeated]
    get_sure = attrgetter(*sure) if sure else None

    def members(message: Any) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if get_sure is not None:
            given = dict(zip(sure, get_sure(message), strict=True)) if len(sure) > 1 else {sure[0]: get_sure(message)}
        for name in maybe:
            if message.HasField(name):
                given[name] = getattr(message, name)
        for name in lists:
            values = getattr(message, name)
            if values:
                given[name] = values
        return given

    return members


def _optional(field: Field) -> bool:
    """Return whether a field needs the ``optional`` label; message fields always track presence."""
    return not field.certain and not field.repeated and isinstance(field.type, Scalar)


def _declared(field: Field, number: int) -> str:
    kind = field.type.name if isinstance(field.type, Record) else _scalar(field.type)
    return f"{kind} {field.name} = {number};{comment(field)}"


def _scalar(one: Scalar) -> str:
    if one.kind != "int":
        return {"bool": "bool", "float": "double", "str": "string"}[one.kind]
    if one.lowest < 0:
        return f"sint{one.bits}"
    return "uint64" if 2**63 <= one.highest < 2**64 else f"int{one.bits}"
