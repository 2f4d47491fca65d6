"""Size of documents as packed bodies, compared with MessagePack under the same compressors.

    python benchmarks/packed_size.py FOLDER [--level 5] [--splits 5]

FOLDER holds ``*.ndjson.gz``, one document per line, each with ``*.groups.gz``, the group of each line, if its documents
have groups. Bodies are the store's own, envelope included, and each is decoded and compared. A set's groups are split
into halves by their hash; a dictionary of 110 KiB, or of the largest size that zstd can train on so little, is trained
on one half at the same level for both, and the other half is measured with it; then vice versa, so that each document
is measured once. A dictionary trained on few documents is a matter of luck, so several splits are measured and added
up. Without groups, each document is a group of its own.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import zstandard

from schemaless.cell import JSONDocument
from schemaless.codec.dictionaries import FIRST_ID, Dictionary
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import decode_body, encode_body, same_document
from schemaless.codec.registry import JSON, MSGPACK, NONE, PACKED, ZLIB, ZSTD, Codec
from schemaless.codec.serializers import Serializer

SIZES = (110 << 10, 32 << 10, 8 << 10)
Halves = tuple[list[JSONDocument], list[JSONDocument]]


def main() -> None:
    """Print a table, a line for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--level", type=int, default=5)
    parser.add_argument("--splits", type=int, default=5)
    arguments = parser.parse_args()
    native = "with its native extension" if ENGINE.packed.native else "in pure Python"
    print(f"Python {platform.python_version()}, zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}, packed {native}")
    print(f"{'':20} {'':>6}  of msgpack+zlib level 6  of zstd level {arguments.level}, and with dictionaries")
    print(
        f"{'set':20} {'docs':>6}  {'json':>10} {'packed':>12}  {'packed':>8} "
        f"{'msgpack B':>11} {'packed B':>11} {'packed':>8}"
    )
    ratios = []
    for path in sorted(arguments.folder.glob("*.ndjson.gz")):
        halves = split(path, 0)
        zlib = [total(halves, Codec(serializer, ZLIB, 6)) for serializer in (MSGPACK, JSON, PACKED)]
        zstd = [total(halves, Codec(serializer, ZSTD, arguments.level)) for serializer in (MSGPACK, PACKED)]
        totals = [0, 0]
        for seed in range(arguments.splits):
            for place, serializer in enumerate((MSGPACK, PACKED)):
                totals[place] += with_dictionaries(split(path, seed), serializer, arguments.level)
        row = zlib[1] / zlib[0], zlib[2] / zlib[0], zstd[1] / zstd[0], totals[1] / totals[0]
        ratios.append(row)
        name = path.name.removesuffix(".ndjson.gz")
        print(
            f"{name:20} {sum(map(len, halves)):>6}  {row[0]:>10.3f} {row[1]:>12.3f}  {row[2]:>8.3f} "
            f"{totals[0] // arguments.splits:>11,} {totals[1] // arguments.splits:>11,} {row[3]:>8.3f}",
            flush=True,
        )
    means = [math.exp(math.fsum(map(math.log, column)) / len(column)) for column in zip(*ratios, strict=True)]
    print(f"{'geometric mean':20} {'':>6}  {means[0]:>10.3f} {means[1]:>12.3f}  {means[2]:>8.3f} {means[3]:>32.3f}")


def split(path: Path, seed: int) -> Halves:
    """Return a set's documents in two halves, no group in both."""
    with gzip.open(path) as lines:
        documents = [json.loads(line) for line in lines]
    beside = path.with_name(path.name.replace(".ndjson.", ".groups."))
    groups = [str(number).encode() for number in range(len(documents))]
    if beside.exists():
        with gzip.open(beside) as lines:
            groups = [line.strip() for line in lines]
    halves: Halves = ([], [])
    for document, group in zip(documents, groups, strict=True):
        halves[hashlib.sha256(b"%d %s" % (seed, group)).digest()[0] % 2].append(document)
    return halves


def total(halves: Halves, codec: Codec) -> int:
    """Return the total bytes of all documents' bodies in a codec."""
    return sum(size for half in halves for size in sizes(half, codec))


def with_dictionaries(halves: Halves, serializer: type[Serializer], level: int) -> int:
    """Return the total bytes of all documents, each half with a dictionary trained on the other."""
    return sum(
        size
        for half, other in (halves, halves[::-1])
        for size in sizes(half, replace(Codec(serializer, ZSTD, level), dictionary=trained(other, serializer, level)))
    )


def trained(documents: Sequence[JSONDocument], serializer: type[Serializer], level: int) -> Dictionary | None:
    """Return a dictionary for documents like these, or None if zstd finds too little repetition."""
    plain = Codec(serializer, NONE)
    bodies = [encode_body(document, plain) for document in documents]
    payloads = [body[2:-4] for body in bodies if body[1] == plain.format_byte]
    for size in SIZES:
        try:
            made = zstandard.train_dictionary(size, payloads, dict_id=FIRST_ID, level=level)
        except zstandard.ZstdError:
            continue
        return Dictionary(made.as_bytes())
    return None


def sizes(documents: Sequence[JSONDocument], codec: Codec) -> Iterator[int]:
    """Yield the bytes of each document's body, decoded and compared."""
    for document in documents:
        body = encode_body(document, codec)
        assert same_document(decode_body(body, dictionaries=codec.own_dictionaries), document)
        yield len(body)


if __name__ == "__main__":
    main()
