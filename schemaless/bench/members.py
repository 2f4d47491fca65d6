"""Converts documents to the named members of schema records and back.

No schema language can represent every JSON value directly. Where a language has no unions, a union needs a field per
type, a flag distinguishes null from a missing key, and an item that a repeated field cannot hold is wrapped in a
record. Where it has them, the bytes ``NULL`` represent null if the key can be missing too.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemaless.bench.record_schema import List, Map, Record, Scalar, Slot, element, kind_of

Convert = Callable[[Any], Any] | None
"""Conversion of a value; None if no conversion is needed."""

NULL: Final = b""

_TYPES: Final[dict[str, type]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "map": dict,
    "record": dict,
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record.

    Attributes:
        name: name of the field.
        key: key in the document, for a comment.
        type: type of one value.
        repeated: whether the field holds several values.
        certain: whether the field is always set.
        union: name of the union that the field belongs to, or None.
    """

    name: str
    key: str
    type: Scalar | Record
    repeated: bool
    certain: bool
    union: str | None


def fields_of(record: Record, *, wrap_lists: bool) -> list[Field]:
    """Return a record's fields for a language whose lists can contain only scalars and records.

    Args:
        wrap_lists: whether to wrap lists that belong to a union, and lists that may be either empty or unset, because
            the language cannot tell the two apart.
    """
    fields = []
    for slot in record.slots:
        union = f"{slot.name}_kind" if len(slot.types) > 1 else None
        for one in slot.types:
            name = slot.name_of(one)
            if isinstance(one, Scalar | Record):
                fields.append(Field(name, slot.key, one, repeated=False, certain=slot.certain, union=union))
            elif wrap_lists and needs_wrapper(slot, one):
                fields.append(Field(name, slot.key, wrapper(slot, one), repeated=False, certain=False, union=union))
            else:
                of = one.entry if isinstance(one, Map) else element(one.item)
                fields.append(Field(name, slot.key, of, repeated=True, certain=slot.certain, union=union))
        if slot.null_mark:
            fields.append(Field(slot.null_mark, slot.key, Scalar("bool"), repeated=False, certain=False, union=None))
    return fields


def records(root: Record, *, wrap_lists: bool) -> Iterator[tuple[Record, list[Field]]]:
    """Yield every record reachable through ``fields_of`` with its fields, in dependency order."""
    emitted: set[str] = set()

    def visit(record: Record) -> Iterator[tuple[Record, list[Field]]]:
        if record.name in emitted:
            return
        emitted.add(record.name)
        fields = fields_of(record, wrap_lists=wrap_lists)
        for field in fields:
            if isinstance(field.type, Record):
                yield from visit(field.type)
        yield record, fields

    return visit(root)


def comment(field: Field) -> str:
    """Return a comment with the key, as JSON, for a field whose name differs from its key."""
    return "" if field.key in (field.name, "value") else f"  // {json.dumps(field.key)}"


def needs_wrapper(slot: Slot, one: List | Map) -> bool:
    """Return whether an unset list must be distinguished from an empty one."""
    return len(slot.types) > 1 or (not slot.certain and one.may_be_empty)


def wrapper(slot: Slot, one: List | Map) -> Record:
    """Return a record that wraps a list or a map."""
    inner = Slot("value", "value", (one,), null=False, absent=False, path=slot.path)
    return Record(f"{slot.path}List", [inner], wraps=True)


def unchanged(record: Record) -> Callable[[Any], dict[str, Any]]:
    """Return a function that returns members as they are."""
    return lambda members: members


class _Maker(ABC):
    """Base of the converters between documents and members.

    Args:
        native: whether the language supports nested lists and maps without wrapper records.
        wrap_lists: as in ``fields_of``.
        unions: whether a value may have one of several types.
    """

    _null: tuple[type, object]
    """The type that represents null before the conversion where a key can be missing, and the value after it."""

    def __init__(self, *, native: bool, wrap_lists: bool, unions: bool = False) -> None:
        self._native = native
        self._wrap_lists = wrap_lists
        self._unions = unions

    @abstractmethod
    def record(self, record: Record) -> Convert:
        """Return the conversion to or from a record."""

    @abstractmethod
    def _wrapped(self, slot: Slot, one: List | Map, many: Convert) -> Convert:
        """Return the conversion of a list that is wrapped in a record."""

    def union(self, slot: Slot) -> Convert:
        """Return the conversion of a value that may have any of the slot's types."""
        converts = {_TYPES[kind_of(one)]: convert for one in slot.types if (convert := self._value(slot, one))}
        if slot.null_mark:
            converts[self._null[0]] = lambda value: self._null[1]
        get = converts.get

        def convert_one(value: Any) -> Any:
            convert = get(type(value))
            return value if convert is None else convert(value)

        return convert_one if converts else None

    def _list(self, one: List) -> Convert:
        item = self._item(one.item)
        return None if item is None else lambda values: [item(value) for value in values]

    def _map(self, one: Map) -> Convert:
        value = self._item(one.value)
        return None if value is None else lambda members: {key: value(member) for key, member in members.items()}

    def _value(self, slot: Slot, one: Scalar | Record | List | Map) -> Convert:
        if isinstance(one, Scalar):
            return None
        if isinstance(one, Record):
            return self.record(one)
        many = self._list(one) if isinstance(one, List) else self._map(one)
        return self._wrapped(slot, one, many) if self._wrap_lists and needs_wrapper(slot, one) else many

    def _item(self, item: Slot) -> Convert:
        if self._unions:
            return self.union(item)
        if self._native and item.certain:
            return self._value(item, item.types[0])
        one = element(item)
        return None if isinstance(one, Scalar) else self.record(one)


class Packer(_Maker):
    """Converts documents to the members of records.

    Args:
        make: returns a function that creates a record from its members, given by name; if None, the members remain a
            dict.
    """

    _null = (type(None), NULL)

    def __init__(self, make: Callable[[Record], Callable[..., Any]] | None, **language: bool) -> None:
        super().__init__(**language)
        self._make = make

    def record(self, record: Record) -> Convert:
        """Return the conversion from an object, or from the value that the record wraps, to the record."""
        made = None if self._make is None else self._make(record)
        if record.wraps:
            by_type = self._by_type(record.slots[0])

            def wrap(value: Any) -> Any:
                name, convert = by_type[type(value)]
                members = {} if name is None else {name: value if convert is None else convert(value)}
                return members if made is None else made(**members)

            return wrap
        table = {slot.key: self._by_type(slot) for slot in record.slots}
        if made is None and all(
            slot.types and convert is None and (name is None or name == slot.key)
            for slot in record.slots
            for name, convert in table[slot.key].values()
        ):
            return None

        def pack(document: dict[str, Any]) -> Any:
            members = {}
            for key, value in document.items():
                name, convert = table[key][type(value)]
                if name is not None:
                    members[name] = value if convert is None else convert(value)
            return members if made is None else made(**members)

        return pack

    def _by_type(self, slot: Slot) -> dict[type, tuple[str | None, Convert]]:
        converters: dict[type, tuple[str | None, Convert]] = {
            _TYPES[kind_of(one)]: (slot.name if self._unions else slot.name_of(one), self._value(slot, one))
            for one in slot.types
        }
        if slot.null_mark and self._unions:
            converters[type(None)] = (slot.name, lambda value: NULL)
        elif slot.null:
            converters[type(None)] = (slot.null_mark, _true if slot.null_mark else None)
        return converters

    def _wrapped(self, slot: Slot, one: List | Map, many: Convert) -> Convert:
        return lambda value: {"value": value if many is None else many(value)}

    def _map(self, one: Map) -> Convert:
        if self._native:
            return super()._map(one)
        entry = self.record(one.entry)
        if entry is None:
            return lambda members: [{"key": key, "value": value} for key, value in members.items()]
        return lambda members: [entry({"key": key, "value": value}) for key, value in members.items()]


class Unpacker(_Maker):
    """Converts the members of records to documents.

    Args:
        members: returns, for a record type, a function that extracts the members as a new dict in field order; unset
            members are None or missing.
        copy_lists: whether the library returns lists as another type, so that they must be copied.
    """

    _null = (bytes, None)

    def __init__(
        self,
        members: Callable[[Record], Callable[[Any], dict[str, Any]]],
        *,
        copy_lists: bool,
        **language: bool,
    ) -> None:
        super().__init__(**language)
        self._members = members
        self._copy_lists = copy_lists

    def record(self, record: Record) -> Callable[[Any], Any]:
        """Return the conversion from a record to an object, or to the value that the record wraps."""
        members_of = self._members(record)
        fields = [
            [(slot.name, self.union(slot))]
            if self._unions
            else [(slot.name_of(one), self._value(slot, one)) for one in slot.types]
            for slot in record.slots
        ]
        if record.wraps:
            return _unwrapper(members_of, fields[0])
        if all(
            (slot.certain or (self._unions and not slot.absent))
            and slot.name == slot.key
            and all(convert is None for _, convert in of_slot[:1])
            for slot, of_slot in zip(record.slots, fields, strict=True)
        ):
            return members_of  # the members already are the object, in key order
        plan = []
        for slot, of_slot in zip(record.slots, fields, strict=True):
            first = of_slot[0] if of_slot else ("", None)
            plan.append((slot.key, *first, of_slot[1:], None if self._unions else slot.null_mark, slot.absent))

        def unpack(made: Any) -> Any:
            members = members_of(made)
            document = {}
            for key, name, convert, more, null_mark, absent in plan:
                value = members.get(name)
                made_by = convert
                for other, other_convert in more:
                    if value is not None:
                        break
                    value, made_by = members.get(other), other_convert
                if value is not None:
                    document[key] = value if made_by is None else made_by(value)
                elif not absent or (null_mark and members.get(null_mark)):
                    document[key] = None
            return document

        return unpack

    def _wrapped(self, slot: Slot, one: List | Map, many: Convert) -> Convert:
        members_of = self._members(wrapper(slot, one))
        if many is None:
            return lambda made: members_of(made)["value"]
        return lambda made: many(members_of(made)["value"])

    def _list(self, one: List) -> Convert:
        made = super()._list(one)
        return list if made is None and self._copy_lists else made

    def _map(self, one: Map) -> Convert:
        if self._native:
            return super()._map(one)
        entry = self.record(one.entry)
        return lambda entries: {member["key"]: member["value"] for member in map(entry, entries)}


def _unwrapper(
    members_of: Callable[[Any], dict[str, Any]], choices: Sequence[tuple[str, Convert]]
) -> Callable[[Any], Any]:
    """Return the conversion from a record that wraps a value, under one of several names, to the value."""

    def unwrap(made: Any) -> Any:
        members = members_of(made)
        for name, convert in choices:
            value = members.get(name)
            if value is not None:
                return value if convert is None else convert(value)
        return None

    return unwrap


def _true(value: object) -> bool:
    return True
