"""The benchmark method: every contender on every document, four stages timed separately, in interleaved rounds.

A rehearsal encodes and decodes each document once, compares the result, and records sizes and failed documents. Each
round then processes the documents in chunks of about 1 MB, repeating small corpora. All contenders process a chunk
before the next one begins, and the first contender rotates, so that drift in the machine's speed affects them all
alike. Times are this thread's CPU time: other load matters only through caches and clock rates, and
``Result.cpu_share`` shows how much there was. The garbage collector is disabled during a run, and the process keeps
freed memory.

Every decoded document of every round is compared with the original, outside the timed sections.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.base.numbers import Interval
from schemaless.base.parts import grouped, parts
from schemaless.bench import dictionaries
from schemaless.bench.article import ARTICLE
from schemaless.bench.contenders import Absentee, Compressor, Serializer, Unfit, compressors, serializers
from schemaless.bench.corpora import Corpus
from schemaless.bench.fidelity import difference, is_same, packed_text, worded
from schemaless.bench.record_schema import MAX_DEPTH, schema_of
from schemaless.bench.results import (
    BASELINE,
    Combination,
    CorpusFacts,
    Fidelity,
    Result,
    front_of,
    spread_of,
    this_machine,
)
from schemaless.bench.shapes import shape_of
from schemaless.cell import JSONDocument
from schemaless.codec.documents import KEY_ORDER
from schemaless.codec.engine import ENGINE
from schemaless.codec.registry import SERIALIZERS
from schemaless.errors import InvalidInput

_CHUNK_BYTES: Final = 1 << 20

_CHUNK_DOCUMENTS: Final = 250
"""Maximum number of documents per chunk, which bounds the number of results held in memory."""

_ROUND_BYTES: Final = 2 << 20
"""Approximate number of bytes up to which a round repeats smaller corpora; times are per pass."""

_KEPT_MEMORY: Final = ((-1, 1 << 30), (-3, 32 << 20))
"""Values in bytes for glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, identified by their numbers in malloc.h."""

_REASONS_KEPT: Final = 20

_ns = time.thread_time_ns


@dataclass(slots=True)
class _Tally:
    """Outcomes of the rehearsal for one serializer."""

    exact: int = 0
    order: int = 0
    changed: int = 0
    refused: set[int] = field(default_factory=set)
    reasons: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, reason: str, place: int) -> None:
        if reason not in self.reasons and len(self.reasons) == _REASONS_KEPT:
            reason = "for other reasons"
        count, first = self.reasons.get(reason, (0, place + 1))
        self.reasons[reason] = (count + 1, first)


@dataclass(slots=True)
class _Pair:
    serializer: Serializer
    compressor: Compressor
    folds: Sequence[Compressor]
    size_bytes: int = 0
    failed: str = ""
    write_ns: list[int] = field(default_factory=list)
    read_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Entrant:
    serializer: Serializer
    pairs: list[_Pair]
    tally: _Tally = field(default_factory=_Tally)
    write_ns: list[int] = field(default_factory=list)
    read_ns: list[int] = field(default_factory=list)


class Benchmark:
    """Benchmark of all contenders on one corpus.

    Args:
        corpus: the documents.
        rounds: number of rounds; more rounds narrow the spread.
        only_serializers: names of serializers to include, or None for all. The baseline is always included.
        only_compressors: names of compressors to include, or None for all. The baseline is always included.
        most_passes: maximum number of passes over a small corpus in one round.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        rounds: int = 5,
        only_serializers: Iterable[str] | None = None,
        only_compressors: Iterable[str] | None = None,
        most_passes: int = 64,
    ) -> None:
        self._corpus = corpus
        self._rounds_wanted = rounds
        self._rounds = 0
        self._absentees: list[Absentee] = []
        self._out: dict[str, str] = {}
        self._schemas: dict[str, str] = {}
        self._wall_ns = 0
        self._cpu_ns = 0
        self._text_bytes = [len(ENGINE.json.dumps(document)) for document in corpus.documents]
        # Assign rows to halves: a dictionary trained on one half is evaluated on the other.
        self._folds = [zlib.crc32(row.encode("utf-8", "backslashreplace")) & 1 for row in corpus.rows]
        self._chunks = _chunks(self._text_bytes, self._folds)
        self._passes = max(1, min(most_passes, _ROUND_BYTES // max(1, sum(self._text_bytes))))
        self._expected = [packed_text(document) for document in corpus.documents]
        self._entrants = self._enter(_wanted(only_serializers, 0), _wanted(only_compressors, 1))
        self._baseline_bytes = [0] * len(corpus.documents)

    @property
    def steps(self) -> int:
        """Total number of steps that ``run`` reports."""
        return (self._rounds_wanted * self._passes + 1) * len(self._chunks) * len(self._entrants)

    def run(self, listener: Listener = ignore_events) -> Result:
        """Run the benchmark.

        After an interrupt, the run ends and the result covers the completed rounds, if there are any.

        Args:
            listener: receives an ``Advanced`` event for each of ``steps``.

        Raises:
            KeyboardInterrupt: interrupted before the first round was complete.
        """
        began = datetime.now(UTC)
        load = os.getloadavg()[0]
        _keep_memory()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for chunk in self._chunks:
                for entrant in self._entrants:
                    self._rehearse(entrant, chunk)
                    listener(Advanced())
            try:
                for number in range(self._rounds_wanted):
                    self.run_round(number, listener)
            except KeyboardInterrupt:
                if not self._rounds:
                    raise
        finally:
            gc.enable()
            gc.unfreeze()
        return self._result(began, (load, os.getloadavg()[0]))

    # ---- contenders

    def _enter(
        self, only_serializers: frozenset[str] | None, only_compressors: frozenset[str] | None
    ) -> list[_Entrant]:
        entrants: list[_Entrant] = []
        plain: list[tuple[Compressor, Sequence[Compressor]]] = []
        for compressor in compressors():
            if only_compressors is not None and compressor.name not in only_compressors:
                continue
            if isinstance(compressor, Absentee):
                self._absentees.append(compressor)
            else:
                plain.append((compressor, (compressor, compressor)))
        shape = shape_of(self._corpus.documents)
        for serializer in serializers(schema_of(shape) if shape.depth() <= MAX_DEPTH else None):
            if only_serializers is not None and serializer.name not in only_serializers:
                continue
            if isinstance(serializer, Unfit):
                self._out[serializer.name] = serializer.reason
                continue
            if isinstance(serializer, Absentee):
                self._absentees.append(serializer)
                continue
            if serializer.schema:
                self._schemas[serializer.schema[0]] = serializer.schema[1]
            pairs = [
                _Pair(serializer, compressor, folds)
                for compressor, folds in plain
                if compressor.store == serializer.store
            ]
            if serializer.store and (only_compressors is None or dictionaries.NAME in only_compressors):
                pairs.extend(self._trained(serializer))
            entrants.append(_Entrant(serializer, pairs))
        return entrants

    def _trained(self, serializer: Serializer) -> Iterator[_Pair]:
        """Yield the serializer combined with zstd dictionaries, or record why they cannot be trained."""
        (kind,) = (kind for kind in SERIALIZERS.values() if serializer.name == f"store {kind.name}")
        try:
            folds = dictionaries.compressors(kind, self._corpus.documents, self._corpus.rows, self._folds)
        except InvalidInput as refusal:
            self._out[f"{serializer.name}+{dictionaries.NAME}"] = str(refusal)
        else:
            yield _Pair(serializer, folds[0], folds)

    # ---- rehearsal

    def _rehearse(self, entrant: _Entrant, chunk: list[int]) -> None:
        serializer, tally = entrant.serializer, entrant.tally
        for place in chunk:
            document = self._corpus.documents[place]
            try:
                payload = serializer.encode(document)
                decoded = serializer.decode(payload)
            except Exception as refusal:  # noqa: BLE001 - each library has its own
                tally.refused.add(place)
                tally.note(worded(refusal), place)
                continue
            if is_same(decoded, document, self._expected[place]):
                tally.exact += 1
            else:
                reason = difference(document, decoded)
                if reason == KEY_ORDER:
                    tally.order += 1
                else:
                    tally.changed += 1
                tally.note(reason, place)
            for pair in entrant.pairs:
                if not pair.failed:
                    self._rehearse_pair(pair, payload, place)

    def _rehearse_pair(self, pair: _Pair, payload: Any, place: int) -> None:
        compressor = pair.folds[self._folds[place]]
        try:
            stored = compressor.compress(payload)
            same = compressor.inflate(stored) == payload
        except Exception as refusal:  # noqa: BLE001 - each library has its own
            pair.failed = f"document {place + 1}: {worded(refusal)}"
            return
        if not same:
            pair.failed = f"document {place + 1}: does not decompress to the original"
            return
        pair.size_bytes += len(stored)
        if (pair.serializer.name, pair.compressor.name) == BASELINE and not pair.compressor.store:
            self._baseline_bytes[place] = len(stored)

    # ---- rounds

    def run_round(self, number: int, listener: Listener) -> None:
        """Time each entrant on all chunks."""
        for entrant in self._entrants:
            both: list[_Entrant | _Pair] = [entrant, *entrant.pairs]
            for timed in both:
                timed.write_ns.append(0)
                timed.read_ns.append(0)
        wall, cpu = time.perf_counter_ns(), _ns()
        for turn, chunk in enumerate(self._chunks * self._passes, number):
            first = turn % len(self._entrants)
            for entrant in (*self._entrants[first:], *self._entrants[:first]):
                refused = entrant.tally.refused
                places = [place for place in chunk if place not in refused] if refused else chunk
                documents = [self._corpus.documents[place] for place in places]
                encode, decode = entrant.serializer.encode, entrant.serializer.decode

                start = _ns()
                payloads = [encode(document) for document in documents]
                entrant.write_ns[-1] += _ns() - start

                for pair in entrant.pairs:
                    if pair.failed:
                        continue
                    fold = pair.folds[self._folds[chunk[0]]]
                    compress, inflate = fold.compress, fold.inflate

                    start = _ns()
                    stored = [compress(payload) for payload in payloads]
                    middle = _ns()
                    inflated = [inflate(body) for body in stored]
                    pair.read_ns[-1] += _ns() - middle
                    pair.write_ns[-1] += middle - start

                    if inflated != payloads:
                        pair.failed = f"round {number + 1}: a document does not decompress to the original"
                    del stored, inflated

                start = _ns()
                decoded = [decode(payload) for payload in payloads]
                entrant.read_ns[-1] += _ns() - start

                if not entrant.tally.changed and not entrant.tally.order:
                    self._compare(entrant, places, decoded)
                del payloads, decoded
                listener(Advanced())
        self._wall_ns += time.perf_counter_ns() - wall
        self._cpu_ns += _ns() - cpu
        self._rounds += 1  # last, so that an interrupted round does not count

    def _compare(self, entrant: _Entrant, places: list[int], decoded: list[JSONDocument]) -> None:
        for place, one in zip(places, decoded, strict=True):
            if not is_same(one, self._corpus.documents[place], self._expected[place]):
                entrant.tally.exact -= 1
                entrant.tally.changed += 1
                entrant.tally.note("decodes differently in a timed round than in the check before", place)

    # ---- results

    def _result(self, began: datetime, load: tuple[float, float]) -> Result:
        rounds = self._rounds
        baseline_ms: list[float] = []
        for entrant in self._entrants:
            for pair in entrant.pairs:
                if (entrant.serializer.name, pair.compressor.name) == BASELINE:
                    baseline_ms = [sum(times) for times in self._stages(entrant, pair)]
        measured, failed = [], dict(self._out)
        for entrant in self._entrants:
            for pair in entrant.pairs:
                combination = self._combination(entrant, pair, baseline_ms)
                if pair.failed or not combination.size_bytes:
                    reasons = "; ".join(combination.fidelity.reasons) or "nothing was left"
                    failed[combination.name] = pair.failed or f"no document could be encoded: {reasons}"
                else:
                    measured.append(combination)
        front = front_of(measured)
        ranked = [replace(combination, on_front=combination.name in front) for combination in measured]
        ranked.sort(key=lambda combination: (combination.fidelity.refused > 0, combination.size_bytes))
        sizes = sorted(self._text_bytes)
        corpus = self._corpus
        facts = CorpusFacts(
            name=corpus.name,
            about=corpus.about,
            documents=len(sizes),
            json_bytes=sum(sizes),
            median_bytes=sizes[len(sizes) // 2],
            largest_bytes=sizes[-1],
            rows=len(set(corpus.rows)) if corpus.grouped else None,
            sha256=corpus.sha256,
        )
        return Result(
            corpus=facts,
            machine=this_machine(),
            measured_at=began.isoformat(timespec="seconds"),
            rounds=rounds,
            rounds_wanted=self._rounds_wanted,
            cpu_share=self._cpu_ns / self._wall_ns if self._wall_ns else 1.0,
            load=load,
            combinations=ranked,
            absentees=self._absentees,
            failed=failed,
            settings={
                f"{pair.serializer.name}+{pair.compressor.name}"
                if pair.compressor.store
                else pair.compressor.name: level
                for entrant in self._entrants
                for pair in entrant.pairs
                if (level := " and ".join(dict.fromkeys(filter(None, (fold.level for fold in pair.folds)))))
            },
            schemas=self._schemas,
        )

    def _stages(self, entrant: _Entrant, pair: _Pair) -> list[tuple[float, ...]]:
        """Return the times of each complete round in ms, in the order of ``STAGES``."""
        times = zip(entrant.write_ns, pair.write_ns, pair.read_ns, entrant.read_ns, strict=False)
        return [tuple(time / self._passes / 1e6 for time in stages) for stages in islice(times, self._rounds)]

    def _combination(self, entrant: _Entrant, pair: _Pair, baseline_ms: list[float]) -> Combination:
        tally = entrant.tally
        rounds = self._stages(entrant, pair)
        encode, compress, inflate, decode = (spread_of(times) for times in zip(*rounds, strict=True))
        writes = [times[0] + times[1] for times in rounds]
        reads = [times[2] + times[3] for times in rounds]
        factors = [sum(times) / base for times, base in zip(rounds, baseline_ms, strict=True) if base]
        baseline_bytes = sum(self._baseline_bytes) - sum(self._baseline_bytes[place] for place in tally.refused)
        time_factor: Interval | None = spread_of(factors) if factors and not tally.refused else None
        return Combination(
            serializer=entrant.serializer.name,
            compressor=pair.compressor.name,
            store=pair.compressor.store,
            size_bytes=pair.size_bytes,
            stages={"encode": encode, "compress": compress, "inflate": inflate, "decode": decode},
            write_ms=spread_of(writes),
            read_ms=spread_of(reads),
            total_ms=spread_of([sum(times) for times in rounds]),
            size_factor=pair.size_bytes / baseline_bytes if baseline_bytes else 0.0,
            time_factor=time_factor,
            write_cost=_ratio(writes, [times[0] for times in rounds]),
            read_cost=_ratio(reads, [times[3] for times in rounds]),
            fidelity=Fidelity(tally.exact, tally.order, tally.changed, len(tally.refused), dict(tally.reasons)),
            article=ARTICLE.get((entrant.serializer.name, pair.compressor.name)),
        )


def _keep_memory() -> None:
    """Make glibc keep freed memory for the rest of this process; a no-op with other C libraries.

    By default glibc returns memory to the kernel when a chunk's results are freed, and the next chunk faults it in
    again. With short documents and orjson, which first allocates 1 KiB for each, that takes ten times as long as
    encoding.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in _KEPT_MEMORY:
            mallopt(parameter, size)


def _chunks(sizes: list[int], folds: list[int]) -> list[list[int]]:
    """Split document indexes into chunks within one half each, of up to about 1 MB or ``_CHUNK_DOCUMENTS``."""
    halves = grouped((fold, place) for place, fold in enumerate(folds))
    return [
        chunk
        for _, places in sorted(halves.items())
        for chunk in parts(places, _CHUNK_DOCUMENTS, _CHUNK_BYTES, sizes.__getitem__)
    ]


def _wanted(names: Iterable[str] | None, part: int) -> frozenset[str] | None:
    return None if names is None else frozenset((*names, BASELINE[part]))


def _ratio(over: list[float], under: list[float]) -> float:
    ratios = [one / other for one, other in zip(over, under, strict=True) if other]
    return spread_of(ratios).mid if ratios else 1.0
