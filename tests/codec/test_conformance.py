"""Public suites of good and bad input, and real documents. Skips where the folder that holds them is absent."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemaless.codec.documents import MAX_DEPTH, identical
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import check_canonical, decode_body, encode_body, keep_reason
from schemaless.codec.legacy import read_exactly, read_legacy
from schemaless.codec.recode import recode
from schemaless.codec.registry import ZLIB, codec_named, codec_names
from schemaless.errors import CorruptBody, MalformedPayload, NotCanonical, SchemalessError, UnreadableLegacy

pytestmark = pytest.mark.once  # each test names its engine

FAST = Engine(fast=True)
ENGINES = (REFERENCE, FAST)
NOT_JSON_BUT_PYTHONS = {"n_number_NaN.json", "n_number_infinity.json", "n_number_minus_infinity.json"}


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "gives", call()
    except SchemalessError as refusal:
        return type(refusal).__name__, str(refusal)


def inflate(engine: Engine, stream: bytes) -> tuple[str, Any]:
    return outcome(lambda: bytes(engine.compressors[ZLIB.id].decompress(stream, 1 << 20)))


def reads(text: bytes) -> bool:
    """Whether ``text`` is legacy text; asserts that all paths agree, and that all codecs carry it."""
    fast, reference = (
        outcome(lambda: read_legacy(text, engine=FAST)),
        outcome(lambda: read_legacy(text, engine=REFERENCE)),
    )
    assert fast[0] == reference[0]
    if fast[0] != "gives":
        assert fast[1] == reference[1]
        assert outcome(lambda: decode_body(text, engine=FAST)) == outcome(lambda: decode_body(text, engine=REFERENCE))
        return False
    assert identical(fast[1].value, json.loads(text.decode()))
    assert identical(reference[1].value, fast[1].value)
    assert fast[1].keep_reason == reference[1].keep_reason == read_exactly(text).keep_reason
    for name in codec_names():
        for engine in ENGINES:
            recoded = recode(text, codec_named(name), engine=engine)
            if name.startswith("packed"):
                assert recoded.keep_reason == keep_reason(text, codec_named(name), MAX_DEPTH, engine=REFERENCE)
            else:
                assert recoded.keep_reason == (fast[1].keep_reason if name.startswith("msgpack") else None)
            for reader in ENGINES:
                assert identical(decode_body(recoded.body, engine=reader), fast[1].value)
            check_canonical(recoded.body)
            if recoded.keep_reason:
                assert recode(recoded.body, codec_named("legacy"), engine=engine).body == text
    return True


def enveloped(format_byte: int, payload: bytes) -> bytes:
    head = bytes((0xC1, format_byte)) + payload
    return head + zlib.crc32(head).to_bytes(4, "big")


@pytest.mark.parametrize(
    "folder", ["JSONTestSuite/test_parsing", pytest.param("simdjson-jsonchecker/minefield", marks=pytest.mark.long)]
)
def test_json_parsing_suites_are_read_as_they_say(shared: Path, folder: str) -> None:
    """``y_`` files read, ``n_`` files do not (but for NaN and the infinities, which ``json.loads`` reads)."""
    files = sorted((shared / "conformance" / folder).glob("*.json"))
    assert len(files) > 300
    for path in files:
        read = reads(path.read_bytes())
        if path.name.startswith("y_"):
            assert read, path.name
        elif path.name.startswith("n_"):
            assert read is (path.name in NOT_JSON_BUT_PYTHONS), path.name


@pytest.mark.parametrize(
    "folder", ["JSONTestSuite/test_transform", "nativejson-benchmark/roundtrip", "nativejson-benchmark/jsonchecker"]
)
def test_json_documents_of_suites_round_trip(shared: Path, folder: str) -> None:
    """What reads is carried by every codec; what does not is refused alike."""
    files = sorted((shared / "conformance" / folder).glob("*.json"))
    read = {path.name: reads(path.read_bytes()) for path in files}

    if folder.endswith("jsonchecker"):
        excluded = {"fail01_EXCLUDE.json", "fail18_EXCLUDE.json"}
        assert {name for name, good in read.items() if good} == {"pass01.json", "pass02.json", "pass03.json"} | excluded
    else:
        assert len(read) > 20


def test_simdjson_checker_files_agree(shared: Path) -> None:
    """``pass`` files read; all others are refused or read alike."""
    files = sorted((shared / "conformance/simdjson-jsonchecker").glob("*.json"))
    assert len(files) > 80
    for path in files:
        assert reads(path.read_bytes()) or not path.name.startswith("pass"), path.name


@pytest.mark.long
def test_naughty_strings_round_trip(shared: Path) -> None:
    """Every naughty string is a value, a key and a text that nothing alters."""
    for name in ("blns.json", "blns.base64.json"):
        text = (shared / "conformance/blns" / name).read_bytes()
        assert reads(text)
        for string in json.loads(text):
            reads(json.dumps({string: string, "again": [string]}).encode())
            reads(string.encode())


def test_number_spellings_read_as_the_double_they_say(shared: Path) -> None:
    """A seeded sample of each file: the bits of every literal, and the same on every path."""
    chance = random.Random(7)
    literal = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z")
    checked = 0
    for path in sorted((shared / "conformance/parse-number-fxx/data").glob("*.txt")):
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        sound = [(bits, number) for _, _, bits, number in lines if literal.match(number) and re.search("[.eE]", number)]
        for bits, number in chance.sample(sound, min(400, len(sound))):
            expected = struct.unpack(">d", bytes.fromhex(bits))[0]
            for engine in ENGINES:
                document = read_legacy(number.encode(), engine=engine)
                assert struct.pack(">d", document.value).hex() == bits.lower(), number
                assert (document.keep_reason is None) == (not math.isinf(expected)), number
                body = recode(number.encode(), engine=engine).body
                assert identical(decode_body(body), expected)
            checked += 1

    assert checked > 800


def msgpack_cases(shared: Path) -> Iterator[tuple[str, Any, bytes]]:
    suite = json.loads((shared / "conformance/msgpack-test-suite/dist/msgpack-test-suite.json").read_text("utf-8"))
    for cases in suite.values():
        for case in cases:
            kind = next(kind for kind in case if kind != "msgpack")
            value = int(case["bignum"]) if "bignum" in case else case[kind]
            for spelling in case["msgpack"]:
                yield kind, value, bytes.fromhex(spelling.replace("-", ""))


def test_messagepack_suite_reads_as_it_says(shared: Path) -> None:
    """Each spelling of a JSON value reads as it; bin, ext and timestamps do not; only one spelling is canonical."""
    cases = list(msgpack_cases(shared))
    assert len(cases) > 200
    for kind, value, payload in cases:
        body = enveloped(0x10, payload)
        outcomes = [outcome(lambda engine=engine, body=body: decode_body(body, engine=engine)) for engine in ENGINES]
        assert repr(outcomes[0]) == repr(outcomes[1])
        if kind in {"binary", "ext", "timestamp"}:
            assert outcomes[0][0] == MalformedPayload.__name__, payload
            continue
        assert outcomes[0] == ("gives", value), payload
        if encode_body(outcomes[0][1], codec_named("msgpack+none")) == body:
            check_canonical(body)
        else:
            with pytest.raises(NotCanonical):
                check_canonical(body)


def test_zlib_vectors_end_where_zlib_says(shared: Path) -> None:
    """Go's reader tests: a stream is read if it ends, needs no dictionary and has nothing behind it."""
    vectors = json.loads((shared / "conformance/zlib-vectors/go_zlib_reader_test.json").read_text("utf-8"))
    for vector in vectors:
        compressed = bytes.fromhex(vector["compressed_hex"])
        outcomes = [inflate(engine, compressed) for engine in ENGINES]

        assert outcomes[0] == outcomes[1], vector["desc"]
        sound = vector["go_error"] is None and vector["dict_hex"] is None and not vector["cpython"].get("unused")
        assert (outcomes[0][0] == "gives") is sound, vector["desc"]
        if sound:
            assert outcomes[0][1].decode("latin-1") == vector["raw"]


def test_zlib_coverage_vectors_agree(shared: Path) -> None:
    """The inputs that cover zlib's own inflate, as they are and as the inside of a stream whose checksum holds."""
    vectors = json.loads((shared / "conformance/zlib-vectors/infcover.json").read_text("utf-8"))
    for vector in vectors:
        raw = bytes.fromhex(vector["bytes_hex"])
        inflater = zlib.decompressobj(-15)
        try:
            content = inflater.decompress(raw)
        except zlib.error:
            content = b""
        for stream in (raw, b"\x78\x9c" + raw + zlib.adler32(content).to_bytes(4, "big"), b"\x78\x9c" + raw):
            plain, fast = (inflate(engine, stream) for engine in ENGINES)
            if plain != fast:  # the one difference that FORMAT.md names
                assert re.search("too many length or distance symbols|invalid (distance|literal/length) code", plain[1])
            if plain[0] != "gives":
                with pytest.raises(CorruptBody):
                    check_canonical(enveloped(0x11, stream or b"\x00"))


@pytest.mark.long
def test_real_documents_round_trip(shared: Path) -> None:
    """A seeded sample of each corpus, through every codec and both engines."""
    chance = random.Random(19)
    files = sorted((shared / "data").glob("*.ndjson.gz"))
    assert files
    for path in files:
        with gzip.open(path) as lines:
            sample = chance.sample(list(lines), 3)
        for line in sample:
            assert reads(line.rstrip(b"\n"))
            assert reads(json.dumps(json.loads(line)).encode())


def test_unreadable_is_never_guessed_at(shared: Path) -> None:
    """Real documents under a codec of no envelope's are refused, though every one of them could be undone."""
    with gzip.open(shared / "data/nyctaxi_day.ndjson.gz") as lines:
        text = next(iter(lines))
    for body in (zlib.compress(text), gzip.compress(text), text.decode().encode("utf-16"), b"\xef\xbb\xbf" + text):
        for engine in ENGINES:
            with pytest.raises(UnreadableLegacy):
                decode_body(body, engine=engine)
