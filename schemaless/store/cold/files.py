"""The files that a shard lists: what they are called, and the states that they go through.

A file is listed as ``writing`` before any body is read for it, becomes ``live`` once it is complete and verified, and
``condemned`` when its place is taken or no cell refers to it; it is ``deleted`` when the object is gone. Each step is
one conditional UPDATE, so that a writer that stalls cannot bring a file back; only a sweep does, if cells refer to what
it has condemned. Rows are kept, so that no number is reused.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from schemaless.errors import JobConflict
from schemaless.store.cold import sql
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection

State = Literal["writing", "live", "condemned", "deleted"]

_RANDOM_BITS: Final = 20
_MAX_ID: Final = (1 << 63) - 1
_NAME: Final = re.compile(r"(?P<file>[0-9a-f]{16})-(?P<generation>\d+)-(?P<token>[0-9a-f]{16})\.parquet")


@dataclass(frozen=True, slots=True)
class ColdFile:
    """A file that a shard lists.

    Attributes:
        shard: number of the shard.
        file_id: its number, which references name.
        generation: how often it was rewritten.
        incarnation: identifies the datastore that wrote it, in hexadecimal.
        token: random part of its name, in hexadecimal.
        state: "writing", "live", "condemned" or "deleted".
        first_id: no cell of the file has a lower added_id.
        last_id: no cell of the file has a higher added_id.
        cells: number of cells, including those that were erased since.
        text_bytes: size of their documents as JSON text.
        file_bytes: size of the file.
        sha256: SHA-256 of the file in hexadecimal; empty while it is being written.
        erased_event: it lacks the documents of all cells whose erasure is an event of the shard's log up to this one.
        created_at: when it was listed, UTC.
        changed_at: when its state last changed, UTC.
    """

    shard: int
    file_id: int
    generation: int
    incarnation: str
    token: str
    state: State
    first_id: int
    last_id: int
    cells: int
    text_bytes: int
    file_bytes: int
    sha256: str
    erased_event: int
    created_at: datetime
    changed_at: datetime

    @classmethod
    def of_row(cls, shard: int, row: Sequence[Any]) -> ColdFile:
        """Return the file of a row that ``sql.select_files`` selects, in the order of the attributes."""
        *facts, created_at, changed_at = row
        return cls(shard, *facts, *map(datetime.fromisoformat, (created_at, changed_at)))

    @property
    def folder(self) -> str:
        """Folder of the object in the cold store."""
        return shard_folder(self.incarnation, self.shard)

    @property
    def name(self) -> str:
        """Name of the object in the cold store. It is derived, so that a row cannot name a foreign file."""
        return f"{self.folder}/{self.file_id:016x}-{self.generation}-{self.token}.parquet"


def shard_folder(incarnation: str, shard: int) -> str:
    """Return the folder of a shard's files in the cold store."""
    return f"{incarnation}/{shard:04d}"


def successor_of(file: ColdFile, names: Iterable[str]) -> ColdFile | None:
    """Return the last generation of a file among the objects of its folder; None if none is later than the file's own.

    Size and checksum of the generation are unknown.
    """
    found = [match for name in names if (match := _NAME.fullmatch(name)) and int(match["file"], 16) == file.file_id]
    last = max(found, key=lambda match: int(match["generation"]), default=None)
    if last is None or int(last["generation"]) <= file.generation:
        return None
    return replace(file, generation=int(last["generation"]), token=last["token"], file_bytes=0, sha256="")


def unknown_file(shard: int, incarnation: str, name: str) -> ColdFile | None:
    """Return what the name of an object in a shard's folder says, as a condemned file; None if it is no file's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    now = datetime.now(UTC)
    file_id, generation = int(match["file"], 16), int(match["generation"])
    sizes = 0, _MAX_ID, 0, 0, 0, "", 0
    return ColdFile(shard, file_id, generation, incarnation, match["token"], "condemned", *sizes, now, now)


class ShardFiles:
    """The files that a shard lists; the account needs the role ``migrate`` to change them.

    Every method raises ``ServerError`` if the shard's server is unreachable or rejects a statement.

    Args:
        shards: routes calls to the shards' servers.
        shard: number of the shard.
    """

    def __init__(self, shards: Shards, shard: int) -> None:
        self._shards = shards
        self._shard = shard
        self._database = shards.database(shard)

    def all(self, *states: State, file_id: int | None = None) -> list[ColdFile]:
        """Return the files in some states, or in any, oldest first."""
        rows = self._shards.rows(
            self._shard, sql.select_files(self._database, states, () if file_id is None else (file_id,))
        )
        return [ColdFile.of_row(self._shard, row) for row in rows]

    def list_new(
        self,
        incarnation: str,
        first_id: int,
        last_id: int,
        *,
        file_id: int | None = None,
        generation: int = 0,
        last_event: int | None = None,
    ) -> ColdFile:
        """List a file as being written. Call this before reading any body for it.

        Args:
            incarnation: that of the datastore.
            first_id: lowest added_id that it may have.
            last_id: highest added_id that it may have.
            file_id: number of the file that it replaces; a new one by default.
            generation: number of its generation.
            last_event: it lacks the documents of all cells erased up to this event; by default, up to now.

        Raises:
            JobConflict: another process has listed this generation.
        """
        # Not counted, because a primary that a failover has promoted may not know the latest numbers.
        number = time.time_ns() // 1_000_000 << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        number = number if file_id is None else file_id
        token = secrets.token_hex(8)
        names = number, generation, incarnation, token
        self._shards.execute(self._shard, sql.insert_file(self._database, *names, first_id, last_id, last_event))
        (listed,) = [file for file in self.all(file_id=number) if file.generation == generation]
        if listed.token != token:
            raise JobConflict(f"another process is writing generation {generation} of cold file {number:x}")
        return listed

    def publish(
        self,
        file: ColdFile,
        written: Mapping[str, int | str],
        replaces: ColdFile | None = None,
        state: State = "live",
    ) -> bool:
        """Make a file that is complete and verified live.

        Returns:
            False if it was condemned while it was written, or now because the generation that it replaces is not live
            any more.

        Args:
            file: the file.
            written: ``cells``, ``text_bytes``, ``file_bytes``, ``sha256`` and others of its attributes.
            replaces: the generation that it replaces, which is condemned in the same transaction.
            state: its state; "condemned" for one that only a restored backup may need.
        """
        live = sql.update_file(self._database, file.file_id, file.generation, ["writing"], {"state": state, **written})
        before: list[State] = ["live"] if state == "live" else ["live", "condemned"]

        def operation(connection: Connection) -> None:
            with connection.transaction():
                # Nothing is condemned unless its successor becomes live.
                if connection.execute(live).affected and replaces is not None:
                    condemn = sql.update_file(
                        self._database, replaces.file_id, replaces.generation, before, {"state": "condemned"}
                    )
                    if not connection.execute(condemn).affected:
                        connection.execute(
                            sql.update_file(
                                self._database, file.file_id, file.generation, ["live"], {"state": "condemned"}
                            )
                        )

        self._shards.run(self._shard, operation, writes=True)
        # The statement may have been repeated after a lost reply, and then it changes nothing.
        rows = [row for row in self.all(file_id=file.file_id) if row.generation == file.generation]
        return [(row.state, row.sha256) for row in rows] == [(state, written["sha256"])]

    def adopt(self, successor: ColdFile, replaces: ColdFile, last_event: int) -> bool:
        """List a later generation that the store has as live, in place of a live one whose object is gone.

        Args:
            successor: the generation, as ``content_in`` returns it.
            replaces: the listed one.
            last_event: the last event of the log of erased cells; an object that is gone has no documents.

        Returns:
            False if the listed one is not live any more, or a file of another name has the generation.
        """
        rows = [row for row in self.all(file_id=successor.file_id) if row.generation == successor.generation]
        if any(row.token != successor.token and row.state != "deleted" for row in rows):
            return False
        gone = sql.update_file(
            self._database,
            replaces.file_id,
            replaces.generation,
            ["live"],
            {"state": "deleted", "erased_event": last_event},
        )
        values = _values(successor, "live")

        def operation(connection: Connection) -> None:
            with connection.transaction():
                if not connection.execute(gone).affected:
                    return
                # A backup may have been made while it was being written.
                if not connection.execute(sql.update_writing_file(self._database, values)).affected:
                    connection.execute(sql.insert_known_file(self._database, values))

        self._shards.run(self._shard, operation, writes=True)
        return any(row.state == "live" for row in self.all(file_id=successor.file_id) if row.token == successor.token)

    def register(self, file: ColdFile) -> None:
        """List a file that exists as condemned, unless its generation is listed."""
        values = _values(file, "condemned")
        self._shards.execute(self._shard, sql.insert_known_file(self._database, values, ignore=True))

    def condemn(self, file: ColdFile, *states: State) -> bool:
        """Condemn a file that is in one of these states; return whether it is condemned."""
        return self._change(file, states, "condemned")

    def revive(self, file: ColdFile) -> bool:
        """Make a condemned file live again, to which cells refer; return whether it is live."""
        return self._change(file, ["condemned"], "live")

    def deleted(self, file: ColdFile) -> bool:
        """Record that the object of a condemned file is gone; return whether that is recorded."""
        return self._change(file, ["condemned"], "deleted")

    def references(self, after: int, up_to: int) -> dict[int, int]:
        """Return the numbers of cells in a range of added_ids that refer to files, by the file's number."""
        rows = self._shards.rows(self._shard, sql.count_references(self._database, after, up_to))
        return {int.from_bytes(number, "big"): int(count) for number, count in rows}

    def _change(self, file: ColdFile, states: Iterable[State], state: State) -> bool:
        statement = sql.update_file(self._database, file.file_id, file.generation, states, {"state": state})
        self._shards.execute(self._shard, statement)
        return any(row.state == state for row in self.all(file_id=file.file_id) if row.generation == file.generation)


def _values(file: ColdFile, state: State) -> dict[str, int | str]:
    return {"state": state, **{name: getattr(file, name) for name in sql.COPIED}}
