"""The values of a measurement, and their JSON form. Pure values; ``measure.py`` takes the measurement.

Sizes are in bytes, days in UTC. Estimated figures are an ``Interval`` with the confidence level of the measurement;
counted figures are an interval of width 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, date, datetime
from types import UnionType
from typing import Any, Final, Literal, cast, get_args, get_origin, get_type_hints

from schemaless.base.numbers import LEVEL, Interval, counted
from schemaless.errors import InvalidInput
from schemaless.planning.sampling.column_trials import CodecTrial, HistoryTrial
from schemaless.planning.sampling.page_model import MYSQL, Content, Layout

UNREADABLE: Final = "unreadable"
"""Codec name for bodies whose first bytes identify no codec."""

Method = Literal["count", "search", "sample"]
"""How the cells of a day were counted: by reading all cells; by a search, in order of added_id, for the day's ends; or,
if created_at does not follow added_id, from the created_at of the sampled cells."""

# Stored with each measurement; increment when older measurements can no longer be read unchanged.
JSON_FORMAT: Final = 2

_SEPARATOR: Final = "/"
"""Separates the name of a datastore from that of its cluster or column, if there are several; no name contains it."""


@dataclass(frozen=True, slots=True)
class Group:
    """The cells of a column in a codec, in one shard or, for a datastore with many shards, in one cluster.

    Attributes:
        cluster: Name of the cluster.
        shard: Number of the shard, or None if the shards of the cluster were measured together.
        column_name: Name of the column.
        codec: Codec as stored: ``msgpack+zlib``, ``legacy``, ``cold``, ``unreadable``, ...
        cells: Number of cells.
        body_bytes: Length of the stored bodies; of cold cells, that of the references.
        allocated_bytes: Bytes of a freshly rebuilt file, by the page model: records, overflow pages, and a share of
            the indexes and of the space that InnoDB keeps free. The groups' values add up to the length of such files.
        json_bytes: Length of the bodies as JSON text.
    """

    cluster: str
    shard: int | None
    column_name: str
    codec: str
    cells: Interval
    body_bytes: Interval
    allocated_bytes: Interval
    json_bytes: Interval


@dataclass(frozen=True, slots=True)
class DayIntake:
    """The cells of a column that a cluster received on one day.

    Attributes:
        day: The day, UTC.
        cluster: Name of the cluster.
        column_name: Name of the column.
        cells: Number of cells.
        body_bytes: Length of their bodies as stored now.
        method: How they were determined, see ``Method``.
        complete: False for the day of the measurement, which is not over, and for the very first day, on which writing
            may have started late.
        cold_cells: Number of these cells that are cold.
        cold_text_bytes: Length of the JSON text of their documents.
        erased_share: Share of these cells that are erased, 0 to 1.
    """

    day: date
    cluster: str
    column_name: str
    cells: Interval
    body_bytes: Interval
    method: Method
    complete: bool = True
    cold_cells: int = 0
    cold_text_bytes: int = 0
    erased_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Files and disk of one server of a cluster, the one that was read.

    Attributes:
        cluster: Name of the cluster.
        node: The server that was read, or the primary if none could be read.
        read_from: Role of that server, ``primary`` or ``replica``.
        copies: Number of servers that hold the cells, including the primary.
        shards: Number of shards of the datastore on this cluster.
        problem: Why the cluster could not be measured, or None. If set, nothing else is known.
        file_bytes: Length of the files of all ``cell`` tables.
        file_allocated_bytes: Bytes that the file system has allocated for them.
        file_bytes_measured: False if the two sizes above come from InnoDB's statistics because the account lacks
            PROCESS.
        rebuilt_bytes: Length of the files if they were rebuilt now, by the page model.
        overhead_bytes: The part of ``rebuilt_bytes`` that is not bodies: records, indexes, partial and free pages.
        disk_bytes: Size of the file system, or None if neither the server nor a flag gave it.
        free_bytes: Free space of the file system, or None if unknown.
        disk_from: Source of the disk's size: ``server``, ``flag``, or None if unknown.
        shard_files: Number and file length of each shard.
        other_files: Name and total file length of each table other than ``cell``: followers, indexes, leftovers of
            moves. Empty without PROCESS.
        cold_files: Number of the cold files that the shards list; files are neither opened nor copied by replicas.
        cold_file_bytes: Length of these files.
        cold_text_bytes: Length of the JSON text in them.
    """

    cluster: str
    node: str
    read_from: str
    copies: int
    shards: int
    problem: str | None = None
    file_bytes: int | None = None
    file_allocated_bytes: int | None = None
    file_bytes_measured: bool = False
    rebuilt_bytes: Interval | None = None
    overhead_bytes: Interval | None = None
    disk_bytes: int | None = None
    free_bytes: int | None = None
    disk_from: Literal["server", "flag"] | None = None
    shard_files: tuple[tuple[int, int], ...] = ()
    other_files: Mapping[str, int] = field(default_factory=dict)
    cold_files: int = 0
    cold_file_bytes: int = 0
    cold_text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """Average page content of one cell of a column, stored in a codec.

    Attributes:
        content: Page content of one cell; on MyRocks, its share of compressed blocks and index entries.
        variation: Standard deviation of the unexplained part of a cell's length, relative to the mean length.
        error: Standard error of the mean length, relative to it.
        before_bytes: Mean length of the bodies now, or None if unknown.
    """

    content: Content
    variation: float
    error: float
    before_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class CodecTrials:
    """Results of trying codecs on sampled cells.

    Attributes:
        columns: One trial for each codec and column.
        units: Average cell after a migration, by codec (as its trial names it) and column; codec None keeps the present
            codecs.
        disk_per_body: Bytes of a large file per body byte, by column, with a sampling interval.
        layout: Page layout of the servers.
        files: File lengths after a migration and a rebuild, by cluster and codec; empty unless every body was tried.
        superseded: Share of a column's bytes in versions that are superseded if this many versions are kept, by column
            and number of versions.
        engines: The same trials in other storage engines, by engine name, if any were requested.
        history: One trial for each codec that has deltas and each column with superseded versions.
        dictionaries: One trial for each column that a dictionary helps, trained on the other sampled cells.
        file_share: Size of cold files relative to the bodies that they replace, by column; empty without the extra
            [cold].
    """

    columns: tuple[CodecTrial, ...]
    units: Mapping[str | None, Mapping[str, Unit]]
    disk_per_body: Mapping[str, Interval]
    layout: Layout = MYSQL
    files: Mapping[tuple[str, str | None], Interval] = field(default_factory=dict)
    superseded: Mapping[tuple[str, int], float] = field(default_factory=dict)
    engines: Mapping[str, CodecTrials] = field(default_factory=dict)
    history: tuple[HistoryTrial, ...] = ()
    dictionaries: tuple[CodecTrial, ...] = ()
    file_share: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def every(self) -> tuple[CodecTrial, ...]:
        """The trials of whole bodies, and those with deltas and dictionaries."""
        return (*self.columns, *self.history, *self.dictionaries)


NO_CODEC_TRIALS: Final = CodecTrials((), {}, {})


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement of a datastore.

    Attributes:
        taken_at: Start of the measurement, UTC, by the clock of the catalog's server.
        datastore: Name of the datastore.
        shard_count: Number of shards.
        groups: Ordered by cluster, shard, column_name, codec.
        growth: Ordered by cluster, column_name, day; days without cells between the first and the last are listed with
            zeros.
        clusters: Ordered by name.
        notes: Caveats: what could not be measured, or was estimated in another way, and why.
        rows_read: Number of rows fetched from the servers.
        pages_read: Number of 16 KiB pages, by the page model, of the rows whose bodies were touched, including overflow
            pages. The search for days reads another two or three leaf pages per probed row, which are not counted.
        seconds: Duration.
        seed: Seed that draws the same windows again.
        level: Confidence level of the intervals.
        trials: Every codec tried on sampled cells; empty if none could be read.
        job_progress: Cells changed and shards completed by each job that was unfinished, by job number.
    """

    taken_at: datetime
    datastore: str
    shard_count: int
    groups: tuple[Group, ...]
    growth: tuple[DayIntake, ...]
    clusters: tuple[ClusterFiles, ...]
    notes: tuple[str, ...] = ()
    rows_read: int = 0
    pages_read: int = 0
    seconds: float = 0.0
    seed: int = 0
    level: float = field(default=LEVEL)
    trials: CodecTrials = NO_CODEC_TRIALS
    job_progress: Mapping[int, int] = field(default_factory=dict)

    @property
    def column_names(self) -> list[str]:
        """All column names found, sorted."""
        return sorted({group.column_name for group in self.groups} | {new.column_name for new in self.growth})

    @property
    def datastores(self) -> list[str]:
        """Names of the datastores, sorted; several for the result of ``combined.combine``."""
        names = {space.cluster.partition(_SEPARATOR)[0] for space in self.clusters if _SEPARATOR in space.cluster}
        return sorted(names) or [self.datastore]

    def datastore_of(self, name: str) -> str:
        """Return the datastore of a cluster or column."""
        return name.partition(_SEPARATOR)[0] if _SEPARATOR in name else self.datastore

    @property
    def problems(self) -> list[ClusterFiles]:
        """The clusters that could not be measured."""
        return [space for space in self.clusters if space.problem is not None]

    @property
    def unread(self) -> str:
        """The clusters that could not be measured, as a clause; empty if there are none."""
        names = ", ".join(f"{space.cluster} ({counted(space.shards, 'shard')})" for space in self.problems)
        return names and f", except in {names}"

    @property
    def other_files(self) -> dict[str, int]:
        """Total file length of each table other than ``cell``, over all clusters."""
        total: Counter[str] = Counter()
        for space in self.clusters:
            total.update(space.other_files)
        return dict(sorted(total.items()))

    def to_json(self, *, trials: bool = True) -> dict[str, Any]:
        """Return plain values for ``json.dumps``, which ``from_json`` reads back.

        Args:
            trials: Include the codec trials, the longest part.
        """
        plain = _plain(replace(self, trials=NO_CODEC_TRIALS, seconds=round(self.seconds, 3)))
        del plain["trials"]
        return {"format": JSON_FORMAT, **plain} | ({"trials": _plain(self.trials, exact=True)} if trials else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Build a measurement from the result of ``to_json``; estimates come back rounded to whole numbers.

        Raises:
            InvalidInput: The data has a different format version.
        """
        if data.get("format") != JSON_FORMAT:
            raise InvalidInput(
                f"the measurement has format {data.get('format')!r}, but this version of schemaless reads format "
                f"{JSON_FORMAT}; use the version that wrote it, or measure again"
            )
        measurement: Measurement = _built(cls, {name: value for name, value in data.items() if name != "format"})
        return replace(measurement, taken_at=measurement.taken_at.astimezone(UTC))


def qualified(datastore: str, name: str) -> str:
    """Return the name of a cluster or column in a measurement of several datastores."""
    return f"{datastore}{_SEPARATOR}{name}"


def _plain(value: Any, *, exact: bool = False) -> Any:
    """Convert a value for JSON: intervals to whole numbers unless ``exact``, days and times to ISO 8601."""
    if isinstance(value, Interval):
        return list(value) if exact else [round(end) for end in value]
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name), exact=exact) for part in fields(value)}
    if isinstance(value, Mapping):
        items = [(key, _plain(part, exact=exact)) for key, part in value.items()]
        return dict(items) if all(isinstance(key, str | int) for key in value) else [list(item) for item in items]
    if isinstance(value, tuple):
        return [_plain(part, exact=exact) for part in value]
    if isinstance(value, float) and math.isinf(value):
        return None
    return value.isoformat() if isinstance(value, date) else value


def _built(kind: Any, data: Any) -> Any:
    """Build a value of a type from the result of ``_plain``."""
    origin, args = get_origin(kind), get_args(kind)
    if data is None:
        return math.inf if kind is float else None
    if origin is UnionType:
        return _built(args[0], data)
    if kind is Interval:
        return Interval(*data)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return cast("Any", kind)(**{name: _built(hints[name], part) for name, part in data.items()})
    if kind in (date, datetime):
        return kind.fromisoformat(data)
    if origin is Mapping:
        items = data.items() if isinstance(data, dict) else data
        return {_built(args[0], key): _built(args[1], part) for key, part in items}
    if kind is int:
        return int(data)  # The keys of a JSON object are text.
    if origin is tuple:
        kinds = args[:1] * len(data) if args[-1] is ... else args
        return tuple(_built(part, value) for part, value in zip(kinds, data, strict=True))
    return data
