"""Shapes and schemas of documents."""

from __future__ import annotations

import json
import re
import struct

import pytest
from thriftpy2.thrift import TDecodeException

from schemaless.bench import avro, flatbuffers, protobuf, thrift
from schemaless.bench.members import records
from schemaless.bench.record_schema import List, Map, Record, Scalar, kind_of, schema_of
from schemaless.bench.shapes import shape_of
from tests.cases import each

pytestmark = pytest.mark.once


def schema(*documents):
    return schema_of(shape_of(documents))


def slots(record):
    return {slot.key: slot for slot in record.slots}


def test_a_record_distinguishes_null_from_missing():
    """A field that is null and one that is not there are two things."""
    found = slots(schema({"a": 1, "b": None, "c": 1}, {"a": 2, "b": "x"}, {"a": 3, "b": "y", "c": None}))

    assert {key: (slot.null, slot.absent) for key, slot in found.items()} == {
        "a": (False, False),
        "b": (True, False),
        "c": (True, True),
    }
    assert found["a"].certain
    assert found["c"].null_mark == "c_null"


def test_several_types_in_one_place_form_a_union():
    """1 and 1.0 are two types, and neither becomes the other."""
    (slot,) = schema({"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": [1]}, {"a": {"b": True}}).slots

    assert [kind_of(one) for one in slot.types] == ["int", "float", "str", "list", "record"]
    assert [slot.name_of(one) for one in slot.types] == ["a_int", "a_float", "a_str", "a_list", "a_record"]


@pytest.mark.parametrize(
    ("keys", "free"),
    [
        (["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"], True),
        (["17", "18", "19", "20"], True),
        (["name", "street", "city", "zip"], False),
        (["17", "18", "19"], False),
    ],
)
def test_keys_that_are_data_form_a_map(keys, free):
    """Dates and numbers as keys are no field names, once there are some."""
    (slot,) = schema({"a": dict.fromkeys(keys, 1)}).slots

    assert isinstance(slot.types[0], Map if free else Record)


def test_objects_with_few_of_many_keys_are_maps_unless_their_values_differ_in_kind():
    """Free-form keys are recognised by how rarely each occurs; a union of many records has none."""
    words = [f"word{number}x" for number in range(40)]
    (alike,) = schema(*({"a": {word: 1}} for word in words)).slots
    (unlike,) = schema(*({"a": {word: number if number % 2 else "x"}} for number, word in enumerate(words))).slots

    assert isinstance(alike.types[0], Map)
    assert isinstance(unlike.types[0], Record)


def test_the_key_order_agrees_with_every_object_if_possible():
    """Optional fields stand where the objects that have them have them."""
    order = shape_of([{"a": 1, "c": 1, "d": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1}, {"d": 1, "e": 1}]).ordered_keys()

    assert order == ["a", "b", "c", "d", "e"]


def test_contradicting_orders_wrong_few_objects():
    """Where objects contradict each other, the many are followed."""
    order = shape_of([{"b": 1, "a": 1}, *[{"a": 1, "b": 1, "c": 1}] * 5]).ordered_keys()

    assert order == ["a", "b", "c"]


def test_integers_get_the_width_they_need():
    """32 bits where all fit, 64 where one does not."""
    found = slots(schema({"a": 2**31 - 1, "b": 2**31, "c": -(2**31), "d": -(2**31) - 1}))

    widths = {key: slot.types[0].bits for key, slot in found.items() if isinstance(slot.types[0], Scalar)}
    assert widths == {"a": 32, "b": 64, "c": 32, "d": 64}


def test_names_are_valid_and_unique_in_every_language():
    """Keys that are no names, that a language reserves or folds together become names that are their own."""
    keys = ["a-b", "a_b", "aB", "2x", "", "class", "required", "ä", "x", "x_null", "$", "_id", "string"]
    names = [slot.name for slot in schema(dict.fromkeys(keys, 1)).slots]

    assert len({name.replace("_", "").lower() for name in names}) == len(keys)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in names)
    assert not {"class", "required", "string"} & set(names)


def test_type_names_are_unique():
    """Two places with the same path in another spelling are two types."""
    root = schema({"a": {"b": {"x": 1}}, "A": {"B": {"y": 1}}, "aB": {"z": 1}})
    names = [record.name.lower() for record, _ in records(root, wrap_lists=False)]

    assert len(names) == len(set(names)) == 6


def test_documents_that_are_not_objects_are_wrapped():
    """Documents that are lists or numbers have a schema as well."""
    root = schema([1, 2], 3, None)

    assert root.wraps
    assert [type(one) for one in root.slots[0].types] == [Scalar, List]


CODECS = {"protobuf": protobuf.codec, "thrift": thrift.codec, "avro": avro.codec, "flatbuffers": flatbuffers.codec}
CASES = {
    "scalars": [{"a": 1, "b": -0.0, "c": "ä", "d": True}, {"a": -5, "b": 1.5, "c": "", "d": False}],
    "zeros": [{"a": 0, "b": 0.0, "c": "", "d": False, "e": []}],
    "wide integers": [{"a": 2**63 - 1}, {"a": -(2**63)}],
    "null, missing and zero": [{"a": None}, {}, {"a": 0}],
    "null or a value": [{"a": None}, {"a": ""}],
    "always null": [{"a": None, "b": 1}],
    "null or missing only": [{"a": None}, {}],
    "int or float": [{"a": 1}, {"a": 1.0}, {"a": [1, 1.0, 2]}],
    "union of everything": [{"a": v} for v in (1, 1.5, "x", True, None, [], [1], {}, {"b": 1})] + [{}],
    "empty and missing lists": [{"a": []}, {}, {"a": [1]}, {"a": None}],
    "lists of lists": [{"a": [[1.5, 2.0], [], [3.0]]}, {"a": []}],
    "lists with null": [{"a": [1, None, 2]}, {"a": [None]}],
    "lists of objects": [{"a": [{"x": 1}, {"x": 2, "y": "z"}, {}]}],
    "lists that were always empty": [{"a": []}],
    "maps": [{"m": {"1": 1, "3": 2, "2": 3, "10": 4}}, {"m": {}}, {"m": {"9": 5}}],
    "maps of objects or null": [{"m": {"10": {"a": 1}, "2": None, "30": {"a": 2}, "4": {}}}],
    "nested": [{"a": {"b": {"c": {"d": [{"e": {"f": 1}}]}}}}, {"a": {"b": {"c": {}}}}],
    "odd names": [{"": 1, "a-b": {"class": [1], "ä": None}, "a_b": 2, "2x": "y"}],
    "lists at the top": [[1, "x"], [], [{"a": 1}]],
    "scalars at the top": [1, "x", None, 2.5, True],
    "optional objects": [{"a": {"x": 1}}, {"a": None}, {}, {"a": {}}],
}


@each("language", CODECS)
@each("case", CASES)
def test_documents_come_back_exactly(language, case):
    """What a schema was written from can be carried by it, value by value, in order, 1 not as 1.0."""
    documents = CASES[case]
    encode, decode = CODECS[language](schema(*documents))

    for document in documents:
        assert json.dumps(decode(encode(document))) == json.dumps(document)


@pytest.mark.parametrize("case", CASES)
def test_the_written_proto_matches_the_descriptor_in_use(case, tmp_path):
    """Google's compiler makes of the text the very descriptor that the messages were made from."""
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc

    root = schema(*CASES[case])
    (tmp_path / "documents.proto").write_text(protobuf.schema_text(root), encoding="utf-8")
    out = tmp_path / "documents.bin"
    done = protoc.main(["protoc", f"-I{tmp_path}", f"--descriptor_set_out={out}", str(tmp_path / "documents.proto")])
    assert done == 0

    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    for message in compiled.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert compiled == protobuf.descriptor(root)


@pytest.mark.parametrize("language", CODECS)
def test_integers_beyond_64_bits_are_refused(language):
    """No language has them, and none takes a part of one."""
    encode, _ = CODECS[language](schema({"a": 2**70}))

    refusals = (ValueError, OverflowError, TypeError, struct.error, TDecodeException)
    with pytest.raises(refusals):
        encode({"a": 2**70})


def test_negative_integers_are_kept_short_by_protocol_buffers():
    """A plain int64 takes ten bytes for -1; a sint64 one."""
    root = schema({"a": -1, "b": 1})
    encode, _ = protobuf.codec(root)

    assert "sint32 a = 1;" in protobuf.schema_text(root)
    assert "int32 b = 2;" in protobuf.schema_text(root)
    assert len(encode({"a": -1, "b": 1})) == 4
