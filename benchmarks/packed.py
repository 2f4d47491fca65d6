"""CPU time of packed bodies, compared with JSON text with zlib and with the fastest MessagePack.

    python benchmarks/packed.py [FOLDER] [--rounds 15] [--level 3] [--seed 1]

FOLDER holds ``*.ndjson.gz``, one document per line, each with ``*.groups.gz`` if its documents have groups; the demo's
logbooks are added. This needs the native extension, since the reference is written to be read, not to be fast.

Python objects to bytes and back, in one process and one thread. A dictionary of 110 KiB is trained on one half of each
set's groups, and documents of the other half are measured. *Warm*: the documents of one set after the other,
repeatedly, in CPU seconds. *Interleaved*: all sets' documents shuffled, so that each finds the caches full of others;
elapsed time of each document, and contenders take turns. A time is the median over the rounds, of a set's documents
together (warm) or of each (interleaved). The output is ratios to ``json.dumps`` + zlib and back: geometric means
over the sets, and the quartiles of those means over the rounds.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import json
import math
import random
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import ormsgpack
import zstandard

from schemaless.bench.logbooks import documents
from schemaless.codec.dictionaries import FIRST_ID, Dictionary
from schemaless.codec.documents import MAX_DEPTH, identical
from schemaless.codec.fast import optional
from schemaless.codec.packed import Packed

DICTIONARY_BYTES = 110 << 10
TRAIN_BYTES = 8 << 20
MEASURED_BYTES = 1 << 20
MEASURED_DOCUMENTS = 400
BASE = "json.dumps, zlib 6, json.loads"

BLOCK = 200

Document = Any
Turn = Callable[[Document], Document]
Taken = dict[str, dict[str, list[list[float]]]]
"""Seconds by set, contender and round: one figure, or one for each document."""


@dataclass
class Set:
    """One corpus: the documents to measure, and each contender's round trip for one of them."""

    name: str
    documents: list[Document]
    turns: dict[str, Turn]
    sizes: dict[str, int]


def main() -> None:
    """Measure warm and interleaved, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    native = optional("schemaless_packed")
    if native is None:
        raise SystemExit("the native extension is not installed: pip install ./rust")
    sets = [prepared(name, grouped, arguments.level, native) for name, grouped in corpora(arguments.folder)]
    documents = sum(len(corpus.documents) for corpus in sets)
    print(f"{len(sets)} sets, {documents} documents, {arguments.rounds} rounds, zstd level {arguments.level}")
    print(f"ratios to {BASE!r}; lower is better")
    gc.collect()
    gc.freeze()
    report("warm", sets, warm(sets, arguments.rounds))
    report("interleaved", sets, interleaved(sets, arguments.rounds, arguments.seed))


def corpora(folder: Path | None) -> list[tuple[str, list[tuple[str, Document]]]]:
    """Return every set's documents with their groups; a set without groups has one for each document."""
    found = []
    for path in sorted(folder.glob("*.ndjson.gz")) if folder else ():
        groups_path = path.with_name(path.name.replace(".ndjson.", ".groups."))
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            parsed = [json.loads(line) for line in lines]
        groups = [str(number) for number in range(len(parsed))]
        if groups_path.exists():
            with gzip.open(groups_path, "rt", encoding="utf-8") as lines:
                groups = lines.read().splitlines()
        found.append((path.name.split(".")[0], list(zip(groups, parsed, strict=True))))
    return [*found, ("logbooks", [(each.tail_number, each.body) for each in documents()])]


def prepared(name: str, grouped: list[tuple[str, Document]], level: int, native: Any) -> Set:
    """Train on half of the groups, and return what is measured on the others."""

    def is_seen(group: str) -> bool:
        return hashlib.sha256(group.encode()).digest()[0] < 128

    seen = [document for group, document in grouped if is_seen(group)]
    unseen = [document for group, document in grouped if not is_seen(group)]
    random.Random(name).shuffle(unseen)
    measured = []
    total = 0
    for document in unseen[:MEASURED_DOCUMENTS]:
        measured.append(document)
        total += len(compact(document))
        if total > MEASURED_BYTES:
            break
    pack, unpack = native.pack, native.unpack
    packed_there, packed_back = zstd_pair([pack(each) for each in seen], level, Packed.table_bits)
    mp_pack, mp_unpack = ormsgpack.packb, msgspec.msgpack.Decoder().decode
    mp_there, mp_back = zstd_pair([mp_pack(each) for each in seen], level)
    turns: dict[str, Turn] = {
        BASE: lambda document: json.loads(zlib.decompress(zlib.compress(compact(document), 6))),
        "packed, zstd, dictionary": lambda document: unpack(packed_back(packed_there(pack(document))), MAX_DEPTH),
        "ormsgpack, zstd, dictionary, msgspec": lambda document: mp_unpack(mp_back(mp_there(mp_pack(document)))),
        "packed alone": lambda document: unpack(pack(document), MAX_DEPTH),
        "ormsgpack and msgspec alone": lambda document: mp_unpack(mp_pack(document)),
    }
    for label, turn in turns.items():
        if not all(identical(turn(document), document) for document in measured):
            raise SystemExit(f"{name}: {label} changed a document")
    sizes = {
        BASE: sum(len(zlib.compress(compact(each), 6)) for each in measured),
        "packed, zstd, dictionary": sum(len(packed_there(pack(each))) for each in measured),
        "ormsgpack, zstd, dictionary, msgspec": sum(len(mp_there(mp_pack(each))) for each in measured),
    }
    return Set(name, measured, turns, sizes)


def compact(document: Document) -> bytes:
    """Return a document as compact JSON text."""
    return json.dumps(document, separators=(",", ":")).encode()


def zstd_pair(
    payloads: list[bytes], level: int, table_bits: int | None = None
) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Train a dictionary, and return a compressor and a decompressor of frames as the store writes them."""
    left = TRAIN_BYTES
    samples = []
    for payload in payloads:
        samples.append(payload)
        left -= len(payload)
        if left < 0:
            break
    size = min(DICTIONARY_BYTES, sum(map(len, samples)) // 4)
    trained = zstandard.train_dictionary(size, samples, level=level, dict_id=FIRST_ID)
    dictionary = Dictionary(trained.as_bytes())
    return dictionary.zstd.compressor(level, table_bits).compress, dictionary.zstd.decompressor().decompress


def warm(sets: list[Set], rounds: int) -> Taken:
    """Run each contender on all documents of a set in a row, twice; the second run counts."""
    taken: Taken = {corpus.name: {label: [] for label in corpus.turns} for corpus in sets}
    for _ in range(rounds):
        for corpus in sets:
            for label, turn in corpus.turns.items():
                for _ in range(2):
                    began = time.thread_time()
                    for document in corpus.documents:
                        turn(document)
                    seconds = time.thread_time() - began
                taken[corpus.name][label].append([seconds])
    return taken


def interleaved(sets: list[Set], rounds: int, seed: int) -> Taken:
    """Run the shuffled documents of all sets, timing each; contenders alternate every ``BLOCK`` documents."""
    taken: Taken = {corpus.name: {label: [] for label in corpus.turns} for corpus in sets}
    shuffled = [(corpus, number) for corpus in sets for number in range(len(corpus.documents))]
    random.Random(seed).shuffle(shuffled)
    clock = time.perf_counter
    for _ in range(rounds):
        for corpus in sets:
            for label in corpus.turns:
                taken[corpus.name][label].append([0.0] * len(corpus.documents))
        for start in range(0, len(shuffled), BLOCK):
            for label in sets[0].turns:
                for corpus, number in shuffled[start : start + BLOCK]:
                    turn, document = corpus.turns[label], corpus.documents[number]
                    began = clock()
                    turn(document)
                    taken[corpus.name][label][-1][number] = clock() - began
    return taken


def report(heading: str, sets: list[Set], taken: Taken) -> None:
    """Print a table: for each contender the ratio of every set, and of all."""
    print(f"\n{heading}\n{'':38}{'bytes':>7}{'time':>7}{'quartiles':>17}  by set")
    for label in sets[0].turns:
        by_set = [typical(taken[corpus.name][label]) / typical(taken[corpus.name][BASE]) for corpus in sets]
        by_round = [
            mean(
                math.fsum(taken[corpus.name][label][number]) / math.fsum(taken[corpus.name][BASE][number])
                for corpus in sets
            )
            for number in range(len(taken[sets[0].name][label]))
        ]
        low, _, high = statistics.quantiles(by_round, n=4) if len(by_round) > 1 else by_round * 3
        size = ""
        if label in sets[0].sizes:
            size = f"{mean(corpus.sizes[label] / corpus.sizes[BASE] for corpus in sets):.3f}"
        shown = " ".join(f"{corpus.name[:7]} {ratio:.2f}" for corpus, ratio in zip(sets, by_set, strict=True))
        print(f"{label:38}{size:>7}{mean(by_set):7.3f}   {low:5.3f} to {high:5.3f}  {shown}", flush=True)


def typical(rounds: list[list[float]]) -> float:
    """Return the sum of each part's median time over the rounds."""
    return math.fsum(statistics.median(part) for part in zip(*rounds, strict=True))


def mean(ratios: Any) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


if __name__ == "__main__":
    main()
