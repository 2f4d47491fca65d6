"""A schema for documents, in no language yet: records of named fields, each with its types, and what unset means.

Written from the shape that the documents had, as somebody would write it by hand who knows them all. ``protobuf``,
``thrift``, ``avro`` and ``flatbuffers`` each write it down in their language and use that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from schemaless.bench.shapes import Shape

# What a name may not be in one of the languages, or as an attribute of an object that Python's libraries make of them.
_RESERVED: Final = frozenset(
    re.findall(
        r"\w+",
        """
        abstract alias and any args array as assert async await begin binary bool boolean break byte bytes case
        catch class clone const continue cpp_include declare def default default_spec del delete descriptor do
        double dynamic elif else elseif elsif end ensure enum error except exception exec extend extends extensions
        false finally fixed fixed32 fixed64 float for foreach from function global goto group i16 i32 i64 i8 if
        implements import in include inline instanceof int int32 int64 interface is lambda list long map max message
        module namespace native new next nil none not null oneof option optional or package pass print private
        protected public raise read record redo repeated required rescue reserved retry return returns root_type rpc
        self senum service set sfixed32 sfixed64 short signed sint32 sint64 sizeof slist static string struct super
        switch synchronized syntax table then this thrift_spec throw throws to transient true try typedef ubyte uint
        uint32 uint64 ulong undef union unless unsigned until use ushort var virtual void volatile weak when while
        with write xor yield
        """,
    )
)
MAX_DEPTH: Final = 64
"""Documents with more levels get no schema: the libraries take about 100, their wrappers included."""

_ENDINGS: Final = ("", "bool", "int", "float", "str", "list", "map", "record", "null", "kind")
_WORDS: Final = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value.

    Attributes:
        kind: ``bool``, ``int``, ``float`` or ``str``.
        lowest: the least integer that was met.
        highest: the greatest.
    """

    kind: str
    lowest: int = 0
    highest: int = 0

    @property
    def bits(self) -> int:
        """How wide a signed integer has to be: 32 or 64."""
        return 32 if self.lowest >= -(2**31) and self.highest < 2**31 else 64


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known keys, in their order.

    Attributes:
        name: of the type, such as ``LegOrigin``; no other has it.
        slots: its fields.
        wraps: it is no object of the document: a wrapper around the one value in its one slot.
    """

    name: str
    slots: list[Slot] = field(default_factory=list)
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class List:
    """A list, and what one item of it may be.

    Attributes:
        item: never absent.
        may_be_empty: whether an empty one was met.
    """

    item: Slot
    may_be_empty: bool


@dataclass(frozen=True, slots=True)
class Map:
    """An object with free-form keys.

    Attributes:
        value: never absent.
        entry: the record for one key and its value, for languages whose own maps keep no order.
        may_be_empty: whether an empty one was met.
    """

    value: Slot
    entry: Record
    may_be_empty: bool


Type = Scalar | Record | List | Map


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that a value may stand in: a record's field, a list's item, a map's value.

    Attributes:
        key: in the document.
        name: in the schema; for what several types need, ``name_of`` makes the others.
        types: what it may hold but null, one for each kind; several make it a union, none is a place for null only.
        null: whether it may be null.
        absent: whether the key may be missing.
        path: the name that types in it begin with.
    """

    key: str
    name: str
    types: tuple[Type, ...]
    null: bool
    absent: bool
    path: str

    def name_of(self, one: Type) -> str:
        """Return the name of the field for one of the types, where a language has no unions of all of them."""
        return self.name if len(self.types) == 1 else f"{self.name}_{kind_of(one)}"

    @property
    def null_mark(self) -> str | None:
        """The name of a flag that tells null from a missing key, where both were met."""
        return f"{self.name}_null" if self.null and self.absent else None

    @property
    def certain(self) -> bool:
        """Whether there is always a value of one type."""
        return len(self.types) == 1 and not self.null and not self.absent


def kind_of(one: Type) -> str:
    """Return a word for a type: ``bool``, ``int``, ``float``, ``str``, ``list``, ``map`` or ``record``."""
    return one.kind if isinstance(one, Scalar) else type(one).__name__.lower()


def schema_of(shape: Shape) -> Record:
    """Return the root of a schema: the record of the documents, or one that wraps what else they are."""
    names = _Names()
    slot = _slot(shape, "value", "value", "Document", names, absent=False)
    if len(slot.types) == 1 and isinstance(slot.types[0], Record) and not slot.null:
        return slot.types[0]
    return Record(names.new("Root"), [slot], wraps=True)


def element(slot: Slot) -> Scalar | Record:
    """Return what an item is in a language that repeats single values only: itself, or a record that wraps it."""
    if slot.certain and isinstance(slot.types[0], Scalar | Record):
        return slot.types[0]
    return Record(f"{slot.path}Item", [slot], wraps=True)


class _Names:
    """Gives out names of types, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, wanted: str) -> str:
        name, number = wanted, 1
        while name.lower() in self._taken:
            number += 1
            name = f"{wanted}{number}"
        # What the languages make of it has to be free as well.
        self._taken.update(f"{name}{suffix}".lower() for suffix in ("", "Item", "List", "Entry"))
        return name


def _slot(shape: Shape, key: str, name: str, path: str, names: _Names, *, absent: bool) -> Slot:
    kinds = shape.kinds
    path = names.new(path)
    types: list[Type] = []
    if kinds["bool"]:
        types.append(Scalar("bool"))
    if kinds["int"]:
        types.append(Scalar("int", shape.lowest, shape.highest))
    types.extend(Scalar(kind) for kind in ("float", "str") if kinds[kind])
    if kinds["list"]:
        # Lists that were always empty could hold anything.
        items = shape.items or _strings()
        types.append(List(_slot(items, "value", "value", f"{path}Value", names, absent=False), shape.empty_lists > 0))
    if kinds["object"]:
        if shape.is_map():
            value = _slot(shape.map_values(), "value", "value", f"{path}Value", names, absent=False)
            key_slot = Slot("key", "key", (Scalar("str"),), null=False, absent=False, path=f"{path}Key")
            types.append(Map(value, Record(f"{path}Entry", [key_slot, value]), may_be_empty=True))
        else:
            types.append(_record(shape, path, names))
    return Slot(key, name, tuple(types), null=kinds["null"] > 0, absent=absent, path=path)


def _record(shape: Shape, path: str, names: _Names) -> Record:
    keys = shape.ordered_keys()
    record = Record(path)
    for key, name in zip(keys, _field_names(keys), strict=True):
        member = shape.fields[key]
        inner = "".join(word[:1].upper() + word[1:] for word in _WORDS.findall(name)) or "Field"
        inner_path = inner if path == "Document" else f"{path}{inner}"
        absent = member.total < shape.kinds["object"]
        record.slots.append(_slot(member, key, name, inner_path, names, absent=absent))
    return record


def _strings() -> Shape:
    shape = Shape()
    shape.add("")
    return shape


def _field_names(keys: Iterable[str]) -> list[str]:
    """Return a name for each key that every language takes, and that no other has, however they spell it."""
    taken: set[str] = set()
    names = []
    for key in keys:
        wanted = "_".join(_WORDS.findall(key)) or "field"
        if key.isidentifier() and key.isascii() and not key.startswith("_") and not key.endswith("_"):
            wanted = key
        if wanted[0].isdigit():
            wanted = f"n{wanted}"
        if wanted.lower() in _RESERVED:
            wanted += "_value"
        name, number = wanted, 1
        # A union's fields and its flag are called after it: these names have to be free, too.
        while not taken.isdisjoint(derived := [name.replace("_", "").lower() + end for end in _ENDINGS]):
            number += 1
            name = f"{wanted}_{number}"
        taken.update(derived)
        names.append(name)
    return names
