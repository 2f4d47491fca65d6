"""Cells by column and codec, from windows of neighbouring added_ids: what a measurement reads of bodies.

To the server a body is one piece: whoever asks for its length, or its first bytes, has it read all of its overflow
pages. So one statement asks for both, window by window, and a window's pages are counted. What bodies would be as JSON
text takes decoding: a few of each column and codec in a window are fetched, and what they give is applied to the body
bytes of the rest, which are known better.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple

from schemaless.capacity.measurement import UNREADABLE, Group
from schemaless.capacity.sql import select_bodies, select_figures
from schemaless.codec.envelope import HEADER_BYTES, describe_body
from schemaless.codec.recode import recode
from schemaless.codec.registry import LEGACY
from schemaless.datastore import Datastore
from schemaless.errors import BodyTooLarge, CorruptBody, VerificationFailed
from schemaless.internals import internals_of
from schemaless.numbers import Interval, student_t
from schemaless.survey.page_model import PAGE_BYTES, Layout, Packer, entry_bytes, placed
from schemaless.survey.sampling import Bounds, Key, Sample, Window, WindowFigures, sample
from schemaless.survey.sizing import content_values, rebuilt_files
from schemaless.topology.shards import ReadFrom

_DESCENT_PAGES: Final = 3
"""A search reads about so many pages from the root of an index to a leaf."""

_DECODED: Final = 2
"""So many bodies of a column and codec are fetched and decoded in a window."""

_PARTS: Final = ("bytes", "json", "bytes2", "both", "json2")
"""These sums are kept of decoded bodies: body bytes, bytes of JSON text, their squares and their product."""

_LONGEST_DECODED_BYTES: Final = 1 << 20

_FUTURE_S: Final = 300.0
"""Clocks may differ by so much before a cell counts as one of the future."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is sampled together: a shard, or all shards of a cluster.

    Attributes:
        shards: numbers.
        shard: its number where it is one shard on its own, else None.
        layout: how its server lays pages out.
        read_from: which server is read.
    """

    cluster: str
    shards: tuple[int, ...]
    shard: int | None
    layout: Layout
    read_from: ReadFrom


class Moment(NamedTuple):
    """A cell that was met: where it lies, and when it says it was stored, in seconds since 1970."""

    shard: int
    added_id: int
    at: float


@dataclass(slots=True)
class Taken:
    """A part, as sampled.

    Attributes:
        sample: values by window: ``("cells", column_name, codec)``, ``bytes``, ``pages`` and ``json`` likewise,
            ``("squares", column_name)`` of body bytes, ``("day", column_name, day)`` cells and ``("day bytes", ...)``,
            ``("future",)`` and ``("damaged",)`` cells, ``("timed",)`` those that are of no future, and ``("at",)`` the
            sum of their times.
        moments: of every row that was read.
        rows_read: rows that the server was asked for.
        pages_read: what those take of its table.
        json_halves: of a sample that is exact, half the interval of the JSON text by column and codec.
        undecoded: columns and codecs of which no body could be decoded, so that their JSON text is a guess.
    """

    part: Part
    sample: Sample
    moments: list[Moment]
    rows_read: int
    pages_read: float
    json_halves: dict[tuple[str, str], float]
    undecoded: list[tuple[str, str]]

    def groups(self) -> list[Group]:
        """Return its cells by column and codec."""
        names = [(column, codec) for _, column, codec in self.sample.keys_of("cells")]
        pages = sum(self.sample.total(("pages", *name)).mid for name in names)
        file_bytes = self.file_bytes()
        # A file holds more than its rows do, and that is theirs, too.
        page_bytes = file_bytes.mid / pages if pages else 0.0
        return [
            Group(
                cluster=self.part.cluster,
                shard=self.part.shard,
                column_name=column,
                codec=codec,
                cells=self.sample.count(("cells", column, codec)),
                body_bytes=self.sample.total(("bytes", column, codec)),
                allocated_bytes=self.sample.total(("pages", column, codec)).times(page_bytes),
                json_bytes=self._json_bytes(column, codec),
            )
            for column, codec in names
        ]

    def _json_bytes(self, column: str, codec: str) -> Interval:
        known = self.sample.total(("json", column, codec))
        half = self.json_halves.get((column, codec), 0.0)
        return Interval(max(0.0, known.low - half), known.mid, known.high + half)

    def file_bytes(self) -> Interval:
        """Return what the files would take, were they rebuilt now."""
        return rebuilt_files(self.sample, ("file",), self.part.layout, len(self.part.shards))

    def body_bytes(self) -> Interval:
        """Return what all bodies take."""
        return self.sample.total(*self.sample.keys_of("bytes"))


def take(store: Datastore, part: Part, bounds: Bounds, seed: int, now: datetime) -> Taken:
    """Sample a part.

    Raises:
        ServerError: its server cannot be reached.
    """
    reader = _Reader(store, part, random.Random(~seed), now)  # noqa: S311 - nothing secret
    taken = sample(
        internals_of(store).shards, list(part.shards), reader.look, seed=seed, bounds=bounds, read_from=part.read_from
    )
    taken, halves, undecoded = _with_json(taken)
    pages = sum(figures.pages for figures in taken.figures)
    return Taken(part, taken, reader.moments, reader.rows_read, pages, halves, undecoded)


@dataclass(slots=True)
class _Reader:
    store: Datastore
    part: Part
    random: random.Random
    now: datetime
    rows_read: int = 0
    moments: list[Moment] = field(default_factory=list)

    def look(self, window: Window) -> WindowFigures:
        shards, layout = internals_of(self.store).shards, self.part.layout
        sql = select_figures(shards.database(window.shard), window.after, window.up_to)
        values: defaultdict[Key, float] = defaultdict(float)
        packer = Packer(layout)
        records: defaultdict[tuple[str, str], float] = defaultdict(float)
        members: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        rows = body_bytes = 0
        latest = self.now.timestamp() + _FUTURE_S
        for added_id, column, length, head, created_at in shards.rows(window.shard, sql, read_from=self.part.read_from):
            name = column, _codec(head, length)
            record, overflow_pages = placed(column, length, layout)
            packer.add(column, length)
            records[name] += record
            members[name].append((added_id, length))
            values["cells", *name] += 1
            values["bytes", *name] += length
            values["squares", column] += length**2
            values["pages", *name] += (overflow_pages * PAGE_BYTES + entry_bytes(column)) / PAGE_BYTES
            at = datetime.fromisoformat(created_at).timestamp()
            self.moments.append(Moment(window.shard, added_id, at))
            if at > latest:
                values["future",] += 1
            else:
                day = created_at[:10]
                values["day", column, day] += 1
                values["day bytes", column, day] += length
                values["at",] += at
                values["timed",] += 1
            rows += 1
            body_bytes += length
        content = packer.content()
        for name, taken_bytes in records.items():
            values["pages", *name] += content.leaf_pages * taken_bytes / sum(records.values())
        values.update(content_values(content, "file"))
        self._decode(window.shard, members, values)
        self.rows_read += rows
        return WindowFigures(values, rows, body_bytes, _DESCENT_PAGES + content.leaf_pages + content.overflow_pages)

    def _decode(
        self,
        shard: int,
        members: dict[tuple[str, str], list[tuple[int, int]]],
        values: defaultdict[Key, float],
    ) -> None:
        """Add what some bodies of each column and codec would be as JSON text."""
        chosen: dict[int, tuple[str, str]] = {}
        for name, cells in members.items():
            if name[1] in (LEGACY.name, UNREADABLE):
                continue
            short = [added_id for added_id, length in cells if length <= _LONGEST_DECODED_BYTES]
            chosen |= dict.fromkeys(self.random.sample(short, min(_DECODED, len(short))), name)
        if not chosen:
            return
        sql = select_bodies(internals_of(self.store).shards.database(shard), chosen)
        for added_id, body in internals_of(self.store).shards.rows(shard, sql, read_from=self.part.read_from):
            self.rows_read += 1
            name = chosen[added_id]
            try:
                text_bytes = len(recode(body, LEGACY, dictionaries=internals_of(self.store).dictionaries).body)
            except (CorruptBody, BodyTooLarge, VerificationFailed):
                values["damaged",] += 1
                continue
            values["decoded", *name] += 1
            length = len(body)
            sums = (length, text_bytes, length**2, length * text_bytes, text_bytes**2)
            for part, value in zip(_PARTS, sums, strict=True):
                values[f"decoded {part}", *name] += value


def _codec(head: bytes, body_bytes: int) -> str:
    try:
        return describe_body(head.ljust(min(body_bytes, HEADER_BYTES + 8), b"\0")).name
    except CorruptBody:
        return UNREADABLE


@dataclass(frozen=True, slots=True)
class _Line:
    """JSON text of a column in a codec, by what its body takes: ``base + slope * body_bytes``.

    Attributes:
        spread: the variance about it.
        degrees: of freedom.
    """

    base: float
    slope: float
    spread: float = 0.0
    degrees: float = 3.0


_AS_STORED: Final = _Line(0.0, 1.0)


def _line(taken: Sample, name: tuple[str, str]) -> _Line | None:
    """Return the line through the bodies that were decoded, each with the weight of those it was drawn from."""
    sums = [0.0] * 6
    count = 0.0
    for window, figures in zip(taken.windows, taken.figures, strict=True):
        decoded = figures.values.get(("decoded", *name), 0.0)
        if decoded:
            times = window.weight * figures.values["cells", *name] / decoded
            parts = [decoded, *(figures.values[f"decoded {part}", *name] for part in _PARTS)]
            sums = [total + times * part for total, part in zip(sums, parts, strict=True)]
            count += decoded
    if not count:
        return None
    weight, bodies, texts, bodies2, both, texts2 = sums
    variance = bodies2 - bodies**2 / weight
    # Bodies that are all of about one length have no slope to tell: in proportion then.
    if count > 2 and variance > 1e-6 * bodies2:
        slope = (both - bodies * texts / weight) / variance
        base = (texts - slope * bodies) / weight
    else:
        base, slope = 0.0, texts / bodies
    left = (
        texts2 - 2 * (base * texts + slope * both) + base**2 * weight + 2 * base * slope * bodies + slope**2 * bodies2
    )
    return _Line(base, slope, max(0.0, left) / weight * count / max(1.0, count - 2), max(3.0, count - 2))


def _with_json(taken: Sample) -> tuple[Sample, dict[tuple[str, str], float], list[tuple[str, str]]]:
    """Return a sample with the bytes of JSON text in each window.

    By a line over body bytes, and with each window's own deviation from it, as far as the bodies that were decoded
    tell: whatever the line, the total is not biased, and its interval holds both errors. Where all windows are read,
    that of the line is left: half of it comes second. Third, columns and codecs of which no body could be decoded.

    Source: Särndal, Swensson, Wretman, Model Assisted Survey Sampling, chapter 9 (two-phase regression estimator).
    """
    undecoded: list[tuple[str, str]] = []
    halves: dict[tuple[str, str], float] = {}
    more: list[dict[Key, float]] = [dict(window_figures.values) for window_figures in taken.figures]
    for _, column, codec in taken.keys_of("bytes"):
        name = column, codec
        line = _AS_STORED if codec in (LEGACY.name, UNREADABLE) else _line(taken, name)
        if line is None:
            undecoded.append(name)
            line = _AS_STORED
        variance = 0.0
        for values in more:
            cells, decoded = values.get(("cells", *name), 0.0), values.get(("decoded", *name), 0.0)
            if not cells:
                continue
            values["json", *name] = line.base * cells + line.slope * values["bytes", *name]
            if decoded:
                of_them = line.base * decoded + line.slope * values["decoded bytes", *name]
                values["json", *name] += cells / decoded * (values["decoded json", *name] - of_them)
                variance += line.spread * cells * (cells / decoded - 1)
        if taken.exact:
            halves[name] = student_t((1 + taken.level) / 2, line.degrees) * math.sqrt(variance)
    figures = [
        window_figures._replace(values=values) for window_figures, values in zip(taken.figures, more, strict=True)
    ]
    return replace(taken, figures=figures), halves, undecoded
