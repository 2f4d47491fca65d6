"""Recommends a codec for each column by trying every codec on the column's own sampled cells.

All codecs are tried on the same cells, from rows that no dictionary was trained on, so that the comparison does not
favour dictionaries. ``recommendation.choose`` makes the decision.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from schemaless.base.events import Listener, Step, ignore_events
from schemaless.base.numbers import Interval
from schemaless.codec.envelope import describe_body
from schemaless.codec.masking import Values
from schemaless.codec.registry import DEFAULT, JSON, NONE, PACKED, SERIALIZERS, ZLIB, ZSTD, Codec, codec_names
from schemaless.codec.serializers import Serializer
from schemaless.codec.training import Training, part_of, train
from schemaless.codec.trial import NEEDS_NATIVE, NOT_TRIED, worth_trying
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.planning.sampling.column_trials import (
    MIN_CELLS,
    CellSample,
    ColumnTrial,
    HistoryTrial,
    layouts_in,
    sample_cells,
    try_codec,
    try_history,
    versions_of,
)
from schemaless.planning.sampling.recommendation import LEAST_GAIN, MOST_CPU, Choice, Option, choose, share_text
from schemaless.planning.sampling.sampling import Bounds
from schemaless.schema.engines import engine_named
from schemaless.store.datastore import Datastore

_BOUNDS: Final = Bounds(windows=200, window_rows=16, sample_bytes=24 << 20, whole_rows=3_200)
"""Bounds of the sample of all columns together, which is kept in memory."""

_ZLIB_LEVELS: Final = (1, 6, 9)
_ZSTD_LEVELS: Final = (1, 3, 6, 12, 19)
_DICTIONARY_LEVELS: Final = (1, 3, 6, 12)
_COMPARED_ONE_IN: Final = 5
"""One row in this many is set aside for comparing codecs; the others train dictionaries."""


@dataclass(frozen=True, slots=True)
class Candidate(Option):
    """A codec, and the size of a column after a migration to it.

    Attributes:
        codec: the codec; its dictionary, if it has one, is not in the catalog yet.
        trial: trial of the codec on the compared cells.
        body_bytes: size of the bodies of all the column's cells.
        allocated_bytes: size of the pages that they fill.
    """

    codec: Codec
    trial: ColumnTrial
    body_bytes: Interval
    allocated_bytes: Interval


@dataclass(frozen=True, slots=True)
class ColumnAdvice:
    """Codec advice for a column.

    Attributes:
        column_name: name of the column.
        cells: number of its cells.
        stored: number of sampled cells by codec.
        body_bytes: present size of its bodies.
        allocated_bytes: size of the pages that they fill once the table is rebuilt; on MyRocks, of compressed blocks.
        present_bytes: the same in the cells' own storage engine; None unless sizes in another one were requested.
        setting: present codec of new cells.
        candidates: all candidates, smallest first; empty if too few cells were sampled.
        choice: the decision with its reason; None without candidates.
        history: effect of storing superseded versions as deltas; None if there are none, or too few cells.
        notes: remarks, as sentences.
        seed: seed of the sample; ``codec train`` with it trains the same dictionary.
        compared: number of compared cells.
        whole: whether all sampled rows were compared, because there were too few for a split; if so, no dictionary was
            tried.
    """

    column_name: str
    cells: Interval
    stored: Counter[str]
    body_bytes: Interval
    allocated_bytes: Interval
    present_bytes: Interval | None
    setting: Codec
    candidates: list[Candidate]
    choice: Choice[Candidate] | None
    history: HistoryTrial | None
    notes: list[str]
    seed: int
    compared: int
    whole: bool

    @property
    def chosen(self) -> Candidate | None:
        """The recommended candidate; None if no rewrite is worthwhile."""
        return None if self.choice is None else self.choice.chosen

    @property
    def history_codec(self) -> Codec:
        """The codec that ``history`` was tried with: the recommended or the present one, or the default."""
        codec = self.setting if self.chosen is None else self.chosen.codec
        return codec if codec.is_binary else DEFAULT

    @property
    def default(self) -> Candidate | None:
        """The candidate with the default codec."""
        return None if self.choice is None else self.choice.default


def train_column(
    store: Datastore,
    column_name: str,
    codec: Codec,
    *,
    seed: int | None = None,
    values: Values = "masked",
    listener: Listener = ignore_events,
) -> tuple[Training, dict[str, Any]]:
    """Train a dictionary on sampled cells of a column; return it with a description of its source for the catalog.

    Args:
        store: the datastore.
        column_name: name of the column.
        codec: the codec to train for.
        seed: seed of the sample; by default derived from the clock.
        values: which values of the documents the dictionary may hold.
        listener: receives the total and each advance, in windows.

    Raises:
        InvalidInput: the codec does not use dictionaries, or there are too few cells or rows.
        ServerError: a server cannot be reached.
    """
    cells = sample_cells(store, columns=[column_name], seed=seed, bounds=_BOUNDS, listener=listener)
    listener(Step(f"training a dictionary for {column_name}"))
    training = train_on(cells, column_name, codec, values)
    source = {
        "column": column_name,
        "values": values,
        "codec": codec.name,
        "level": codec.level,
        "rows": training.rows,
        "cells": training.cells,
        "judged_rows": training.judged_rows,
        "judged_cells": training.judged.encoded,
        "judged_share": round(training.share, 4),
        "seed": cells.taken.seed,
    }
    return training, source


def train_on(cells: CellSample, column_name: str, codec: Codec, values: Values = "masked") -> Training:
    """Train a dictionary on sampled cells of a column, without contacting a server.

    Args:
        cells: result of ``sample_cells`` with cells of this column.
        column_name: name of the column.
        codec: the codec to train for.
        values: which values of the documents the dictionary may hold.

    Raises:
        InvalidInput: the codec does not use dictionaries, or there are too few cells or rows.
    """
    return train(
        ((cell.row_key, cell.body) for cell in cells.of_column(column_name)),
        codec,
        dictionaries=cells.dictionaries,
        values=values,
    )


def advise(
    store: Datastore,
    *,
    columns: Iterable[str] | None = None,
    shards: Iterable[int] | None = None,
    engine: str | None = None,
    most_cpu: float = MOST_CPU,
    least_gain: float = LEAST_GAIN,
    seed: int | None = None,
    listener: Listener = ignore_events,
) -> list[ColumnAdvice]:
    """Recommend a codec for each column, without changing anything.

    Args:
        store: the datastore.
        columns: names of the columns; by default all columns in the sample.
        shards: numbers of the shards; by default all.
        engine: storage engine to predict sizes for, "innodb" or "rocksdb"; by default, the one that the cells are in.
        most_cpu: maximum time for encoding and decoding, as a multiple of the default codec's.
        least_gain: minimum share of pages that a rewrite must save, 0 to 1.
        seed: seed of the sample; by default derived from the clock.
        listener: receives the total and each advance, in windows, then a step for each codec.

    Raises:
        InvalidInput: a shard does not exist, or a server's pages do not have InnoDB's default size.
        ServerError: a server cannot be reached.
    """
    drawn = time.time_ns() % 1_000_000 if seed is None else seed
    cells = sample_cells(store, columns=columns, shards=shards, seed=drawn, bounds=_BOUNDS, listener=listener)
    present = cells
    if engine is not None:
        layouts = layouts_in(store, cells.taken.windows, engine_named(engine).name)
        cells = replace(cells, layouts=layouts)
    advice = [_advise(store, cells, name, most_cpu, least_gain, listener) for name in cells.column_names()]
    if cells.layouts == present.layouts:
        return advice
    sizes = (present.size(column.column_name)[1] for column in advice)
    return [replace(column, present_bytes=size) for column, size in zip(advice, sizes, strict=True)]


def _advise(
    store: Datastore, cells: CellSample, column_name: str, most_cpu: float, least_gain: float, listener: Listener
) -> ColumnAdvice:
    notes: list[str] = []
    trainings: list[Training] = []
    for serializer in filter(_is_tried, SERIALIZERS.values()):
        listener(Step(f"training a dictionary for {column_name}"))
        try:
            trainings.append(train_on(cells, column_name, Codec(serializer, ZSTD, ZSTD.level)))
        except InvalidInput as refusal:
            notes = [f"no dictionary could be trained: {refusal}."]
    unseen = held_out(cells)
    whole = not trainings and not unseen.carries(column_name)
    compared = cells if whole else unseen
    body_bytes, allocated_bytes = cells.size(column_name)
    candidates: list[Candidate] = []
    for codec in _codecs(trainings) if compared.carries(column_name) else ():
        listener(Step(f"trying {codec.name} on {column_name}"))
        candidates.append(_candidate(try_codec(compared, column_name, codec), codec, body_bytes, allocated_bytes))
    candidates.sort(key=lambda candidate: (candidate.allocated_bytes.mid, candidate.body_bytes.mid))
    default = next((candidate for candidate in candidates if candidate.codec == DEFAULT), None)
    choice = choose(candidates, default.name if default else "", least_gain=least_gain, most_cpu=most_cpu)
    count = len(compared.of_column(column_name))
    if default is None:
        notes.append(
            f"only {count} of its cells were sampled; an estimate needs at least {MIN_CELLS}, from several "
            f"parts of the tables."
        )
    else:
        notes += _notes(compared, candidates, default, trainings)
    if choice is not None and choice.chosen is not None and choice.chosen.codec.serializer is PACKED:
        notes.append(NEEDS_NATIVE)
    advice = ColumnAdvice(
        column_name=column_name,
        cells=cells.taken.count(("cells", column_name)),
        stored=_stored(cells, column_name),
        body_bytes=body_bytes,
        allocated_bytes=allocated_bytes,
        present_bytes=None,
        setting=store.codec_for(column_name),
        candidates=candidates,
        choice=choice,
        history=None,
        notes=notes,
        seed=cells.taken.seed,
        compared=count,
        whole=whole,
    )
    listener(Step(f"trying differences on {column_name}"))
    versions = versions_of(store, cells, column_name)
    if versions is None:
        return advice
    return replace(advice, history=try_history(store, cells, column_name, advice.history_codec, versions)[0])


def _is_tried(serializer: type[Serializer]) -> bool:
    return worth_trying(Codec(serializer, NONE))


def held_out(cells: CellSample) -> CellSample:
    """Return the cells of the fifth of the rows not used for training dictionaries, not even for choosing their size.

    This is a sample even if all cells were read, so its figures have intervals.
    """
    windows = [[cell for cell in window if part_of(cell.row_key) == "judge"] for window in cells.windows]
    taken = replace(
        cells.taken,
        windows=[window._replace(tiles=_COMPARED_ONE_IN * window.tiles) for window in cells.taken.windows],
        tiles=_COMPARED_ONE_IN * cells.taken.tiles,
    )
    return replace(cells, taken=taken, windows=windows)


def _codecs(trainings: Iterable[Training]) -> list[Codec]:
    """Return every codec for new cells, with several compression levels and with the trained dictionaries."""
    names = set(codec_names())
    codecs = []
    for serializer in filter(_is_tried, SERIALIZERS.values()):
        of_serializer = [Codec(serializer, NONE)]
        of_serializer += [Codec(serializer, ZLIB, level) for level in _ZLIB_LEVELS]
        of_serializer += [Codec(serializer, ZSTD, level) for level in _ZSTD_LEVELS]
        codecs += [codec for codec in of_serializer if codec.name in names]
    for training in trainings:
        codecs += [replace(training.codec, level=level) for level in _DICTIONARY_LEVELS]
    return codecs


def _candidate(trial: ColumnTrial, codec: Codec, body_bytes: Interval, allocated_bytes: Interval) -> Candidate:
    level = "" if codec.level is None else f" level {codec.level}"
    if codec.dictionary is not None:
        level += f", trained dictionary of {len(codec.dictionary.content):,} bytes"
    bodies, pages = trial.migrated_share, trial.migrated_pages_share
    return Candidate(
        name=f"{codec.name}{level}",
        share=pages,
        body_share=bodies.mid,
        cpu_s=trial.encode_s + trial.decode_s,
        left=trial.left_cells,
        codec=codec,
        trial=trial,
        body_bytes=_product(body_bytes, bodies),
        allocated_bytes=_product(allocated_bytes, pages),
    )


def _product(one: Interval, other: Interval) -> Interval:
    """Return the product of two independent estimates; their relative errors add in quadrature."""
    mid = one.mid * other.mid
    below, above = (
        math.hypot((getattr(one, end) - one.mid) * other.mid, (getattr(other, end) - other.mid) * one.mid)
        for end in ("low", "high")
    )
    return Interval(max(0.0, mid - below), mid, mid + above)


def _notes(
    compared: CellSample, candidates: list[Candidate], default: Candidate, trainings: list[Training]
) -> list[str]:
    notes = []
    text = next(candidate for candidate in candidates if candidate.codec == Codec(JSON, ZLIB, ZLIB.level))
    over, under = ([float(sum(window)) for window in candidate.trial.migrated_bytes] for candidate in (default, text))
    ratio = compared.taken.ratio_of(over, under) or Interval.of(1.0)
    comparison = f"the default, {default.codec.name}, takes {share_text(ratio, digits=0)} of {text.codec.name}'s bytes"
    if ratio.mid > 1.01:
        notes.append(f"{comparison}: short decimals compress better as text than as 9 bytes of MessagePack.")
    elif ratio.mid < 0.99:
        notes.append(f"{comparison}.")
    if trainings and not any(training.helps for training in trainings):
        share = trainings[0].share
        notes.append(f"a dictionary does not help: with it, unseen rows take {share:.1%} of their size without it.")
    if not _is_tried(PACKED):
        notes.append(NOT_TRIED)
    return notes


def _stored(cells: CellSample, column_name: str) -> Counter[str]:
    by_codec: Counter[str] = Counter()
    for cell in cells.of_column(column_name):
        try:
            by_codec[describe_body(cell.body).name] += 1
        except CorruptBody:
            by_codec["unreadable"] += 1
    return by_codec
