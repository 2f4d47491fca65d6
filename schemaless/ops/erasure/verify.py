"""Searches every place that this process can reach for what an erasure should have removed. Does not change any data.

It records in the ledger which followers have acknowledged the erasure and, if all have and nothing was found, that it
was verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.errors import InvalidInput, ServerError
from schemaless.ops.erasure.archives import erase_from_archives
from schemaless.ops.erasure.cold_files import ColdEraser
from schemaless.ops.erasure.copies import live_copies, tables_of_moves
from schemaless.ops.erasure.places import archives, places
from schemaless.ops.erasure.replay import what_came_back
from schemaless.ops.erasure.status import ErasureStatus, record_acknowledgements
from schemaless.store.datastore import Datastore
from schemaless.store.erasures import sql
from schemaless.store.indexes.entries import Entries
from schemaless.store.internals import Internals, internals_of

_CELLS_AT_ONCE: Final = 500


@dataclass(slots=True)
class Verification:
    """Result of verifying an erasure.

    Attributes:
        status: status of the erasure afterwards.
        cells: number of erased cells that were looked up on the primaries.
        faults: what was found, by place.
        outstanding: what a person has to check, such as archives on other machines.
    """

    status: ErasureStatus
    cells: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outstanding: list[str] = field(default_factory=list)

    def note(self, *outstanding: str) -> None:
        """Add what a person has to check, once."""
        self.outstanding += [each for each in outstanding if each not in self.outstanding]

    @property
    def clean(self) -> bool:
        """True if nothing was found."""
        return not self.faults


def verify(
    store: Datastore,
    number: int,
    *,
    archive_folders: Iterable[Path] = (),
    listener: Listener = ignore_events,
) -> Verification:
    """Look for what an erasure should have removed, in all places: tables, indexes, cold files, archives, dictionaries.

    Args:
        store: the datastore.
        number: number of the erasure.
        archive_folders: folders of archives; those that migrations have recorded are searched too, if they are on this
            machine.
        listener: receives one event per shard.

    Raises:
        InvalidInput: there is no such erasure, or it has not been executed.
        ServerError: a primary cannot be reached.
        ColdStoreUnavailable: the cold store does not answer.
    """
    internals = internals_of(store)
    entry = internals.erasures.ledger.entry(number)
    if entry.executed_at is None:
        raise InvalidInput(
            f"erasure {number} has not been executed in all shards; 'schemaless erase run --execute --erasure "
            f"{number}' continues it"
        )
    found = Verification(record_acknowledgements(store, number))
    for shard in entry.shards:
        _verify_shard(store, shard.shard, number, found)
        listener(Advanced())
    back = what_came_back(internals, entry)
    for shard_number, live in back.cells.items():
        found.faults[f"cells of shard {shard_number} older than the erasure"] += live
    for hold, live in back.held.items():
        found.note(f"row {hold.row_key} is held by {hold.held_by}, so cells that a restore brought back stay: {live:,}")
    for table in tables_of_moves(store, {shard.shard for shard in entry.shards}):
        found.faults[f"table {table}, which the unfinished move will drop before it ends"] += 1
    _verify_archives(store, archive_folders, found)
    for row in internals.dictionary_replicas.catalog.rows().values():
        if row.content is not None and row.id in entry.notes.get("dictionaries", ()):
            found.faults[f"dictionary {row.id} contains values of an erased document"] += 1
    where = places(store, [shard.shard for shard in entry.shards])
    misplaced = "on a server that should not have it: 'schemaless check' says what to do"
    found.note(*(f"table {table}, {misplaced}" for table in where.strays))
    found.note(*(f"former primary {server}: its lost cells are not settled" for server in where.lost_primaries))
    found.note(*(f"replica {replica}" for replica in entry.notes.get("replicas_behind", ())))
    if found.clean and not found.status.waiting and not found.status.cold:
        internals.erasures.ledger.mark(number, "verified")
        found.status = record_acknowledgements(store, number)
    return found


def _verify_shard(store: Datastore, shard: int, number: int, found: Verification) -> None:
    internals = internals_of(store)
    eraser = internals.erasures.eraser(shard, number)
    database = internals.shards.database(shard)
    cluster = internals.topology.cluster_of(shard)
    cold, erased = ColdEraser(internals, shard), list[int]()
    for file in cold.pending(number):
        found.faults[f"cold file {file.name}, which may have documents until 'erase run' rewrites it"] += 1
    for name in cold.unlisted():
        found.faults[f"cold file {name}, which shard {shard} does not list until 'erase run' rewrites it"] += 1
    for ids in eraser.erased_ids(_CELLS_AT_ONCE):
        found.cells += len(ids)
        erased += ids
        for what, count in (("cells on the primary", sql.count_live), ("parked cells", sql.count_parked)):
            found.faults += Counter({what: int(internals.shards.rows(shard, count(database, ids))[0][0])})
        copies, unread = live_copies(internals, shard, ids)
        found.faults.update(copies)
        found.note(*unread)
        for node in cluster.replicas:
            statement = sql.count_live(database, ids)
            try:
                rows = internals.shards.run_on(node, shard, lambda connection, sql=statement: connection.rows(sql))  # type: ignore[misc]
            except ServerError as error:
                found.note(f"replica {error}")
                continue
            found.faults += Counter({f"cells on replica {node}": int(rows[0][0])})
        rows_of = internals.shards.rows(shard, sql.select_rows_of(database, ids))
        _verify_entries(internals, shard, [bytes(row_key) for (row_key,) in rows_of], found)
    for file, documents in cold.live_documents(erased):
        found.faults[f"documents in cold file {file.name}"] += documents


def _verify_entries(internals: Internals, shard: int, rows: Sequence[bytes], found: Verification) -> None:
    for entry in internals.registry.read():
        entries = Entries(internals.shards, internals.reader, internals.registry, entry)
        expected = entries.homes(shard, rows)
        left = sum(expected[row] != place for row, place in entries.places_of(rows))
        found.faults += Counter({f"entries of index {entry.name}": left})


def _verify_archives(store: Datastore, folders: Iterable[Path], found: Verification) -> None:
    named = {Path(folder) for folder in archives(store)}
    here = sorted({*folders, *(folder for folder in named if folder.is_dir())})
    if here:
        for file in erase_from_archives(store, here, execute=False):
            found.faults[f"originals in {file.path}, which 'erase archive' erases"] += file.originals
    found.note(*(f"archive {folder} is not on this machine" for folder in sorted(named - set(here))))
