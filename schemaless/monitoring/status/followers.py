"""Reads triggers, indexes and exports: lag, parked cells, shard states and workers.

Reading the rows of all shards costs the servers seconds of CPU time if there are thousands of shards and the table
caches are small. ``ShardReader`` reads them at long intervals. Between those readings, ``FollowerReader`` reads the
catalog and only the shards that workers report there or that needed attention before, so a shard that stops is noticed
within seconds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from schemaless.errors import SchemalessError
from schemaless.monitoring.status.model import FollowerView, ManifestView
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.export.admin import exports
from schemaless.ops.export.exporter import export_name, is_export
from schemaless.ops.export.manifest import read_definition, read_shard
from schemaless.store.cold.targets import open_target
from schemaless.store.datastore import Datastore
from schemaless.store.followers import sql
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.states import RUNNING
from schemaless.store.followers.status import ShardStatus
from schemaless.store.internals import internals_of
from schemaless.store.triggers.declaration import is_trigger, trigger_name
from schemaless.topology.shards import Shards

_AGES: Final = 16
"""Maximum number of shards of a follower whose oldest unhandled cell is read."""
_SUSPECTS: Final = 64
"""Maximum number of a follower's shards that are read at once between two readings of all shards."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Figures of a follower's rows in some shards.

    Attributes:
        ids_behind: added_ids between the locations and the ends of the shards.
        parked: number of parked cells.
        states: number of shards by state.
    """

    ids_behind: int
    parked: int
    states: Counter[str]

    @classmethod
    def of(cls, rows: Iterable[FollowerRow | None]) -> Self:
        """Return the figures of rows; None is one that is missing."""
        rows = list(rows)
        known = [row for row in rows if row is not None]
        behind = sum(max(0, row.top - row.location) for row in known)
        return cls(behind, sum(row.parked for row in known), Counter(ShardStatus(0, row).state for row in rows))

    def replacing(self, old: Totals, new: Totals) -> Totals:
        """Return the figures after some rows were read again."""
        behind, parked = new.ids_behind - old.ids_behind, new.parked - old.parked
        return Totals(self.ids_behind + behind, self.parked + parked, self.states - old.states + new.states)


@dataclass(frozen=True, slots=True)
class AllShards:
    """The rows of all shards.

    Attributes:
        names: names of the followers that were read.
        rows: the rows that exist, by follower and shard.
        behind_s: age of the oldest unhandled cell, in seconds, by follower.
        tops: the highest added_id of each shard.
        totals: figures of all rows, by follower.
    """

    names: frozenset[str]
    rows: Mapping[Pair, FollowerRow]
    behind_s: Mapping[str, float]
    tops: Mapping[int, int]
    totals: Mapping[str, Totals]

    def suspects(self) -> Iterable[Pair]:
        """Yield the shards that need attention."""
        return (pair for pair, row in self.rows.items() if row.state != RUNNING or row.parked)


@dataclass(frozen=True, slots=True)
class Followers:
    """The followers in the catalog, by the name in their rows, and the rows of the shards that need attention.

    The views lack what is read from rows.
    """

    views: Mapping[str, FollowerView]
    rows: Mapping[Pair, FollowerRow]


class FollowerReader:
    """Reads the catalog, and up to 64 shards of each follower.

    Args:
        store: the datastore.
        shards: returns the last reading of all shards, or None.
        read_shards: called when all shards should be read soon: there is a new follower, or one has lost its workers.
    """

    def __init__(
        self, store: Datastore, shards: Callable[[], AllShards | None], read_shards: Callable[[], None]
    ) -> None:
        internals = internals_of(store)
        self._access = internals.follower_access
        self._rows = FollowerRows(internals.shards)
        self._settings = Settings(self._access)
        self._indexes = indexes_of(store)
        self._shards = shards
        self._read_shards = read_shards
        self._served: frozenset[str] = frozenset()

    def __call__(self) -> Followers:
        """Return triggers, then indexes, then exports."""
        found = self._found()
        workers, reported = self._workers() if found else (Counter[str](), set[Pair]())
        views = {name: replace(view, workers=workers[name]) for name, view in found.items()}
        names = {name for name, view in views.items() if view.has_rows}
        last = self._shards()
        served = frozenset(name for name, view in views.items() if view.workers)
        if last is not None and (names - last.names or self._served & names - served):
            self._read_shards()
        self._served = served
        suspects: dict[str, list[Pair]] = {}
        for pair in dict.fromkeys([*sorted(reported), *(last.suspects() if last is not None else ())]):
            if pair[0] in names and len(of_one := suspects.setdefault(pair[0], [])) < _SUSPECTS:
                of_one.append(pair)
        chosen = (pair for pairs in suspects.values() for pair in pairs)
        return Followers(views, self._rows.look(chosen, events=False).rows)

    def names(self) -> tuple[str, ...]:
        """Return the names of all followers."""
        return tuple(name for name, view in self._found().items() if view.has_rows)

    def _found(self) -> dict[str, FollowerView]:
        states = {name: setting.desired_state for name, setting in self._settings.all().items()}
        triggers = {
            name: FollowerView("trigger", trigger_name(name), states[name]) for name in states if is_trigger(name)
        }
        exported = {name: FollowerView("export", export_name(name), states[name]) for name in states if is_export(name)}
        indexes = {
            each.follower: FollowerView("index", each.name, each.state, number=each.number)
            for each in self._indexes.all()
        }
        return triggers | indexes | exported

    def _workers(self) -> tuple[Counter[str], set[Pair]]:
        """Return the number of workers of each follower, and the shards that they report."""
        rows = self._access.catalog().rows(sql.select_workers(self._access.name))
        counts: Counter[str] = Counter()
        reported: set[Pair] = set()
        for _, served, _, figures in rows:
            counts.update(json.loads(served))
            said: Mapping[str, Any] = json.loads(figures)
            reported.update((name, int(shard)) for name, shard, *_ in (*said["waits"], *said.get("unhealthy", ())))
        return counts, reported


class ShardReader:
    """Reads all shards, with a statement for every 64 rows, and at most 16 for the ages of each follower's cells.

    Args:
        shards: the datastore's shards.
        names: returns the names of the followers.
    """

    def __init__(self, shards: Shards, names: Callable[[], Sequence[str]]) -> None:
        self._shards = shards
        self._names = names
        self._rows = FollowerRows(shards)

    def __call__(self) -> AllShards:
        """Return the rows of all followers in all shards."""
        names = self._names()
        count = self._shards.topology.shard_count
        rows = self._rows.look(((name, shard) for name in names for shard in range(count)), events=False)
        behind: dict[str, list[tuple[int, FollowerRow]]] = {name: [] for name in names}
        for (name, shard), row in rows.rows.items():
            if row.top > row.location:
                behind[name].append((shard, row))
        ages = {name: self._behind_s(of_one) for name, of_one in behind.items()}
        tops = {shard: row.top for (_, shard), row in rows.rows.items()}
        tops |= self._rows.tops(set(range(count)) - tops.keys())[0]
        totals = {name: Totals.of(rows.rows.get((name, shard)) for shard in range(count)) for name in names}
        return AllShards(frozenset(names), rows.rows, ages, tops, totals)

    def _behind_s(self, behind: Sequence[tuple[int, FollowerRow]]) -> float:
        """Return the age of the oldest unhandled cell among the shards that are likely to have it, in seconds."""
        longest = sorted(behind, key=lambda each: each[1].moved_at)[: _AGES // 2]
        most = sorted(behind, key=lambda each: each[1].location - each[1].top)[: _AGES // 2]
        ages = [0.0]
        for shard, location in {(shard, row.location) for shard, row in [*longest, *most]}:
            try:
                rows = self._shards.rows(shard, sql.select_age(self._shards.database(shard), location))
            except SchemalessError:  # the state of its server is reported with the servers
                continue
            ages += [float(age) for (age,) in rows]
        return max(ages)


def follower_views(found: Followers | None, last: AllShards | None) -> tuple[FollowerView, ...] | None:
    """Return the followers of a datastore; None if they have not been read.

    A follower that was added after the last reading of all shards is left out until the next.
    """
    if found is None or last is None:
        return None
    return tuple(
        _with_totals(view, name, found, last) if view.has_rows else view
        for name, view in found.views.items()
        if name in last.names or not view.has_rows
    )


def _with_totals(view: FollowerView, name: str, found: Followers, last: AllShards) -> FollowerView:
    again = [pair for pair in found.rows if pair[0] == name]
    old, new = (Totals.of(rows.get(pair) for pair in again) for rows in (last.rows, found.rows))
    totals = last.totals[name].replacing(old, new)
    return replace(
        view,
        ids_behind=totals.ids_behind,
        behind_s=last.behind_s[name],
        parked=totals.parked,
        shards=dict(totals.states),
    )


def manifests(store: Datastore) -> dict[str, ManifestView | None]:
    """Read the manifest of each export; None for one that this process cannot read."""
    return {name: _manifest(uri, store.shard_count) for name, uri in exports(store).items()}


def _manifest(uri: str, shard_count: int) -> ManifestView | None:
    try:
        target = open_target(uri)
        # A folder that is not mounted has no definition.
        if read_definition(target) is None:
            return None
        files = [file for shard in range(shard_count) for file in read_shard(target, shard).files]
    except SchemalessError:
        # The target may be reachable from the exporter's machine only.
        return None
    return ManifestView(len(files), sum(file.rows for file in files), sum(file.bytes for file in files))
