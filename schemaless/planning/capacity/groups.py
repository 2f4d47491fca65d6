"""Estimate cells and bytes by column and codec from windows of neighbouring added_ids.

InnoDB reads all overflow pages of a body even for its length or first bytes, so one statement per window selects both,
and those pages count as read. The size as JSON text requires decoding: a few bodies per column, codec and window are
fetched and decoded, and a regression on body bytes extends the result to the other cells.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from schemaless.base.numbers import Interval, student_t
from schemaless.codec.envelope import COLD, ERASED, HEADER_BYTES, describe_body
from schemaless.codec.recode import recode
from schemaless.codec.references import text_bytes
from schemaless.codec.registry import LEGACY
from schemaless.errors import BodyTooLarge, CorruptBody, VerificationFailed
from schemaless.planning.capacity.day_ends import Probe
from schemaless.planning.capacity.measurement import UNREADABLE, Group
from schemaless.planning.capacity.sql import select_figures
from schemaless.planning.sampling.page_model import PAGE_BYTES, Layout, Packer, entry_bytes, placed
from schemaless.planning.sampling.sampling import Bounds, Key, Sample, Window, WindowFigures, sample
from schemaless.planning.sampling.sizing import content_values, rebuilt_files
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.shards import ReadFrom

_DESCENT_PAGES: Final = 3
"""Pages read by an index lookup from the root to a leaf, approximately."""

_DECODED_PER_WINDOW: Final = 2
"""Number of bodies fetched and decoded per column, codec and window."""

_SUMS: Final = ("bytes", "json", "bytes2", "both", "json2")
"""Sums over decoded bodies: body bytes, bytes of JSON text, their squares and their product."""

_LONGEST_DECODED_BYTES: Final = 1 << 20

_FUTURE_S: Final = 300.0
"""Tolerated clock difference, in seconds; a cell further ahead counts as being from the future."""


@dataclass(frozen=True, slots=True)
class Part:
    """Unit of sampling: one shard, or all shards of a cluster.

    Attributes:
        cluster: Name of the cluster.
        shards: Numbers of the shards.
        shard: Number of the shard if it is sampled on its own, else None.
        layout: Page layout of the server.
        read_from: Role of the server that is read.
    """

    cluster: str
    shards: tuple[int, ...]
    shard: int | None
    layout: Layout
    read_from: ReadFrom


@dataclass(slots=True)
class PartSample:
    """The sample of a part.

    Attributes:
        part: The part.
        sample: Values by window, under these keys: ``("cells", column_name, codec)``, and likewise ``bytes``, ``pages``
            and ``json``; ``("squares", column_name)``, the sum of the squared body bytes; ``("day", column_name, day)``
            and ``("day bytes", ...)``, the cells of a day and their bytes; ``("day cold", ...)`` and ``("day texts",
            ...)``, its cold cells and the bytes of their JSON text, whose total is ``("texts", column_name)``; ``("day
            erased", ...)``, its erased cells; ``("future",)`` and ``("damaged",)``, the numbers of such cells;
            ``("timed",)``, the number of cells that are not from the future, and ``("at",)``, the sum of their times.
        probes: One for each row read, by shard.
        rows_read: Number of rows fetched from the server.
        pages_read: Number of pages of the table that were read, according to the page model.
        json_halves: For an exact sample, half the width of the interval of the JSON text bytes, by column and codec.
        undecoded: Columns and codecs of which no body could be decoded, so their JSON size is a guess.
    """

    part: Part
    sample: Sample
    probes: dict[int, list[Probe]]
    rows_read: int
    pages_read: float
    json_halves: dict[tuple[str, str], float]
    undecoded: list[tuple[str, str]]

    def groups(self) -> list[Group]:
        """Return the cells by column and codec."""
        names = [(column, codec) for _, column, codec in self.sample.keys_of("cells")]
        pages = sum(self.sample.total(("pages", *name)).mid for name in names)
        file_bytes = self.file_bytes()
        # The free pages and fixed costs of the file are distributed over the groups in proportion to their pages.
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
        """Return the length that the files would have if they were rebuilt now."""
        return rebuilt_files(self.sample, ("file",), self.part.layout, len(self.part.shards))

    def body_bytes(self) -> Interval:
        """Return the total length of all bodies."""
        return self.sample.total(*self.sample.keys_of("bytes"))


def sample_part(store: Datastore, part: Part, bounds: Bounds, seed: int, now: datetime) -> PartSample:
    """Sample a part.

    Raises:
        ServerError: The server of the part cannot be reached.
    """
    reader = _Reader(store, part, random.Random(~seed), now)  # noqa: S311 - nothing secret
    shards = internals_of(store).shards
    windows = sample(shards, list(part.shards), reader.read, seed=seed, bounds=bounds, read_from=part.read_from)
    windows, halves, undecoded = _with_json(windows)
    pages = sum(figures.pages for figures in windows.figures)
    return PartSample(part, windows, reader.probes, reader.rows_read, pages, halves, undecoded)


@dataclass(slots=True)
class _Reader:
    store: Datastore
    part: Part
    random: random.Random
    now: datetime
    rows_read: int = 0
    probes: defaultdict[int, list[Probe]] = field(default_factory=lambda: defaultdict(list))

    def read(self, window: Window) -> WindowFigures:
        shards, layout = internals_of(self.store).shards, self.part.layout
        sql = select_figures(shards.database(window.shard), window.after, window.up_to)
        values: defaultdict[Key, float] = defaultdict(float)
        packer = Packer(layout)
        records: defaultdict[tuple[str, str], float] = defaultdict(float)
        members: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        rows = body_bytes = 0
        latest = self.now.timestamp() + _FUTURE_S
        for added_id, column, length, head, created_at in shards.rows(window.shard, sql, read_from=self.part.read_from):
            name, text = (column, _codec(head[:HEADER_BYTES], length)), text_bytes(head)
            record, overflow_pages = placed(column, length, layout)
            packer.add(column, length)
            records[name] += record
            members[name].append((added_id, length))
            values["cells", *name] += 1
            values["bytes", *name] += length
            values["squares", column] += length**2
            values["texts", column] += text
            values["pages", *name] += (overflow_pages * PAGE_BYTES + entry_bytes(column)) / PAGE_BYTES
            at = datetime.fromisoformat(created_at).timestamp()
            self.probes[window.shard].append(Probe(added_id, added_id, at))
            if at > latest:
                values["future",] += 1
            else:
                day = created_at[:10]
                values["day", column, day] += 1
                values["day bytes", column, day] += length
                if text:
                    values["day cold", column, day] += 1
                    values["day texts", column, day] += text
                values["day erased", column, day] += name[1] == ERASED
                values["at",] += at
                values["timed",] += 1
            rows += 1
            body_bytes += length
        content = packer.content()
        for name, record_bytes in records.items():
            values["pages", *name] += content.leaf_pages * record_bytes / sum(records.values())
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
        """Decode a few bodies of each column and codec, and add the sums for the regression to ``values``."""
        chosen: dict[int, tuple[str, str]] = {}
        for name, cells in members.items():
            if name[1] in _AT_FACE_VALUE:
                continue
            short = [added_id for added_id, length in cells if length <= _LONGEST_DECODED_BYTES]
            chosen |= dict.fromkeys(self.random.sample(short, min(_DECODED_PER_WINDOW, len(short))), name)
        if not chosen:
            return
        for cell in internals_of(self.store).read_stored(shard, list(chosen), self.part.read_from):
            self.rows_read += 1
            name = chosen[cell.added_id]
            try:
                text_bytes = len(recode(cell.body, LEGACY, dictionaries=internals_of(self.store).dictionaries).body)
            except (CorruptBody, BodyTooLarge, VerificationFailed):
                values["damaged",] += 1
                continue
            values["decoded", *name] += 1
            length = len(cell.body)
            sums = (length, text_bytes, length**2, length * text_bytes, text_bytes**2)
            for part, value in zip(_SUMS, sums, strict=True):
                values[f"decoded {part}", *name] += value


def _codec(head: bytes, body_bytes: int) -> str:
    try:
        return describe_body(head.ljust(min(body_bytes, HEADER_BYTES + 8), b"\0")).name
    except CorruptBody:
        return UNREADABLE


@dataclass(frozen=True, slots=True)
class _Line:
    """Regression of JSON text bytes on body bytes for a column and codec: ``base + slope * body_bytes``.

    Attributes:
        spread: Residual variance.
        degrees: Residual degrees of freedom.
    """

    base: float
    slope: float
    spread: float = 0.0
    degrees: float = 3.0


_AT_FACE_VALUE: Final = (LEGACY.name, UNREADABLE, COLD)
"""Codecs of bodies that are not decoded: the size of their JSON text is taken to be that of the body, except that cold
bodies state it."""

_AS_STORED: Final = _Line(0.0, 1.0)


def _fit(windows: Sample, name: tuple[str, str]) -> _Line | None:
    sums = [0.0] * 6
    count = 0.0
    for window, figures in zip(windows.windows, windows.figures, strict=True):
        decoded = figures.values.get(("decoded", *name), 0.0)
        if decoded:
            times = window.weight * figures.values["cells", *name] / decoded
            parts = [decoded, *(figures.values[f"decoded {part}", *name] for part in _SUMS)]
            sums = [total + times * part for total, part in zip(sums, parts, strict=True)]
            count += decoded
    if not count:
        return None
    weight, bodies, texts, bodies2, both, texts2 = sums
    variance = bodies2 - bodies**2 / weight
    # Bodies of nearly equal length do not determine a slope; assume proportionality.
    if count > 2 and variance > 1e-6 * bodies2:
        slope = (both - bodies * texts / weight) / variance
        base = (texts - slope * bodies) / weight
    else:
        base, slope = 0.0, texts / bodies
    residual = (
        texts2 - 2 * (base * texts + slope * both) + base**2 * weight + 2 * base * slope * bodies + slope**2 * bodies2
    )
    return _Line(base, slope, max(0.0, residual) / weight * count / max(1.0, count - 2), max(3.0, count - 2))


def _with_json(windows: Sample) -> tuple[Sample, dict[tuple[str, str], float], list[tuple[str, str]]]:
    """Add the bytes of JSON text to each window of a sample.

    Two-phase regression estimator: a line over body bytes, corrected in each window by the deviation of its decoded
    bodies. The total is unbiased even if the line fits poorly, and its interval includes both errors.

    Source: Särndal, Swensson, Wretman, Model Assisted Survey Sampling, chapter 9.

    Returns:
        The sample; for an exact sample, half the width of the remaining interval, by column and codec; and the columns
        and codecs of which no body could be decoded.
    """
    undecoded: list[tuple[str, str]] = []
    halves: dict[tuple[str, str], float] = {}
    extended: list[dict[Key, float]] = [dict(figures.values) for figures in windows.figures]
    for _, column, codec in windows.keys_of("bytes"):
        name = column, codec
        line = _AS_STORED if codec in _AT_FACE_VALUE else _fit(windows, name)
        if line is None:
            undecoded.append(name)
            line = _AS_STORED
        variance = 0.0
        for values in extended:
            cells, decoded = values.get(("cells", *name), 0.0), values.get(("decoded", *name), 0.0)
            if not cells:
                continue
            values["json", *name] = line.base * cells + line.slope * values["bytes", *name]
            if codec == COLD:
                values["json", *name] = values["texts", column]
            if decoded:
                fitted = line.base * decoded + line.slope * values["decoded bytes", *name]
                values["json", *name] += cells / decoded * (values["decoded json", *name] - fitted)
                variance += line.spread * cells * (cells / decoded - 1)
        if windows.exact:
            halves[name] = student_t((1 + windows.level) / 2, line.degrees) * math.sqrt(variance)
    figures = [figures._replace(values=values) for figures, values in zip(windows.figures, extended, strict=True)]
    return replace(windows, figures=figures), halves, undecoded
