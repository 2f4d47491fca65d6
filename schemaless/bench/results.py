"""Results of a benchmark: times with their spread, sizes, fidelity, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from schemaless.base.numbers import Interval
from schemaless.bench.article import Figures
from schemaless.bench.contenders import Absentee

STAGES: Final = ("encode", "compress", "inflate", "decode")
BASELINE: Final = ("json", "zlib")
"""Serializer and compressor that factors are relative to, as in the article."""

_LIBRARIES: Final = (
    "cbor2",
    "cramjam",
    "fastavro",
    "flatbuffers",
    "lz4",
    "msgpack",
    "msgspec",
    "orjson",
    "ormsgpack",
    "protobuf",
    "pymongo",
    "schemaless-packed",
    "thriftpy2",
    "ujson",
    "zstandard",
)


def spread_of(values: Sequence[float]) -> Interval:
    """Return the median and quartiles of the values; for up to three values, the median, minimum and maximum."""
    if len(values) <= 3:
        return Interval(min(values), median(values), max(values))
    low, mid, high = quantiles(values, n=4, method="inclusive")
    return Interval(low, mid, high)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Round-trip fidelity: number of documents by outcome.

    Attributes:
        exact: identical, value by value: 1 differs from 1.0, and the order of keys counts.
        order: identical except for the order of keys.
        changed: different from the original.
        refused: failed to encode, compress or decode; excluded from sizes and times.
        reasons: for each reason, how many documents it applies to, and the number of the first one.
    """

    exact: int = 0
    order: int = 0
    changed: int = 0
    refused: int = 0
    reasons: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """Empty if exact, ``~`` if only the order of keys is lost, ``!`` otherwise."""
        return "!" if self.changed or self.refused else "~" if self.order else ""


@dataclass(frozen=True, slots=True)
class Combination:
    """Results of a serializer with a compressor.

    Attributes:
        store: whether this is a codec of the store, with envelope and checksum.
        size_bytes: total size of all documents that were not refused.
        stages: CPU time for all documents in ms, for each of ``STAGES``.
        write_ms: encode plus compress.
        read_ms: inflate plus decode.
        total_ms: all four stages.
        size_factor: size relative to the baseline's for the same documents.
        time_factor: time relative to the baseline's, round by round; None if documents were refused.
        write_cost: write time as a multiple of encode time: the overhead of compression.
        read_cost: read time as a multiple of decode time.
        fidelity: round-trip outcomes.
        on_front: whether the combination is on the Pareto front: nothing exact is both smaller and faster.
        article: the article's figures, or None.
    """

    serializer: str
    compressor: str
    store: bool
    size_bytes: int
    stages: dict[str, Interval]
    write_ms: Interval
    read_ms: Interval
    total_ms: Interval
    size_factor: float
    time_factor: Interval | None
    write_cost: float
    read_cost: float
    fidelity: Fidelity
    on_front: bool = False
    article: Figures | None = None

    @property
    def name(self) -> str:
        """Display name, such as ``cbor zlib``, or ``store msgpack+zlib`` for a codec of the store."""
        return f"{self.serializer}{'+' if self.store else ' '}{self.compressor}"

    @property
    def label(self) -> str:
        """``name`` with the mark of its fidelity."""
        return f"{self.name} {self.fidelity.mark}".rstrip()

    @property
    def time(self) -> float:
        """The median of ``time_factor``; infinite if documents were refused."""
        return float("inf") if self.time_factor is None else self.time_factor.mid


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """Description of a corpus.

    Attributes:
        name: name of the corpus.
        about: one-line description.
        documents: number of documents.
        json_bytes: total size as compact JSON text.
        median_bytes: median size of a document as compact JSON text.
        largest_bytes: largest size of a document as compact JSON text.
        rows: number of rows, or None if the corpus does not assign documents to rows.
        sha256: digest of the lines.
    """

    name: str
    about: str
    documents: int
    json_bytes: int
    median_bytes: int
    largest_bytes: int
    rows: int | None
    sha256: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that ran the benchmark.

    Attributes:
        processor: processor model.
        cores: number of cores available to this process.
        memory_gib: physical memory in GiB.
        system: kernel and architecture.
        python: implementation and version.
        libraries: versions of the installed contenders.
    """

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    libraries: dict[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    """Results for one corpus.

    Attributes:
        measured_at: start time, UTC, to the second.
        rounds: number of completed rounds.
        rounds_wanted: number of requested rounds; larger than ``rounds`` if the run was interrupted.
        cpu_share: CPU time divided by wall time; 1.0 on an otherwise idle machine.
        load: one-minute load average at the start and at the end.
        combinations: results, smallest first; those that refused documents come last.
        absentees: contenders whose library is not installed.
        failed: reason for each combination that could not be measured.
        settings: compressor levels and dictionary sizes.
        schemas: text of each generated schema, by file name.
    """

    corpus: CorpusFacts
    machine: Machine
    measured_at: str
    rounds: int
    rounds_wanted: int
    cpu_share: float
    load: tuple[float, float]
    combinations: list[Combination]
    absentees: list[Absentee]
    failed: dict[str, str]
    settings: dict[str, str]
    schemas: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-compatible dict of everything except the text of the schemas."""
        return {
            "corpus": asdict(self.corpus),
            "machine": asdict(self.machine),
            "measured_at": self.measured_at,
            "rounds": self.rounds,
            "rounds_wanted": self.rounds_wanted,
            "cpu_share": round(self.cpu_share, 4),
            "load": list(self.load),
            "baseline": " ".join(BASELINE),
            "combinations": [
                {"name": combination.name, **_rounded(asdict(combination))} for combination in self.combinations
            ],
            "missing": [{**asdict(absentee), "install": absentee.install} for absentee in self.absentees],
            "failed": self.failed,
            "settings": self.settings,
            "schemas": sorted(self.schemas),
        }


def front_of(combinations: Iterable[Combination]) -> set[str]:
    """Return the names on the Pareto front: exact combinations such that no exact one is both smaller and faster."""
    front = set()
    fastest = float("inf")
    exact = [combination for combination in combinations if not combination.fidelity.mark]
    for combination in sorted(exact, key=lambda combination: (combination.size_bytes, combination.time)):
        if combination.time < fastest:
            fastest = combination.time
            front.add(combination.name)
    return front


def this_machine() -> Machine:
    """Describe the current machine."""
    libraries = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            libraries[name] = version(name)
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return Machine(
        processor=_processor(),
        cores=(os.cpu_count() or 1) if affinity is None else len(affinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        libraries=libraries,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or "unknown"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _rounded(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
