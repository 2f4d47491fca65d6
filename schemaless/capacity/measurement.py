"""What was measured of a live datastore: frozen values, and their JSON. Nothing is measured here, and nothing asked.

All sizes are bytes, all days UTC. A figure is an ``Interval``: low, mid, high, with the measurement's confidence; the
three are the same where it was counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime
from typing import Any, Final, Literal

from schemaless.errors import InvalidInput
from schemaless.numbers import LEVEL, Interval

UNREADABLE: Final = "unreadable"
"""This stands for the codec of a body whose first bytes name none."""

Method = Literal["count", "search", "sample"]
"""A day's cells were found by one of these: all cells were read; between its ends along added_id; or, where created_at
does not follow added_id, by the created_at of the cells in the sample."""

# stored; raised where older measurements cannot be read as they are any more
JSON_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Group:
    """The cells of a column in a codec, in one shard or, of a datastore with many shards, in one cluster.

    Attributes:
        shard: its number; None where the shards of a cluster were measured together.
        codec: as stored: ``msgpack+zlib``, ``legacy``, or ``unreadable``.
        body_bytes: of their bodies, as stored.
        allocated_bytes: what they take of the file of a table that was just rebuilt, by the page model: records,
            overflow pages, their part of the indexes and of what InnoDB keeps free. All groups add up to such files.
        json_bytes: what their bodies would be as JSON text.
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
    """What came in on one day: a column of a cluster.

    Attributes:
        day: UTC.
        body_bytes: of their bodies, as they are stored now.
        method: see ``Method``.
        complete: False for the day of the measurement, which is not over, and the first day of all, which may have
            begun late.
    """

    day: date
    cluster: str
    column_name: str
    cells: Interval
    body_bytes: Interval
    method: Method
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """The files and the disk of a cluster: of one copy, the one that was read.

    Attributes:
        node: the server that was read, or the primary where none could be.
        read_from: "primary" or "replica".
        copies: how many servers hold the cells, the primary among them.
        shards: how many of the datastore's shards are there.
        problem: why it could not be measured, or None. Then nothing else is known of it.
        file_bytes: lengths of the files of all ``cell`` tables.
        file_allocated_bytes: what the file system has set aside for them.
        file_bytes_measured: False where the account may not see files (PROCESS), and both are of InnoDB's statistics.
        rebuilt_bytes: lengths that the page model gives these files, were they rebuilt now.
        overhead_bytes: of those, what is not bodies: records, indexes, parts of pages, and what InnoDB keeps free.
        disk_bytes: the size of the file system; None where the server does not show it and no flag gave it.
        free_bytes: of that; None likewise.
        disk_from: "server", "flag", or None where it is not known.
        shard_files: of each shard its number and the length of its file; none in measurements of before this was kept.
        other_files: of each table beside ``cell`` its name and the lengths of its files in all shards together:
            followers', indexes', what a move left. Empty where the account may not see files, or this was not kept yet.
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
    other_files: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """A datastore, as measured once.

    Attributes:
        taken_at: when it began, UTC, by the clock of the catalog's server.
        shard_count: how many shards it has.
        groups: in the order of cluster, shard, column_name, codec.
        growth: in the order of cluster, column_name, day; days without cells between the first and the last are 0.
        clusters: in the order of their names.
        notes: what a reader has to know: what could not be measured, what was estimated otherwise, and why.
        rows_read: rows that the servers were asked for.
        pages_read: pages of 16 KiB of those whose bodies were touched, overflow pages too, by the page model. Searching
            for days reads leaf pages besides, two or three for each row that it looks at.
        seconds: how long it took.
        seed: draws the same windows again.
        level: the confidence of the intervals.
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

    @property
    def column_names(self) -> list[str]:
        """Every column that was met, in order."""
        return sorted({group.column_name for group in self.groups} | {new.column_name for new in self.growth})

    @property
    def problems(self) -> list[ClusterFiles]:
        """The clusters that could not be measured."""
        return [space for space in self.clusters if space.problem is not None]

    @property
    def other_files(self) -> dict[str, int]:
        """The lengths of the files of each table beside ``cell``, of all clusters together."""
        total: Counter[str] = Counter()
        for space in self.clusters:
            total.update(dict(space.other_files))
        return dict(sorted(total.items()))

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads: plain values for ``json.dumps``."""
        plain = {"format": JSON_FORMAT, **_plain(self), "seconds": round(self.seconds, 3)}
        for cluster in plain["clusters"]:
            cluster["other_files"] = dict(cluster["other_files"])
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Return a measurement that ``to_json`` gave; numbers come back rounded to whole ones.

        Raises:
            InvalidInput: it is of another format.
        """
        if data.get("format") != JSON_FORMAT:
            raise InvalidInput(
                f"this measurement is of format {data.get('format')!r}, this version reads {JSON_FORMAT}; "
                "use a later version of schemaless, or measure again"
            )
        sizes = ("cells", "body_bytes", "allocated_bytes", "json_bytes")
        groups = tuple(Group(**{**group, **_estimates(group, sizes)}) for group in data["groups"])
        growth = tuple(
            DayIntake(**{**intake, **_estimates(intake, sizes[:2]), "day": date.fromisoformat(intake["day"])})
            for intake in data["growth"]
        )
        clusters = tuple(
            ClusterFiles(
                **{
                    **cluster,
                    **_estimates(cluster, ("rebuilt_bytes", "overhead_bytes")),
                    "shard_files": tuple(map(tuple, cluster.get("shard_files", ()))),
                    "other_files": tuple(cluster.get("other_files", {}).items()),
                }
            )
            for cluster in data["clusters"]
        )
        taken_at = datetime.fromisoformat(data["taken_at"]).astimezone(UTC)
        parts = {"taken_at": taken_at, "groups": groups, "growth": growth, "clusters": clusters}
        own = {part.name: data[part.name] for part in fields(cls) if part.name in data}
        return cls(**{**own, **parts, "notes": tuple(data["notes"])})


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: intervals in whole numbers, days and times in ISO 8601."""
    if isinstance(value, Interval):
        return [round(end) for end in value]
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.isoformat() if isinstance(value, date) else value


def _estimates(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Interval | None]:
    return {name: None if data[name] is None else Interval(*data[name]) for name in names}
