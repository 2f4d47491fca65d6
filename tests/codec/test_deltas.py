"""Deltas: golden chains, round trips of any documents, and each refusal."""

from __future__ import annotations

import json
import pickle
import random
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemaless.codec.deltas import (
    MAX_CHAIN,
    MAX_PAIR_BYTES,
    Delta,
    Version,
    Versions,
    apply_delta,
    base_level,
    can_be_delta,
    delta_of,
    encode_delta,
    expected_base,
    payload_bytes,
)
from schemaless.codec.dictionaries import Dictionary
from schemaless.codec.engine import ENGINE, Engine
from schemaless.codec.envelope import (
    DEFAULT_LIMITS,
    DELTA,
    Limits,
    base_of,
    check_canonical,
    decode_body,
    describe_body,
    encode_body,
    enveloped,
    is_delta,
    same_document,
    tombstone,
    whole_body,
)
from schemaless.codec.exact_text import exact_text
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named
from schemaless.codec.serializers import NotHeld
from schemaless.errors import (
    BaseDiffers,
    BaseMissing,
    ChecksumMismatch,
    CorruptBody,
    DecodedSizeExceeded,
    MalformedPayload,
    TrailingBytes,
    TruncatedBody,
)
from tests.cases import each
from tests.codec.agreement import ANY_DOCUMENT, BOUNDED

FOLDER = Path(__file__).parents[1] / "vectors" / "deltas"
CHAINS = ["base-legacy", "base-packed-dictionary", "chain", "chain-of-both", "msgpack", "packed"]
DICTIONARY = Dictionary((FOLDER.parent / "dictionaries" / "32768.dict").read_bytes())
VECTORS = [(path.parent.name, int(path.stem)) for path in sorted(FOLDER.glob("*/*.body"))]

OLD = {"trip": 1, "legs": [{"at": number, "from": f"A{number}"} for number in range(30)]}
NEW = OLD | {"status": "done"}


def chain_of(name: str) -> dict[Version, bytes]:
    return {("row", int(path.stem)): path.read_bytes() for path in (FOLDER / name).glob("*.body")}


def delta(engine: Engine, old: Any = OLD, new: Any = NEW, base: int = 2, serializer: str = "msgpack") -> bytes:
    """Return the delta of ``old`` against ``new``."""
    by = getattr(engine, serializer)
    body = encode_delta(by, by.dumps(old), base, by.dumps(new))
    assert body is not None
    return body


def read(bodies: dict[int, bytes], ref_key: int, engine: Engine, limits: Limits = DEFAULT_LIMITS) -> Any:
    versions = Versions({("row", number): body for number, body in bodies.items()})
    return decode_body(versions.body(("row", ref_key)), limits, DICTIONARY, engine=engine)


def test_vectors_are_the_folders() -> None:
    """A chain that is lost, or that no test reads, is noticed."""
    assert sorted(path.name for path in FOLDER.iterdir()) == CHAINS


@pytest.mark.parametrize(("name", "ref_key"), VECTORS)
def test_each_version_of_a_vector_gives_its_document(name: str, ref_key: int, engine: Engine) -> None:
    """Every version reads as it was written, by itself, and so do its whole body, its text and its re-encoded body."""
    chain = chain_of(name)
    body = chain["row", ref_key]
    expected = json.loads((FOLDER / name / f"{ref_key}.json").read_bytes())
    if is_delta(body):
        assert describe_body(body).name in ("msgpack+delta", "packed+delta")
        assert base_of(body) == ref_key + 1
        body = Versions(chain).body(("row", ref_key))
        check_canonical(whole_body(body, DICTIONARY), DICTIONARY)

    for same in (
        body,
        whole_body(body, DICTIONARY),
        recode(body, codec_named("packed+zlib"), dictionaries=DICTIONARY).body,
    ):
        assert same_document(decode_body(same, dictionaries=DICTIONARY, engine=engine), expected)
    text, document = exact_text(body, DEFAULT_LIMITS, DICTIONARY)
    assert same_document(json.loads(text), expected)
    assert same_document(document, expected)


@pytest.mark.guarantee("corruption-detected")
@each("name", CHAINS)
def test_a_vector_with_any_bit_flipped_or_bytes_cut_raises(name: str, engine: Engine) -> None:
    """No damage to a delta or to its base goes unnoticed."""
    chain = chain_of(name)
    lowest = min(chain)
    for version, body in chain.items():
        if version != lowest and not body.startswith(b"\xc1"):
            continue  # damage to legacy text that still parses is found by the content checksum only
        damaged = [body[:length] for length in range(len(body))]
        for bit in range(len(body) * 8):
            flipped = bytearray(body)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged.append(bytes(flipped))
        for each_body in damaged:
            with pytest.raises(CorruptBody):
                decode_body(Versions(chain | {version: each_body}).body(lowest), dictionaries=DICTIONARY, engine=engine)


@pytest.mark.once
@BOUNDED
@given(
    st.lists(ANY_DOCUMENT, min_size=2, max_size=5),
    st.sampled_from(["legacy", "msgpack+zlib", "packed+zstd"]),
    st.data(),
)
def test_any_documents_come_back(engine: Engine, documents: list[Any], codec: str, data: st.DataObject) -> None:
    """Whatever the documents and whichever serializer each step has, every version is read as it was."""
    bodies = {len(documents): encode_body(documents[-1], codec_named(codec))}
    for ref_key in range(len(documents) - 1, 0, -1):
        serializer = data.draw(st.sampled_from([engine.msgpack, engine.packed]))
        try:
            payload, base = (serializer.dumps(document) for document in documents[ref_key - 1 : ref_key + 1])
        except NotHeld:
            bodies[ref_key] = encode_body(documents[ref_key - 1])
            continue
        body = encode_delta(serializer, payload, ref_key + 1, base)
        pair = zip((payload, base), documents[ref_key - 1 : ref_key + 1], strict=True)
        usable = body is not None and all(can_be_delta(serializer, *each, engine) for each in pair)
        bodies[ref_key] = body if body is not None and usable else encode_body(documents[ref_key - 1])
    versions = Versions({("row", ref_key): body for ref_key, body in bodies.items()})
    for ref_key in data.draw(st.permutations(range(1, len(documents) + 1))):
        body = bodies[ref_key]
        document = decode_body(versions.body(("row", ref_key)) if is_delta(body) else body, engine=engine)
        assert same_document(document, documents[ref_key - 1])


def test_a_base_may_be_re_encoded_and_become_a_delta(engine: Engine) -> None:
    """What a delta refers to is the document of its base, however that is stored."""
    body, newest = delta(engine), NEW | {"rating": 5}
    for codec in ("legacy", "json+zlib", "msgpack+none", "packed+zstd"):
        assert read({1: body, 2: encode_body(NEW, codec_named(codec))}, 1, engine) == OLD
    for serializer in ("msgpack", "packed"):
        base = delta(engine, NEW, newest, 7, serializer)
        assert read({1: body, 2: base, 7: encode_body(newest)}, 1, engine) == OLD


def test_without_its_base_a_delta_is_refused(engine: Engine) -> None:
    """The error names the version that is missing, and says what is wrong with it."""
    body, base = delta(engine), encode_body(NEW)
    for alone in (
        lambda: decode_body(body, engine=engine),
        lambda: whole_body(body),
        lambda: recode(body, codec_named("legacy")),
    ):
        with pytest.raises(BaseMissing, match=r"against version 2 .* is not available here"):
            alone()
    for bodies, problem in (
        ({}, "does not exist"),
        ({2: tombstone(3)}, "was erased"),
        ({2: base[:-1]}, "is damaged: CRC"),
    ):
        with pytest.raises(BaseMissing, match=f"against version 2 .* which {problem}") as caught:
            read({1: body} | bodies, 1, engine)
        assert caught.value.base == 2
    with pytest.raises(BaseDiffers, match="version 2"):
        read({1: body, 2: encode_body(list(range(300)))}, 1, engine)
    with pytest.raises(BaseDiffers, match="integer beyond 64 bits"):
        read({1: body, 2: encode_body(1 << 64)}, 1, engine)


def test_a_delta_refers_to_a_higher_version(engine: Engine) -> None:
    """So no cell can depend on itself, and reading ends."""
    body = delta(engine)
    for ref_key in (2, 3):
        with pytest.raises(MalformedPayload, match="not higher"):
            read({ref_key: body, 2: body}, ref_key, engine)


def test_a_base_is_the_next_version_of_a_higher_level() -> None:
    """So no chain has more than two deltas, whichever of the versions exist."""
    place = bytes(16), "BASE"
    levels = [base_level(*place, ref_key) for ref_key in range(2_048)]
    assert levels.count(2) == 64
    for ref_key, level in enumerate(levels[:1_024]):
        if level < 2:
            base = expected_base(*place, ref_key)
            assert max(levels[ref_key + 1 : base], default=0) <= level < levels[base]


def test_a_chain_has_an_end(engine: Engine) -> None:
    """A chain of 4,096 is read, and a longer one is refused."""
    bodies = {number: delta(engine, [number], [number + 1], number + 1) for number in range(MAX_CHAIN + 1)}
    bodies[MAX_CHAIN + 1] = encode_body([MAX_CHAIN + 1])
    assert read(bodies, 1, engine) == [1]
    with pytest.raises(MalformedPayload, match="4,096 deltas"):
        read(bodies, 0, engine)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda frame: frame[:-1], TruncatedBody),
        (lambda frame: frame[:3], TruncatedBody),
        (lambda frame: frame + b"x", TrailingBytes),
        (lambda frame: b"\x00" + frame[1:], MalformedPayload),
        (lambda frame: frame[:4] + bytes((frame[4] & ~4,)) + frame[5:-4], MalformedPayload),
        (lambda frame: frame[:4] + bytes((frame[4] | 1,)) + b"\x09" + frame[5:], MalformedPayload),
    ],
    ids=["cut", "cut header", "trailing", "no frame", "without checksum", "with a dictionary id"],
)
def test_a_frame_that_is_not_as_described_is_refused(change: Any, error: type[CorruptBody], engine: Engine) -> None:
    """Even if the envelope's checksum is right."""
    content = change(delta_of(delta(engine)).frame)
    forged = enveloped(1 << 4 | DELTA, (2).to_bytes(8, "big") + content)
    with pytest.raises(error):
        read({1: forged, 2: encode_body(NEW)}, 1, engine)


def test_a_body_that_is_too_short_or_text_is_no_delta(engine: Engine) -> None:
    """JSON text has no deltas, so its format byte is unknown."""
    for body in (b"\xc1\x13", b"\xc1\x13" + bytes(12)):
        assert payload_bytes(body) == 0
        with pytest.raises(CorruptBody):
            read({1: body}, 1, engine)
    forged = enveloped(DELTA, delta(engine)[2:-4])
    with pytest.raises(CorruptBody, match="0x03"):
        decode_body(forged, engine=engine)
    with pytest.raises(ChecksumMismatch):
        read({1: delta(engine)[:-1] + b"?"}, 1, engine)


def test_limits_hold_for_each_step(engine: Engine) -> None:
    """A payload beyond the limit is refused before it is inflated, in the middle of a chain as well."""
    large = ["x" * 3_000]
    bodies = {1: delta(engine, [1], large), 2: delta(engine, large, [2], 3), 3: encode_body([2])}
    assert read(bodies, 1, engine) == [1]
    assert payload_bytes(bodies[2]) == len(engine.msgpack.dumps(large))
    with pytest.raises(DecodedSizeExceeded):
        read(bodies, 1, engine, Limits(decoded_bytes=2_000))


def test_pairs_that_are_too_long_and_nan_have_no_deltas(engine: Engine) -> None:
    """Zstd would not reach all of the base; and bit patterns of NaN may change when a base is re-encoded."""
    half = b"x" * (MAX_PAIR_BYTES // 2)
    assert encode_delta(engine.msgpack, half, 2, half) is not None
    assert encode_delta(engine.msgpack, half, 2, half + b"x") is None
    for serializer in (engine.msgpack, engine.packed):
        looks_like_nan = ["x", 1.5, struct.unpack(">d", b"?\xcb\xff\xf8\xcb\x7f\xf8\xff")[0]]
        assert serializer.may_hold_nan(serializer.dumps(looks_like_nan))
        assert can_be_delta(serializer, serializer.dumps(looks_like_nan), looks_like_nan, engine)
        nan = ["x", float("nan")]
        assert not can_be_delta(serializer, serializer.dumps(nan), nan, engine)
    assert not can_be_delta(engine.json, engine.json.dumps(["x"]), ["x"], engine)


def test_payloads_beyond_the_cache_are_computed_again(engine: Engine) -> None:
    """A chain of documents whose payloads are longer than the cache, read from either end."""
    documents = {number: ["x" * 900_000, number] for number in range(1, 31)}
    bodies = {number: delta(engine, documents[number], documents[number + 1], number + 1) for number in range(1, 30)}
    bodies[30] = encode_body(documents[30])
    versions = Versions({("row", number): body for number, body in bodies.items()})
    for number in (*range(1, 30, 7), *range(29, 0, -7)):
        assert decode_body(versions.body(("row", number)), engine=engine) == documents[number]


def test_a_pickled_delta_takes_its_chain_along(engine: Engine) -> None:
    """It may go to another process, which has dictionaries but not the versions that it depends on."""
    bodies = chain_of("base-packed-dictionary")
    versions = Versions(bodies | {("other", 1): bytes(10_000)})
    for version in [version for version, body in bodies.items() if is_delta(body)]:
        pickled = pickle.dumps(versions.body(version))
        copy = pickle.loads(pickled)
        assert copy == bodies[version]
        assert decode_body(copy, DEFAULT_LIMITS, DICTIONARY, engine=engine) == read(
            {number: body for (_, number), body in bodies.items()}, version[1], engine
        )
        assert len(pickled) < 10_000


@pytest.mark.parametrize(("base", "problem"), [(None, "does not exist"), (encode_body(NEW)[:-1] + b"?", "is damaged")])
def test_a_pickled_delta_without_its_base_says_why(base: bytes | None, problem: str, engine: Engine) -> None:
    """The copy has only the versions that its original had."""
    bodies = {("row", 1): delta(engine)} | ({} if base is None else {("row", 2): base})
    copy = pickle.loads(pickle.dumps(Versions(bodies).body(("row", 1))))
    with pytest.raises(BaseMissing, match=problem):
        decode_body(copy, engine=engine)


def test_a_packed_payload_that_looks_like_a_dictionary_is_raw_content(engine: Engine) -> None:
    """Zstd would take it for a trained dictionary otherwise."""
    base = b"\x37\xa4\x30\xec" + b"\x01\x02\x03\x04" * 20
    body = encode_delta(engine.packed, base + b"!", 2, base)
    assert body is not None
    assert apply_delta(delta_of(body), base, 1_000) == base + b"!"
    assert isinstance(delta_of(body), Delta)


def test_deltas_against_one_base_have_the_bytes_of_a_single_one(engine: Engine) -> None:
    """They share a compressor, which a base of the same bytes elsewhere in memory does not."""
    chance = random.Random(1)
    for length in (3, 30, 3_000):
        base = engine.msgpack.dumps([chance.randrange(10**6) for _ in range(length)])
        for n in range(20):
            payload = engine.msgpack.dumps([*range(n), *engine.msgpack.loads(base)[n % 3 :]])
            single = encode_delta(engine.msgpack, payload, 9, bytes(bytearray(base)))
            assert encode_delta(engine.msgpack, payload, 9, base) == single
            assert encode_delta(engine.msgpack, payload, 9, base) == single


def test_threads_decode_deltas_of_a_page():
    """The payloads that are kept are shared; here they exceed what is kept."""
    dumps, long, most = ENGINE.msgpack.dumps, "x" * 1_000_000, 40
    bodies = {
        ("row", n): encode_delta(ENGINE.msgpack, dumps([long, n]), n + 1, dumps([long, n + 1])) for n in range(most)
    }
    versions = Versions(bodies | {("row", most): encode_body([long, most])})
    decoded = [(n, versions.body(("row", n))) for n in range(most)] * 2
    random.Random(1).shuffle(decoded)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda each: decode_body(each[1]) == [long, each[0]], decoded))
    finally:
        sys.setswitchinterval(interval)
