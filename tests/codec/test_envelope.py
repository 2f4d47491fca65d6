"""Bodies: written, read strictly, described, counted and checked."""

from __future__ import annotations

import decimal
import json
import pickle
import random
import struct
import sys
import tracemalloc
import zlib
from typing import Any

import msgpack
import pytest
import zstandard

from schemaless.cell import MAX_BODY_BYTES
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import (
    DEFAULT_LIMITS,
    BodyFormat,
    Limits,
    check_canonical,
    counts_as,
    decode_body,
    describe_body,
    encode_body,
    same_document,
    same_put,
    seal,
    unseal,
)
from schemaless.codec.packed_reader import unpack_reference
from schemaless.codec.recode import recode
from schemaless.codec.registry import MSGPACK, ZLIB, Codec, codec_named, codec_names
from schemaless.errors import (
    BodyTooLarge,
    ChecksumMismatch,
    CorruptBody,
    DecodedSizeExceeded,
    InvalidBody,
    InvalidInput,
    MalformedPayload,
    NestingTooDeep,
    NotCanonical,
    TrailingBytes,
    TruncatedBody,
    UnknownDictionary,
    UnknownFormat,
    UnreadableLegacy,
)
from tests.cases import each

TRIP = {"fare": {"total": 12.5, "currency": "USD"}, "legs": [{"from": "JFK", "to": "BOS", "miles": 187}] * 4}


def enveloped(format_byte: int, payload: bytes) -> bytes:
    head = bytes((0xC1, format_byte)) + payload
    return head + zlib.crc32(head).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"fare": {"amount": decimal.Decimal(1)}}, r"body\.fare\.amount: Decimal is not a JSON type; convert it first"),
        ({"legs": [1, {"a b": b""}]}, r"body\.legs\[1\]\['a b'\]: bytes is not a JSON type; decode it to a str first"),
        ({"pair": (1, 2)}, r"body\.pair: tuple is not a JSON type; make it a list"),
        ({"a": {7: 1}}, r"body\.a: key 7 is int, not str; keys of JSON objects are str"),
        (type("Name", (str,), {})("x"), r"body: Name is a subclass of str; convert it to str first"),
        (["ok", "\ud83d\ude00"], None),
    ],
)
def test_encode_of_a_foreign_type_names_its_path(document: Any, message: str | None, engine: Engine) -> None:
    """The message says where in the document it stands, and what to do."""
    with pytest.raises(InvalidBody, match=message and f"^{message}$"):
        encode_body(document, engine=engine)


def test_encode_payloads_stay_standard(engine: Engine) -> None:
    """Any MessagePack, JSON, zlib and zstd library reads a payload, and the page's grammar those that are packed."""
    inflate = {"none": bytes, "zlib": zlib.decompress, "zstd": zstandard.ZstdDecompressor().decompress}
    parse = {"msgpack": msgpack.unpackb, "json": json.loads, "packed": unpack_reference}
    for name in codec_names()[:-1]:
        body = encode_body(TRIP, codec_named(name), engine=engine)
        serializer, compressor = name.split("+")

        assert describe_body(body).name == name
        assert parse[serializer](inflate[compressor](body[2:-4])) == TRIP
        assert int.from_bytes(body[-4:], "big") == zlib.crc32(body[:-4])


def test_encode_legacy_is_bare_text(engine: Engine) -> None:
    """``legacy`` is what readers older than the envelope understand."""
    body = encode_body({"a": "é", "b": [1.0, None]}, codec_named("legacy"), engine=engine)

    assert body == '{"a":"é","b":[1.0,null]}'.encode()
    assert describe_body(body) == BodyFormat("legacy", None)


@pytest.mark.parametrize(
    "codec", [Codec(MSGPACK, ZLIB, 6), Codec(MSGPACK, ZLIB, 1), Codec(MSGPACK, ZLIB, 6, compress_min_bytes=0)]
)
def test_a_payload_that_does_not_shrink_is_stored_uncompressed(codec: Codec, engine: Engine) -> None:
    """A body never grows by being compressed."""
    document = [random.Random(number).getrandbits(64) for number in range(8)]

    assert describe_body(encode_body("short", codec, engine=engine)).name == "msgpack+none"
    assert describe_body(encode_body(document, codec, engine=engine)).name == "msgpack+none"


def test_encode_below_the_threshold_is_stored_plain(engine: Engine) -> None:
    """``compress_min_bytes`` is the shortest payload that is tried."""
    for threshold, name in ((102, "msgpack+zlib"), (103, "msgpack+none")):
        body = encode_body("x" * 100, Codec(MSGPACK, ZLIB, 6, compress_min_bytes=threshold), engine=engine)

        assert describe_body(body).name == name


def test_encode_too_large_raises(engine: Engine) -> None:
    """A body that no table holds is refused when it is encoded; one byte less is not."""
    fits = "x" * (MAX_BODY_BYTES - 6 - 5)

    assert len(encode_body(fits, codec_named("msgpack+none"), engine=engine)) == MAX_BODY_BYTES
    for name in ("msgpack+none", "json+none"):
        with pytest.raises(BodyTooLarge, match="16777215"):
            encode_body(fits + "x" * 4, codec_named(name), engine=engine)
    with pytest.raises(BodyTooLarge, match="16777215"):
        encode_body("x" * MAX_BODY_BYTES, codec_named("legacy"), engine=engine)


def test_encode_payload_that_readers_would_refuse_raises(engine: Engine) -> None:
    """What inflates to more than readers accept is not written, however short it is."""
    with pytest.raises(BodyTooLarge, match="before compression"):
        encode_body(["x" * (16 << 20)] * 4, engine=engine)


@each(
    "body, error",
    [
        (b"\xc1", TruncatedBody),
        (b"\xc1\x11\x00\x00\x00\x00", TruncatedBody),
        (encode_body(TRIP)[:-1], ChecksumMismatch),
        (encode_body(TRIP)[:1] + b"\x12" + encode_body(TRIP)[2:], ChecksumMismatch),
        (enveloped(0x30, b"\xc0"), UnknownFormat),
        (enveloped(0x14, b"\xc0"), UnknownFormat),
        (enveloped(0xF0, b"\xc0"), UnknownFormat),
        (enveloped(0x1F, b"\xc0"), UnknownFormat),
        (enveloped(0x10, b"\x92\xc0"), TruncatedBody),
        (enveloped(0x10, b"\xdc\x00\x04\xc0\xc0"), TruncatedBody),
        (enveloped(0x10, b"\xdd\xff\xff\xff\xff\xc0"), MalformedPayload),
        (enveloped(0x10, b"\xdf\xff\xff\xff\xff\xc0"), MalformedPayload),
        (enveloped(0x10, b"\xdb\xff\xff\xff\xffa"), TruncatedBody),
        (enveloped(0x10, b"\xda\x00\x04a"), TruncatedBody),
        (enveloped(0x10, b"\xc0\xc0"), TrailingBytes),
        (enveloped(0x10, b"\xc1"), MalformedPayload),
        (enveloped(0x10, b"\xc4\x01a"), MalformedPayload),
        (enveloped(0x10, b"\x91\xc4\x00"), MalformedPayload),
        (enveloped(0x10, b"\x81\xc4\x00\xc0"), MalformedPayload),
        (enveloped(0x10, b"\xd4\x01a"), MalformedPayload),
        (enveloped(0x10, b"\xc7\x00\x01"), MalformedPayload),
        (enveloped(0x10, b"\xd6\xff\x00\x00\x00\x00"), MalformedPayload),
        (enveloped(0x10, b"\x81\x01\x01"), MalformedPayload),
        (enveloped(0x10, b"\x81\x90\x01"), MalformedPayload),
        (enveloped(0x10, b"\xa1\xff"), MalformedPayload),
        (enveloped(0x10, b"\xa3\xed\xa0\x80"), MalformedPayload),
        (enveloped(0x10, b"\x91" * 513 + b"\xc0"), NestingTooDeep),
        (enveloped(0x10, b"\x91" * 5000 + b"\xc0"), NestingTooDeep),
        (enveloped(0x10, b"\x81\xa1a" * 513 + b"\xc0"), NestingTooDeep),
        (enveloped(0x00, b"{"), MalformedPayload),
        (enveloped(0x00, b'"\xff"'), MalformedPayload),
        (enveloped(0x00, b"1 1"), MalformedPayload),
        (enveloped(0x00, b"\xef\xbb\xbf1"), MalformedPayload),
        (enveloped(0x00, b"[" * 513 + b"]" * 513), NestingTooDeep),
        (enveloped(0x00, b"[" * 100_000), NestingTooDeep),
        (enveloped(0x11, zlib.compress(b"\xc0")[:-1]), TruncatedBody),
        (enveloped(0x11, zlib.compress(b"\xc0") + b"\x00"), TrailingBytes),
        (enveloped(0x11, zlib.compress(b"\xc0") * 2), TrailingBytes),
        (enveloped(0x11, zlib.compress(b"\xc0")[:-1] + b"\xff"), MalformedPayload),
        (enveloped(0x11, b"\xc0"), TruncatedBody),
        (enveloped(0x11, b"\xc0\xc0"), MalformedPayload),
        (enveloped(0x11, zlib.compress(b"")), TruncatedBody),
        (enveloped(0x12, zstandard.compress(b"\xc0")[:-1]), TruncatedBody),
        (enveloped(0x12, zstandard.compress(b"\xc0")[:5]), TruncatedBody),
        (enveloped(0x12, zstandard.compress(b"\xc0") + b"\x00"), TrailingBytes),
        (enveloped(0x12, zstandard.compress(b"\xc0") * 2), TrailingBytes),
        (enveloped(0x12, zstandard.compress(b"\xc0") + b"\x50\x2a\x4d\x18\x00\x00\x00\x00"), TrailingBytes),
        (enveloped(0x12, b"\x50\x2a\x4d\x18\x00\x00\x00\x00" + zstandard.compress(b"\xc0")), MalformedPayload),
        (enveloped(0x12, b"\xc0"), MalformedPayload),
        (enveloped(0x11, zlib.compress(b"\xc0" * (65 << 20))), DecodedSizeExceeded),
        (enveloped(0x12, zstandard.compress(b"\xc0" * (65 << 20))), DecodedSizeExceeded),
        (b"", UnreadableLegacy),
        (b"{'a': 1}", UnreadableLegacy),
        (pickle.dumps({"a": 1}), UnreadableLegacy),
    ],
)
def test_decode_bad_body_raises_its_own_error(body: bytes, error: type[CorruptBody], engine: Engine) -> None:
    """Each fault has its own error, also under a checksum that holds."""
    with pytest.raises(CorruptBody) as raised:
        decode_body(body, engine=engine)

    assert type(raised.value) is error


def test_decode_zstd_frame_that_names_a_dictionary_raises(engine: Engine) -> None:
    """A dictionary that is not at hand is named, never guessed."""
    samples = [json.dumps({"fare": n, "from": "JFK", "to": "BOS", "n": n * n}).encode() for n in range(500)]
    dictionary = zstandard.train_dictionary(2048, samples)
    payload = zstandard.ZstdCompressor(dict_data=dictionary).compress(samples[7])

    with pytest.raises(UnknownDictionary, match=str(dictionary.dict_id())):
        decode_body(enveloped(0x02, payload), engine=engine)


def test_decode_zstd_frame_without_its_size_reads_but_is_not_canonical(engine: Engine) -> None:
    """Standard frames are read; that this store would not write them is for ``check`` to say."""
    payload = msgpack.packb(TRIP)
    for frame in (
        zstandard.ZstdCompressor(write_content_size=False).compress(payload),
        zstandard.ZstdCompressor(write_checksum=True).compress(payload),
    ):
        assert decode_body(enveloped(0x12, frame), engine=engine) == TRIP
        with pytest.raises(NotCanonical):
            check_canonical(enveloped(0x12, frame))


@pytest.mark.guarantee("bounded-memory")
@pytest.mark.parametrize("compress", [zlib.compress, zstandard.compress])
def test_decoding_a_bomb_takes_no_more_memory_than_the_limit(compress: Any, engine: Engine) -> None:
    """A body of a few KB cannot take more than the limit, whatever it claims."""
    body = enveloped(0x11 if compress is zlib.compress else 0x12, compress(bytes(64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(DecodedSizeExceeded):
            decode_body(body, Limits(decoded_bytes=1 << 20), engine=engine)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 12 << 20


def test_a_zstd_frame_with_a_false_size_raises(engine: Engine) -> None:
    """A header that claims 60 MiB for nine bytes is found out before they are taken."""
    frame = bytes.fromhex("28b52ffd") + b"\xa0" + (60 << 20).to_bytes(4, "little") + b"\x01\x00\x00"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBody):
            decode_body(enveloped(0x12, frame), engine=engine)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1 << 20


@pytest.mark.parametrize("name", codec_names())
def test_decode_from_a_deep_stack_is_not_corruption(name: str, engine: Engine) -> None:
    """A caller without stack to spare gets the document or a RecursionError, never a story about damage."""
    document: Any = {"a": [{"b": [[[[[[[[[[[[1]]]]]]]]]]]]}]}
    for body in (encode_body(document, codec_named(name)), encode_body([document] * 9, codec_named(name))):
        for spare in range(1, 60):
            assert at_depth(sys.getrecursionlimit() - spare, lambda body=body: decode_body(body, engine=engine)) in {
                "document",
                "RecursionError",
            }


def at_depth(depth: int, call: Any) -> str:
    frame: Any = sys._getframe()
    used = 0
    while frame:
        used, frame = used + 1, frame.f_back

    def descend(left: int) -> str:
        if left > 0:
            return descend(left - 1)
        try:
            call()
        except RecursionError:
            return "RecursionError"
        except CorruptBody as error:
            return type(error).__name__
        return "document"

    try:
        return descend(depth - used)
    except RecursionError:
        return "RecursionError"


@pytest.mark.parametrize("name", ["msgpack+none", "msgpack+zlib", "msgpack+zstd"])
def test_a_payload_is_copied_once_each_way(name: str, engine: Engine) -> None:
    """What compression does not shorten takes its own length once more in its envelope, and once more out of it."""
    payload = engine.msgpack.dumps(random.Random(5).randbytes(4 << 20).decode("latin-1"))
    codec = Codec(MSGPACK, codec_named(name).compressor, compress_min_bytes=len(payload) + 1)
    tracemalloc.start()
    try:
        body = seal(engine.msgpack, payload, codec, engine)
        sealed_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        serializer, again = unseal(body, DEFAULT_LIMITS, engine)
        unsealed_bytes = tracemalloc.get_traced_memory()[1] - len(body)
    finally:
        tracemalloc.stop()

    assert (serializer, again) == (engine.msgpack, payload)
    assert len(payload) < sealed_bytes < len(payload) * 1.01
    assert len(payload) < unsealed_bytes < len(payload) * 1.01


@each("name", codec_names())
@each("big", [1, 2**64])
@each("value", ["NaN", "-NaN", "Infinity", "-Infinity", "signalling NaN"])
def test_not_finite_is_refused_with_its_path(value: str, big: int, name: str, engine: Engine) -> None:
    """Also in a document that is kept as text; what only looks like it is accepted."""
    signalling = struct.unpack(">d", b"\xff\xf0" + bytes(5) + b"\x01")[0]
    number = signalling if value == "signalling NaN" else float(value)
    codec = codec_named(name)
    looks_alike = {"n": big, "NaN": "Infinity", "x": [1.7e308, -1.7e308, 127, 0xCB7F, 1 / 3, "\x7f" * 203]}

    assert decode_body(encode_body(looks_alike, codec, engine=engine, allow_nan=False), engine=engine) == looks_alike
    document = {**looks_alike, "fare": {"parts": [1.5, number]}}
    encode_body(document, codec, engine=engine)
    with pytest.raises(InvalidBody, match=r"body\.fare\.parts\[1\]: -?(nan|inf) is not a JSON number"):
        encode_body(document, codec, engine=engine, allow_nan=False)


def test_describe_body_needs_two_bytes_only() -> None:
    """Nothing is checked or inflated to say how a body is stored."""
    assert describe_body(b"\xc1\x11garbage") == BodyFormat("msgpack+zlib", 0x11)
    assert describe_body(b"\xc1\x10garbage") == BodyFormat("msgpack+none", 0x10)
    assert describe_body(b"garbage") == BodyFormat("legacy", None)
    with pytest.raises(UnknownFormat, match="compressor 4"):
        describe_body(b"\xc1\x14garbage")
    assert describe_body(b"\xc1\xf0garbage") == BodyFormat("erased", 0xF0)
    assert describe_body(b"\xc1\xf1garbage") == BodyFormat("cold", 0xF1)
    with pytest.raises(UnknownFormat, match="serializer 15"):
        describe_body(b"\xc1\xf2garbage")


@each("name", codec_names())
@each(
    "document",
    [TRIP, 1, {"n": 2**64}, {"n": 2**64, "t": "x" * 300}, {"s": "\ud800", "t": "x" * 300}, "x" * 63, [float("nan")]],
)
def test_counts_as_is_true_for_what_was_asked_for(document: Any, name: str, engine: Engine) -> None:
    """Fallbacks included: a second migration finds nothing to do."""
    codec = codec_named(name)

    assert counts_as(encode_body(document, codec, engine=engine), codec, engine=engine)


@each("name", codec_names())
def test_counts_as_is_false_for_other_codecs(name: str, engine: Engine) -> None:
    """A document that fell back from nothing counts as what it is, and as nothing else."""
    body = encode_body(TRIP, codec_named(name), engine=engine)

    assert [other for other in codec_names() if counts_as(body, codec_named(other), engine=engine)] == [name]


def test_counts_as_for_kept_text_follows_the_compressor(engine: Engine) -> None:
    """Kept as ``0x01`` counts under zlib, as ``0x02`` under zstd; text without a reason counts under JSON only."""
    kept = {"n": 2**64, "t": "x" * 300}
    for compressor, other in (("zlib", "zstd"), ("zstd", "zlib"), ("none", "zlib")):
        body = encode_body(kept, codec_named(f"msgpack+{compressor}"), engine=engine)

        assert describe_body(body).name == f"json+{compressor}"
        assert counts_as(body, codec_named(f"json+{compressor}"), engine=engine)
        assert not counts_as(body, codec_named(f"msgpack+{other}"), engine=engine)


@pytest.mark.parametrize(
    "body",
    [
        enveloped(0x10, b"\xcc\x01"),
        enveloped(0x10, b"\xd9\x01a"),
        enveloped(0x10, b"\xdc\x00\x01\xc0"),
        enveloped(0x10, b"\xde\x00\x01\xa1a\xc0"),
        enveloped(0x10, b"\xca\x3f\x80\x00\x00"),
        enveloped(0x10, b"\x82\xa1a\x01\xa1a\x02"),
        enveloped(0x11, zlib.compress(b"\xa1a")),
        enveloped(0x11, zlib.compress(msgpack.packb("x" * 500), wbits=9)),
    ],
)
def test_check_other_spelling_raises_not_canonical(body: bytes, engine: Engine) -> None:
    """What reads, but was never written here, is found by ``check``."""
    decode_body(body, engine=engine)

    with pytest.raises(NotCanonical):
        check_canonical(body)


def test_check_stream_that_only_libdeflate_reads_is_found() -> None:
    """The one known difference between engines: an undefined code under forged checksums. ``check`` goes by zlib."""
    body = enveloped(
        0x01,
        bytes.fromhex(
            "789c05ff0190244992244902000000000000000000000000000000003000000000000000000000000000000000000000000000000000000000030300030000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000002000000000000000000000000000000040f3ff190b410281"
        ),
    )
    with pytest.raises(MalformedPayload, match="too many length or distance symbols"):
        decode_body(body, engine=REFERENCE)
    with pytest.raises(MalformedPayload, match="too many length or distance symbols"):
        check_canonical(body)


def test_check_damage_raises_what_reading_raises() -> None:
    """``check`` says the same of damage as a reader."""
    with pytest.raises(MalformedPayload):
        check_canonical(enveloped(0x10, b"\xc4\x01a"))
    with pytest.raises(UnreadableLegacy):
        check_canonical(b"not JSON")


@each(
    "left, right, same, put",
    [
        (1, 1.0, False, False),
        (True, 1, False, False),
        (0.0, -0.0, False, False),
        (float("nan"), float("nan"), True, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False, True),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}], False, True),
        ([1, 2], [2, 1], False, False),
        ({"a": 1}, {"a": 1, "b": None}, False, False),
        (2**70, 2**70, True, True),
        (2**70, float(2**70), False, False),
        ({"n": 2**70, "s": "\ud800"}, {"s": "\ud800", "n": 2**70}, False, True),
        ([2**70], [2**70 + 1], False, False),
        ("\u00e9", "e\u0301", False, False),
    ],
)
def test_same_is_strict(left: Any, right: Any, same: bool, put: bool, engine: Engine) -> None:
    """1 is not 1.0, True is not 1, 0.0 is not -0.0, NaN is NaN; order counts, except for a put."""
    assert same_document(left, right, engine=engine) is same
    assert same_put(left, right, engine=engine) is put


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ({"depth": 0}, "depth must be an integer from 1 to 512, got 0"),
        ({"depth": 513}, "depth must be an integer from 1 to 512, got 513"),
        ({"decoded_bytes": 0}, "decoded_bytes must be an integer of at least 1, got 0"),
        ({"decoded_bytes": 1.5}, "decoded_bytes must be an integer of at least 1, got 1.5"),
        ({"values": 0}, "values must be an integer of at least 1, got 0"),
        ({"values": "7"}, "values must be an integer of at least 1, got '7'"),
    ],
)
def test_limits_out_of_range_raise(limits: dict[str, Any], complaint: str) -> None:
    """Depth may be lowered, never raised: no writer goes deeper. The error is the package's own."""
    with pytest.raises(InvalidInput, match=complaint):
        Limits(**limits)


@pytest.mark.parametrize("name", codec_names())
def test_codec_from_another_process_is_the_same_codec(name: str) -> None:
    """A codec that was pickled encodes, counts and recodes as the one that it was made from."""
    codec = codec_named(name)
    copy = pickle.loads(pickle.dumps(codec))
    for document in (TRIP, {"n": 2**64}, 1):
        body = encode_body(document, copy)

        assert body == encode_body(document, codec)
        assert counts_as(body, copy)
        assert recode(encode_body(document, codec_named("json+zstd")), copy).body == body
