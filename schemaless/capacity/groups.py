"""Cells by column and codec, from windows of neighbouring added_ids: what a measurement reads of bodies.

To the server a body is one piece: whoever asks for its length, or its first bytes, has it read all of its overflow
pages. So one statement asks for both, window by window, and a window's pages are counted. What bodies would be as JSON
text takes decoding: a few of each column and codec in a window are fetched, and what they give is applied to the body
bytes of the rest, which are known better.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from schemaless.capacity.measurement import UNREADABLE, Group
from schemaless.codec.envelope import HEADER_BYTES, describe_body
from schemaless.codec.recode import recode
from schemaless.codec.registry import LEGACY
from schemaless.errors import BodyTooLarge, CorruptBody, VerificationFailed
from schemaless.mysql import statements
from schemaless.mysql.page_model import PAGE_BYTES, Layout, Packer, entry_bytes, placed
from schemaless.store.datastore import Datastore
from schemaless.store.sampling import Bounds, Estimate, Key, Measured, Sample, Window, sample
from schemaless.store.shards import ReadFrom
from schemaless.store.sizing import content_values, rebuilt_files

_DESCENT_PAGES: Final = 3
"""From the root of an index to a leaf page, about."""

_DECODED: Final = 2
"""Bodies of each column and codec in a window that are fetched and decoded."""

_LONGEST_DECODED_BYTES: Final = 1 << 20

_FUTURE_S: Final = 300.0
"""By how much clocks may differ before a cell counts as one of the future."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is sampled together: a shard, or all shards of a cluster.

    Attributes:
        cluster: its name.
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
            ``("day", column_name, day)`` cells and ``("day bytes", ...)``, ``("future",)`` and ``("damaged",)`` cells.
        moments: of every row that was read.
        rows_read: rows that the server was asked for.
        pages_read: what those take of its table.
        undecoded: columns and codecs of which no body could be decoded, so that their JSON text is a guess.
    """

    part: Part
    sample: Sample
    moments: list[Moment]
    rows_read: int
    pages_read: float
    undecoded: list[tuple[str, str]]

    def groups(self) -> list[Group]:
        """Return its cells by column and codec."""
        names = [(column, codec) for _, column, codec in self.sample.found("cells")]
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
                json_bytes=self.sample.total(("json", column, codec)),
            )
            for column, codec in names
        ]

    def file_bytes(self) -> Estimate:
        """Return what the files would take, were they rebuilt now."""
        return rebuilt_files(self.sample, ("file",), self.part.layout, len(self.part.shards))

    def body_bytes(self) -> Estimate:
        """Return what all bodies take."""
        return self.sample.total(*self.sample.found("bytes"))


def take(store: Datastore, part: Part, bounds: Bounds, seed: int, now: datetime) -> Taken:
    """Sample a part.

    Raises:
        ServerError: its server cannot be reached.
    """
    reader = _Reader(store, part, random.Random(~seed), now)  # noqa: S311 - nothing secret
    taken = sample(store.shards, list(part.shards), reader.measure, seed=seed, bounds=bounds, read_from=part.read_from)
    taken, undecoded = _with_json(taken)
    pages = sum(found.pages for found in taken.measured)
    return Taken(part, taken, reader.moments, reader.rows_read, pages, undecoded)


@dataclass(slots=True)
class _Reader:
    store: Datastore
    part: Part
    random: random.Random
    now: datetime
    rows_read: int = 0
    moments: list[Moment] = field(default_factory=list)

    def measure(self, window: Window) -> Measured:
        shards, layout = self.store.shards, self.part.layout
        sql = statements.select_figures(shards.database(window.shard), window.after, window.up_to)
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
            values["pages", *name] += (overflow_pages * PAGE_BYTES + entry_bytes(column)) / PAGE_BYTES
            at = datetime.fromisoformat(created_at).timestamp()
            self.moments.append(Moment(window.shard, added_id, at))
            if at > latest:
                values["future",] += 1
            else:
                day = created_at[:10]
                values["day", column, day] += 1
                values["day bytes", column, day] += length
            rows += 1
            body_bytes += length
        content = packer.content()
        for name, taken_bytes in records.items():
            values["pages", *name] += content.leaf_pages * taken_bytes / sum(records.values())
        values.update(content_values(content, "file"))
        self._decode(window.shard, members, values)
        self.rows_read += rows
        return Measured(values, rows, body_bytes, _DESCENT_PAGES + content.leaf_pages + content.overflow_pages)

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
        sql = statements.select_bodies(self.store.shards.database(shard), chosen)
        for added_id, body in self.store.shards.rows(shard, sql, read_from=self.part.read_from):
            self.rows_read += 1
            name = chosen[added_id]
            try:
                text_bytes = len(recode(body, LEGACY).body)
            except (CorruptBody, BodyTooLarge, VerificationFailed):
                values["damaged",] += 1
                continue
            values["decoded bytes", *name] += len(body)
            values["decoded json", *name] += text_bytes


def _codec(head: bytes, body_bytes: int) -> str:
    try:
        return describe_body(head.ljust(min(body_bytes, HEADER_BYTES + 8), b"\0")).name
    except CorruptBody:
        return UNREADABLE


def _with_json(taken: Sample) -> tuple[Sample, list[tuple[str, str]]]:
    """Return a sample with the bytes of JSON text in each window.

    By a ratio to body bytes, and with each window's own deviation from it, as far as some of its bodies tell: the total
    is that of the ratio, and the interval holds both errors.

    Source: Särndal, Swensson, Wretman, Model Assisted Survey Sampling, chapter 9 (two-phase regression estimator).
    """
    undecoded: list[tuple[str, str]] = []
    more: list[dict[Key, float]] = [dict(found.values) for found in taken.measured]
    for _, column, codec in taken.found("bytes"):
        name = column, codec
        ratio = 1.0
        if codec not in (LEGACY.name, UNREADABLE):
            known = taken.ratio([("decoded json", *name)], [("decoded bytes", *name)])
            if known is None:
                undecoded.append(name)
            else:
                ratio = known.mid
        for values in more:
            if ("bytes", *name) not in values:
                continue
            body_bytes, decoded = values["bytes", *name], values.get(("decoded bytes", *name), 0.0)
            values["json", *name] = ratio * body_bytes
            if decoded:
                deviation = values["decoded json", *name] - ratio * decoded
                values["json", *name] += body_bytes / decoded * deviation
    measured = [found._replace(values=values) for found, values in zip(taken.measured, more, strict=True)]
    return Sample(taken.windows, measured, taken.tiles, taken.ids, taken.seed, taken.level), undecoded
