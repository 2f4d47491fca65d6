"""Removes erased documents from cold files: each file that may have one is written again without it.

For each file, its shard says up to which event of the log of erased cells the file lacks the documents. What was erased
later, and is in the file's range of added_ids, is looked for. Rows keep their places, so the references to the other
documents hold. No file is read or written while a lock is held, everything is safe to repeat, and the states of files
(``store/cold/files.py``) decide between processes that rewrite the same file.
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
from schemaless.store.cold.content import Content, content_of, load_cold, without_documents
from schemaless.store.cold.files import ColdFile, ShardFiles, State, shard_folder
from schemaless.store.cold.objects import content_in, delete_object, own_names, put_object, reconcile
from schemaless.store.cold.settings import ColdStore
from schemaless.store.cold.targets import Target, open_target
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
            self._reconcile(last)
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
            if within and (documents := len(documents_of(content_in(self._opened(), file)[1], within))):
                yield file, documents

    def unlisted(self) -> list[str]:
        """Return the names of objects that the shard does not list, as after a restore; their documents are unknown.

        Raises:
            ColdStoreUnavailable: the cold store does not answer, or is not mounted.
            InvalidInput: pyarrow cannot open the cold store.
        """
        store = self._internals.cold.store()
        if store is None:
            return []
        names = own_names(self._opened(), self._shard, store.incarnation)
        listed = {file.name for file in self._files.all()}
        folder = shard_folder(store.incarnation, self._shard)
        return sorted({f"{folder}/{name}" for name in names} - listed)

    def may_have_unlisted(self) -> bool:
        """Return whether the store has objects that the shard does not list, or cannot be asked."""
        try:
            return bool(self.unlisted())
        except (ColdStoreUnavailable, InvalidInput):
            return True

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
        """Remove documents from a file; return whether it had any, or None if it has to be looked at again."""
        if file.state == "writing":
            # No reference is to it, and its writer starts again.
            if not self._files.condemn(file, "writing"):
                return None
            self._delete(file)
            return False
        generations = self._files.all(file_id=file.file_id)
        is_replaced = any(each.sha256 and each.generation > file.generation for each in generations)
        if file.state == "condemned" and (is_replaced or not file.sha256 or not self.is_own(file)):
            self._delete(file)
            return False
        if self._see is None and not self._rows(sql.select_any_live(self._database, file.first_id, file.last_id)):
            rewritten = content_of([], self._shard)
        else:
            try:
                found, content = content_in(self._opened(), file)
            except ColdBodyMissing:
                if file.state == "live":
                    raise
                self._files.deleted(file)
                return False
            # What the original has written since is looked at as well: it is not listed while a copy is being prepared.
            if found.generation != file.generation and self.is_own(file):
                return None
            removed = documents_of(content, erased)
            if not removed:
                return False
            for document in removed if self._see is not None else ():
                self._see(json.loads(document))  # type: ignore[misc]
            without = without_documents(content, erased)
            assert without is not None, f"{len(removed)} documents of {file.name} were not removed"
            rewritten = without if without.text_bytes else content_of([], self._shard)
        if not self._replace(file, rewritten, last):
            return None
        self._delete(file)
        return True

    def _reconcile(self, last: int) -> None:
        """Have the shard list what is in the store, if the datastore has one and may have written files."""
        self._store = self._internals.cold.store()
        if self._store is not None and not self._internals.cold.is_new:
            reconcile(self._opened(), self._files, self._shard, self._store.incarnation, last, self._gate)

    def _replace(self, file: ColdFile, rewritten: Content, last: int) -> bool:
        """Write a file's next generation, which takes its place; return False if another process was faster.

        One without documents is condemned at once. Until it is swept, it tells a database that was restored from a
        backup that the documents were erased, not lost. That of a condemned file is for such databases, too.
        """
        generation = 1 + max(each.generation for each in self._files.all(file_id=file.file_id))
        try:
            successor = self._files.list_new(
                self._cold_store().incarnation,
                file.first_id,
                file.last_id,
                file_id=file.file_id,
                generation=generation,
                last_event=last,
            )
        except JobConflict:
            return False
        target = self._opened()
        put_object(target, successor, rewritten.data, secrets.token_hex(4))
        try:
            content_in(target, replace(successor, sha256=rewritten.sha256))
        except (ColdBodyMissing, ColdFileDamaged) as error:
            problem = f"it did not return {successor.name} as it was just written"
            raise ColdStoreUnavailable(target.uri, problem) from error
        written: dict[str, int | str] = {
            "cells": file.cells,
            "text_bytes": rewritten.text_bytes,
            "file_bytes": len(rewritten.data),
            "sha256": rewritten.sha256,
        }
        if file.state == "condemned":
            # It is not kept for longer.
            written["changed_at"] = str(file.changed_at.replace(tzinfo=None))
        state: State = file.state if rewritten.text_bytes else "condemned"
        if self._files.publish(successor, written, replaces=file, state=state):
            return True
        if self._files.condemn(successor, "writing", "condemned"):
            self._delete(successor)
        return False

    def _delete(self, file: ColdFile) -> None:
        """Delete a condemned file, unless the datastore that this one was restored from has written it."""
        if self.is_own(file):
            delete_object(self._opened(), self._files, file)
        else:
            self._files.deleted(file)

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
