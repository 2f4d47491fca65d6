"""Codec trials of a measurement: every codec on sampled cells, in the present and in other storage engines.

The trials are saved with the measurement, so that reports, metrics and status never mix its sizes with those of cells
that were written, re-encoded or moved later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from schemaless.base.events import Listener, Step, ignore_events
from schemaless.base.numbers import Interval
from schemaless.codec.registry import NONE, PACKED, Codec, codec_named, codec_names
from schemaless.codec.trial import NOT_TRIED, worth_trying
from schemaless.errors import InvalidInput, ServerError
from schemaless.planning.capacity.basis import best_codec, usable
from schemaless.planning.capacity.measurement import NO_CODEC_TRIALS, CodecTrials, Measurement, Unit
from schemaless.planning.capacity.rebuilt import disk_per_body, is_small, unit_in_blocks, unit_of, whole_files
from schemaless.planning.capacity.sql import select_superseded
from schemaless.planning.sampling.advice import held_out, train_on
from schemaless.planning.sampling.column_trials import (
    DICTIONARY,
    HISTORY,
    WITH_DICTIONARY,
    CellSample,
    CodecTrial,
    ColumnTrial,
    HistoryTrial,
    Versions,
    layouts_in,
    sample_cells,
    try_codec,
    try_history,
    versions_of,
)
from schemaless.planning.sampling.file_trial import FILE_TRIAL_BOUNDS, try_files
from schemaless.planning.sampling.page_model import MYROCKS
from schemaless.planning.sampling.sampling import Bounds
from schemaless.schema.engines import ENGINES, ROCKSDB
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

TRIAL_BOUNDS: Final = Bounds(windows=48, window_rows=6, sample_bytes=4 << 20, whole_rows=300)
"""Size of the sample that every codec is tried on; trying all codecs takes several seconds of CPU time."""

BLOCK_TRIAL_BOUNDS: Final = Bounds(windows=48, window_rows=24, sample_bytes=8 << 20, whole_rows=1_200)
"""Like ``TRIAL_BOUNDS``, but for MyRocks, whose blocks hold several rows; a window should fill a block."""

VERSIONS_KEPT: Final = (*range(1, 11), 15, 20, 30, 50, 100)
"""Numbers of versions to keep for which a measurement samples the share of superseded bytes."""


def with_trials(
    store: Datastore,
    measurement: Measurement,
    *,
    seed: int,
    engines: Collection[str] = (),
    codec: str | None = None,
    listener: Listener = ignore_events,
) -> Measurement:
    """Return a measurement with trials of every codec on sampled cells. Writes nothing.

    Args:
        store: The datastore.
        measurement: The measurement, just taken.
        seed: Seed of the sample.
        engines: Other storage engines to try the cells in.
        codec: Codec to try on every cell if the datastore is small; by default the recommended one.
        listener: Receives each step.

    Returns:
        The measurement; if no cell can be read, it has no trials, and a note says why.
    """
    trials, notes = NO_CODEC_TRIALS, []
    try:
        cells = _cells(store, measurement, seed, engines)
        if cells is not None:
            found = {column: versions_of(store, cells, column) for column in cells.column_names()}
            versions = {column: known for column, known in found.items() if known is not None}
            trials = replace(_try_all(store, cells, versions, listener), superseded=_superseded(store, cells))
            trials = _with_dictionaries(cells, trials, listener)
            choice = best_codec(usable(trials.columns), measurement)
            if codec is None and choice is not None and choice.chosen is not None:
                codec = choice.chosen.name
            if codec is not None and is_small(measurement) and not cells.in_blocks:
                listener(Step(f"trying {codec} on every cell"))
                trials = replace(trials, files=whole_files(store, measurement, codec_named(codec), seed))
            trials = replace(trials, engines=_try_engines(store, cells, versions, engines, listener))
            listener(Step("trying cold files"))
            trials = replace(trials, file_share=_file_share(store, cells, seed))
            if not worth_trying(Codec(PACKED, NONE)):
                notes.append(NOT_TRIED)
    except (ServerError, InvalidInput) as error:
        notes.append(f"no codec could be tried: {error}")
    return replace(measurement, trials=trials, notes=(*measurement.notes, *notes))


def _try_all(
    store: Datastore, cells: CellSample, versions: Mapping[str, Versions], listener: Listener = ignore_events
) -> CodecTrials:
    """Try every codec on sampled cells of every column, and with deltas on those with ``versions``."""
    as_stored, now = _as_stored(cells), _lengths(cells)
    columns: list[CodecTrial] = []
    history: list[HistoryTrial] = []
    units: dict[str | None, dict[str, Unit]] = {None: {}}
    for column, size in as_stored.disk_per_body.items():
        unit = _unit(cells, column, now[column], now[column], size, size)
        if unit is not None and cells.carries(column):
            units[None][column] = unit

    def add_unit(trial: ColumnTrial) -> None:
        unit = _unit_of(cells, trial, as_stored.disk_per_body.get(trial.column_name))
        if unit is not None and trial.carried:
            units.setdefault(trial.codec, {})[trial.column_name] = unit

    for codec in map(codec_named, codec_names()):
        if not worth_trying(codec):
            continue
        listener(Step(f"trying {codec.name}"))
        for column in cells.column_names():
            trial = try_codec(cells, column, codec)
            columns.append(trial.kept())
            add_unit(trial)
            if codec.is_binary and versions:
                # Without versions, a column becomes like any other in this codec.
                made = trial
                if column in versions:
                    of_history, made = try_history(store, cells, column, codec, versions[column])
                    history.append(of_history)
                add_unit(replace(made, codec=codec.name + HISTORY))
    return replace(as_stored, columns=tuple(columns), history=tuple(history), units=units)


def _with_dictionaries(cells: CellSample, trials: CodecTrials, listener: Listener) -> CodecTrials:
    """Add trials with a dictionary for each column, on cells of other rows than those it was trained on."""
    unseen, name = held_out(cells), f"{WITH_DICTIONARY.name}{DICTIONARY}"
    found: list[CodecTrial] = []
    # Without a dictionary, a column becomes like any other in this codec.
    units = dict(trials.units.get(WITH_DICTIONARY.name, {}))
    for column in cells.column_names():
        if not unseen.carries(column):
            continue
        listener(Step(f"training a dictionary for {column}"))
        try:
            training = train_on(cells, column, WITH_DICTIONARY)
        except InvalidInput:  # Its cells do not repeat enough, or are of too few rows.
            continue
        trial = replace(try_codec(unseen, column, training.codec), codec=name)
        if training.helps:
            found.append(trial.kept())
            unit = _unit_of(unseen, trial, trials.disk_per_body.get(column))
            units |= {} if unit is None else {column: unit}
    if not found:
        return trials
    return replace(trials, dictionaries=tuple(found), units={**trials.units, name: units})


def _unit_of(cells: CellSample, trial: ColumnTrial, per_body: Interval | None) -> Unit | None:
    """Return the space of the average cell after a migration; ``per_body`` is that of the column now."""
    lengths = [length for window in trial.migrated_bytes for length in window]
    before = [len(cell.body) for cell in cells.of_column(trial.column_name)]
    after = None if per_body is None else per_body * trial.migrated_pages_share
    return _unit(cells, trial.column_name, lengths, before, trial.migrated_share, after)


def _unit(
    cells: CellSample,
    column: str,
    lengths: Sequence[int],
    before: Sequence[int],
    share: Interval | None,
    per_body: Interval | None,
) -> Unit | None:
    """Return the space of the average cell in pages or compressed blocks, given the lengths of the sampled bodies."""
    if not cells.in_blocks:
        return unit_of(column, lengths, cells.layouts[0], share, before)
    return None if per_body is None else unit_in_blocks(lengths, before, per_body)


def _try_engines(
    store: Datastore,
    cells: CellSample,
    versions: Mapping[str, Versions],
    engines: Collection[str],
    listener: Listener,
) -> dict[str, CodecTrials]:
    """Try every codec in each given storage engine, except one that all clusters already use."""
    present = {cluster.engine for cluster in internals_of(store).topology.clusters}
    found = {}
    for engine in sorted(engines):
        if present != {engine}:
            listener(Step(f"trying {ENGINES[engine].title}"))
            there = replace(cells, layouts=layouts_in(store, cells.taken.windows, engine))
            found[engine] = _try_all(store, there, versions, listener)
    return found


def _superseded(store: Datastore, cells: CellSample) -> dict[tuple[str, int], float]:
    """Return the share of each column's sampled body bytes in cells with at least this many newer versions."""
    shards = internals_of(store).shards
    every: Counter[str] = Counter()
    older: Counter[tuple[str, int]] = Counter()
    for window in cells.taken.windows:
        statement = select_superseded(shards.database(window.shard), window.after, window.up_to, VERSIONS_KEPT)
        for column, size, *sizes in shards.rows(window.shard, statement):
            every[str(column)] += int(size)
            for kept, superseded in zip(VERSIONS_KEPT, sizes, strict=True):
                older[str(column), kept] += int(superseded)
    return {(column, kept): size / every[column] for (column, kept), size in older.items() if every[column]}


def _as_stored(cells: CellSample) -> CodecTrials:
    """Return each column's disk space per body byte, or no columns if the clusters have different engines."""
    layout = cells.layouts[0]
    mixed = len({each.row_share is None for each in cells.layouts}) > 1
    per_body = {}
    for column, lengths in {} if mixed else _lengths(cells).items():
        size = cells.space_per_body(column)
        large = None if layout == MYROCKS else disk_per_body(column, lengths, layout)
        if size is not None and size.mid:
            per_body[column] = size if large is None else size.times(large / size.mid)
    return CodecTrials((), {}, per_body, layout)


def _file_share(store: Datastore, cells: CellSample, seed: int) -> dict[str, Interval]:
    """Return the size of cold files relative to bodies, by column; empty without pyarrow."""
    shards = sorted({window.shard for window in cells.taken.windows})
    try:
        return try_files(sample_cells(store, shards=shards, seed=seed, bounds=FILE_TRIAL_BOUNDS))
    except InvalidInput:
        return {}


def _lengths(cells: CellSample) -> dict[str, list[int]]:
    return {column: [len(cell.body) for cell in cells.of_column(column)] for column in cells.column_names()}


def _cells(
    store: Datastore, newest: Measurement, seed: int, engines: Collection[str] = frozenset()
) -> CellSample | None:
    """Sample cells for trials in the present and the given storage engines; None if there are no cells."""
    reachable = {space.cluster for space in newest.clusters if space.problem is None}
    shards = [shard for name in sorted(reachable) for shard in internals_of(store).topology.shards_of(name)]
    if not shards or not newest.groups:
        return None
    in_blocks = ROCKSDB.name in {*engines, *(internals_of(store).topology.cluster_of(shard).engine for shard in shards)}
    cells = sample_cells(store, shards=shards, seed=seed, bounds=BLOCK_TRIAL_BOUNDS if in_blocks else TRIAL_BOUNDS)
    return cells if cells.column_names() else None
