"""Advice: what each column should be written in, by trying every codec that the store has on its own cells.

Whatever is tried is tried on the same cells, of rows that no dictionary was trained on, so that a dictionary is not
flattered. Which of them is worth it is decided by ``choice.choose``, as everywhere.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from schemaless.codec.envelope import describe_body
from schemaless.codec.registry import DEFAULT, JSON, NONE, PACKED, SERIALIZERS, ZLIB, ZSTD, Codec, codec_names
from schemaless.codec.serializers import Serializer
from schemaless.codec.training import Training, part_of, train
from schemaless.codec.trial import NEEDS_NATIVE, NOT_TRIED, worth_trying
from schemaless.datastore import Datastore
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.events import Listener, Step, nobody
from schemaless.numbers import Interval
from schemaless.survey.column_trials import LEAST_CELLS, CellSample, ColumnTrial, column_size, sample_cells, try_codec
from schemaless.survey.recommendation import LEAST_GAIN, MOST_CPU, Choice, Option, choose, share_text
from schemaless.survey.sampling import Bounds

_BOUNDS: Final = Bounds(windows=200, window_rows=16, sample_bytes=24 << 20, whole_rows=3_200)
"""The sample of all columns together is as large: so much is held in memory, too."""

_ZLIB_LEVELS: Final = (1, 6, 9)
_ZSTD_LEVELS: Final = (1, 3, 6, 12, 19)
_DICTIONARY_LEVELS: Final = (1, 3, 6, 12)
_JUDGED_OF: Final = 5
"""One row of so many is compared on."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A codec, and what a column would take in it after a migration.

    Attributes:
        codec: with a dictionary that is not in the catalog yet, where it has one.
        trial: on the cells that were compared.
        body_share: what bodies take, over what they take now.
        share: the same of the pages that they fill.
        body_bytes: of all the column's cells.
        allocated_bytes: pages that they fill.
        cpu_s: encoding and decoding one cell, in seconds of this machine.
    """

    codec: Codec
    trial: ColumnTrial
    body_share: Interval
    share: Interval
    body_bytes: Interval
    allocated_bytes: Interval
    cpu_s: float

    @property
    def name(self) -> str:
        """In words: ``msgpack+zstd level 3, trained dictionary of 110 KiB``."""
        level = "" if self.codec.level is None else f" level {self.codec.level}"
        size = None if self.codec.dictionary is None else len(self.codec.dictionary.content)
        return f"{self.codec.name}{level}" + ("" if size is None else f", trained dictionary of {size:,} bytes")


@dataclass(frozen=True, slots=True)
class ColumnAdvice:
    """What to do with a column.

    Attributes:
        cells: how many it has.
        stored: how many of the sampled cells are in which codec.
        body_bytes: what its bodies take now.
        allocated_bytes: what pages they fill, once the table is rebuilt.
        setting: what its new cells are written in now.
        candidates: all that were tried, the smallest first; none where too few cells were met to tell.
        default: the store's default among them.
        choice: what was decided, and why; None without candidates.
        chosen: what to use; None where nothing is worth a rewrite.
        trainings: the dictionaries, one for each serializer, as far as one could be trained.
        notes: what is worth knowing, in sentences.
        seed: of the sample: ``codec train`` with it trains the same dictionary.
        compared: how many cells were compared.
        whole: whether these are all rows, since too few for a split; no dictionary was tried then.
    """

    column_name: str
    cells: Interval
    stored: Counter[str]
    body_bytes: Interval
    allocated_bytes: Interval
    setting: Codec
    candidates: list[Candidate]
    default: Candidate | None
    choice: Choice | None
    chosen: Candidate | None
    trainings: list[Training]
    notes: list[str]
    seed: int
    compared: int
    whole: bool


def train_column(
    store: Datastore, column_name: str, codec: Codec, *, seed: int | None = None, listener: Listener = nobody
) -> tuple[Training, dict[str, Any]]:
    """Train a dictionary on sampled cells of a column; return it, and what the catalog is to say of it.

    Raises:
        InvalidInput: the codec takes none, or there are too few cells or rows.
        ServerError: a server cannot be reached.
    """
    cells = sample_cells(store, columns=[column_name], seed=seed, bounds=_BOUNDS, listener=listener)
    training = _trained(cells, column_name, codec)
    source = {
        "column": column_name,
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


def _trained(cells: CellSample, column_name: str, codec: Codec) -> Training:
    return train(
        ((cell.row_key, cell.body) for cell in cells.of_column(column_name)), codec, dictionaries=cells.dictionaries
    )


def advise(
    store: Datastore,
    *,
    columns: Iterable[str] | None = None,
    shards: Iterable[int] | None = None,
    most_cpu: float = MOST_CPU,
    least_gain: float = LEAST_GAIN,
    seed: int | None = None,
    listener: Listener = nobody,
) -> list[ColumnAdvice]:
    """Say what each column should be written in. Changes nothing.

    Args:
        columns: only these; all that are met unless given.
        shards: numbers of the shards; all unless given.
        most_cpu: how many times the time of the default codec encoding and decoding may take.
        least_gain: what a rewrite has to save of the pages, 0 to 1.
        seed: of the sample; the clock's unless given.
        listener: told the total and each advance, in windows; then a step for each codec that is tried.

    Raises:
        InvalidInput: there is no such shard, or a server's pages are not of InnoDB's default size.
        ServerError: a server cannot be reached.
    """
    drawn = time.time_ns() % 1_000_000 if seed is None else seed
    cells = sample_cells(store, columns=columns, shards=shards, seed=drawn, bounds=_BOUNDS, listener=listener)
    return [_advise(store, cells, name, most_cpu, least_gain, listener) for name in cells.column_names()]


def _advise(
    store: Datastore, cells: CellSample, column_name: str, most_cpu: float, least_gain: float, listener: Listener
) -> ColumnAdvice:
    notes: list[str] = []
    trainings: list[Training] = []
    for serializer in filter(_is_tried, SERIALIZERS):
        listener(Step(f"training a dictionary for {column_name}"))
        try:
            trainings.append(_trained(cells, column_name, Codec(serializer, ZSTD, ZSTD.level)))
        except InvalidInput as refusal:
            notes = [f"no dictionary: {refusal}."]
    unseen = _unseen(cells)
    whole = not trainings and not unseen.carries(column_name)
    compared = cells if whole else unseen
    now = column_size(cells, column_name, _lengths(cells, column_name))
    candidates: list[Candidate] = []
    for codec in _codecs(trainings) if compared.carries(column_name) else ():
        listener(Step(f"trying {codec.name} on {column_name}"))
        candidates.append(
            _candidate(try_codec(compared, column_name, codec), codec, now.body_bytes, now.allocated_bytes)
        )
    candidates.sort(key=lambda candidate: (candidate.allocated_bytes.mid, candidate.body_bytes.mid))
    default = next((candidate for candidate in candidates if candidate.codec == DEFAULT), None)
    options = [
        Option(candidate.name, candidate.share, candidate.body_share.mid, candidate.cpu_s, candidate.trial.left.total())
        for candidate in candidates
    ]
    choice = choose(options, default.name if default else "", least_gain=least_gain, most_cpu=most_cpu)
    wanted = None if choice is None or choice.chosen is None else choice.chosen.name
    chosen = next((candidate for candidate in candidates if candidate.name == wanted), None)
    count = len(compared.of_column(column_name))
    if default is None:
        notes.append(f"only {count} of its cells were met, and {LEAST_CELLS} at least, well apart, carry an interval.")
    else:
        notes += _notes(compared, candidates, default, trainings)
    if chosen is not None and chosen.codec.serializer is PACKED:
        notes.append(NEEDS_NATIVE)
    return ColumnAdvice(
        column_name=column_name,
        cells=cells.taken.count(("cells", column_name)),
        stored=_stored(cells, column_name),
        body_bytes=now.body_bytes,
        allocated_bytes=now.allocated_bytes,
        setting=store.codec_for(column_name),
        candidates=candidates,
        default=default,
        choice=choice,
        chosen=chosen,
        trainings=trainings,
        notes=notes,
        seed=cells.taken.seed,
        compared=count,
        whole=whole,
    )


def _is_tried(serializer: type[Serializer]) -> bool:
    return worth_trying(Codec(serializer, NONE))


def _unseen(cells: CellSample) -> CellSample:
    """Return the cells of rows that training sees neither for itself nor for choosing a size: one row of five.

    It is a sample also where all cells were read, and its figures have intervals.
    """
    windows = [[cell for cell in window if part_of(cell.row_key) == "judge"] for window in cells.windows]
    taken = replace(
        cells.taken,
        windows=[window._replace(tiles=_JUDGED_OF * window.tiles) for window in cells.taken.windows],
        tiles=_JUDGED_OF * cells.taken.tiles,
    )
    return replace(cells, taken=taken, windows=windows)


def _lengths(cells: CellSample, column_name: str) -> list[list[int]]:
    return [[len(cell.body) for cell in window if cell.column_name == column_name] for window in cells.windows]


def _codecs(trainings: Iterable[Training]) -> list[Codec]:
    """Return every codec that new cells may be written in, at several levels."""
    names = set(codec_names())
    tried = []
    for serializer in filter(_is_tried, SERIALIZERS):
        of_serializer = [Codec(serializer, NONE)]
        of_serializer += [Codec(serializer, ZLIB, level) for level in _ZLIB_LEVELS]
        of_serializer += [Codec(serializer, ZSTD, level) for level in _ZSTD_LEVELS]
        tried += [codec for codec in of_serializer if codec.name in names]
    for training in trainings:
        tried += [replace(training.codec, level=level) for level in _DICTIONARY_LEVELS]
    return tried


def _candidate(trial: ColumnTrial, codec: Codec, body_bytes: Interval, allocated_bytes: Interval) -> Candidate:
    body_share = trial.migrated_share or Interval.of(1.0)
    share = trial.migrated_pages_share or Interval.of(1.0)
    return Candidate(
        codec,
        trial,
        body_share,
        share,
        _product(body_bytes, body_share),
        _product(allocated_bytes, share),
        trial.encode_s + trial.decode_s,
    )


def _product(one: Interval, other: Interval) -> Interval:
    """Return the product of two figures that were estimated apart: relative errors add up in squares."""
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
    ratio = compared.ratio(over, under) or Interval.of(1.0)
    takes = f"the default, {default.codec.name}, takes {share_text(ratio, digits=0)} of {text.codec.name} here"
    if ratio.mid > 1.01:
        notes.append(f"{takes}: short decimals are shorter and more alike as text than as 9 bytes of MessagePack.")
    elif ratio.mid < 0.99:
        notes.append(f"{takes}.")
    if trainings and not any(training.helps for training in trainings):
        share = trainings[0].share
        notes.append(f"a dictionary does not help: unseen rows take {share:.1%} of what they take without it.")
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
