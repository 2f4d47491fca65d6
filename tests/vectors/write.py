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
from unittest import mock

import zstandard

from schemaless.codec.dictionaries import Dictionary
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import encode_body
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named
from schemaless.jobs.archive import ArchivedCell, ArchiveWriter

HERE = Path(__file__).parent
FOLDER = HERE / "bodies"
DICTIONARY = HERE / "dictionaries" / "32768.dict"
LAST_ID = 65_535
ARCHIVE = HERE / "archive"

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
SPACED = json.dumps(TRIP, indent=1)
LONG = '{"a": "%s"' % ("kept as text " * 12)
TEXTS = {
    "kept-big-integer": LONG + ', "n": 18446744073709551616}',
    "kept-lone-surrogate": LONG + ', "s": "\\ud83d"}',
    "kept-duplicate-keys": LONG + ', "b": 1, "b": 2}',
    "kept-overflow": LONG + ', "x": 1e999}',
    "kept-short": '{"n":-9223372036854775809}',
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
    for serializer in ("msgpack", "json"):
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
    for name in ("msgpack", "json"):
        codec = replace(codec_named(f"{name}+zstd"), dictionary=dictionary)
        made[f"{name}-zstd-dictionary"] = encode_body(TRIP, codec, engine=REFERENCE), SPACED
    last = replace(codec_named("msgpack+zstd"), dictionary=dictionary.renumbered(LAST_ID))
    made["msgpack-zstd-dictionary-last-id"] = encode_body(TRIP, last, engine=REFERENCE), SPACED
    codec = replace(codec_named("msgpack+zstd"), dictionary=dictionary)
    text = TEXTS["kept-duplicate-keys"]
    made["kept-duplicate-keys-zstd-dictionary"] = recode(text.encode(), codec, engine=REFERENCE).body, text
    made["legacy"] = json.dumps(TRIP, separators=(",", ":"), ensure_ascii=False).encode(), SPACED
    made["legacy-spaced"] = SPACED.encode(), SPACED
    return made


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
        mock.patch("schemaless.jobs.archive.secrets.token_bytes", return_value=bytes(range(8))),
        mock.patch("schemaless.jobs.archive.datetime") as clock,
    ):
        clock.now.return_value.isoformat.return_value = "2026-01-31T12:00:00+00:00"
        writer = ArchiveWriter(ARCHIVE, datastore="golden", shard=17, shard_count=4096, job_id=12, epoch=3)
    writer.append(cells[:2])
    writer.append(cells[2:])
    writer.close()
    sys.stderr.write(f"{writer.path.name}: written, {writer.bytes_written} bytes\n")


def main() -> int:
    """Write the vectors that are missing; report those that would differ today."""
    write_archive()
    write_dictionary()
    FOLDER.mkdir(exist_ok=True)
    for name, (body, text) in vectors().items():
        target = FOLDER / f"{name}.body"
        if target.exists():
            differs = "" if target.read_bytes() == body else "; this run would have written other bytes"
            sys.stderr.write(f"{target.name}: exists{differs}\n")
            continue
        target.write_bytes(body)
        target.with_suffix(".json").write_text(text, encoding="ascii" if text.isascii() else "utf-8")
        sys.stderr.write(f"{target.name}: written, {len(body)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
