"""Serializers and compressors that compete, and what becomes of one whose library is missing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from schemaless.bench.contenders import (
    COMPRESSOR_NAMES,
    SERIALIZER_NAMES,
    Absentee,
    Compressor,
    Serializer,
    compressors,
    serializers,
)
from schemaless.bench.record_schema import schema_of
from schemaless.bench.shapes import shape_of
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.codec.registry import codec_named, codec_names
from tests.cases import each
from tests.skips import NATIVE_NOT_USED

DOCUMENT = {"id": 2**40, "name": "Zoë", "fare": {"total": 12.5, "tip": -0.0}, "legs": [{"n": 1}, {"n": 2}], "x": None}
SCHEMA = schema_of(shape_of([DOCUMENT]))
ALL_SERIALIZERS = [*SERIALIZER_NAMES, "store json", "store msgpack", "store packed"]
NATIVE = pytest.param("store packed", marks=pytest.mark.skipif(not ENGINE.packed.native, reason=NATIVE_NOT_USED))


def test_all_contenders_are_present():
    """Every serializer and compressor of the articles competes, and every codec of the store."""
    found = list(serializers(SCHEMA))
    behind = list(compressors())

    assert [each.name for each in found] == ALL_SERIALIZERS
    absent = [] if ENGINE.packed.native else ["store packed"]
    assert [each.name for each in [*found, *behind] if isinstance(each, Absentee)] == absent
    assert [each.name for each in behind if not each.store] == list(COMPRESSOR_NAMES)
    ours = {
        f"{one.name.removeprefix('store ')}+{other.name}"
        for one in found
        if one.name.startswith("store ")
        for other in behind
        if other.store
    }
    assert ours == set(codec_names()) - {"legacy"}


@pytest.mark.parametrize("name", [*ALL_SERIALIZERS[:-1], NATIVE])
def test_a_serializer_gives_the_document_back(name):
    """Value by value, in order: Python's own types, and not subclasses of them."""
    (serializer,) = [each for each in serializers(SCHEMA) if each.name == name]
    assert isinstance(serializer, Serializer)

    decoded = serializer.decode(serializer.encode(DOCUMENT))
    assert json.dumps(decoded) == json.dumps(DOCUMENT)
    assert type(decoded["id"]) is int


@each("name", COMPRESSOR_NAMES)
@each("payload", [b"", b"x", b"abc" * 10_000])
def test_a_compressor_gives_the_payload_back(name, payload):
    """As bytes, whatever it holds."""
    (compressor,) = [each for each in compressors() if each.name == name and not each.store]
    assert isinstance(compressor, Compressor)

    stored = compressor.compress(payload)
    assert type(stored) is bytes
    assert compressor.inflate(stored) == payload


@pytest.mark.long
@each("name", [name for name in codec_names() if name != "legacy"])
@each("document", [DOCUMENT, {"a": 2**70}, {"text": "x" * 1000}])
def test_store_contenders_write_the_same_bytes_as_the_store(name, document):
    """Both halves together are ``encode_body``, byte for byte, fallbacks included."""
    first, second = name.split("+")
    if first == "packed" and not ENGINE.packed.native:
        pytest.skip(NATIVE_NOT_USED)
    (serializer,) = [each for each in serializers(SCHEMA) if each.name == f"store {first}"]
    (compressor,) = [each for each in compressors() if each.name == second and each.store]
    assert isinstance(serializer, Serializer)
    assert isinstance(compressor, Compressor)

    body = compressor.compress(serializer.encode(document))
    assert body == encode_body(document, codec_named(name))
    assert serializer.decode(compressor.inflate(body)) == decode_body(body) == document


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("ujson", "ujson", "ujson"),
        ("bson", "bson", "pymongo"),
        ("thriftpy2.protocol.cybin", "thrift", "thriftpy2"),
        ("google.protobuf.descriptor_pb2", "protobuf", "protobuf"),
        ("fastavro", "avro", "fastavro"),
        ("flatbuffers.builder", "flatbuffers", "flatbuffers"),
        ("cramjam", "snappy", "cramjam"),
        ("lz4.block", "lz4", "lz4"),
    ],
)
def test_a_contender_without_its_library_is_reported_with_the_package(monkeypatch, module, name, package):
    """None is left out in silence."""
    monkeypatch.setitem(sys.modules, module, None)

    others = [each for each in [*serializers(SCHEMA), *compressors()] if each.name != "store packed"]
    absent = [each for each in others if isinstance(each, Absentee)]
    assert [(each.name, each.install) for each in absent] == [(name, f"pip install {package}")]


def test_the_extra_is_imported_only_on_use():
    """The command line starts without the libraries that compete."""
    script = (
        "import sys, schemaless.cli.bench; "
        "print([n for n in ('cbor2', 'bson', 'thriftpy2', 'google.protobuf', 'fastavro', 'flatbuffers', 'cramjam', "
        "'lz4', 'ujson', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
