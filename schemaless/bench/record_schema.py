"""Language-neutral schema of documents: records of named fields with their types and presence.

The schema is derived from the shape of all documents, like one written by hand with full knowledge of them.
``protobuf``, ``thrift``, ``avro`` and ``flatbuffers`` translate it into their languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from schemaless.bench.shapes import Shape

# Reserved words of the languages, and attribute names that their Python libraries use on generated objects.
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
"""Maximum depth of documents that get a schema; the libraries support about 100 levels, wrappers included."""

_ENDINGS: Final = ("", "bool", "int", "float", "str", "list", "map", "record", "null", "kind")
_WORDS: Final = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar type.

    Attributes:
        kind: ``bool``, ``int``, ``float`` or ``str``.
        lowest: lowest integer in this place in the documents, or 0 if none is negative.
        highest: highest integer in this place in the documents, or 0 if none is positive.
    """

    kind: str
    lowest: int = 0
    highest: int = 0

    @property
    def bits(self) -> int:
        """Width of the signed integer type: 32 or 64."""
        return 32 if self.lowest >= -(2**31) and self.highest < 2**31 else 64


@dataclass(frozen=True, slots=True)
class Record:
    """An object with known keys, in their order.

    Attributes:
        name: unique name of the type, such as ``LegOrigin``.
        slots: the fields.
        wraps: whether the record is not an object of the document but a wrapper around the value of its only slot.
    """

    name: str
    slots: list[Slot] = field(default_factory=list)
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class List:
    """A list type.

    Attributes:
        item: slot of an item; never absent.
        may_be_empty: whether the documents contain an empty list here.
    """

    item: Slot
    may_be_empty: bool


@dataclass(frozen=True, slots=True)
class Map:
    """An object with free-form keys.

    Attributes:
        value: slot of a value; never absent.
        entry: record of a key and its value, for languages whose maps are unordered.
        may_be_empty: whether the map may be empty.
    """

    value: Slot
    entry: Record
    may_be_empty: bool


Type = Scalar | Record | List | Map


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a value: a record's field, a list's item, or a map's value.

    Attributes:
        key: key in the document.
        name: name in the schema; ``name_of`` derives the names of a union's fields.
        types: types other than null, at most one of each kind. Several form a union; none means always null.
        null: whether the value may be null.
        absent: whether the key may be missing.
        path: prefix of the names of nested types.
    """

    key: str
    name: str
    types: tuple[Type, ...]
    null: bool
    absent: bool
    path: str

    def name_of(self, one: Type) -> str:
        """Return the field name for one of the types, for languages that need a field per type of a union."""
        return self.name if len(self.types) == 1 else f"{self.name}_{kind_of(one)}"

    @property
    def null_mark(self) -> str | None:
        """Name of the flag that distinguishes null from a missing key, or None if it is not needed."""
        return f"{self.name}_null" if self.null and self.absent else None

    @property
    def certain(self) -> bool:
        """Whether the slot always holds a value of one type."""
        return len(self.types) == 1 and not self.null and not self.absent


def kind_of(one: Type) -> str:
    """Return the kind of a type: ``bool``, ``int``, ``float``, ``str``, ``list``, ``map`` or ``record``."""
    return one.kind if isinstance(one, Scalar) else type(one).__name__.lower()


def schema_of(shape: Shape) -> Record:
    """Return the root record: that of the documents, or a wrapper if they are not all objects."""
    names = _Names()
    slot = _slot(shape, "value", "value", "Document", names, absent=False)
    if len(slot.types) == 1 and isinstance(slot.types[0], Record) and not slot.null:
        return slot.types[0]
    return Record(names.new("Root"), [slot], wraps=True)


def element(slot: Slot) -> Scalar | Record:
    """Return the type of a list's items, wrapped if necessary for languages that only have lists of simple types."""
    if slot.certain and isinstance(slot.types[0], Scalar | Record):
        return slot.types[0]
    return Record(f"{slot.path}Item", [slot], wraps=True)


class _Names:
    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, wanted: str) -> str:
        name, number = wanted, 1
        while name.lower() in self._taken:
            number += 1
            name = f"{wanted}{number}"
        # Names that the languages derive from it must be unique as well.
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
        # All lists were empty, so any item type will do.
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
    """Return, for each key, a field name that is valid in every language and unique after case conversion."""
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
        # The names of a union's fields and of its flag derive from this one and must be unique as well.
        while not taken.isdisjoint(derived := [name.replace("_", "").lower() + end for end in _ENDINGS]):
            number += 1
            name = f"{wanted}_{number}"
        taken.update(derived)
        names.append(name)
    return names
