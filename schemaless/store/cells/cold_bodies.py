"""Completes rows whose bodies are references with the JSON text that their cold files have.

No connection is held while files are read. A row that was read before its file was replaced is read again: the cell may
have been erased or recalled, the file may have a new generation, and a replica may not know of it yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from schemaless.base.parts import parts
from schemaless.codec.deltas import Version
from schemaless.codec.envelope import Limits
from schemaless.codec.references import Reference, reference_of, with_fault, with_text
from schemaless.errors import (
    ColdBodyMissing,
    ColdFileDamaged,
    ColdStoreUnavailable,
    CorruptBody,
    InvalidInput,
    ServerError,
)
from schemaless.store.cells.bases import ChainedRows, with_bases
from schemaless.store.cells.paging import Run
from schemaless.store.cells.sql import Row, select_cells
from schemaless.store.cold.content import Group, load_cold
from schemaless.store.cold.fetching import Wanted, fetch
from schemaless.store.cold.files import ColdFile
from schemaless.store.cold.objects import content_in
from schemaless.store.cold.settings import ColdSettings
from schemaless.store.cold.sql import select_files
from schemaless.store.cold.targets import Target, open_target
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection

PREFIX_VARIABLE: Final = "SCHEMALESS_COLD_PREFIX"
"""Environment variable with what the URI of the cold store must begin with, whatever the catalog says."""

_KEYS_PER_SELECT: Final = 100
_MAX_FILES: Final = 65_536
"""Number of files whose rows are kept in memory."""


class ColdBodies:
    """Reads the documents of a datastore's cold cells. Thread-safe and fork-safe.

    Args:
        shards: the datastore's shards.
        settings: says where the cold store is.
        limits: limits of a decoded document.
    """

    def __init__(self, shards: Shards, settings: ColdSettings, limits: Limits) -> None:
        self._shards = shards
        self._settings = settings
        self._limits = limits
        self._files: dict[tuple[int, int], ColdFile] = {}
        # By process, because the clients of object stores do not survive a fork.
        self._targets: dict[int, Target] = {}
        self._may_have_moved = False

    def completed(self, rows: Sequence[Row], run: Run, shard: int, run_again: Run | None = None) -> Sequence[Row]:
        """Return the rows that ``with_bases`` returned, with the texts of all references among what they depend on.

        What is wrong with a file is raised when the body is decoded.

        Args:
            rows: rows of one shard.
            run: runs an operation on the server that the rows were read from.
            shard: the shard's number.
            run_again: runs an operation on the server to ask if a file is gone; the primary by default.

        Raises:
            ColdStoreUnavailable: the cold store cannot be read, or did not respond in time.
            InvalidInput: pyarrow is not installed, or the cold store is not where it has to be.
        """
        # Nearly no page has cold cells, so this takes no call per row.
        if type(rows) is not ChainedRows or not (references := rows.references()):
            return rows
        faults = self._read(rows, references, shard, run)
        if faults:
            rows, faults = self._read_again(rows, shard, run_again or partial(self._shards.run, shard))
        for place, fault in faults.items():
            rows.versions.bodies[place] = with_fault(rows.versions.bodies[place], fault)
        return rows

    def _read_again(self, rows: ChainedRows, shard: int, run: Run) -> tuple[ChainedRows, dict[Version, CorruptBody]]:
        """Read the cells and the rows of their files again, and then the files."""
        database = self._shards.database(shard)
        keys = [row[1:4] for row in rows.chained()]

        def read(connection: Connection) -> Sequence[Row]:
            found: list[Row] = []
            for part in parts(keys, _KEYS_PER_SELECT):
                some: Any = connection.rows(select_cells(database, part))
                found += some
            return with_bases(connection, database, found)

        for place in [place for place in self._files if place[0] == shard]:
            self._files.pop(place, None)
        self._may_have_moved = True
        current = run(read)
        if not isinstance(current, ChainedRows):
            return rows.updated(current), {}
        faults = self._read(current, current.references(), shard, run)
        lost = {fault.file for fault in faults.values() if isinstance(fault, ColdBodyMissing)}
        if lost and self._find_successors(shard, lost):
            faults = self._read(current, current.references(), shard, run)
        return rows.updated(current), faults

    def _read(
        self, rows: ChainedRows, references: Mapping[Version, bytes], shard: int, run: Run
    ) -> dict[Version, CorruptBody]:
        """Add the texts of references to ``rows``; return what is wrong with those that have none."""
        faults: dict[Version, CorruptBody] = {}
        wanted: dict[Version, Reference] = {}
        for place, body in references.items():
            try:
                wanted[place] = reference_of(body)
            except CorruptBody as error:
                faults[place] = error
        if not wanted:
            return faults
        target = self._target()
        files = self._files_of(shard, {reference.file for reference in wanted.values()}, run)
        requests: dict[Wanted, list[Version]] = {}
        for place, reference in wanted.items():
            file = files.get(reference.file)
            if file is None:
                faults[place] = ColdBodyMissing(reference.file, "the shard does not list")
            else:
                requests.setdefault(Wanted(file.name, file.file_bytes, reference.group), []).append(place)
        timeout_s, most = self._shards.pools.options.read_timeout_s, self._limits.decoded_bytes
        for request, found in fetch(target, requests, self._shards.runtime, timeout_s, most):
            for place in requests[request]:
                reference = wanted[place]
                try:
                    if not isinstance(found, Group):
                        raise _fault(found, reference, target)
                    (row_key, column_name), ref_key = place
                    text = found.text(reference, row_key, column_name, ref_key)
                    if text is None:
                        raise ColdBodyMissing(reference.file, "does not have it any more")
                    rows.versions.bodies[place] = with_text(references[place], text)
                except CorruptBody as error:
                    faults[place] = error
        return faults

    def _files_of(self, shard: int, numbers: Iterable[int], run: Run) -> dict[int, ColdFile]:
        """Return the live generation of files by their numbers, as far as the shard lists them."""
        missing = sorted(number for number in numbers if (shard, number) not in self._files)
        if missing:
            sql = select_files(self._shards.database(shard), ["live"], missing)
            if len(self._files) > _MAX_FILES:
                self._files.clear()
            for row in run(lambda connection: connection.rows(sql)):
                file = ColdFile.of_row(shard, row)
                self._files[shard, file.file_id] = file
        found = ((number, self._files.get((shard, number))) for number in numbers)
        return {number: file for number, file in found if file is not None}

    def _find_successors(self, shard: int, numbers: Iterable[int]) -> bool:
        """Use the last generation in the store of files of which the shard lists an older one that is gone.

        A database that was restored from a backup lists such files.
        """
        changed = False
        for number in numbers:
            file = self._files.get((shard, number))
            if file is None:
                continue
            try:
                found, _ = self._shards.runtime.blocking(partial(content_in, self._target(), file))
            except (ColdBodyMissing, ColdFileDamaged):
                continue
            if found.generation != file.generation:
                self._files[shard, number] = found
                changed = True
        return changed

    def _target(self) -> Target:
        target = self._targets.get(os.getpid())
        if target is None or self._may_have_moved:
            runtime = self._shards.runtime
            runtime.blocking(load_cold)  # importing pyarrow takes a second
            name = self._shards.topology.name
            try:
                store = self._settings.store()
            except ServerError as error:
                if target is not None:
                    return target
                # Not an error of the shard's server, which would be taken to be down.
                raise ColdStoreUnavailable(f"of {name}", f"the catalog does not say where it is: {error}") from error
            if store is None:
                raise ColdStoreUnavailable(f"of {name}", "the catalog does not say where it is")
            prefix = os.environ.get(PREFIX_VARIABLE, "")
            if not f"{store.uri.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/" if prefix else ""):
                raise InvalidInput(
                    f"the catalog says that the cold store of {name} is {store.uri}, which is not below {prefix}, as "
                    f"{PREFIX_VARIABLE} demands"
                )
            target = self._targets[os.getpid()] = runtime.blocking(partial(open_target, store.uri))
            self._may_have_moved = False
        return target


def _fault(found: Exception, reference: Reference, target: Target) -> CorruptBody:
    if isinstance(found, FileNotFoundError):
        return ColdBodyMissing(reference.file, f"does not exist in {target.uri}")
    return ColdFileDamaged(reference.file, str(found))
