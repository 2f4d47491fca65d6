"""Codecs tried on bodies: lengths are those that a writer and a migration give, and nothing is ranked that differs."""

from __future__ import annotations

import json

from schemaless.cell import JSONDocument
from schemaless.codec.documents import MAX_DEPTH
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import encode_body
from schemaless.codec.messagepack import MessagePack
from schemaless.codec.recode import recode
from schemaless.codec.registry import COMPRESSORS, Codec, codec_named, codec_names
from schemaless.codec.serializers import Payload
from schemaless.codec.trial import try_codec, worth_trying
from schemaless.codec.values import MAX_VALUES
from tests.cases import each

DOCUMENTS = [
    {"legs": [{"from": "EWR", "to": "IAH", "miles": 1400 + number}] * 9, "fare": number / 8} for number in range(20)
]
TEXTS = [json.dumps(document).encode() for document in DOCUMENTS]
TWICE = b'{"seats": 1, "seats": 2, "text": "' + b"long enough to be compressed " * 9 + b'"}'


@each("name", codec_names())
@each("stored", ["legacy", "json+zlib", "msgpack+zlib", "msgpack+none"])
def test_lengths_are_those_of_a_migration(name: str, stored: str) -> None:
    """Each length is that of the body which a migration writes."""
    bodies = [recode(text, codec_named(stored)).body for text in [*TEXTS, TWICE, b"12"]]
    found = try_codec(bodies, codec_named(name))
    assert found.migrated_bytes == [len(recode(body, codec_named(name)).body) for body in bodies]
    if name != stored:
        assert found.new_bytes == found.migrated_bytes
    assert found.encoded == len(bodies)
    assert found.encode_s > 0
    assert found.decode_s > 0


def test_packed_is_worth_trying_with_its_native_part() -> None:
    """In pure Python its times are not those of any use, so nothing is advised by them; all others are tried anyway."""
    assert {name for name in codec_names() if not worth_trying(codec_named(name), REFERENCE)} == {
        f"packed+{compressor.name}" for compressor in COMPRESSORS.values()
    }
    fast = Engine(fast=True)
    assert worth_trying(codec_named("packed+zstd"), fast) is fast.packed.native


def test_levels_count_for_new_bodies_and_not_for_a_migration() -> None:
    """Other levels make other bodies, and are no reason to write a body again."""
    bodies = [encode_body([number * number for number in range(900)], codec_named("msgpack+zstd"))]
    zstd = codec_named("msgpack+zstd")
    found = try_codec(bodies, Codec(zstd.serializer, zstd.compressor, 19))
    assert found.migrated_bytes == [len(body) for body in bodies]
    assert found.new_bytes != found.migrated_bytes


class Forgetful(MessagePack):
    def loads(self, payload: Payload, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> JSONDocument:
        return {"another": "document"}


def test_bodies_that_a_codec_cannot_hold_stay_and_are_counted() -> None:
    """Damaged bodies, and a codec that gives another document back, are counted by reason."""
    damaged = bytearray(encode_body(DOCUMENTS[0]))
    damaged[9] ^= 1
    found = try_codec([TEXTS[0], bytes(damaged), b"no json"], codec_named("msgpack+zstd"))
    assert dict(found.left) == {"ChecksumMismatch": 1, "UnreadableLegacy": 1}
    assert found.new_bytes[1:] == [None, None]
    assert found.migrated_bytes[1:] == [len(damaged), 7]
    engine = Engine(fast=False)
    engine.serializers[Forgetful.id] = Forgetful(fast=False)
    assert dict(try_codec(TEXTS, codec_named("msgpack+zstd"), engine=engine).left) == {"VerificationFailed": len(TEXTS)}
