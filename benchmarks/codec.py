"""The default codec against plain ``msgpack`` and ``zlib``, on real documents.

    python benchmarks/codec.py [FILE.ndjson[.gz]] [--documents N] [--rounds N]
    python benchmarks/codec.py --against ../before --documents 100 --rounds 120     another checkout beside this one

Without a file it takes the demo's aircraft logbooks. Each round runs every contestant once over all documents, one
after the other, so that other load on the machine affects all of them alike. A figure is the median of the rounds, a
ratio the median of the rounds' ratios. Documents are dropped as soon as they are made.

With another checkout, each runs in its own process, and the two take turns at every contestant, so that a slow moment
affects both. Several pairs of processes are used, since the memory layout of a process also makes a difference of a
hundredth or two.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

import schemaless
from schemaless.codec.engine import ENGINE, REFERENCE
from schemaless.codec.envelope import DEFAULT_LIMITS, decode_body, encode_body, unseal
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, ZLIB

PACKAGES = ("msgpack", "ormsgpack", "orjson", "msgspec", "schemaless-packed")


def logbooks(count: int) -> list[Any]:
    """Return the demo's documents, the seeded first ``count`` of them."""
    from schemaless.bench.logbooks import documents

    return [logbook.body for logbook in documents(limit=count, report=lambda line: print(line, file=sys.stderr))]


def read_ndjson(path: Path, count: int) -> list[Any]:
    """Return the first ``count`` documents of a file, gzipped or not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        return [json.loads(line) for line in itertools.islice(lines, count)]


def each(call: Callable[[Any], object], inputs: Sequence[Any]) -> Callable[[], None]:
    """Return a call that runs ``call`` on each input and discards the results."""

    def run() -> None:
        for value in inputs:
            call(value)

    return run


def measure(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return each contestant's seconds, one figure per round, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def contestants(documents: Sequence[Any]) -> tuple[dict[str, Callable[[], None]], dict[str, list[bytes]]]:
    """Return the calls to measure, and the documents in each of their forms."""
    texts = [json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() for document in documents]
    packed = [msgpack.packb(document) for document in documents]
    plain = [zlib.compress(payload, 6) for payload in packed]
    bodies = [encode_body(document) for document in documents]
    payloads = [body[2:-4] for body in bodies]
    compressor, plain_compressor = ENGINE.compressors[ZLIB.id], REFERENCE.compressors[ZLIB.id]
    limit = DEFAULT_LIMITS.decoded_bytes
    calls = {
        "encode": each(encode_body, documents),
        "encode plain": each(lambda document: zlib.compress(msgpack.packb(document), 6), documents),
        "decode": each(decode_body, bodies),
        "decode plain": each(lambda body: msgpack.unpackb(zlib.decompress(body)), plain),
        "pack, gate included": each(ENGINE.msgpack.dumps, documents),
        "pack plain": each(msgpack.packb, documents),
        "compress": each(lambda payload: compressor.compress(payload, DEFAULT), packed),
        "compress plain": each(lambda payload: zlib.compress(payload, 6), packed),
        "checksum and inflate": each(lambda body: unseal(body, DEFAULT_LIMITS, ENGINE), bodies),
        "inflate": each(lambda payload: compressor.decompress(payload, limit), payloads),
        "inflate plain": each(zlib.decompress, plain),
        "inflate strictly with zlib": each(lambda payload: plain_compressor.decompress(payload, limit), plain),
        "unpack, typed": each(ENGINE.msgpack.loads, packed),
        "unpack plain": each(msgpack.unpackb, packed),
        "recode legacy text, verified": each(recode, texts),
        "encode by the reference": each(lambda document: encode_body(document, engine=REFERENCE), documents),
        "decode by the reference": each(lambda body: decode_body(body, engine=REFERENCE), bodies),
    }
    return calls, {"JSON text": texts, "MessagePack": packed, "plain": plain, "body": bodies}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="NDJSON, plain or gzip; the demo's logbooks if not given")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of the project")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--by-turns", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    documents = read_ndjson(options.file, options.documents) if options.file else logbooks(options.documents)
    if not documents or options.rounds < 1 or options.pairs < 1:
        parser.error("there must be at least one document, one round and one pair")
    calls, sizes = contestants(documents)
    if options.by_turns:
        serve(calls)
    elif options.against:
        given = [str(options.file)] if options.file else []
        compare(list(calls), options, [*given, "--documents", str(options.documents)])
    else:
        report(documents, measure(calls, options.rounds), sizes, options.rounds)
    return 0


def serve(calls: dict[str, Callable[[], None]]) -> None:
    """Run the call named on each line of standard input once; answer with the nanoseconds it took."""
    assert Path(schemaless.__file__).is_relative_to(os.environ["PYTHONPATH"]), schemaless.__file__
    print("ready", flush=True)
    for line in sys.stdin:
        start_ns = time.perf_counter_ns()
        calls[line.strip()]()
        print(time.perf_counter_ns() - start_ns, flush=True)


@contextmanager
def server_of(checkout: Path, arguments: Sequence[str]) -> Iterator[Callable[[str], int]]:
    """Provide a function that has a checkout, in a separate process, run the call of a given name."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--by-turns"]
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        requests, replies = process.stdin, process.stdout
        assert requests
        assert replies
        if replies.readline() != "ready\n":
            raise SystemExit(f"codec.py: {checkout} could not be measured")

        def run(name: str) -> int:
            print(name, file=requests, flush=True)
            return int(replies.readline())

        yield run


def compare(names: Sequence[str], options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Print how fast this checkout is relative to another one: the median of the turns' ratios, pair by pair."""
    ratios: dict[str, list[float]] = {name: [] for name in names}
    here = Path(__file__).resolve().parents[1]
    for _ in range(options.pairs):
        with server_of(options.against, arguments) as before, server_of(here, arguments) as now:
            for name in names:
                turns = []
                for number in range(options.rounds + 1):
                    order = (before, now) if number % 2 else (now, before)
                    took_ns = {run: run(name) for run in order}
                    # The first round does not count.
                    turns += [took_ns[before] / took_ns[now]] * bool(number)
                ratios[name].append(statistics.median(turns))
    print(f"{options.pairs} pairs of processes, {options.rounds} turns of {options.documents} documents in each\n")
    print(f"speed, of that of {options.against.name:12}  median   pairs")
    for name, of_pairs in ratios.items():
        print(f"{name:32}{statistics.median(of_pairs):8.3f}   {min(of_pairs):.3f}-{max(of_pairs):.3f}", flush=True)


def report(
    documents: Sequence[Any], seconds: dict[str, list[float]], sizes: dict[str, list[bytes]], rounds: int
) -> None:
    """Print the results, and the machine and versions."""
    versions = ", ".join(f"{package} {version_of(package)}" for package in PACKAGES)
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {versions}, zlib {zlib.ZLIB_RUNTIME_VERSION}"
    )
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {processor()}")
    print(f"fast {'on' if ENGINE.fast else 'off'}, codec {DEFAULT.name} level {DEFAULT.level}")
    print(f"{len(documents)} documents, {rounds} rounds\n")
    print("bytes a document      mean   of the text")
    text_bytes = sum(map(len, sizes["JSON text"]))
    for name, bodies in sizes.items():
        total = sum(map(len, bodies))
        print(f"{name:16}{total / len(bodies):10,.0f}{total / text_bytes:12.1%}")
    print("\nmicroseconds a document       median     best")
    for name, figures in seconds.items():
        per_document = [figure / len(documents) * 1e6 for figure in figures]
        print(f"{name:28}{statistics.median(per_document):8.1f}{min(per_document):9.1f}")
    print("\nratio to plain      median   quartiles   target")
    for name, target in (("encode", 0.75), ("decode", 0.5)):
        ratios = [ours / plain for ours, plain in zip(seconds[name], seconds[f"{name} plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"{name:16}{middle:10.3f}   {low:.2f}-{high:.2f}   {target:6.2f}")


def version_of(package: str) -> str:
    """Return an installed package's version, or a note that there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def processor() -> str:
    """Return the processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "processor unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor unknown"
    )


if __name__ == "__main__":
    sys.exit(main())
