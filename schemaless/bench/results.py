"""What a benchmark found, as values: times with their spread, bytes, what was lost, and on what machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from schemaless.bench.article import Figures
from schemaless.bench.contenders import Absentee
from schemaless.bench.needs import version_of
from schemaless.numbers import Interval

STAGES: Final = ("encode", "compress", "inflate", "decode")
BASELINE: Final = ("json", "zlib")
"""Factors are relative to these two, as in the article."""

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
    """Return the median of at least one value, between the quartiles; of three and fewer, the least and greatest."""
    if len(values) <= 3:
        return Interval(min(values), median(values), max(values))
    low, mid, high = quantiles(values, n=4, method="inclusive")
    return Interval(low, mid, high)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What became of the documents on the way there and back.

    Attributes:
        exact: came back the same, value by value: 1 is not 1.0, and the order of keys counts.
        order: came back the same but for the order of keys.
        changed: came back as something else.
        refused: could not be encoded, compressed or decoded at all; bytes and times are without them.
        reasons: how many for each reason, with the number of the first such document.
    """

    exact: int = 0
    order: int = 0
    changed: int = 0
    refused: int = 0
    reasons: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """Nothing for exact, ``~`` where only the order of keys is lost, ``!`` where more is."""
        return "!" if self.changed or self.refused else "~" if self.order else ""


@dataclass(frozen=True, slots=True)
class Combination:
    """A serializer and a compressor.

    Attributes:
        store: whether it is a codec of the store, with envelope and checksum.
        size_bytes: of all documents that it carries.
        stages: CPU time in ms of all documents, for each of ``STAGES``.
        write_ms: encode and compress together.
        read_ms: inflate and decode together.
        total_ms: all four.
        size_factor: of the baseline's bytes for the same documents.
        time_factor: of the baseline's time, round by round; None where documents were refused.
        write_cost: writing, as a multiple of encoding alone: what compression costs on top.
        read_cost: reading, as a multiple of decoding alone.
        fidelity: what became of the documents.
        on_front: nothing exact is both smaller and faster.
        article: what the article measured, or None.
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
        """``cbor zlib``; a codec of the store is called ``store msgpack+zlib``."""
        return f"{self.serializer}{'+' if self.store else ' '}{self.compressor}"


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """Which documents were measured.

    Attributes:
        name: of the corpus.
        about: what they are.
        documents: how many.
        json_bytes: as compact JSON text.
        median_bytes: of one.
        largest_bytes: of one.
        rows: how many rows they belong to, or None where nothing was told about rows.
        sha256: of their lines.
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
    """Where it was measured.

    Attributes:
        processor: its model.
        cores: how many this process may use.
        memory_gib: of the machine.
        system: kernel and architecture.
        python: implementation and version.
        libraries: versions of what took part.
    """

    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str
    libraries: dict[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    """What one corpus gave.

    Attributes:
        measured_at: when it began, UTC, to the second.
        rounds: how many were measured.
        rounds_wanted: how many were asked for; more where it was stopped.
        cpu_share: how much of the time the processor was this process's: 1.0 on a quiet machine.
        load: the machine's load average over a minute, at the beginning and at the end.
        combinations: the smallest first, those that refused documents last.
        absentees: contenders whose library is missing.
        failed: combinations that could not be measured at all, with the reason.
        settings: what compressors were set to: levels, and sizes of dictionaries.
        schemas: the text of each schema that was written and used, by file name.
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
        """Return everything but the schemas' text, for ``json.dumps``."""
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
    """Return the names of those on the Pareto front: exact, and nothing exact is both smaller and faster."""
    front = set()
    fastest = float("inf")
    timed = [
        (combination, combination.time_factor.mid)
        for combination in combinations
        if not combination.fidelity.mark and combination.time_factor
    ]
    for combination, time in sorted(timed, key=lambda pair: (pair[0].size_bytes, pair[1])):
        if time < fastest:
            fastest = time
            front.add(combination.name)
    return front


def this_machine() -> Machine:
    """Describe the machine."""
    libraries = {name: version for name in _LIBRARIES if (version := version_of(name)) is not None}
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
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
