"""What it costs in bytes to mask the values on which a dictionary is trained.

    python benchmarks/masked_dictionaries.py [FOLDER] [--splits 3] [--codec msgpack+zstd]

Each set's groups are split into halves by their hash. For each kind of ``values``, a dictionary is trained on one half
and the other half is encoded with it, and vice versa, so each document is measured once, with a dictionary that was not
trained on its group. The sets are the demo's logbooks, a group for each aircraft, and the files ``*.ndjson.gz`` of
FOLDER, one document per line, with the group of each line in ``*.groups.gz`` if there is such a file.

Columns are body bytes relative to the same codec without a dictionary, and CPU seconds for a half, training included.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemaless.bench import logbooks
from schemaless.codec.envelope import decode_body, encode_body, same_document
from schemaless.codec.masking import Values
from schemaless.codec.registry import Codec, codec_named
from schemaless.codec.training import train
from schemaless.errors import InvalidInput

VALUES: tuple[Values, ...] = ("real", "common", "masked")
Documents = list[tuple[str, Any]]


def main() -> None:
    """Print a line for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--codec", default="msgpack+zstd")
    arguments = parser.parse_args()
    codec = codec_named(arguments.codec)
    print(f"{codec.name}, level {codec.compressor.level}; bytes relative to no dictionary, seconds to train")
    print(f"{'set':20} {'docs':>6} {'without':>12}" + "".join(f"{name:>10}" for name in VALUES) + f"{'s':>16}")
    shares: dict[Values, list[float]] = {name: [] for name in VALUES}
    for name, documents in sets(arguments.folder):
        without = sum(len(encode_body(body, codec)) for _, body in documents)
        taken: dict[Values, int] = {}
        seconds: dict[Values, float] = {}
        for values in VALUES:
            started = time.thread_time()
            taken[values] = sum(measured(documents, codec, values, seed) for seed in range(arguments.splits))
            seconds[values] = (time.thread_time() - started) / arguments.splits / 2
            shares[values].append(taken[values] / arguments.splits / without)
        print(
            f"{name:20} {len(documents):>6} {without:>12,}"
            + "".join(f"{shares[values][-1]:>10.3f}" for values in VALUES)
            + "  "
            + "".join(f"{seconds[values]:>7.1f}" for values in VALUES),
            flush=True,
        )
    means = [math.exp(math.fsum(map(math.log, shares[values])) / len(shares[values])) for values in VALUES]
    print(f"{'geometric mean':20} {'':>6} {'':>12}" + "".join(f"{mean:>10.3f}" for mean in means))


def sets(folder: Path | None) -> Iterator[tuple[str, Documents]]:
    """Yield the sets, each document with its group."""
    yield "logbooks", [(each.tail_number, each.body) for each in logbooks.documents()]
    for path in sorted(folder.glob("*.ndjson.gz")) if folder else ():
        with gzip.open(path) as lines:
            bodies = [json.loads(line) for line in lines]
        groups = [str(number) for number in range(len(bodies))]
        beside = path.with_name(path.name.replace(".ndjson.", ".groups."))
        if beside.exists():
            with gzip.open(beside, "rt") as lines:
                groups = [line.strip() for line in lines]
        yield path.name.removesuffix(".ndjson.gz"), list(zip(groups, bodies, strict=True))


def measured(documents: Documents, codec: Codec, values: Values, seed: int) -> int:
    """Return the bytes of all documents, each with a dictionary trained on the other half."""
    total = 0
    for half in (0, 1):
        others = [(group, body) for group, body in documents if half_of(group, seed) != half]
        try:
            with_it = train(
                (
                    (hashlib.sha256(f"{group}/{number}".encode()).digest()[:16], encode_body(body))
                    for number, (group, body) in enumerate(others)
                ),
                codec,
                values=values,
            ).codec
        except InvalidInput:
            with_it = replace(codec, dictionary=None)
        for group, body in documents:
            if half_of(group, seed) == half:
                stored = encode_body(body, with_it)
                if not same_document(decode_body(stored, dictionaries=with_it.own_dictionaries), body):
                    raise SystemExit(f"a document of {group} does not decode to itself")
                total += len(stored)
    return total


def half_of(group: str, seed: int) -> int:
    """Return the half that a group belongs to."""
    return hashlib.sha256(f"{seed}/{group}".encode()).digest()[0] & 1


if __name__ == "__main__":
    main()
