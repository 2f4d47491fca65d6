"""Write the golden bodies, their dictionary and the golden file of an archive: ``python tests/vectors/write.py``.

Each is written once, by the stock libraries, and never again: an existing vector is not overwritten. To add a format,
add a line; a vector that is wrong is evidence of a bug and stays as it is. Tests read these files and never write them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import zstandard

from schemaless.codec.deltas import encode_delta
from schemaless.codec.dictionaries import Dictionary
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import encode_body, seal
from schemaless.codec.packed import pack_reference
from schemaless.codec.recode import recode
from schemaless.codec.references import reference_body
from schemaless.codec.registry import codec_named
from schemaless.codec.serializers import Serializer
from schemaless.ops.migrate.archive import ArchivedCell, ArchiveWriter

HERE = Path(__file__).parent
FOLDER = HERE / "bodies"
DICTIONARY = HERE / "dictionaries" / "32768.dict"
LAST_ID = 65_535
ARCHIVE = HERE / "archive"
DELTAS = HERE / "deltas"
REFERENCES = HERE / "references"

TRIP = {
    "trip": "71f0c4d2",
    "status": "completed",
    "fare": {"currency": "USD", "total": 12.5, "tolls": 0.0, "tip": None, "surge": True},
    "legs": [
        {"from": "JFK", "to": "BOS", "miles": 187, "at": -1, "zone": "America/New_York"},
        {"from": "BOS", "to": "JFK", "miles": 187, "at": 4294967296, "zone": "America/New_York"},
    ],
    "driver": {"name": "Zoë 🚕", "rating": 4.97, "rated": False, "badges": []},
}
PACKED_TEXTS = {
    "kept-nul": '{"a": "%s", "s": "\\u0000"}' % ("kept as text " * 12),
    "kept-short": '{"status":"ok"}',
}
SPACED = json.dumps(TRIP, indent=1)
LONG = '{"a": "%s"' % ("kept as text " * 12)
TEXTS = {
    "kept-big-integer": LONG + ', "n": 18446744073709551616}',
    "kept-lone-surrogate": LONG + ', "s": "\\ud83d"}',
    "kept-duplicate-keys": LONG + ', "b": 1, "b": 2}',
    "kept-overflow": LONG + ', "x": 1e999}',
    "kept-short": '{"n":-9223372036854775809}',
}
LOG = {
    "trip": "71f0c4d2",
    "points": [
        {
            "at": f"2013-01-31T23:59:{second:02}.{second:03}Z",
            "on": [-73.98 - second / 1e5, 40.75 + second * second / 1e5],
            "speed": second * 0.5,
            "heading": 359 - second,
            "fix": second % 3 > 0,
            "note": None if second % 2 else f"leg {second}",
        }
        for second in range(12)
    ],
}
UUIDS = [
    f"{number * 0x9E3779B9 % 2**32:08x}-0f00-4{number:03x}-8000-{number * 0x9E3779B97F:012x}" for number in range(1, 5)
]
"""Four of them."""

NEAR = [
    ["12:00:00\n", "12:00:00", "12:00:00", "12:00:00"],
    ["\u0661\u0662:00:00", "12:00:00", "12:00:00", "12:00:00"],
    ["12:60:00"] * 4,
    ["2013-02-29"] * 4,
    ["0000-01-01"] * 4,
    ["2013-01-01T24:00:00Z"] * 4,
    ["2013-01-01T23:59:60Z"] * 4,
    ["2013-01-01t00:00:00Z"] * 4,
    ["2013-01-01T00:00:00z"] * 4,
    ["+5"] * 4,
    ["007"] * 4,
    ["-0.0"] * 4,
    ["1.", "1.", ".5", ".5"],
    ["9223372036854775808"] * 4,
    ["0.0123456789"] * 4,
    ["ABCD"] * 4,
    ["abc"] * 4,
    ["ab" * 128] * 4,
    [""] * 4,
    ["12.5", "12.50", "12.5", "12.5"],
    [UUIDS[0].upper()] * 4,
]
"""Strings that are nearly of a type."""

PACKED_DOCUMENTS: dict[str, Any] = {
    "null": None,
    "false": False,
    "true": True,
    "int": -150,
    "int-least": -(1 << 63),
    "int-greatest": (1 << 63) - 1,
    "decimal": -12.5,
    "decimal-scale-15": 0.123456789012345,
    "decimal-greatest": 9007199254740992.0,
    "double": 0.1 + 0.2,
    "double-minus-zero": -0.0,
    "double-not-finite": [float("nan"), float("inf"), float("-inf"), 1e308, 5e-324],
    "double-beyond-decimal": 9007199254740994.0,
    "bigint": 1 << 63,
    "bigints": [1 << 63, -(1 << 63) - 1, 10**4299, 0],
    "text": "Zoë 🚕",
    "text-empty": "",
    "array-empty": [],
    "arrays-empty": [[], []],
    "array-one": [[7]],
    "object-empty": {},
    "objects-empty": [{}, {}, {}],
    "object": {"b": 1, "a": {"b": 2}, "": {"\0": 3}},
    "nulls": [None] * 3,
    "booleans": [True, False, True],
    "every-kind": [None, False, True, 1, 0.5, "text", [1, "x"], {"k": None}, 1e300, 1 << 64, [], {}, -7, 2.25, "more"],
    "predictor-zero": [5, -3, 900, -4, 7, -1000],
    "predictor-previous": [1_000_000, 1_000_003, 1_000_001, 1_000_009, 1_000_004],
    "predictor-line": [1_000_000, 1_000_250, 1_000_500, 1_000_751, 1_001_000],
    "predictor-wraps": [-(1 << 63), (1 << 63) - 1, -(1 << 63), (1 << 63) - 1, -2, 1, 1 << 62, -(1 << 62)],
    "predictor-line-wraps": [(1 << 63) - 3, -(1 << 63), -(1 << 63) + 3, -(1 << 63) + 6, -(1 << 63) + 9],
    "predictor-tie": [0, 0, 0, 0],
    "scales": {str(scale): [number / 10**scale for number in (7, 1, 3)] for scale in range(16)},
    "scale-of-most": [0.1, 0.25, 1e15, 123456789012345.6, -0.0, 3.0, 1e-15],
    "scale-of-none": [1e300, 1e-300, -0.0, 2**60 + 0.0],
    "typed-time": ["00:00:00", "23:59:59", "99:59:59", "12:34:56"],
    "typed-timestamp": ["2013-01-01T00:00:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "1969-12-31T23:59:59"],
    "typed-timestamp-space-zone": [f"2016-02-29 23:59:59.{digits}+05:30" for digits in ("00", "01", "99", "50")],
    "typed-timestamp-suffixes": {
        suffix: [f"2013-0{month}-01T00:00:00{suffix}" for month in (1, 2, 3, 4)]
        for suffix in ("Z", "-0530", "+01", "+99:99")
    },
    "typed-timestamp-nanoseconds": [
        "1970-01-01T00:00:00.000000001Z",
        "1677-09-21T00:12:43.145224192Z",
        "2262-04-11T23:47:16.854775807Z",
        "1969-12-31T23:59:59.999999999Z",
    ],
    "typed-date": ["0001-01-01", "9999-12-31", "2000-02-29", "1900-02-28"],
    "typed-decimal": ["12.50", "-0.05", "0.00", "99999999999999999.99"],
    "typed-integer": ["-9223372036854775808", "9223372036854775807", "0", "-1"],
    "typed-uuid": UUIDS,
    "typed-hex": ["00ff", "beef", "1234", "0000"],
    "typed-hex-longest": [f"{number:02x}" * 127 for number in (0, 127, 128, 255)],
    "untyped-too-few": ["12:00:00", "12:00:01", "12:00:02"],
    "untyped-nanoseconds-beyond": ["1970-01-01T00:00:00.000000001Z"] * 3 + ["2262-04-11T23:47:16.854775808Z"],
    "untyped-near": {str(number): strings for number, strings in enumerate(NEAR)},
    "arrays-of-one-length": {str(length): [[number] * length for number in range(2)] for length in range(10)},
    "arrays-of-lengths": [[1, 2], [3], [], [4, 5, 6]],
    "shapes": [{"a": 1, "b": 2}, {"b": 3, "a": 4}, {"a": 5}, {}, {"c": 6, "a": 7, "d": 8}, {"a": 9, "b": 10}],
    "nested": [[[[[[[[{"a": {"a": {"a": [[[1]]]}}}]]]]]]]],
    "columns": LOG,
}


def packed_vectors() -> dict[str, tuple[bytes, str]]:
    """Return bodies of packed payloads, uncompressed, so that each byte of the grammar stands in one of them."""
    plain = codec_named("packed+none")
    return {
        f"packed-of-{name}": (
            seal(REFERENCE.packed, pack_reference(document), plain, REFERENCE),
            json.dumps(document, indent=None, separators=(",", ":")),
        )
        for name, document in PACKED_DOCUMENTS.items()
    }


def write_dictionary() -> None:
    """Write a dictionary that knows trips."""
    if DICTIONARY.exists():
        sys.stderr.write(f"{DICTIONARY.name}: exists\n")
        return
    trips = [
        json.loads(json.dumps(TRIP).replace("71f0c4d2", f"{number * 7919:08x}").replace("187", str(100 + number % 90)))
        for number in range(900)
    ]
    payloads = [REFERENCE.msgpack.dumps(trip) for trip in trips] + [json.dumps(trip).encode() for trip in trips]
    DICTIONARY.parent.mkdir(exist_ok=True)
    DICTIONARY.write_bytes(zstandard.train_dictionary(1_024, payloads, dict_id=32_768).as_bytes())
    sys.stderr.write(f"{DICTIONARY.name}: written\n")


def vectors() -> dict[str, tuple[bytes, str]]:
    """Return each vector's body and the JSON text that says which document it holds, by name."""
    made: dict[str, tuple[bytes, str]] = {}
    for serializer in ("msgpack", "json", "packed"):
        for compressor in ("none", "zlib", "zstd"):
            codec = codec_named(f"{serializer}+{compressor}")
            made[f"{serializer}-{compressor}"] = encode_body(TRIP, codec, engine=REFERENCE), SPACED
    made["msgpack-zlib-by-libdeflate"] = encode_body(TRIP, engine=Engine(fast=True)), SPACED
    made["msgpack-short"] = encode_body({"fare": {"total": 12.5}}, engine=REFERENCE), '{"fare": {"total": 12.5}}'
    made["msgpack-not-finite"] = (
        encode_body([float("nan"), float("-inf"), -0.0], engine=REFERENCE),
        "[NaN, -Infinity, -0.0]",
    )
    made["msgpack-scalar"] = encode_body(None, engine=REFERENCE), "null"
    for name, text in TEXTS.items():
        made[f"{name}-zlib"] = recode(text.encode(), codec_named("msgpack+zlib"), engine=REFERENCE).body, text
        made[f"{name}-zstd"] = recode(text.encode(), codec_named("msgpack+zstd"), engine=REFERENCE).body, text
    dictionary = Dictionary(DICTIONARY.read_bytes())
    for name in ("msgpack", "json", "packed"):
        codec = replace(codec_named(f"{name}+zstd"), dictionary=dictionary)
        made[f"{name}-zstd-dictionary"] = encode_body(TRIP, codec, engine=REFERENCE), SPACED
    last = replace(codec_named("msgpack+zstd"), dictionary=dictionary.renumbered(LAST_ID))
    made["msgpack-zstd-dictionary-last-id"] = encode_body(TRIP, last, engine=REFERENCE), SPACED
    codec = replace(codec_named("msgpack+zstd"), dictionary=dictionary)
    text = TEXTS["kept-duplicate-keys"]
    made["kept-duplicate-keys-zstd-dictionary"] = recode(text.encode(), codec, engine=REFERENCE).body, text
    for name in ("kept-nul", "kept-lone-surrogate", "kept-big-integer", "kept-short"):
        text = PACKED_TEXTS.get(name) or TEXTS[name]
        made[f"packed-{name}"] = recode(text.encode(), codec_named("packed+zstd"), engine=REFERENCE).body, text
    made |= packed_vectors()
    made["legacy"] = json.dumps(TRIP, separators=(",", ":"), ensure_ascii=False).encode(), SPACED
    made["legacy-spaced"] = SPACED.encode(), SPACED
    return made


def reference_vectors() -> dict[str, tuple[bytes, bytes]]:
    """Return references by their file's number: each body, and the JSON text that the file has."""
    places = {"1": (0, 0), "17": (2, 256), str(2**64 - 1): (2**32 - 1, 2**32 - 1)}
    texts = dict(zip(places, (b"null", LONG.encode() + b"}", SPACED.encode()), strict=True))
    return {file: (reference_body(int(file), *places[file], text), text) for file, text in texts.items()}


def write_archive() -> None:
    """Write a file of an archive: two chunks, and the end mark."""
    if any(ARCHIVE.glob("**/*.zst")):
        sys.stderr.write("the file of an archive: exists\n")
        return
    cells = [
        ArchivedCell(
            (1, 2, (1 << 64) - 1)[number],
            bytes((number,)) * 16,
            ("BASE", "a.b:c-d", "X" * 64)[number],
            (0, 1, (1 << 63) - 1)[number],
            f"2026-01-31 00:00:00.00000{number}+00:00",
            (b'{"a": 1}', b"", b"\xc1\x10\x80rest" * 100)[number],
            hashlib.sha256(b"%d" % number).digest(),
        )
        for number in range(3)
    ]
    with (
        mock.patch("schemaless.ops.migrate.archive.secrets.token_bytes", return_value=bytes(range(8))),
        mock.patch("schemaless.ops.migrate.archive.datetime") as clock,
    ):
        clock.now.return_value.isoformat.return_value = "2026-01-31T12:00:00+00:00"
        writer = ArchiveWriter.create(ARCHIVE, datastore="golden", shard=17, shard_count=4096, job_id=12, epoch=3)
    writer.append(cells[:2])
    writer.append(cells[2:])
    writer.close()
    sys.stderr.write(f"{writer.path.name}: written, {writer.bytes_written} bytes\n")


def delta_vectors() -> dict[str, dict[int, tuple[bytes, str]]]:
    """Return cells with several versions, by name: each version's body and the JSON text of its document."""
    texts: dict[int, str] = {}
    for ref_key in range(1, 5):
        trip = TRIP | {"status": ("requested", "accepted", "driving", "completed")[ref_key - 1], "revision": ref_key}
        texts[ref_key] = json.dumps(trip, indent=1)
    dictionary = replace(codec_named("packed+zstd"), dictionary=Dictionary(DICTIONARY.read_bytes()))
    top = {
        "zlib": encode_body(json.loads(texts[4]), engine=REFERENCE),
        "packed": encode_body(json.loads(texts[4]), dictionary, engine=REFERENCE),
        "legacy": texts[4].encode(),
    }

    def chain(whole: str, *serializers: Serializer) -> dict[int, tuple[bytes, str]]:
        made = {4: (top[whole], texts[4])}
        for ref_key, serializer in zip(range(3, 0, -1), serializers, strict=False):
            payload, base = (serializer.dumps(json.loads(texts[number])) for number in (ref_key, ref_key + 1))
            delta = encode_delta(serializer, payload, ref_key + 1, base)
            assert delta is not None
            made[ref_key] = delta, texts[ref_key]
        return made

    msgpack, packed = REFERENCE.msgpack, REFERENCE.packed
    return {
        "msgpack": chain("zlib", msgpack),
        "packed": chain("zlib", packed),
        "chain": chain("zlib", msgpack, msgpack, msgpack),
        "chain-of-both": chain("packed", msgpack, packed, msgpack),
        "base-packed-dictionary": chain("packed", msgpack),
        "base-legacy": chain("legacy", packed, packed),
    }


def write(target: Path, body: bytes, text: bytes) -> None:
    """Write a body, and the JSON text of its document next to it, if the file does not exist."""
    if target.exists():
        differs = "" if target.read_bytes() == body else "; this run would have written other bytes"
        sys.stderr.write(f"{target.relative_to(HERE)}: exists{differs}\n")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(body)
    target.with_suffix(".json").write_bytes(text)
    sys.stderr.write(f"{target.relative_to(HERE)}: written, {len(body)} bytes\n")


def main() -> int:
    """Write the vectors that are missing; report those that would differ today."""
    write_archive()
    write_dictionary()
    for name, versions in delta_vectors().items():
        for ref_key, (body, text) in versions.items():
            write(DELTAS / name / f"{ref_key}.body", body, text.encode())
    for name, (body, referenced) in reference_vectors().items():
        write(REFERENCES / f"{name}.body", body, referenced)
    for name, (body, text) in vectors().items():
        write(FOLDER / f"{name}.body", body, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
