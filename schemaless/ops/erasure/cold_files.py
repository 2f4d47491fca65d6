"""Removes erased documents from cold files: each file that may have one is written again without it.

For each file, its shard says up to which event of the log of erased cells the file lacks the documents. What was erased
later, and is in the file's range of added_ids, is looked for. Rows keep their places, so the references to the other
documents hold. No file is read or written while a lock is held, everything is safe to repeat, and the states of files
(``store/cold/files.py``) decide between processes that rewrite the same file.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from schemaless.cell import JSONDocument
from schemaless.errors import (
    ColdBodyMissing,
    ColdFileDamaged,
    ColdStoreUnavailable,
    InvalidInput,
    JobConflict,
)
from schemaless.ops.erasure import sql
from schemaless.store.cold.content import Content, load_cold, without_documents
from schemaless.store.cold.files import ColdFile, ShardFiles
from schemaless.store.cold.settings import ColdStore
from schemaless.store.cold.targets import TEMPORARY, Target, open_target, unavailable
from schemaless.store.followers.sql import select_last_event
from schemaless.store.internals import Internals

_ROUNDS: Final = 10
"""How often files are looked for while other processes rewrite them."""

_EVENTS_AT_ONCE: Final = 10_000


class ColdEraser:
    """Removes the documents of all erased cells from the cold files of one shard.

    Args:
        internals: the datastore; its account needs the role ``erase``.
        shard: number of the shard.
        gate: called before each file; raises if the work has to end.
        see: receives each document before it is removed; may be called again for the same one.
    """

    def __init__(
        self,
        internals: Internals,
        shard: int,
        gate: Callable[[], None] = lambda: None,
        see: Callable[[JSONDocument], None] | None = None,
    ) -> None:
        self._internals = internals
        self._shard = shard
        self._database = internals.shards.database(shard)
        self._files = ShardFiles(internals.shards, shard)
        self._gate = gate
        self._see = see
        self._store: ColdStore | None = None
        self._target: Target | None = None

    def run(self) -> int:
        """Rewrite or delete every file that has a document of a cell that is erased now; return the number of them.

        Raises:
            ColdStoreUnavailable: the cold store does not answer; what was done is kept.
            ColdBodyMissing, ColdFileDamaged: a file does not exist or was changed, so what it has is unknown.
            JobConflict: other processes kept rewriting the same files.
            InvalidInput: the datastore has no cold store any more, or pyarrow cannot open it.
            ServerError: the shard's primary failed.
        """
        removed = 0
        for _ in range(_ROUNDS):
            last = int(self._rows(select_last_event(self._database))[0][0] or 0)
            files = self._files.all("writing", "live", "condemned")
            if all(file.erased_event >= last for file in files):
                return removed
            contended = set[int]()
            for file, erased in self._concerned(files, last).items():
                self._gate()
                settled = self._settle(file, erased, last)
                if settled is None:
                    contended.add(file.file_id)
                else:
                    removed += settled
            # What another process has listed since then lacks these documents, too: its body was read later, or it
            # replaces a file that was looked at.
            self._internals.shards.execute(self._shard, sql.advance_cold_files(self._database, last, contended))
            if not contended:
                return removed
        raise JobConflict(
            f"shard {self._shard}: other processes kept rewriting cold file {min(contended):x}, which may have erased "
            "documents; run the same command again"
        )

    def pending(self, erasure: int) -> list[ColdFile]:
        """Return the files that may have documents of an erasure."""
        return self._of_erasure(erasure, "writing", "live", "condemned")

    def deleted(self, erasure: int) -> list[ColdFile]:
        """Return the files that were deleted and may have had documents of an erasure."""
        return self._of_erasure(erasure, "deleted")

    def live_documents(self, added_ids: Collection[int]) -> Iterator[tuple[ColdFile, int]]:
        """Yield each file that has documents of erased cells, and their number.

        Raises:
            ColdStoreUnavailable, ColdBodyMissing, ColdFileDamaged, InvalidInput: as for ``run``.
        """
        ids = sorted(added_ids)
        for file in self._files.all("live"):
            within = ids[bisect_left(ids, file.first_id) : bisect_left(ids, file.last_id + 1)]
            if within and (documents := len(documents_of(self._read(file), within))):
                yield file, documents

    def is_own(self, file: ColdFile) -> bool:
        """Return whether this datastore has written a file, and not the one that it was restored from."""
        return file.incarnation == self._cold_store().incarnation

    def _of_erasure(self, erasure: int, *states: str) -> list[ColdFile]:
        rows = self._rows(sql.select_files_of_erasure(self._database, erasure, states))
        found = {(int(file_id), int(generation)) for file_id, generation in rows}
        return [file for file in self._files.all() if (file.file_id, file.generation) in found] if found else []

    def _concerned(self, files: Sequence[ColdFile], last: int) -> Mapping[ColdFile, Collection[int]]:
        """Return the files that may have documents of cells erased up to an event, with the cells' added_ids."""
        of_file: dict[ColdFile, set[int]] = {}
        after = min(file.erased_event for file in files)
        while events := self._rows(sql.select_events(self._database, after, last, _EVENTS_AT_ONCE)):
            by_id = sorted((int(added_id), int(event)) for event, added_id in events)
            for file in files:
                start, end = (bisect_left(by_id, (added_id,)) for added_id in (file.first_id, file.last_id + 1))
                found = {added_id for added_id, event in by_id[start:end] if event > file.erased_event}
                if found:
                    of_file.setdefault(file, set()).update(found)
            after = int(events[-1][0])
        return of_file

    def _settle(self, file: ColdFile, erased: Collection[int], last: int) -> bool | None:
        """Remove documents from a file; return whether it had any, or None if another process has changed its state."""
        if file.state != "live":
            # No reference is to it: it is not complete yet, and its writer starts again, or it will be deleted anyway.
            if file.state == "writing" and not self._files.condemn(file, "writing"):
                return None
            self._delete(file)
            return False
        content = self._read(file)
        removed = documents_of(content, erased)
        if not removed:
            return False
        for document in removed if self._see is not None else ():
            self._see(json.loads(document))  # type: ignore[misc]
        rewritten = without_documents(content, erased)
        assert rewritten is not None, f"{len(removed)} documents of {file.name} were not removed"
        if not rewritten.text_bytes:
            self._files.condemn(file, "live")
            if self._files.all("live", file_id=file.file_id):
                return None
        elif not self._replace(file, rewritten, last):
            return None
        self._delete(file)
        return True

    def _replace(self, file: ColdFile, rewritten: Content, last: int) -> bool:
        """Write a file's next generation, and make it live; return False if another process was faster."""
        generation = 1 + max(each.generation for each in self._files.all(file_id=file.file_id))
        try:
            successor = self._files.list_new(
                self._cold_store().incarnation,
                file.first_id,
                file.last_id,
                file_id=file.file_id,
                generation=generation,
            )
        except JobConflict:
            return False
        self._put(successor, rewritten)
        written: dict[str, int | str] = {
            "cells": file.cells,
            "text_bytes": rewritten.text_bytes,
            "file_bytes": len(rewritten.data),
            "sha256": rewritten.sha256,
            # Of what was erased since then, it may have documents.
            "erased_event": last,
        }
        if self._files.publish(successor, written, replaces=file):
            return True
        if self._files.condemn(successor, "writing", "condemned"):
            self._delete(successor)
        return False

    def _delete(self, file: ColdFile) -> None:
        """Delete a condemned file, unless the datastore that this one was restored from has written it."""
        if self.is_own(file):
            folder, _, name = file.name.rpartition("/")
            target = self._opened()
            with unavailable(self._cold_store().uri):
                # A writer that was killed may have left its temporary file.
                left = [f"{TEMPORARY}/{each}" for each in target.names(TEMPORARY) if each.endswith(name)]
                target.delete([f"{folder}/{name}", *left])
        self._files.deleted(file)

    # Files in the cold store

    def _read(self, file: ColdFile) -> bytes:
        try:
            with unavailable(self._cold_store().uri):
                content = self._opened().read(file.name)
        except FileNotFoundError:
            raise ColdBodyMissing(file.file_id, f"does not exist: {file.name}") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ColdFileDamaged(file.file_id, f"{file.name} has another SHA-256 than when it was written")
        return content

    def _put(self, file: ColdFile, content: Content) -> None:
        """Write a file, and compare it with what the store returns."""
        with unavailable(self._cold_store().uri):
            self._opened().put(file.name, content.data, secrets.token_hex(4))
        try:
            with unavailable(self._cold_store().uri):
                written = self._opened().read(file.name)
        except FileNotFoundError:
            written = b""
        if hashlib.sha256(written).hexdigest() != content.sha256:
            raise ColdStoreUnavailable(self._opened().uri, f"it did not return {file.name} as it was just written")

    def _opened(self) -> Target:
        if self._target is None:
            self._target = open_target(self._cold_store().uri)
        return self._target

    def _cold_store(self) -> ColdStore:
        if self._store is None:
            self._store = self._internals.cold.store()
        if self._store is None:
            raise InvalidInput(
                f"shard {self._shard} has cold files, but the catalog does not say where they are; 'schemaless tier' "
                "sets it"
            )
        return self._store

    def _rows(self, statement: bytes) -> Any:
        return self._internals.shards.rows(self._shard, statement)


def documents_of(content: bytes, added_ids: Collection[int]) -> list[str]:
    """Return the JSON texts of the documents of some cells that a file has."""
    pa, compute = load_cold(), load_cold("pyarrow.compute")
    table = load_cold("pyarrow.parquet").read_table(pa.BufferReader(content), columns=["added_id", "body"])
    concerned = compute.is_in(table["added_id"], pa.array(sorted(added_ids), pa.int64()))
    texts: list[str] = table.filter(compute.and_(concerned, compute.is_valid(table["body"])))["body"].to_pylist()
    return texts
