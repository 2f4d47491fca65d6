"""The contenders: serializers and compressors, each behind a small common interface.

Each contender uses the real library as its manual recommends. One whose library is missing is reported with the package
to install. Decoding ``marshal`` and ``pickle`` can execute code from the input, so they only decode what this process
has just encoded, and they are not codecs of the store.
"""

from __future__ import annotations

import bz2
import json
import marshal
import pickle
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

from schemaless.bench import avro, flatbuffers, protobuf, thrift
from schemaless.bench.record_schema import Record
from schemaless.cell import JSONDocument
from schemaless.codec import envelope
from schemaless.codec.dictionaries import NO_DICTIONARIES
from schemaless.codec.engine import ENGINE
from schemaless.codec.registry import COMPRESSORS, MSGPACK, NONE, SERIALIZERS, Codec
from schemaless.codec.serializers import NotHeld
from schemaless.codec.serializers import Serializer as StoreSerializer


@dataclass(frozen=True, slots=True)
class Serializer:
    """A serializer under test.

    Attributes:
        name: display name.
        encode: turns a document into a payload; raises the library's own errors.
        decode: turns a payload back into a document.
        store: whether this is one of the store's serializers, which are combined only with the store's compressors.
        schema: file name and text of the schema, or None.
    """

    name: str
    encode: Callable[[JSONDocument], Any]
    decode: Callable[[Any], JSONDocument]
    store: bool = False
    schema: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Compressor:
    """A compressor under test.

    Attributes:
        name: display name.
        level: description of the level, or None if there are no levels.
        compress: turns a payload into the bytes to store.
        inflate: turns stored bytes back into a payload.
        store: whether this is one of the store's compressors, with envelope and checksum.
    """

    name: str
    level: str | None
    compress: Callable[[Any], bytes]
    inflate: Callable[[bytes], Any]
    store: bool = False


@dataclass(frozen=True, slots=True)
class Absentee:
    """A contender whose library is missing.

    Attributes:
        package: the package to install.
        reason: why the contender is unavailable.
    """

    name: str
    package: str
    reason: str

    @property
    def install(self) -> str:
        """Command that installs the package."""
        return f"pip install {self.package}"


@dataclass(frozen=True, slots=True)
class Unfit:
    """A contender that cannot represent these documents.

    Attributes:
        name: display name.
        reason: why it cannot represent them.
    """

    name: str
    reason: str


def serializers(root: Record | None) -> Iterator[Serializer | Absentee | Unfit]:
    """Yield all serializers in the order of ``SERIALIZER_NAMES``, then the store's.

    Args:
        root: the schema for the serializers that need one, or None if the documents are nested too deeply for a schema.
    """
    for name, make in _SERIALIZERS.items():
        yield _made(name, make, root)
    for serializer in SERIALIZERS.values():
        if not ENGINE.serializers[serializer.id].native:
            yield Absentee(f"store {serializer.name}", "./rust", "its native extension is not installed")
        else:
            yield _store_serializer(serializer)


def compressors() -> Iterator[Compressor | Absentee]:
    """Yield all compressors in the order of ``COMPRESSOR_NAMES``, then the store's."""
    for name, make in _COMPRESSORS.items():
        yield _made(name, make)
    for compressor in COMPRESSORS.values():
        yield store_compressor(compressor.name, Codec(MSGPACK, compressor, compressor.level))


_PACKAGES: Final = {
    "cbor": "cbor2",
    "bson": "pymongo",
    "thrift": "thriftpy2",
    "avro": "fastavro",
    "snappy": "cramjam",
    "zstd": "zstandard",
}
"""The packages of contenders that have another name."""


def _made(name: str, make: Callable[..., Any], *arguments: object) -> Any:
    try:
        return make(*arguments)
    except ImportError as problem:
        return Absentee(name, _PACKAGES.get(name, name), str(problem))


def _json() -> Serializer:
    # Compact UTF-8, as the store writes legacy text and as other libraries do by default.
    write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    write_ascii = json.JSONEncoder(separators=(",", ":")).encode

    def encode(document: JSONDocument) -> bytes:
        try:
            return write(document).encode()
        except UnicodeEncodeError:  # a lone surrogate has a JSON escape but no UTF-8 encoding
            return write_ascii(document).encode()

    return Serializer("json", encode, json.loads)


def _ujson() -> Serializer:
    ujson = import_module("ujson")
    dumps = ujson.dumps
    return Serializer(
        "ujson",
        lambda document: dumps(document, ensure_ascii=False, escape_forward_slashes=False).encode(),
        ujson.loads,
    )


def _of_library(name: str, package: str, encode: str = "dumps", decode: str = "loads") -> Serializer:
    library = import_module(package)
    return Serializer(name, getattr(library, encode), getattr(library, decode))


def _bson() -> Serializer:
    bson = import_module("bson")
    options = import_module("bson.codec_options")

    class _Integers(options.TypeDecoder):  # type: ignore[misc, name-defined] # bson would return its own Int64 class
        bson_type = import_module("bson.int64").Int64

        def transform_bson(self, value: int) -> int:
            return int(value)

    plain = options.CodecOptions(type_registry=options.TypeRegistry([_Integers()]))
    encode, decode = bson.encode, bson.decode
    return Serializer("bson", encode, lambda payload: decode(payload, plain))


def _pickle() -> Serializer:
    protocol = pickle.HIGHEST_PROTOCOL
    # Safe: only loads what this process has just written.
    return Serializer("pickle", lambda document: pickle.dumps(document, protocol), pickle.loads)


def _with_schema(name: str, language: Any, ending: str, root: Record | None) -> Serializer | Unfit:
    if root is None:
        return Unfit(name, "too deeply nested for a schema")
    encode, decode = language.codec(root)
    return Serializer(name, encode, decode, schema=(f"documents.{ending}", language.schema_text(root)))


def _snappy() -> Compressor:
    snappy = import_module("cramjam").snappy
    compress, inflate = snappy.compress_raw, snappy.decompress_raw
    return Compressor("snappy", None, lambda payload: bytes(compress(payload)), lambda stored: bytes(inflate(stored)))


def _zstd() -> Compressor:
    zstandard = import_module("zstandard")
    compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    return Compressor("zstd", "level 3", compressor.compress, decompressor.decompress)


def _lz4() -> Compressor:
    block = import_module("lz4.block")
    return Compressor("lz4", None, block.compress, block.decompress)


_SERIALIZERS: Final[dict[str, Callable[[Record | None], Serializer | Unfit]]] = {
    "json": lambda _: _json(),
    "ujson": lambda _: _ujson(),
    "orjson": lambda _: _of_library("orjson", "orjson"),
    "cbor": lambda _: _of_library("cbor", "cbor2"),
    "bson": lambda _: _bson(),
    "msgpack": lambda _: _of_library("msgpack", "msgpack", "packb", "unpackb"),
    "marshal": lambda _: Serializer("marshal", marshal.dumps, marshal.loads),
    "pickle": lambda _: _pickle(),
    "thrift": partial(_with_schema, "thrift", thrift, "thrift"),
    "protobuf": partial(_with_schema, "protobuf", protobuf, "proto"),
    "avro": partial(_with_schema, "avro", avro, "avsc"),
    "flatbuffers": partial(_with_schema, "flatbuffers", flatbuffers, "fbs"),
}
_COMPRESSORS: Final[dict[str, Callable[[], Compressor]]] = {
    "none": lambda: Compressor("none", None, bytes, bytes),
    "snappy": _snappy,
    "zlib": lambda: Compressor("zlib", "level 6", lambda payload: zlib.compress(payload, 6), zlib.decompress),
    "bz2": lambda: Compressor("bz2", "level 9", lambda payload: bz2.compress(payload, 9), bz2.decompress),
    "zstd": _zstd,
    "lz4": _lz4,
}
SERIALIZER_NAMES: Final = tuple(_SERIALIZERS)
COMPRESSOR_NAMES: Final = tuple(_COMPRESSORS)


def _store_serializer(kind: type[StoreSerializer]) -> Serializer:
    """Return the serialization step of the store's ``encode_body``; a payload is a pair of serializer and bytes."""
    plain, serializer, json_text = Codec(kind, NONE), ENGINE.serializers[kind.id], ENGINE.json

    def encode_json(document: JSONDocument) -> tuple[StoreSerializer, bytes]:
        return json_text, json_text.dumps(document)

    def encode_binary(document: JSONDocument) -> tuple[StoreSerializer, bytes]:
        try:
            return serializer, envelope.payload_of(document, plain, ENGINE, checked=False)
        except NotHeld:
            return json_text, json_text.dumps(document)

    depth = envelope.DEFAULT_LIMITS.depth

    def decode(payload: tuple[StoreSerializer, bytes]) -> JSONDocument:
        written_by, encoded = payload
        return written_by.loads(encoded, depth)

    encode = encode_binary if plain.is_binary else encode_json
    return Serializer(f"store {kind.name}", encode, decode, store=True)


def store_compressor(name: str, codec: Codec) -> Compressor:
    """Return the sealing step of the store's ``encode_body``: compression, envelope and checksum.

    Args:
        name: display name.
        codec: supplies the compressor, level and dictionary; the serializer comes from the payload.
    """
    seal, unseal, limits = envelope.seal, envelope.unseal, envelope.DEFAULT_LIMITS
    dictionary = codec.dictionary
    known = NO_DICTIONARIES if dictionary is None else dictionary

    def compress(payload: tuple[StoreSerializer, bytes]) -> bytes:
        return seal(payload[0], payload[1], codec, ENGINE)

    def inflate(body: bytes) -> tuple[StoreSerializer, Any]:
        return unseal(body, limits, ENGINE, known)

    level = None if codec.level is None else f"level {codec.level}"
    if dictionary is not None:
        level = f"{level} with {len(dictionary.content):,} bytes"
    return Compressor(name, level, compress, inflate, store=True)
