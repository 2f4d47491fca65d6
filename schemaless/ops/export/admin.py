"""Administration of exports: preparing them, their worker processes, and their status."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from schemaless.base.events import Listener, ignore_events
from schemaless.base.keys import check_column_name
from schemaless.base.numbers import counted
from schemaless.base.optional import load
from schemaless.codec.envelope import is_erased
from schemaless.errors import InvalidInput
from schemaless.ops.export.exporter import Exporter, Pace, export_name, follower_name, is_export, lost_target
from schemaless.ops.export.manifest import (
    ROOT,
    Definition,
    ShardEntry,
    cells_folder,
    latest_folder,
    missing_files,
    present_files,
    read_definition,
    read_shard,
)
from schemaless.store.arrow.fields import typed_columns
from schemaless.store.arrow.infer import Proposal, propose
from schemaless.store.cold.targets import Target, masked, open_target
from schemaless.store.datastore import Datastore
from schemaless.store.followers import sql
from schemaless.store.followers.caught_up import CaughtUp
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.settings import Setting, Settings
from schemaless.store.followers.states import DIED, RUNNING, STOPPED
from schemaless.store.followers.status import ShardStatus, WorkerStatus, shard_statuses, workers_of
from schemaless.store.followers.supervisor import OpenWork, Supervisor, Work
from schemaless.store.internals import internals_of
from schemaless.store.opening import Opening, opening_of

DEFAULT_NAME = "parquet"
"""Default name of an export."""


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_MAX_DEATHS: Final = 3
"""Number of workers that a shard may kill at the same place in a run with ``--once``."""

_SAMPLED_SHARDS: Final = 8
_SAMPLED_IDS: Final = 500


@contextmanager
def _open(opening: Opening, uri: str, definition: Definition, pace: Pace) -> Iterator[OpenWork]:
    with opening.open() as store:
        internals = internals_of(store)
        yield OpenWork(internals.follower_access, [Exporter(internals, open_target(uri), definition, pace)])


@dataclass(frozen=True, slots=True)
class ShardExportStatus:
    """Status of an export in a shard.

    Attributes:
        follower: the shard's progress row.
        entry: its entry in the manifest.
        missing: names of files that the entry lists and that do not exist.
    """

    follower: ShardStatus
    entry: ShardEntry
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportStatus:
    """Status of an export.

    Attributes:
        definition: contents of the export.
        uri: its target.
        setting: its entry in the catalog.
        shards: its status in each shard.
        workers: its live workers.
    """

    definition: Definition
    uri: str
    setting: Setting
    shards: tuple[ShardExportStatus, ...]
    workers: tuple[WorkerStatus, ...]

    @property
    def nulls(self) -> Mapping[str, Counter[str]]:
        """For each typed column, the number of nulls by reason."""
        columns = typed_columns(self.definition.fields, self.definition.columns)
        totals: dict[str, Counter[str]] = {column.name: Counter() for column in columns}
        for shard in self.shards:
            for file in shard.entry.files:
                for name, counts in file.nulls.items():
                    totals.setdefault(name, Counter()).update(counts)
        return totals

    @property
    def skipped(self) -> list[tuple[int, int, str]]:
        """Shard, added_id and error of the cells that were exported without their body."""
        return [
            (shard.follower.shard, int(added_id), error)
            for shard in self.shards
            for file in shard.entry.files
            for added_id, error in file.skipped.items()
        ]

    @property
    def has_faults(self) -> bool:
        """True if a shard is not running, a file is missing, or a cell was exported without its body."""
        bad = any(shard.follower.state != RUNNING or shard.missing for shard in self.shards)
        return bad or bool(self.skipped)


def prepare(store: Datastore, uri: str, definition: Definition) -> Definition:
    """Create an export, or check that the target's export has the same definition; return the definition.

    Typed columns may be added; they appear in the files written from then on. Shards that have stopped are started
    again.

    Args:
        store: the datastore.
        uri: the target.
        definition: contents of the export. Without columns and fields, those of an existing export are used.

    Raises:
        InvalidInput: the target contains a different export, or the export has a different target or has lost it.
        ExportFailed: the target cannot be read or written.
    """
    load()
    internals = internals_of(store)
    target = open_target(uri)
    uri = target.uri
    found = read_definition(target)
    if found is not None:
        definition = _combined(found, definition, uri)
    typed_columns(definition.fields, definition.columns)
    for column in definition.columns or ():
        check_column_name(column)
    settings = Settings(internals.follower_access)
    follower = follower_name(definition.name)
    before = settings.all().get(follower)
    if before is None and _NAME.match(definition.name) is None:
        raise InvalidInput(f"an export's name must be 1 to 64 characters of [A-Za-z0-9_.-], got {definition.name!r}")
    if before is not None and before.spec["uri"] != uri:
        raise InvalidInput(
            f"export {definition.name} writes to {masked(before.spec['uri'])}; give another --name for {uri}, or run "
            f"'schemaless export remove {definition.name} --execute' first"
        )
    if found is None and before is not None and _is_lost(store, target, follower):
        raise lost_target(uri, definition.name)
    if definition != found:
        target.put(ROOT, definition.written(), "prepare")
    settings.create(follower, {"uri": uri}, lambda shard: 0)
    _align(store, target, definition)
    return definition


def _combined(found: Definition, wanted: Definition, uri: str) -> Definition:
    """Return the definition of an existing export with additional typed columns."""
    if (found.datastore, found.shard_count, found.name) != (wanted.datastore, wanted.shard_count, wanted.name):
        raise InvalidInput(
            f"{uri} has export {found.name} of {found.datastore!r} with {counted(found.shard_count, 'shard')}; export "
            f"{wanted.name} of {wanted.datastore!r} to another target"
        )
    columns = wanted.columns if wanted.columns is not None else found.columns
    if columns != found.columns:
        exported = "all columns" if found.columns is None else "columns " + ", ".join(found.columns)
        raise InvalidInput(
            f"{uri} has an export of {exported}, and the columns of an export cannot be changed; choose "
            "another target and --name"
        )
    have = {column.name: column for column in typed_columns(found.fields, found.columns)}
    for column in typed_columns(wanted.fields, columns):
        if have.setdefault(column.name, column) != column:
            raise InvalidInput(
                f"typed column {column.name} of {uri} is {have[column.name].declared}, not {column.declared}; give the "
                "new one another name"
            )
    fields = tuple(column.declared for column in have.values())
    return replace(found, fields=fields, latest=found.latest or wanted.latest)


def _is_lost(store: Datastore, target: Target, follower: str) -> bool:
    """Return whether an export has made progress of which the target has nothing."""
    shards = range(store.shard_count)
    rows = FollowerRows(internals_of(store).shards).look((follower, shard) for shard in shards).rows.values()
    return any(row.location for row in rows) and not any(read_shard(target, shard).location for shard in shards)


def _align(store: Datastore, target: Target, definition: Definition) -> None:
    """Set progress rows back to the target's state, before missing files too, and restart shards that have stopped."""
    shards = internals_of(store).shards
    follower = follower_name(definition.name)
    rows = FollowerRows(shards).look((follower, shard) for shard in range(store.shard_count)).rows
    for (_, shard), row in rows.items():
        entry = read_shard(target, shard)
        location = min([entry.location, *(file.after for file in missing_files(target, shard).values())])
        if definition.latest:
            location = 0 if entry.latest is None else min(location, entry.latest.up_to)
        database = shards.database(shard)
        if row.location > location:
            shards.execute(shard, sql.reset(database, follower, location))
        elif row.state == STOPPED:
            shards.execute(shard, sql.restart(database, follower, DIED))


def infer(store: Datastore, columns: Sequence[str] | None) -> list[Proposal]:
    """Propose typed columns from the newest cells of a few shards.

    Raises:
        CorruptBody: a body does not decode; the error names the cell.
    """
    internals = internals_of(store)
    shards = range(min(store.shard_count, _SAMPLED_SHARDS))
    tops, failed = FollowerRows(internals.shards).tops(shards)
    for error in failed.values():
        raise error

    def sample() -> Iterator[tuple[str, Any]]:
        for shard in shards:
            for cell in store.scan_shard(shard, after=max(0, tops[shard] - _SAMPLED_IDS)):
                if (columns is None or cell.column_name in columns) and not is_erased(cell.body):
                    yield cell.column_name, cell.decode().body

    return propose(sample())


def export_supervisor(store: Datastore, uri: str, definition: Definition, pace: Pace, workers: int) -> Supervisor:
    """Return the supervisor of worker processes that export cells.

    Args:
        store: the datastore.
        uri: the target.
        definition: contents of the export.
        pace: when to write files.
        workers: number of worker processes.
    """
    # Each process reads the topology itself, because it may have changed since this process did.
    opening = replace(opening_of(store), topology=None)
    work = Work(f"export {definition.name}", partial(_open, opening, uri, definition, pace))
    access = internals_of(store).follower_access
    names = [follower_name(definition.name)]
    # With --follow, a remedy is awaited, such as more memory; --once has to end.
    max_deaths = _MAX_DEATHS if pace.once else None
    return Supervisor(access, work, lambda: names, workers, max_deaths=max_deaths)


def caught_up(store: Datastore, definition: Definition, listener: Listener = ignore_events) -> CaughtUp:
    """Return a predicate that is true once an export has handled all cells and erasures that exist now."""
    return CaughtUp(internals_of(store).follower_access, follower_name(definition.name), listener)


def exports(store: Datastore) -> dict[str, str]:
    """Return the targets of all exports, by name; credentials in a URI are masked."""
    settings = Settings(internals_of(store).follower_access).all()
    return {export_name(name): masked(setting.spec["uri"]) for name, setting in settings.items() if is_export(name)}


def export_status(store: Datastore, name: str) -> ExportStatus:
    """Return the status of an export.

    Raises:
        InvalidInput: the export does not exist, or its target has no manifest.
        ExportFailed: the target cannot be read.
    """
    access = internals_of(store).follower_access
    follower = follower_name(name)
    setting = Settings(access).get(follower)
    uri = str(setting.spec["uri"])
    target = open_target(uri)
    definition = read_definition(target)
    if definition is None:
        raise lost_target(uri, name)
    missing = "it has no progress row here; to create one, run 'schemaless export remove', then 'export parquet'"
    shards = tuple(
        ShardExportStatus(status, read_shard(target, status.shard), tuple(missing_files(target, status.shard)))
        for status in shard_statuses(access, follower, missing)
    )
    return ExportStatus(definition, uri, setting, shards, tuple(workers_of(access, follower)))


def remove(store: Datastore, name: str) -> None:
    """Delete the progress of an export; its files are kept.

    Raises:
        InvalidInput: the export does not exist.
    """
    settings = Settings(internals_of(store).follower_access)
    settings.get(follower_name(name))
    settings.remove(follower_name(name))


def file_names(target: Target, definition: Definition, *, latest: bool = False) -> list[str]:
    """Return the names of the files that the manifest lists, in the order of shards and cells."""
    names = []
    for shard in range(definition.shard_count):
        if not latest:
            names += [f"{cells_folder(shard)}/{file.name}" for file in present_files(target, shard)]
        elif (file := read_shard(target, shard).latest) is not None:
            names.append(f"{latest_folder(shard)}/{file.name}")
    return names
