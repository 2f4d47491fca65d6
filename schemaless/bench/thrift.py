"""Thrift contender: a ``.thrift`` schema, and thriftpy2's binary protocol, accelerated with Cython.

The library parses the same schema text that is written next to the results.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from typing import Final

from schemaless.bench.members import Packer, Unpacker
from schemaless.bench.record_schema import List, Map, Record, Scalar, Slot, element
from schemaless.cell import JSONDocument

_numbers: Final = count(1)
"""Numbers that make module names unique, because the library caches parsed schemas by name."""


def schema_text(root: Record) -> str:
    """Return the schema as a ``.thrift`` file."""
    lines = ["namespace py documents", ""]
    for record in _records(root, set()):
        lines.append(f"struct {record.name} {{")
        number = 0
        for slot in record.slots:
            remark = "" if slot.key in (slot.name, "value") else f"  // {json.dumps(slot.key)}"
            for one in slot.types:
                number += 1
                need = "required" if slot.certain else "optional"
                lines.append(f"  {number}: {need} {_type(one)} {slot.name_of(one)}{remark}")
            if slot.null_mark:
                number += 1
                lines.append(f"  {number}: optional bool {slot.null_mark}{remark}")
        lines.extend(("}", ""))
    return "\n".join(lines)


def codec(root: Record) -> tuple[Callable[[JSONDocument], bytes], Callable[[bytes], JSONDocument]]:
    """Return an encoder and a decoder for documents of a schema.

    Raises:
        ImportError: the library is not installed.
    """
    parser = import_module("thriftpy2.parser")
    protocols = import_module("thriftpy2.protocol.cybin")
    transports = import_module("thriftpy2.transport.memory")
    types = parser.load_fp(io.StringIO(schema_text(root)), f"documents_{next(_numbers)}_thrift")
    root_type = getattr(types, root.name)
    pack = Packer(lambda record: getattr(types, record.name), native=True, wrap_lists=False).record(root)
    assert pack is not None
    unpack = Unpacker(lambda record: vars, native=True, wrap_lists=False, copy_lists=False).record(root)
    buffer, protocol = transports.TCyMemoryBuffer, protocols.TCyBinaryProtocol

    def encode(document: JSONDocument) -> bytes:
        transport = buffer()
        pack(document).write(protocol(transport))
        encoded: bytes = transport.getvalue()
        return encoded

    def decode(payload: bytes) -> JSONDocument:
        made = root_type()
        made.read(protocol(buffer(payload)))
        return unpack(made)

    return encode, decode


def _records(record: Record, emitted: set[str]) -> Iterator[Record]:
    """Yield the structs in dependency order."""
    if record.name in emitted:
        return
    emitted.add(record.name)
    for slot in record.slots:
        for one in slot.types:
            yield from _nested(one, emitted)
    yield record


def _nested(one: Scalar | Record | List | Map, emitted: set[str]) -> Iterator[Record]:
    if isinstance(one, Record):
        yield from _records(one, emitted)
    elif isinstance(one, List | Map):
        yield from _nested(_item(one.item if isinstance(one, List) else one.value), emitted)


def _item(slot: Slot) -> Scalar | Record | List | Map:
    return slot.types[0] if slot.certain else element(slot)


def _type(one: Scalar | Record | List | Map) -> str:
    if isinstance(one, Record):
        return one.name
    if isinstance(one, List):
        return f"list<{_type(_item(one.item))}>"
    if isinstance(one, Map):
        return f"map<string,{_type(_item(one.value))}>"
    return {"bool": "bool", "int": f"i{one.bits}", "float": "double", "str": "string"}[one.kind]
