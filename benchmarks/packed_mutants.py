"""Payloads that are almost valid, read by both engines of packed, which must give the same documents and refusals.

    python benchmarks/packed_mutants.py [--count 10000000] [--seed 1] [FOLDER]

Mutants are made from the golden bodies and, if a FOLDER of ``*.ndjson.gz`` is given, from some of its documents, by
changing bits, bytes, pieces and lengths. Only the payload is used, as if the checksum were right. Each goes to the
native extension and to the reference. A document that is read must have at most four values per byte, be the same on
both sides, and be written as the same bytes again. The native extension leaves documents of more than 32 levels to the
reference; such mutants are counted separately. The first difference ends the run with the payload that shows it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import schemaless_packed

from schemaless.codec.documents import MAX_DEPTH, depth_of, identical
from schemaless.codec.packed import pack_reference
from schemaless.codec.packed_reader import unpack_reference
from schemaless.codec.serializers import NotHeld
from schemaless.errors import CorruptBody

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.codec.mutants import mutated, values_of  # noqa: E402

LONGEST = 700
DOCUMENTS_OF_EACH = 40
NATIVE_DEPTH = 32


def main() -> None:
    """Print the outcomes of the mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    payloads = [path.read_bytes()[2:-4] for path in sorted((ROOT / "tests/vectors/bodies").glob("packed-of-*.body"))]
    if arguments.folder is not None:
        payloads += of_documents(arguments.folder)
    payloads = [payload for payload in payloads if len(payload) <= LONGEST]
    chance = random.Random(arguments.seed)
    found: Counter[str] = Counter()
    most = 0.0
    started = time.perf_counter()
    for _ in range(arguments.count):
        mutant = mutated(chance, payloads)
        became, values = judged(mutant)
        found[became] += 1
        most = max(most, values / max(1, len(mutant)))
    seconds = time.perf_counter() - started
    print(f"{len(payloads)} payloads, {arguments.count:,} mutants, seed {arguments.seed}, {seconds:,.0f} s")
    for became, count in found.most_common():
        print(f"{count:>12,}  {became}")
    print(f"most values a byte: {most:.2f}; crashes: 0; differences: 0")


def of_documents(folder: Path) -> list[bytes]:
    """Return the payloads of the first short documents of each file."""
    found = []
    for path in sorted(folder.glob("*.ndjson.gz")):
        of_file: list[bytes] = []
        with gzip.open(path) as lines:
            for line in lines:
                payload = schemaless_packed.pack(json.loads(line))
                if payload is not None and len(payload) <= LONGEST:
                    of_file.append(payload)
                if len(of_file) == DOCUMENTS_OF_EACH:
                    break
        found += of_file
    return found


def judged(mutant: bytes) -> tuple[str, int]:
    """Return what both engines make of a mutant, and how many values its document has.

    Raises:
        SystemExit: they differ, or a document has more values than its payload allows.
    """
    try:
        expected = unpack_reference(mutant)
    except CorruptBody as refusal:
        try:
            schemaless_packed.unpack(mutant, MAX_DEPTH)
        except ValueError:
            return f"refused, {type(refusal).__name__}", 0
        raise SystemExit(f"only the native extension reads {mutant.hex()}") from None
    values = values_of(expected)
    if values > 4 * len(mutant):
        raise SystemExit(f"{values} values of {len(mutant)} bytes: {mutant.hex()}")
    try:
        document = schemaless_packed.unpack(mutant, MAX_DEPTH)
    except ValueError:
        if depth_of(expected) > NATIVE_DEPTH:
            return "read by the reference, too deep for the native extension", values
        raise SystemExit(f"only the reference reads {mutant.hex()}") from None
    if not identical(document, expected) or schemaless_packed.pack(document) != spelled(expected):
        raise SystemExit(f"two documents, or two spellings, of {mutant.hex()}")
    return "read by both, and written as the same bytes by both", values


def spelled(document: Any) -> bytes | None:
    """Return the reference's payload, or None if there is none."""
    try:
        return pack_reference(document)
    except NotHeld:
        return None


if __name__ == "__main__":
    main()
