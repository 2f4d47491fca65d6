"""Packed payloads: one spelling for each document, nothing else read, and nothing that their bytes do not pay for."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemaless.codec import packed_reader
from schemaless.codec.documents import MAX_DEPTH, depth_of, identical
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import check_canonical, decode_body, encode_body, seal
from schemaless.codec.fast import optional
from schemaless.codec.packed import pack_reference
from schemaless.codec.packed_reader import unpack_reference
from schemaless.codec.registry import codec_named
from schemaless.codec.serializers import NotHeld
from schemaless.errors import CorruptBody, InvalidBody, MalformedPayload, NestingTooDeep, NotCanonical
from tests.cases import each
from tests.codec.mutants import mutated, values_of
from tests.skips import NATIVE_NOT_BUILT

pytestmark = pytest.mark.once  # each test names its engine

FAST = Engine(fast=True)
BOUNDED = settings(deadline=None, suppress_health_check=list(HealthCheck))
BODIES = sorted((Path(__file__).parents[1] / "vectors" / "bodies").glob("packed-of-*.body"))
MUTANTS = 4_000


def payload(schema: str, tokens: str, text: bytes = b"") -> bytes:
    """Return a payload of three sections, two of them in hexadecimal digits."""
    return sections(bytes.fromhex(schema), bytes.fromhex(tokens), text)


def sections(schema: bytes, tokens: bytes, text: bytes = b"") -> bytes:
    return varint(len(schema)) + varint(len(tokens)) + schema + tokens + text


def varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes((*digits, value))


def number(value: int) -> str:
    """Return a number that is predicted as zero, in hexadecimal digits."""
    return varint(2 * value if value >= 0 else -2 * value - 1).hex()


REFUSED = {
    "nothing": b"",
    "no tokens": payload("", ""),
    "a section longer than the payload": b"\x00\x05\x01",
    "a length that is no varint": b"\x80",
    "a byte behind the tokens": payload("", "0101"),
    "a byte behind the schema": payload("00", "01"),
    "a byte behind the text": payload("", "01", b"\0"),
    "mask 0": payload("", "00"),
    "two kinds for one value": payload("", "0502"),
    "typed for one value": payload("00", "800100"),
    "mask 1024": payload("", "8008"),
    "mask in two bytes for one": payload("", "8100"),
    "a varint of eleven bytes": payload("", "04" + "80" * 10 + "01"),
    "a varint beyond 64 bits": payload("", "04" + "ff" * 9 + "02"),
    "a number that ends early": payload("", "0480"),
    "scale 16": payload("", "081002"),
    "a decimal beyond 2^53": payload("", "0801" + number(2**53 + 1)),
    "text without its end": payload("", "10", b"abc"),
    "text that is no UTF-8": payload("", "10", b"\xff\0"),
    "text in a longer form": payload("", "10", b"\xc1\x81\0"),
    "a surrogate in text": payload("", "10", b"\xed\xa0\xbd\0"),
    "half a double": payload("", "8002", b"\0" * 7),
    "a bigint of 64 bits": payload("", "8004", b"9223372036854775807\0"),
    "a bigint of 64 bits below zero": payload("", "8004", b"-9223372036854775808\0"),
    "a bigint with a sign": payload("", "8004", b"+9223372036854775808\0"),
    "a bigint with a zero before it": payload("", "8004", b"09223372036854775808\0"),
    "a bigint with a newline": payload("", "8004", b"9223372036854775808\n\0"),
    "a bigint in other digits": payload("", "8004", "٩٢٢٣٣٧٢٠٣٦٨٥٤٧٧٥٨٠٨٠".encode() + b"\0"),
    "a bigint of 4,301 digits": payload("", "8004", b"1" * 4_301 + b"\0"),
    "an array of -1": payload("", "2001"),
    "an array of 2^62": payload("04", "20" + number(2**62)),
    "form 1": payload("2001" + "04", "200402" + "0202"),
    "form 9": payload("2009", "2004"),
    "form 0 for one length": payload("200001" + "0400", "20040400" + "02020202"),
    "lengths below zero": payload("200000" + "04", "20040301" + "02"),
    "predictor 3": payload("0403", "20040202"),
    "kind 11": payload("05", "20040b03" + "02"),
    "a kind that is not in the mask": payload("05", "20040006" + "00"),
    "a bit of the mask that no kind has": payload("0500", "20040303" + "0202"),
    "no bit of the mask": payload("00", "2004"),
    "text and typed": payload("900102", "200a0508080808" + "00" * 4, b"\0"),
    "three typed": payload("8001" + "0200", "2006" + "000000"),
    "type 6": payload("8001" + "06", "2008"),
    "an hour of 100": payload("8001" + "0000", "2008" + number(360_000) + "000000"),
    "a time below zero": payload("8001" + "0000", "2008" + "01000000"),
    "separator _": payload("8001" + "015f0000" + "00", "2008" + "00000000"),
    "ten digits": payload("8001" + "01540a00" + "00", "2008" + "00000000"),
    "a suffix of another form": payload("8001" + "0154005a5a00" + "00", "2008" + "00000000"),
    "a suffix of seven bytes": payload("8001" + "0154002b30303a30303000" + "00", "2008" + "00000000"),
    "a suffix with a newline": payload("8001" + "0154005a0a00" + "00", "2008" + "00000000"),
    "a suffix without its end": payload("8001" + "0154005a", "2008" + "00000000"),
    "a day after 9999": payload("8001" + "0200", "2008" + number(2_932_897) + "000000"),
    "a day before 0001": payload("8001" + "0200", "2008" + number(-719_163) + "000000"),
    "hexadecimal text of no digits": payload("8001" + "0500", "2008"),
    "hexadecimal text of odd digits": payload("8001" + "0503", "2008", b"\0" * 8),
    "hexadecimal text of 255 digits": payload("8001" + "05ff", "2008", b"\0" * 512),
    "hexadecimal text that ends early": payload("8001" + "0502", "2008", b"\0" * 3),
    "no shape": payload("0000", "4000"),
    "no shape but a key": payload("00010161", "4002"),
    "two keys that are the same": payload("010201610161", "4004020402"),
    "an only shape that is listed": payload("01010161" + "0100", "400402"),
    "a key twice in a shape": payload("40" + "02010161" + "020001" + "00", "2004" + "0001" + "04020402"),
    "a key number that is not there": payload("40" + "02010161" + "0102" + "00", "2004" + "0001" + "0402"),
    "keys in another order": payload("40" + "020201610162" + "020201" + "00", "2004" + "0001" + "04020402"),
    "a key spelled where it is the next": payload("40" + "02010161" + "0101" + "00", "2004" + "0001" + "0402"),
    "a key that no shape has": payload("40" + "020201610162" + "0100" + "00", "2004" + "0001" + "0402"),
    "two shapes that are the same": payload("40" + "020101610100" + "0100" + "0400", "2004" + "0001" + "0202"),
    "a shape that no row has": payload("40" + "020101610100" + "00" + "0400", "2004" + "0000" + "0202"),
    "a shape that is not there": payload("40" + "020101610100" + "00" + "0400", "2004" + "0002" + "02"),
    "shapes in another order": payload("40" + "020101610100" + "00", "2004" + "0100" + "0402"),
    "an empty object of shape 1": payload("0100", "4001"),
    "a key that is no UTF-8": payload("0101" + "01ff", "400402"),
    "a key longer than the schema": payload("0101" + "7f61", "400402"),
    "more keys than the schema has": payload("01ffffffff0f", "40"),
    "more shapes than the schema has": payload("ffffffff0f00", "40"),
    "a shape longer than the schema": payload("40" + "0200" + "00" + "ffffffff0f", "2004" + "0001"),
}


@each("name", REFUSED)
def test_unpack_rejects_what_the_grammar_forbids(name: str, engine: Engine) -> None:
    """Each rule of the page, broken alone: a reader refuses it and nothing is returned."""
    with pytest.raises(MalformedPayload):
        engine.packed.loads(REFUSED[name])


SPELLED_OTHERWISE = {
    "a scale that is longer than it has to be": payload("", "0802" + number(10)),
    "a decimal that is a double": payload("", "8002", b"\0\0\0\0\0\0\xf0?"),
    "a predictor that is dearer": payload("0400", "200a" + "64" * 5),
    "four times as text": payload("10", "2008", b"12:00:00\0" * 4),
    "digits as hexadecimal text": payload("8001" + "0502", "2008", b"\x12" * 4),
    "a minus zero as text of a number": payload("8001" + "0302" + "00", "2008" + "00000000", b""),
}


@each("name", SPELLED_OTHERWISE)
def test_check_packed_in_another_spelling_is_not_canonical(name: str, engine: Engine) -> None:
    """What a reader takes and a writer would not have chosen decodes, and does not pass the check."""
    if name.startswith("a minus zero"):
        assert engine.packed.loads(SPELLED_OTHERWISE[name]) == ["0.00"] * 4
        return
    body = seal(engine.packed, SPELLED_OTHERWISE[name], codec_named("packed+none"), engine)
    document = decode_body(body, engine=engine)

    assert engine.packed.dumps(document) != SPELLED_OTHERWISE[name]
    with pytest.raises(NotCanonical, match="packed"):
        check_canonical(body)


@each("path", BODIES)
def test_pack_vector_gives_its_bytes(path: Path, engine: Engine) -> None:
    """A writer chooses today what it chose then."""
    document = json.loads(path.with_suffix(".json").read_text("utf-8"))

    assert engine.packed.dumps(document) == path.read_bytes()[2:-4]


def test_unpack_114_bytes_never_makes_millions_of_values(engine: Engine) -> None:
    """A frame of few bytes becomes rows of objects in objects: none is created beyond what the payload allows."""
    rows, levels = 40_000, 80
    schema = bytes.fromhex("40" + "01010161") * levels + b"\x01"
    tokens = b"\x20" + bytes.fromhex(number(rows)) + bytes(rows)
    body = seal(engine.packed, sections(schema, tokens), codec_named("packed+zstd"), engine)

    assert len(body) <= 114
    with pytest.raises(MalformedPayload, match="the most that the payload's length allows"):
        decode_body(body, engine=engine)


def test_unpack_never_makes_more_values_than_four_a_byte(engine: Engine) -> None:
    """At the charge's edge a document is held, and one value above it is not."""
    for levels in range(2, 7):
        document: Any = 1
        for _ in range(levels):
            document = {"": document}
        if levels > 3:
            with pytest.raises(NotHeld, match="too many values for its size"):
                engine.packed.dumps([document] * 500)
        else:
            packed = engine.packed.dumps([document] * 500)
            assert values_of(engine.packed.loads(packed)) <= 4 * len(packed)


@pytest.mark.parametrize("count", [20_000])
def test_pack_an_object_of_many_keys_takes_each_once(count: int, engine: Engine) -> None:
    """Keys and shapes are looked up by hash: tens of thousands are no heavier than their bytes."""
    wide = {f"key {number}": number for number in range(count)}
    shapes = [{f"key {number}": number} for number in range(count)]
    for document in (wide, shapes):
        assert engine.packed.loads(engine.packed.dumps(document)) == document


def test_unpack_many_keys_that_are_the_same_are_refused(engine: Engine) -> None:
    """Duplicate keys never collapse into one, however many there are."""
    schema = b"\x01" + varint(40_000) + b"\x01a" * 40_000
    with pytest.raises(MalformedPayload):
        engine.packed.loads(sections(schema, b"\x40"))


@each("strings", json.loads(next(p for p in BODIES if "near" in p.stem).with_suffix(".json").read_text()).values())
def test_pack_strings_that_are_nearly_typed_stay_text(strings: list[str], engine: Engine) -> None:
    """A newline at the end, digits of other scripts, a sign, a leading zero: each comes back as it was."""
    packed = engine.packed.dumps(strings)

    assert engine.packed.loads(packed) == strings
    assert packed[2:4] != b"\x80\x01"


@pytest.mark.parametrize(
    "number", [2**53 + 2.0, 4611686018427387904.0, 0.1 + 0.2, 9007199254740991.5, 1e22, 123456789.123456789]
)
def test_pack_floats_of_many_digits_comes_back_bit_by_bit(number: float, engine: Engine) -> None:
    """Beyond 2^53 an integer over a power of ten is rounded twice, so such floats stay doubles."""
    for document in (number, -number, [number, 0.5, -number], [number / 3, number, 1e-7]):
        assert identical(engine.packed.loads(engine.packed.dumps(document)), document)


def test_pack_of_one_long_float_keeps_the_others_short(engine: Engine) -> None:
    """The noise of one float does not make all others of its column longer."""
    plain = [number / 100 for number in range(1_000, 1_400)]
    noisy = [*plain[:200], 8.299999999999999, *plain[200:]]

    assert len(engine.packed.dumps(noisy)) < len(engine.packed.dumps(plain)) + 500
    assert identical(engine.packed.loads(engine.packed.dumps(noisy)), noisy)


def test_pack_does_not_remember_the_document_before(engine: Engine) -> None:
    """The same bytes whatever was packed before: nothing that a writer remembers shows."""
    chance = random.Random(400)
    documents = [[chance.randrange(10**6) / 10 ** chance.randrange(7) for _ in range(4)] for _ in range(400)]
    alone = [pack_reference(document) for document in documents]
    for _ in range(3):
        order = list(range(400))
        chance.shuffle(order)
        for number in order:
            assert engine.packed.dumps(documents[number]) == alone[number]


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: [{"": inner}]])
def test_unpack_counts_levels(make: Any, engine: Engine) -> None:
    """512 levels are read, and no more than a reader asks for."""
    document: Any = None
    while depth_of(make(document)) <= MAX_DEPTH:
        document = make(document)
    packed = engine.packed.dumps(document)

    assert identical(engine.packed.loads(packed, MAX_DEPTH), document)
    assert identical(engine.packed.loads(packed, depth_of(document)), document)
    with pytest.raises(NestingTooDeep):
        engine.packed.loads(packed, depth_of(document) - 1)
    with pytest.raises(InvalidBody):
        engine.packed.dumps([[document]])


def test_unpack_deeper_than_any_document_is_refused(engine: Engine) -> None:
    """A payload of a hundred thousand levels ends in an error, not in the process."""
    tokens = b"\x20\x02" * 100_000
    with pytest.raises(NestingTooDeep):
        engine.packed.loads(sections(b"", tokens))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.decimals(-(10**6), 10**6, places=3).map(float)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.datetimes().map(lambda moment: moment.isoformat() + "Z")
    | st.dates().map(str)
    | st.times().map(lambda moment: moment.strftime("%H:%M:%S"))
    | st.uuids().map(str)
    | st.binary(max_size=9).map(bytes.hex)
    | st.integers().map(str)
    | st.decimals(-100, 100, places=2).map(str)
)
KEYS = st.sampled_from(["a", "b", "c", "", "\0"])


def columns(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return documents in which values of one kind stand in a column, as well as others."""
    rows = st.lists(st.dictionaries(KEYS, inner, max_size=4), max_size=7)
    return rows | st.lists(inner, max_size=9) | st.dictionaries(KEYS, inner, max_size=4)


ALIKE = st.one_of(
    *(st.lists(kind, min_size=4, max_size=8) for kind in (*SCALARS.element_strategies,)),  # type: ignore[attr-defined]
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=2, max_size=6),
)
DOCUMENTS = st.recursive(SCALARS | ALIKE, columns, max_leaves=30)


@BOUNDED
@given(DOCUMENTS)
def test_pack_any_document_round_trips_on_both_engines(document: Any) -> None:
    """Each document has one payload, whichever engine writes it, and comes back from it."""
    try:
        packed = REFERENCE.packed.dumps(document)
    except NotHeld as refusal:
        with pytest.raises(NotHeld, match=str(refusal)):
            FAST.packed.dumps(document)
        return
    assert FAST.packed.dumps(document) == packed
    assert identical(unpack_reference(packed), document)
    assert identical(FAST.packed.loads(packed), document)
    assert values_of(document) <= 4 * len(packed)
    for name in ("packed+none", "packed+zlib", "packed+zstd"):
        body = encode_body(document, codec_named(name))
        assert identical(decode_body(body), document)
        check_canonical(body)


def outcome(engine: Engine, payload: bytes) -> Any:
    try:
        return engine.packed.loads(payload)
    except CorruptBody as refusal:
        return type(refusal), str(refusal)


def test_unpack_mutants_are_read_alike_or_refused(engine: Engine) -> None:
    """Payloads that are nearly right: a document within its charge, that has a spelling, or a refusal of the family."""
    chance = random.Random(17)
    payloads = [path.read_bytes()[2:-4] for path in BODIES if path.stat().st_size < 600]
    read = 0
    for _ in range(MUTANTS):
        mutant = mutated(chance, payloads)
        found = outcome(engine, mutant)
        if isinstance(found, tuple):
            continue
        read += 1
        assert values_of(found) <= 4 * len(mutant)
        with contextlib.suppress(NotHeld):  # in its own spelling it may be too short for its values
            assert identical(engine.packed.loads(engine.packed.dumps(found)), found)

    assert 50 < read < MUTANTS


def test_native_part_reads_mutants_as_the_reference_does() -> None:
    """What the native extension refuses is left to the reference, so here it is asked by itself."""
    native = optional("schemaless_packed")
    if native is None:
        pytest.skip(NATIVE_NOT_BUILT)
    chance = random.Random(29)
    payloads = [path.read_bytes()[2:-4] for path in BODIES if path.stat().st_size < 600]
    for _ in range(MUTANTS):
        mutant = mutated(chance, payloads)
        expected = outcome(REFERENCE, mutant)
        try:
            found = native.unpack(mutant, MAX_DEPTH)
        except ValueError:
            assert isinstance(expected, tuple), mutant.hex()
        else:
            assert identical(found, expected), mutant.hex()


def test_packed_constants_are_the_stored_ones() -> None:
    """The numbers on disk: none is ever another one."""
    assert [packed_reader.NULL, packed_reader.TRUE, packed_reader.INT, packed_reader.BIGINT] == [0, 2, 3, 10]
    assert [packed_reader.TIME_OF_DAY, packed_reader.DECIMAL_TEXT, packed_reader.HEX] == [0, 3, 5]
