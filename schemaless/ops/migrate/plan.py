"""Predict what a migration would find, change and cost, from a sample of the cells. Read-only.

Every figure is an interval. If the whole datastore is read, because it is small or on request, the figures are exact.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.base.events import Listener, ignore_events
from schemaless.base.numbers import Interval, summed
from schemaless.base.parts import parts
from schemaless.codec.envelope import counts_as, describe_body, is_erased, is_reference, whole_body
from schemaless.codec.recode import Recoded, recode
from schemaless.codec.registry import Codec
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.ops.jobs.job import Failure
from schemaless.ops.migrate.binlog_cost import binary_log, predicted_bytes
from schemaless.ops.migrate.reencode import PER_CELL_ERRORS
from schemaless.ops.migrate.spec import MigrateSpec, with_settings
from schemaless.planning.sampling.column_trials import RowShares
from schemaless.planning.sampling.page_model import MYSQL, PAGE_BYTES, Layout, Packer, new_pages
from schemaless.planning.sampling.sampling import (
    BOUNDS,
    Bounds,
    Key,
    Sample,
    Window,
    WindowFigures,
    sample,
    window_rows,
)
from schemaless.planning.sampling.sizing import content_values, rebuilt_files
from schemaless.planning.sampling.table_sizes import TableSize, layout_of, shard_table_sizes
from schemaless.store.cells.paging import MAX_PAGE_BYTES, PageSize
from schemaless.store.cells.reading import Place
from schemaless.store.cells.sql import Row
from schemaless.store.datastore import Datastore
from schemaless.store.history import History, latest_versions
from schemaless.store.internals import internals_of

Values = defaultdict[Key, float]

UNKNOWN: Final = "unknown"
"""Codec name for a body whose first bytes identify no codec."""

_EXAMPLES: Final = 20
_EXACT: Final = Bounds(sample_bytes=1 << 62, whole_rows=1 << 62)

_GROWN_BYTES: Final = (3 << 20, 8 << 20)
"""Minimum and typical measured growth of a file with 5 to 100 MB of bodies in overflow pages, in bytes."""

_WRITE_SHARE: Final = Interval(0.40, 0.57, 0.75)
"""Share of a run's time spent in UPDATEs rather than in reading and re-encoding (docs/migration.md)."""


@dataclass(frozen=True, slots=True)
class CodecFound:
    """Cells of a column that are encoded with one codec."""

    column_name: str
    codec: str
    cells: Interval
    body_bytes: Interval


@dataclass(frozen=True, slots=True)
class Change:
    """Predicted change to a column, or to all columns.

    Attributes:
        cells: bodies to replace.
        bytes_before: size of those bodies now.
        bytes_after: size of those bodies after the run.
        after_share: ``bytes_after`` over ``bytes_before``; None if no body would be replaced.
    """

    cells: Interval
    bytes_before: Interval
    bytes_after: Interval
    after_share: Interval | None


@dataclass(frozen=True, slots=True)
class Left:
    """Bodies that a run would leave unchanged for one reason."""

    cells: Interval
    body_bytes: Interval


@dataclass(frozen=True, slots=True)
class Superseded:
    """Versions of a column, or of all columns, that have a higher one which was not erased.

    Attributes:
        versions: average number of versions per row and column, erased ones included; None if no version was sampled.
        cells: number of superseded versions, including those that are deltas already.
        body_bytes: size of their bodies now.
        deltas: predicted change to those that a run would replace by deltas.
    """

    versions: Interval | None
    cells: Interval
    body_bytes: Interval
    deltas: Change


@dataclass(frozen=True, slots=True)
class RunTime:
    """Estimated run time of one worker, and the measured rates behind the estimate.

    Attributes:
        seconds: run time without throttling.
        read_bytes_per_s: body bytes read from the servers per second, one window at a time.
        recode_bytes_per_s: body bytes decoded, re-encoded and verified per second on this machine.
    """

    seconds: Interval
    read_bytes_per_s: float
    recode_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class LogCost:
    """Bytes that a run would add to the binary logs of the primaries.

    Attributes:
        noblob: with ``binlog_row_image=NOBLOB`` and no statement text, the settings that a run applies if its account
            is allowed to.
        full: with full row images.
        kept: whether at least one server writes a binary log.
        grants: the GRANT that the account needs for these settings, by cluster; empty if no privilege is missing.
    """

    noblob: Interval
    full: Interval
    kept: bool
    grants: dict[str, str]


@dataclass(frozen=True, slots=True)
class FilesForecast:
    """Sizes of the table files of all shards together, in bytes.

    Attributes:
        files: current size, as far as the account may see it.
        growth: growth by the end of a run. The upper bound assumes that the server purges nothing during the run.
        rebuilt_now: size after a rebuild without a run.
        rebuilt_after: size after a run and a rebuild.
        largest_rebuild_bytes: free space needed to rebuild the largest shard, besides its old file.
    """

    files: TableSize
    growth: Interval
    rebuilt_now: Interval
    rebuilt_after: Interval
    largest_rebuild_bytes: float


@dataclass(slots=True)
class MigrationPlan:
    """What a run would find, change and cost.

    Attributes:
        codec: target codec.
        shards: number of shards sampled.
        sample: the sample behind the figures.
        stored: all cells, by column and codec.
        columns: predicted change by column.
        total: predicted change of all columns together.
        superseded: superseded versions by column, of those in which a run would store deltas.
        all_superseded: superseded versions of these columns together; None without such columns.
        kept_as_text: bodies to replace that would remain JSON text in an envelope, by reason.
        left: cells that would be left unchanged, by reason.
        examples: some of those cells.
        run_time: estimated run time; None if no body would be replaced.
        binary_log: estimated binary log volume; None if no body would be replaced.
        space: current and predicted file sizes; None if a server's page size is not supported.
    """

    codec: str
    shards: int
    sample: Sample
    stored: list[CodecFound]
    columns: dict[str, Change]
    total: Change
    superseded: dict[str, Superseded]
    all_superseded: Superseded | None
    kept_as_text: dict[str, Interval]
    left: dict[str, Left]
    examples: list[Failure]
    run_time: RunTime | None
    binary_log: LogCost | None
    space: FilesForecast | None

    @property
    def cells(self) -> Interval:
        """Number of cells in the sampled shards."""
        return self.sample.total(("rows",))


def plan_migration(
    store: Datastore,
    spec: MigrateSpec | None = None,
    shards: Iterable[int] | None = None,
    *,
    exact: bool = False,
    seed: int | None = None,
    bounds: Bounds = BOUNDS,
    listener: Listener = ignore_events,
) -> MigrationPlan:
    """Predict a run by re-encoding a sample of the cells in memory, without changing anything.

    Args:
        store: the datastore.
        spec: parameters of the migration, as in ``run``.
        shards: shard numbers, all by default.
        exact: read every cell, which takes as long as a run without its UPDATEs.
        seed: seed of the sample; the same seed draws the same sample. Taken from the clock by default.
        bounds: size of the sample; ignored if ``exact``.
        listener: receives the total, then the progress, in windows.

    Returns:
        The prediction.

    Raises:
        InvalidInput: a shard does not exist.
        CorruptBody: the dictionary is unknown or damaged.
        ServerError: a server cannot be reached.
    """
    spec = with_settings(store, spec or MigrateSpec())
    numbers = internals_of(store).chosen_shards(shards)
    work = _WindowMeasure(store, spec, spec.codec(internals_of(store).dictionaries), _layouts(store, numbers))
    taken = sample(
        internals_of(store).shards,
        numbers,
        work.measure,
        seed=time.time_ns() % 1_000_000 if seed is None else seed,
        bounds=_EXACT if exact else bounds,
        listener=listener,
    )
    return _plan(taken, work, numbers)


@dataclass(slots=True)
class _WindowMeasure:
    """Measures windows, and also collects figures that cannot be added up window by window."""

    store: Datastore
    spec: MigrateSpec
    codec: Codec
    layouts: dict[int, Layout] | None
    examples: list[Failure] = field(default_factory=list)
    read_s: float = 0.0
    recode_s: float = 0.0
    recoded_bytes: int = 0
    size: PageSize = field(default_factory=PageSize)
    shares: RowShares = field(init=False)

    def __post_init__(self) -> None:
        self.shares = RowShares(internals_of(self.store).shards)

    def measure(self, window: Window) -> WindowFigures:
        values: Values = defaultdict(float)
        rows = body_bytes = 0
        layout = MYSQL if self.layouts is None else self.layouts[window.shard]
        kind = str(layout)
        now, after = Packer(layout), Packer(layout)
        waited = time.perf_counter()
        read = window_rows(internals_of(self.store).shards, window, self.size)
        for block in parts(read, most_size=MAX_PAGE_BYTES, size_of=lambda row: len(row[4])):
            self.read_s += time.perf_counter() - waited
            new_bytes = self._new_bytes(block, window.shard, values)
            for row in block:
                rows += 1
                body_bytes += len(row[4])
                after_bytes = new_bytes.get(row[0])
                now.add(row[2], len(row[4]))
                after.add(row[2], len(row[4]) if after_bytes is None else after_bytes)
                if after_bytes is not None:
                    values["new pages", kind] += new_pages(row[2], len(row[4]), after_bytes, layout)
            waited = time.perf_counter()
        values["rows",] = rows
        for when, packer in (("now", now), ("after", after)):
            values.update(content_values(packer.content(), when, kind))
        return WindowFigures(values, rows, body_bytes)

    def _new_bytes(self, block: Sequence[Row], shard: int, values: Values) -> dict[int, int]:
        """Add the values of rows; return the lengths of the bodies that a run would replace, by added_id."""
        wanted = [row for row in block if not self.spec.columns or row[2] in self.spec.columns]
        recoded = {row[1:4]: found for row in wanted if (found := self._recoded(row, shard, values)) is not None}
        deltas = self._deltas(wanted, recoded, shard, values) if self.spec.stores_deltas() else {}
        new_bytes = {}
        for row in wanted:
            place, column, old_bytes = row[1:4], row[2], len(row[4])
            found = recoded.get(place)
            if place in deltas:
                body, base = deltas[place]
                new_bytes[row[0]] = len(body)
                if base is not None:
                    values["deltas", column] += 1
                    values["deltas before", column] += old_bytes
                    values["deltas after", column] += len(body)
            elif found is not None and not found.unchanged:
                new_bytes[row[0]] = len(found.body)
                if found.keep_reason is not None:
                    values["kept", found.keep_reason] += 1
            else:
                continue
            self.recoded_bytes += old_bytes
            values["cells", column] += 1
            values["before", column] += old_bytes
            values["after", column] += new_bytes[row[0]]
        return new_bytes

    def _recoded(self, row: Row, shard: int, values: Values) -> Recoded | None:
        """Return the new body of a row, whole, or None if a run would not look at it."""
        column, body = row[2], row[4]
        try:
            name = describe_body(body).name
        except CorruptBody:
            name = UNKNOWN
        values["stored", column, name] += 1
        values["stored bytes", column, name] += len(body)
        if is_reference(body):
            return None
        history = self.spec.stores_deltas(column)
        stays = {self.spec.to, self.codec.serializer.name + "+delta"} if history else ()
        if self.spec.sources and name not in (*self.spec.sources, *stays):
            return None
        started = time.perf_counter()
        try:
            dictionaries = internals_of(self.store).dictionaries
            whole = whole_body(body, dictionaries) if self.spec.history is False else body
            if counts_as(whole, self.codec, dictionaries):
                return Recoded(whole, None, whole is body) if history or whole is not body else None
            recoded = recode(whole, self.codec, dictionaries=dictionaries)
        except PER_CELL_ERRORS as error:
            reason = type(error).__name__
            values["left", reason] += 1
            values["left bytes", reason] += len(body)
            if len(self.examples) < _EXAMPLES:
                message = getattr(error, "message", str(error))
                self.examples.append(Failure(shard, row[0], row[1], column, row[3], reason, message))
            return None
        self.recode_s += time.perf_counter() - started
        return recoded

    def _deltas(
        self, rows: Sequence[Row], recoded: Mapping[Place, Recoded], shard: int, values: Values
    ) -> dict[Place, tuple[bytes, Place | None]]:
        """Add the values of versions; return the bodies that a run would store instead of whole ones or deltas."""
        started = time.perf_counter()
        versions = {row[1:4]: row for row in rows if self.spec.stores_deltas(row[2])}
        live = {place: row for place, row in versions.items() if not is_erased(row[4])}
        following = latest_versions(internals_of(self.store), shard, live)
        whole = {place: found.body for place, found in recoded.items()}
        deltas = History(internals_of(self.store), shard, self.codec, whole, following).deltas()
        self.recode_s += time.perf_counter() - started
        for column, share in self.shares.of(shard, versions).items():
            values["rows of", column] += share
        for place, row in versions.items():
            values["versions", row[2]] += 1
            if place in following:
                values["superseded", row[2]] += 1
                values["superseded bytes", row[2]] += len(row[4])
        return deltas


def _plan(taken: Sample, work: _WindowMeasure, numbers: Sequence[int]) -> MigrationPlan:
    names = [name for _, name in taken.keys_of("cells")]
    versioned = [name for _, name in taken.keys_of("versions")]
    total = _change(taken, names)
    return MigrationPlan(
        codec=str(work.codec),
        shards=len(numbers),
        sample=taken,
        stored=[
            CodecFound(column, name, taken.count(("stored", column, name)), taken.total(("stored bytes", column, name)))
            for _, column, name in taken.keys_of("stored")
        ],
        columns={name: _change(taken, [name]) for name in names},
        total=total,
        superseded={name: _superseded(taken, [name]) for name in versioned},
        all_superseded=_superseded(taken, versioned) if work.spec.stores_deltas() else None,
        kept_as_text={reason: taken.count(("kept", reason)) for _, reason in taken.keys_of("kept")},
        left={
            reason: Left(taken.count(("left", reason)), taken.total(("left bytes", reason)))
            for _, reason in taken.keys_of("left")
        },
        examples=work.examples,
        run_time=_run_time(taken, work, total) if names else None,
        binary_log=_log_cost(work.store, total, numbers) if names else None,
        space=_space(taken, work, numbers),
    )


def _change(taken: Sample, names: list[str], kind: Sequence[str] = ("cells", "before", "after")) -> Change:
    cells, before, after = ([(figure, name) for name in names] for figure in kind)
    return Change(taken.count(*cells), taken.total(*before), taken.total(*after), taken.ratio(after, before))


def _superseded(taken: Sample, names: list[str]) -> Superseded:
    versions, rows, cells, body_bytes = (
        [(figure, name) for name in names] for figure in ("versions", "rows of", "superseded", "superseded bytes")
    )
    deltas = _change(taken, names, ("deltas", "deltas before", "deltas after"))
    per_row = taken.ratio(versions, rows)
    if per_row is not None:
        per_row = replace(per_row, low=max(1.0, per_row.low))
    return Superseded(per_row, taken.count(*cells), taken.total(*body_bytes), deltas)


def _run_time(taken: Sample, work: _WindowMeasure, total: Change) -> RunTime:
    read_bytes_per_s = taken.body_bytes / max(work.read_s, 1e-9)
    recode_bytes_per_s = work.recoded_bytes / max(work.recode_s, 1e-9)
    one_byte_s = 1 / read_bytes_per_s + 1 / recode_bytes_per_s
    before = total.bytes_before
    return RunTime(
        Interval(*(size * one_byte_s / (1 - share) for size, share in zip(before, _WRITE_SHARE, strict=True))),
        read_bytes_per_s,
        recode_bytes_per_s,
    )


def _log_cost(store: Datastore, total: Change, numbers: Iterable[int]) -> LogCost:
    internals = internals_of(store)
    grants: dict[str, str] = {}
    kept = False
    for cluster in {internals.topology.cluster_of(number) for number in numbers}:
        log = internals.shards.pool_for(cluster.primary).run(binary_log)
        kept = kept or log.kept
        if log.grant is not None:
            grants[cluster.name] = log.grant

    ends = [tuple(map(round, end)) for end in zip(total.cells, total.bytes_before, total.bytes_after, strict=True)]
    noblob, full = (
        Interval(*(predicted_bytes(*end, full_images=full_images) for end in ends)) for full_images in (False, True)
    )
    return LogCost(noblob, full, kept, dict(sorted(grants.items())))


def _layouts(store: Datastore, numbers: Iterable[int]) -> dict[int, Layout] | None:
    """Return the page layout of each shard's server; None if any server's layout is not supported."""
    internals = internals_of(store)
    by_cluster: dict[str, Layout] = {}
    layouts = {}
    for number in numbers:
        cluster = internals.topology.cluster_of(number)
        if cluster.name not in by_cluster:
            try:
                by_cluster[cluster.name] = layout_of(internals.shards.pool_for(cluster.primary), cluster.engine)
            except InvalidInput:
                return None
        layouts[number] = by_cluster[cluster.name]
    return layouts


def _space(taken: Sample, work: _WindowMeasure, numbers: Sequence[int]) -> FilesForecast | None:
    if work.layouts is None:
        return None
    sizes = shard_table_sizes(work.store, numbers).values()
    files = sum(sizes, TableSize(0, 0))
    kinds = Counter(work.layouts[number] for number in numbers)
    rebuilt = {
        when: summed(rebuilt_files(taken, (when, str(layout)), layout, shards) for layout, shards in kinds.items())
        for when in ("now", "after")
    }
    pages = taken.total(*taken.keys_of("new pages"))
    unpurged = pages.high * PAGE_BYTES
    least, usual = (len(numbers) * grown for grown in _GROWN_BYTES)
    growth = Interval(
        min(unpurged, least), min(unpurged, max(usual, unpurged / 2)), unpurged + (usual if unpurged else 0)
    )
    largest = max((size.file_bytes for size in sizes), default=0) / max(1, files.file_bytes)
    return FilesForecast(files, growth, rebuilt["now"], rebuilt["after"], rebuilt["after"].high * largest)
