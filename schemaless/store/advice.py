"""Advice: what each column should be written in, by trying every codec that the store has on its own cells.

Whatever is tried is tried on the same cells, of rows that no dictionary was trained on, so that a dictionary is not
flattered. A codec is advised for the pages that it saves, which is what disks are filled with, and only where encoding
and decoding cost no more than a bound.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from schemaless.codec.envelope import describe_body
from schemaless.codec.registry import DEFAULT, JSON, MSGPACK, NONE, ZLIB, ZSTD, Codec
from schemaless.codec.training import Training, part_of, train
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.store.datastore import Datastore
from schemaless.store.sampling import Bounds, Estimate
from schemaless.store.trial import CellSample, ColumnTrial, sample_cells, space_of, try_codec

BOUNDS: Final = Bounds(windows=200, window_rows=16, sample_bytes=24 << 20, whole_rows=3_200)
"""Of all columns together: so much is held in memory, too."""

LEAST_SAVING: Final = 0.02
"""What a codec has to save of the pages that a column takes, to be advised."""

_CLOSE: Final = 0.01
_ZLIB_LEVELS: Final = (1, 6, 9)
_ZSTD_LEVELS: Final = (1, 3, 6, 12, 19)
_DICTIONARY_LEVELS: Final = (1, 3, 6, 12)
_LEAST_UNSEEN: Final = 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """A codec, and what a column would take in it after a migration.

    Attributes:
        codec: with a dictionary that is not in the catalog yet, where it has one.
        trial: on the cells that were compared.
        body_bytes: of all the column's cells.
        allocated_bytes: pages that they fill.
        cpu_s: encoding and decoding one cell, in seconds of this machine.
    """

    codec: Codec
    trial: ColumnTrial
    body_bytes: Estimate
    allocated_bytes: Estimate
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
        column_name: the column.
        cells: how many it has.
        stored: how many of the sampled cells are in which codec.
        body_bytes: what its bodies take now.
        allocated_bytes: what pages they fill, once the table is rebuilt.
        setting: what its new cells are written in now.
        candidates: all that were tried, the smallest first.
        default: the store's default among them.
        chosen: what to use; None where nothing saves enough.
        trainings: the dictionaries, one for MessagePack and one for JSON text, as far as one could be trained.
        notes: what is worth knowing, in sentences.
        seed: of the sample: ``codec train`` with it trains the same dictionary.
        compared: how many cells were compared.
        whole: whether these are all rows, since too few for a split; no dictionary was tried then.
    """

    column_name: str
    cells: Estimate
    stored: Counter[str]
    body_bytes: Estimate
    allocated_bytes: Estimate
    setting: Codec
    candidates: list[Candidate]
    default: Candidate
    chosen: Candidate | None
    trainings: list[Training]
    notes: list[str]
    seed: int
    compared: int
    whole: bool


def train_column(
    store: Datastore,
    column_name: str,
    codec: Codec,
    *,
    seed: int | None = None,
    bounds: Bounds = BOUNDS,
    on_window: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Training, dict[str, Any]]:
    """Train a dictionary on sampled cells of a column; return it, and what the catalog is to say of it.

    Raises:
        InvalidInput: the codec takes none, or there are too few cells or rows.
        ServerError: a server cannot be reached.
    """
    cells = sample_cells(store, columns=[column_name], seed=seed, bounds=bounds, on_window=on_window)
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
    most_cpu: float = 1.0,
    seed: int | None = None,
    bounds: Bounds = BOUNDS,
    on_window: Callable[[int, int], None] = lambda done, total: None,
    on_trial: Callable[[str, str], None] = lambda column, codec: None,
) -> list[ColumnAdvice]:
    """Say what each column should be written in. Changes nothing.

    Args:
        store: the datastore.
        columns: only these; all that are met unless given.
        shards: numbers of the shards; all unless given.
        most_cpu: how many times the time of the default codec encoding and decoding may take.
        seed: of the sample; the clock's unless given.
        bounds: how much is read.
        on_window: called with how many windows are read, and of how many.
        on_trial: called with the column and the codec that is tried next.

    Raises:
        InvalidInput: there is no such shard, or a server's pages are not of InnoDB's default size.
        ServerError: a server cannot be reached.
    """
    drawn = time.time_ns() % 1_000_000 if seed is None else seed
    cells = sample_cells(store, columns=columns, shards=shards, seed=drawn, bounds=bounds, on_window=on_window)
    return [
        _advise(store, cells, name, most_cpu, lambda codec, name=name: on_trial(name, codec))  # type: ignore[misc]
        for name in cells.column_names()
    ]


def _advise(
    store: Datastore, cells: CellSample, column_name: str, most_cpu: float, on_trial: Callable[[str], None]
) -> ColumnAdvice:
    notes: list[str] = []
    trainings: list[Training] = []
    for serializer in (MSGPACK, JSON):
        on_trial("training a dictionary")
        try:
            trainings.append(_trained(cells, column_name, Codec(serializer, ZSTD, ZSTD.level)))
        except InvalidInput as refusal:
            notes = [f"no dictionary: {refusal}."]
    unseen = _unseen(cells)
    whole = not trainings and len(unseen.of_column(column_name)) < _LEAST_UNSEEN
    compared = cells if whole else unseen
    now = space_of(cells, column_name, _lengths(cells, column_name))
    candidates = []
    for codec in _codecs(trainings):
        on_trial(codec.name)
        candidates.append(
            _candidate(try_codec(compared, column_name, codec), codec, now.body_bytes, now.allocated_bytes)
        )
    candidates.sort(key=lambda each: (each.allocated_bytes.mid, each.body_bytes.mid))
    default = next(each for each in candidates if each.codec == DEFAULT)
    chosen = _chosen(candidates, default, now.allocated_bytes, most_cpu)
    notes += _notes(candidates, default, trainings, chosen, most_cpu)
    return ColumnAdvice(
        column_name=column_name,
        cells=cells.taken.count(("cells", column_name)),
        stored=_stored(cells, column_name),
        body_bytes=now.body_bytes,
        allocated_bytes=now.allocated_bytes,
        setting=store.codec_for(column_name),
        candidates=candidates,
        default=default,
        chosen=chosen,
        trainings=trainings,
        notes=notes,
        seed=cells.taken.seed,
        compared=default.trial.sampled,
        whole=whole,
    )


def _unseen(cells: CellSample) -> CellSample:
    """Return the cells of rows that training sees neither for itself nor for choosing a size."""
    windows = [[cell for cell in window if part_of(cell.row_key) == "judge"] for window in cells.windows]
    return replace(cells, windows=windows)


def _lengths(cells: CellSample, column_name: str) -> list[list[int]]:
    return [[len(cell.body) for cell in window if cell.column_name == column_name] for window in cells.windows]


def _codecs(trainings: Iterable[Training]) -> list[Codec]:
    """Return every codec that new cells may be written in, at several levels."""
    tried = []
    for serializer in (MSGPACK, JSON):
        tried.append(Codec(serializer, NONE))
        tried += [Codec(serializer, ZLIB, level) for level in _ZLIB_LEVELS]
        tried += [Codec(serializer, ZSTD, level) for level in _ZSTD_LEVELS]
    for training in trainings:
        tried += [replace(training.codec, level=level) for level in _DICTIONARY_LEVELS]
    return tried


def _candidate(trial: ColumnTrial, codec: Codec, body_bytes: Estimate, allocated_bytes: Estimate) -> Candidate:
    share = trial.migrated_share.mid if trial.migrated_share is not None else 1.0
    pages = trial.migrated.allocated_bytes.mid / max(1.0, trial.now.allocated_bytes.mid)
    return Candidate(
        codec, trial, body_bytes.times(share), allocated_bytes.times(pages), trial.encode_s + trial.decode_s
    )


def _chosen(
    candidates: list[Candidate], default: Candidate, allocated_bytes: Estimate, most_cpu: float
) -> Candidate | None:
    """Return the cheapest of those that take next to the fewest pages; None where that saves too little."""
    fit = [
        each
        for each in candidates
        if (each is default or each.cpu_s <= most_cpu * default.cpu_s) and not each.trial.left
    ] or [default]
    fewest = min(each.allocated_bytes.mid for each in fit)
    close = [each for each in fit if each.allocated_bytes.mid <= fewest * (1 + _CLOSE)]
    shortest = min(each.body_bytes.mid for each in close)
    chosen = min(
        (each for each in close if each.body_bytes.mid <= shortest * (1 + _CLOSE)), key=lambda each: each.cpu_s
    )
    return chosen if chosen.allocated_bytes.mid <= allocated_bytes.mid * (1 - LEAST_SAVING) else None


def _notes(
    candidates: list[Candidate],
    default: Candidate,
    trainings: list[Training],
    chosen: Candidate | None,
    most_cpu: float,
) -> list[str]:
    notes = []
    text = next(each for each in candidates if each.codec == Codec(JSON, ZLIB, ZLIB.level))
    ratio = default.trial.new.body_bytes.mid / max(1.0, text.trial.new.body_bytes.mid)
    if ratio > 1.01:
        notes.append(
            f"the default, {default.codec.name}, takes {ratio:.0%} of {text.codec.name} here: short decimals are "
            "shorter and more alike as text than as 9 bytes of MessagePack."
        )
    elif ratio < 0.99:
        notes.append(f"the default, {default.codec.name}, takes {ratio:.0%} of {text.codec.name} here.")
    if trainings and not any(training.helps for training in trainings):
        share = trainings[0].share
        notes.append(f"a dictionary does not help: unseen rows take {share:.1%} of what they take without it.")
    smallest = min(candidates, key=lambda each: each.body_bytes.mid)
    if smallest is not chosen and chosen is not None and smallest.body_bytes.mid < 0.98 * chosen.body_bytes.mid:
        factor = smallest.cpu_s / max(1e-9, default.cpu_s)
        notes.append(
            f"{smallest.name} would take {smallest.body_bytes.mid / chosen.body_bytes.mid:.0%} of the advised one's "
            f"body bytes, at {factor:.1f} times the time of the default (--cpu {most_cpu:g} allows {most_cpu:g})."
        )
    return notes


def _stored(cells: CellSample, column_name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for cell in cells.of_column(column_name):
        try:
            found[describe_body(cell.body).name] += 1
        except CorruptBody:
            found["unreadable"] += 1
    return found
