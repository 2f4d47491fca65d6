"""Bodies from any codec to any other, verified."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from schemaless.cell import MAX_BODY_BYTES
from schemaless.codec.documents import identical
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import (
    check_canonical,
    counts_as,
    decode_body,
    describe_body,
    encode_body,
    same_document,
    seal,
)
from schemaless.codec.recode import VerificationFailed, recode
from schemaless.codec.registry import DEFAULT, LEGACY, codec_named, codec_names
from schemaless.errors import BodyTooLarge, CorruptBody, MalformedPayload, NestingTooDeep, UnreadableLegacy
from tests.cases import each

pytestmark = pytest.mark.once  # each test names its engine

TRIP = {"fare": {"total": 12.5, "tip": -0.0}, "legs": [{"from": "JFK", "to": "São Paulo", "miles": 187}] * 9}
KEPT = {
    "duplicate keys": b'{"a": 1, "a": 2, "t": "%s"}' % (b"x" * 300),
    "number beyond a double": b'{"a": 1e999, "t": "%s"}' % (b"x" * 300),
    "integer beyond 64 bits": b'{"a": 99999999999999999999, "t": "%s"}' % (b"x" * 300),
    "lone surrogate": b'{"a": "\\ud83d", "t": "%s"}' % (b"x" * 300),
}


@pytest.mark.guarantee("mixed-codecs")
@each("source, target", itertools.product(codec_names(), codec_names()))
def test_recode_between_all_codecs_keeps_the_document(source: str, target: str, engine: Engine) -> None:
    """Any codec goes to any other, is found there, and a second run changes nothing."""
    body = encode_body(TRIP, codec_named(source), engine=engine)
    recoded = recode(body, codec_named(target), engine=engine)

    assert describe_body(recoded.body).name == target
    assert same_document(decode_body(recoded.body, engine=REFERENCE), TRIP)
    assert recoded.unchanged is (source == target)
    assert recoded.keep_reason is None
    assert counts_as(recoded.body, codec_named(target), engine=engine)
    assert recode(recoded.body, codec_named(target), engine=engine) == (recoded.body, None, True)
    check_canonical(recoded.body)


@each("reason", KEPT)
@each("target", ["msgpack+zlib", "msgpack+zstd", "msgpack+none"])
def test_recode_text_that_would_lose_is_kept_byte_for_byte(reason: str, target: str, engine: Engine) -> None:
    """The text itself is stored under the same compressor, is counted by its reason, and comes back."""
    codec = codec_named(target)
    recoded = recode(KEPT[reason], codec, engine=engine)

    assert (recoded.keep_reason, recoded.unchanged) == (reason, False)
    assert describe_body(recoded.body).name == target.replace("msgpack", "json")
    assert repr(decode_body(recoded.body, engine=engine)) == repr(json.loads(KEPT[reason]))
    assert recode(recoded.body, codec, engine=engine) == (recoded.body, reason, True)
    assert recode(recoded.body, LEGACY, engine=engine).body == KEPT[reason]
    for other in ("msgpack+zlib", "msgpack+zstd", "json+zlib", "json+none"):
        again = recode(recoded.body, codec_named(other), engine=engine).body
        assert recode(again, LEGACY, engine=engine).body == KEPT[reason]


PACKED_KEPT = {
    "duplicate keys": KEPT["duplicate keys"],
    "number beyond a double": KEPT["number beyond a double"],
    "lone surrogate": KEPT["lone surrogate"],
    "NUL in a string": b'{"a": "\\u0000",  "t": "%s"}' % (b"x" * 300),
    "too many values for its size": b"[%s]" % b", ".join([b'{"a": {"a": {"a": {"a": {"a": 1}}}}}'] * 300),
    "packed is not shorter": b'{"status": "ok"}',
}


@each("reason", PACKED_KEPT)
@each("target", ["packed+zlib", "packed+zstd", "packed+none"])
def test_recode_text_that_packed_cannot_hold_is_kept(reason: str, target: str, engine: Engine) -> None:
    """The text itself is stored, is counted by its reason, comes back, and a second migration finds nothing to do."""
    codec = codec_named(target)
    recoded = recode(PACKED_KEPT[reason], codec, engine=engine)

    assert (recoded.keep_reason, recoded.unchanged) == (reason, False)
    assert describe_body(recoded.body).name.startswith("json+")
    assert repr(decode_body(recoded.body, engine=engine)) == repr(json.loads(PACKED_KEPT[reason]))
    assert counts_as(recoded.body, codec, engine=engine)
    assert recode(recoded.body, codec, engine=engine) == (recoded.body, reason, True)
    assert recode(recoded.body, LEGACY, engine=engine).body == PACKED_KEPT[reason]
    check_canonical(recoded.body)


@pytest.mark.parametrize("reason", [reason for reason in PACKED_KEPT if "key" not in reason and "double" not in reason])
def test_recode_messagepack_that_packed_cannot_hold_is_written_as_text(reason: str, engine: Engine) -> None:
    """From MessagePack, too, the reason is counted, and a second migration finds nothing to do."""
    document = json.loads(PACKED_KEPT[reason])
    codec = codec_named("packed+zstd")
    recoded = recode(encode_body(document, engine=engine), codec, engine=engine)

    assert recoded.keep_reason == reason
    assert identical(decode_body(recoded.body, engine=engine), document)
    assert encode_body(document, codec, engine=engine) == recoded.body
    assert recode(recoded.body, codec, engine=engine) == (recoded.body, reason, True)


def test_recode_big_integers_to_packed_keeps_no_text(engine: Engine) -> None:
    """What MessagePack keeps as text for its integers is packed, from text and from a body that was kept."""
    kept = recode(KEPT["integer beyond 64 bits"], DEFAULT, engine=engine).body
    for body in (KEPT["integer beyond 64 bits"], kept):
        recoded = recode(body, codec_named("packed+zlib"), engine=engine)

        assert (recoded.keep_reason, describe_body(recoded.body).name) == (None, "packed+zlib")
        assert decode_body(recoded.body, engine=engine) == json.loads(KEPT["integer beyond 64 bits"])
    assert not counts_as(kept, codec_named("packed+zlib"), engine=engine)


def test_migration_by_way_of_packed_gives_the_first_document(engine: Engine) -> None:
    """Legacy, packed, MessagePack, packed and text again: the bytes of compact text come back."""
    text = recode(encode_body(TRIP, engine=engine), LEGACY, engine=engine).body
    body = text
    for name in ("packed+zstd", "msgpack+zlib", "packed+zlib", "json+zlib", "packed+none", "legacy"):
        body = recode(body, codec_named(name), engine=engine).body

    assert body == text


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 2}', b"1e999", b"99999999999999999999", b'"\\ud83d"'])
def test_recode_short_kept_text_is_found_again(text: bytes, engine: Engine) -> None:
    """Kept and too short to be compressed at once: a second run still finds nothing to do."""
    first = recode(text, DEFAULT, engine=engine)

    assert describe_body(first.body).name == "json+none"
    assert recode(first.body, DEFAULT, engine=engine) == (first.body, first.keep_reason, True)
    assert counts_as(first.body, DEFAULT, engine=engine)


@pytest.mark.parametrize("target", ["json+zlib", "json+none", "json+zstd"])
def test_recode_text_to_json_keeps_its_spelling(target: str, engine: Engine) -> None:
    """JSON codecs hold the text as it was written, so nothing of it needs a reason."""
    for text in (*KEPT.values(), json.dumps(TRIP, indent=2).encode()):
        recoded = recode(text, codec_named(target), engine=engine)

        assert recoded.keep_reason is None
        assert recode(recoded.body, LEGACY, engine=engine).body == text


@each("value", [float("nan"), float("inf"), -0.0, 1e16, 5e-324, 1.0, 2**64 - 1, -(2**63), "\u2028\x00é🚕"])
def test_recode_to_legacy_and_back_is_the_same_document(value: Any, engine: Engine) -> None:
    """Text reads back as the very document, down to the sign of zero."""
    body = encode_body({"v": [value]}, engine=engine)
    text = recode(body, LEGACY, engine=engine).body

    assert same_document(json.loads(text), {"v": [value]})
    assert same_document(decode_body(recode(text, DEFAULT, engine=engine).body), {"v": [value]})


def test_recode_legacy_to_legacy_is_unchanged(engine: Engine) -> None:
    """Sound text stays as it is; what is not text is still reported."""
    assert recode(b' {"a" : 1e999} ', LEGACY, engine=engine) == (b' {"a" : 1e999} ', None, True)
    with pytest.raises(UnreadableLegacy):
        recode(b"gzip?", LEGACY, engine=engine)


@each(
    "body, error",
    [
        (b"", UnreadableLegacy),
        (b"{", UnreadableLegacy),
        (b"[" * 600 + b"]" * 600, NestingTooDeep),
        (encode_body(TRIP)[:-1], CorruptBody),
        (bytes.fromhex("c11000000000000000"), CorruptBody),
    ],
)
@each("target", codec_names())
def test_recode_what_does_not_decode_raises(body: bytes, error: type[CorruptBody], target: str, engine: Engine) -> None:
    """Damaged bodies are never written anew."""
    with pytest.raises(error):
        recode(body, codec_named(target), engine=engine)


def test_recode_of_invalid_enveloped_text_is_malformed(engine: Engine) -> None:
    """Inside an envelope, bad text is a bad payload and not a legacy body."""
    body = seal(engine.json, b"{" + b" " * 99, codec_named("json+zlib"), engine)
    for target in ("msgpack+zlib", "json+zlib", "legacy"):
        with pytest.raises(MalformedPayload):
            recode(body, codec_named(target), engine=engine)


def test_recode_to_more_than_a_table_holds_raises(engine: Engine) -> None:
    """A body that inflates beyond 16 MiB cannot go back to text."""
    body = encode_body("x" * (MAX_BODY_BYTES + 1), engine=engine)

    with pytest.raises(BodyTooLarge):
        recode(body, LEGACY, engine=engine)
    with pytest.raises(BodyTooLarge):
        recode(body, codec_named("msgpack+none"), engine=engine)


def altered(document: Any) -> Any:
    return {**document, "fare": {"total": 12.5, "tip": 0.0}}


@pytest.mark.guarantee("migrate-lossless")
@each("source, target", itertools.permutations(codec_names(), 2))
def test_recode_with_a_faulty_writer_is_found_out(
    source: str, target: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packer, a text writer or a compressor that alters one sign never gets its bytes stored."""
    body = encode_body(TRIP, codec_named(source), engine=engine)
    faults: list[tuple[Any, str, Callable[..., Any]]] = []
    writer, reader = (engine.serializers[codec_named(name).serializer.id] for name in (target, source))
    if codec_named(target).is_binary and writer is not reader:
        faults.append((writer, "dumps", lambda document, dumps=writer.dumps, **_: dumps(altered(document))))
    if codec_named(source).is_binary and not codec_named(target).is_binary:
        faults.append((engine.json, "dumps", lambda document, **_: json.dumps(altered(document)).encode()))
    compressor_id = codec_named(target).compressor.id
    if compressor_id:
        compressor: Any = engine.compressors[compressor_id]
        compress = compressor.compress
        faults.append((compressor, "compress", lambda payload, *how: compress(bytes(payload)[:-1] + b"\xff", *how)))
    for owner, name, fault in faults:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault)
            with pytest.raises((VerificationFailed, CorruptBody)):
                recode(body, codec_named(target), engine=engine)
