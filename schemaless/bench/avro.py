"""Avro contender: an ``.avsc`` schema, and binary encoding by fastavro.

Avro has unions, null and maps, so documents need little conversion. A missing key is encoded as null; if a field can
also be null, ``Absent`` (a zero-byte fixed) represents the missing key.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

from schemaless.bench.needs import needed
from schemaless.bench.record_schema import List, Map, Record, Scalar, Slot
from schemaless.cell import JSONDocument

_ABSENT: Final = b""
_Convert = Callable[[Any], Any] | None


def avro_schema(root: Record) -> Any:
    """Return the Avro schema as JSON-compatible values."""
    return _Schema().record(root) if not root.wraps else _Schema().slot(root.slots[0])


def schema_text(root: Record) -> str:
    """Return the schema as an ``.avsc`` file."""
    return json.dumps(avro_schema(root), indent=2) + "\n"


def codec(root: Record) -> tuple[Callable[[JSONDocument], bytes], Callable[[bytes], JSONDocument]]:
    """Return an encoder and a decoder for documents of a schema.

    Raises:
        Missing: fastavro is not installed.
    """
    fastavro = needed("fastavro", "fastavro")
    schema = fastavro.parse_schema(avro_schema(root))
    write, read = fastavro.schemaless_writer, fastavro.schemaless_reader
    convert = _slot(root.slots[0]) if root.wraps else _record(root)
    pack, unpack = convert

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
        self._absent_known = False

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
            union.append("Absent" if self._absent_known else {"type": "fixed", "name": "Absent", "size": 0})
            self._absent_known = True
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


def _record(record: Record) -> tuple[_Convert, _Convert]:
    """Return functions that convert an object to and from the library's form; None where no conversion is needed."""
    inner = {slot.key: _slot(slot) for slot in record.slots}
    marked = {slot.name: _ABSENT for slot in record.slots if slot.null and slot.absent}
    renamed = any(slot.key != slot.name for slot in record.slots)

    pack: _Convert = None
    if marked or renamed or any(packed for packed, _ in inner.values()):
        plan = {slot.key: (slot.name, inner[slot.key][0]) for slot in record.slots}

        def pack_members(document: dict[str, Any]) -> dict[str, Any]:
            members: dict[str, Any] = dict(marked)
            for key, value in document.items():
                name, convert = plan[key]
                members[name] = value if convert is None else convert(value)
            return members

        pack = pack_members

    unpack: _Convert = None
    if renamed or any(slot.absent for slot in record.slots) or any(unpacked for _, unpacked in inner.values()):
        back = [(slot.key, slot.name, inner[slot.key][1], _missing(slot)) for slot in record.slots]

        def unpack_members(members: dict[str, Any]) -> dict[str, Any]:
            document = {}
            for key, name, convert, missing in back:
                value = members[name]
                if value != missing:
                    document[key] = value if convert is None else convert(value)
            return document

        unpack = unpack_members
    return pack, unpack


_NEVER: Final = object()


def _missing(slot: Slot) -> object:
    return _NEVER if not slot.absent else _ABSENT if slot.null else None


def _slot(slot: Slot) -> tuple[_Convert, _Convert]:
    """Return converters for a slot, which dispatch on the type of the value."""
    both = {_PYTHON[type(one)]: _value(one) for one in slot.types if not isinstance(one, Scalar)}
    return _by_type({kind: pack for kind, (pack, _) in both.items() if pack}), _by_type(
        {kind: unpack for kind, (_, unpack) in both.items() if unpack}
    )


_PYTHON: Final[dict[type, type]] = {Record: dict, Map: dict, List: list}


def _by_type(converts: dict[type, Callable[[Any], Any]]) -> _Convert:
    if not converts:
        return None
    get = converts.get

    def convert(value: Any) -> Any:
        conversion = get(type(value))
        return value if conversion is None else conversion(value)

    return convert


def _value(one: Record | List | Map) -> tuple[_Convert, _Convert]:
    if isinstance(one, Record):
        return _record(one)
    packed, unpacked = _slot(one.item if isinstance(one, List) else one.value)
    return _each(packed, one), _each(unpacked, one)


def _each(convert: _Convert, one: List | Map) -> _Convert:
    if convert is None:
        return None
    if isinstance(one, List):
        return lambda values: [convert(value) for value in values]
    return lambda members: {key: convert(value) for key, value in members.items()}
